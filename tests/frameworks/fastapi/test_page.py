"""The snippets of the page about FastAPI."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from app_process import AppProcess
from page_snippets import list_snippets, run_snippet

SNIPPETS = list_snippets("fastapi")


def test_the_first_snippet_is_an_app(tmp_path: Path):
    (tmp_path / "snippet.py").write_text(SNIPPETS[0])
    command = ["-m", "uvicorn", "snippet:app", "--port", "{port}"]
    app = AppProcess(command, tmp_path, f"sqlite:///{tmp_path / 'runs.db'}")
    app.start()
    try:
        assert app.post("/poems/17?topic=summer", None).json() == {"run": "17"}
        with app.stream("/poems/17/events") as stream:
            events = list(stream)
        texts = [json.loads(event.data)["text"] for event in events if event.event == "text"]
        assert "".join(texts) == "Shall I compare thee to a summer's day?"
    finally:
        app.stop(signal.SIGKILL)


@pytest.mark.parametrize("number", range(1, len(SNIPPETS)))
def test_a_snippet_runs(number: int, tmp_path: Path):
    shown = run_snippet(SNIPPETS[number], tmp_path)
    assert shown == ("3 customers\n" if "print(" in SNIPPETS[number] else "")
