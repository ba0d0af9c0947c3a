"""The snippets of the page about checkpointers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "frameworks" / "langgraph-checkpointers.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
OUTPUTS = [
    "Book Oslo?\n{'city': 'Oslo', 'answer': 'yes'}\n",
    "{'text': 'Coffee', 'cups': 4}\n{'text': 'Tea, with milk'}\n",
    "['Hi', 'Hello!', 'Me again', 'Hello!']\n6 checkpoints\n",
]


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    code = compile(SNIPPETS[number], f"{PAGE.name}#{number + 1}", "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__"})
    assert capsys.readouterr().out == OUTPUTS[number]
