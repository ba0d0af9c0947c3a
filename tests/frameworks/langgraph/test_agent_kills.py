"""An agent of ``create_agent``, killed everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kill_kit import App


def call(tool: str, query: str) -> dict[str, Any]:
    return {"tool": tool, "arguments": {"query": query}}


pytestmark = pytest.mark.timeout(1800)  # for many kills
SCRIPTS = {
    "trip": [
        {"text": "I look.", "calls": [call("search", "Oslo"), call("search", "Rome")]},
        {"calls": [call("charge", "card"), call("search", "Bergen")]},
        {"text": "All is booked."},
        {"text": "All is booked, I said."},
    ]
}


def make_app(kind: str) -> App:
    library = ["langchain.agents", "langchain_openai", "holdfast.integrations.langgraph"]
    script = Path(__file__).with_name("agent_app.py")
    return App(script, SCRIPTS, once={"charge"}, arguments=[kind], library=library)


def test_a_killed_agent_repeats_no_call(check_kills):
    check_kills(make_app("program"))


@pytest.mark.usefixtures("only_with_many_kills")
@pytest.mark.parametrize("kind", ["own", "sync", "stream"])
def test_a_killed_agent_with_a_run_of_its_own_repeats_no_call(kind: str, check_kills):
    check_kills(make_app(kind))
