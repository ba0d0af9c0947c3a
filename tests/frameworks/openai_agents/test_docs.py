"""The snippets of the page in the docs run with a new store each."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agent_parts import call

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "frameworks" / "openai-agents.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

DONE = {"text": "Done: {results}"}
ANSWERS: dict[str, tuple[list[Any], str]] = {
    "Travel": ([{"calls": [call("search", query="Oslo")]}, DONE], "Done: Three hotels in Oslo.\n"),
    "Writer": ([{"text": "A text."}, {"text": "A better text."}], "A better text.\n"),
    "Cashier": ([{"calls": [call("charge", amount=5)]}, DONE], "Done: Charged 5 euros.\n"),
    "Support": ([{"text": "It is on its way."}], "True\n"),
    "Seller": ([{"calls": [call("price", product="tent")]}, DONE], "Done: tent: 20 euros\n"),
    "Refunds": ([], "Refunds\n"),
}
"""By the first agent of a snippet: the model's answers, and what it prints."""


@pytest.mark.parametrize("code", SNIPPETS, ids=[str(number) for number in range(1, len(SNIPPETS) + 1)])
def test_a_snippet_runs(
    code: str, provider: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    name = re.findall(r'name="(\w+)"', code)[0]
    answers, printed = ANSWERS[name]
    provider.script(**{"gpt-4o": answers})
    monkeypatch.chdir(tmp_path)
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(code, str(tmp_path / "snippet.py"), "exec", dont_inherit=True), vars(module))
    assert capsys.readouterr().out == printed
