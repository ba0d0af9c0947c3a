"""The snippets of the page on Google ADK, each run as a script."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from provider_server import ProviderServer

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "frameworks" / "google-adk.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def call(tool: str, **arguments: str) -> dict[str, object]:
    return {"calls": [{"tool": tool, "arguments": arguments}]}


SCRIPTS = [
    [call("look", city="Oslo"), {"text": "It said: {results}."}],
    [{"text": "A long plan."}, {"text": "A plan."}],
    [call("charge", card="42"), {"text": "Done."}],
]
OUTPUTS = ["It said: rain in Oslo.", "A plan.", "cashier"]


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number: int, provider: ProviderServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    provider.scripts = {"gemini-2.5-flash": SCRIPTS[number]}
    script = tmp_path / "snippet.py"
    script.write_text(SNIPPETS[number])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == OUTPUTS[number]


def test_the_page_has_these_snippets():
    assert len(SNIPPETS) == len(SCRIPTS)
