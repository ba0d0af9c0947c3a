"""The snippets of the page about the Claude Agent SDK, with a local provider in place of Anthropic."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_snippets import list_snippets, run_snippet
from provider_server import ProviderServer

SNIPPETS = list_snippets("claude-agent")
SCRIPTS = {
    "claude-sonnet-4-5": [
        {"calls": [{"tool": "mcp__hotels__book", "arguments": {"city": "Oslo"}}]},
        {"text": "All is booked."},
    ]
}
PRINTED = {0: "All is booked.\n", 3: "[] True\n"}


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number: int, tmp_path: Path):
    with ProviderServer(SCRIPTS, tmp_path / "provider.ledger") as provider:
        environment = {**provider.address.environment, "ANTHROPIC_MODEL": "claude-sonnet-4-5"}
        environment |= {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude"), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        assert run_snippet(SNIPPETS[number], tmp_path, **environment) == PRINTED.get(number, "")
