"""A pipeline of Google ADK (see ``agent_app``), killed everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kill_kit import App


def call(tool: str, query: str) -> dict[str, Any]:
    return {"tool": tool, "arguments": {"query": query}}


SCRIPTS = {
    "planner": [
        {"text": "I look.", "calls": [call("search", "Oslo"), call("search", "Rome"), call("check_weather", "Oslo")]},
        {"calls": [{"tool": "transfer_to_agent", "arguments": {"agent_name": "booker"}}]},
    ],
    "booker": [{"calls": [call("charge", "card"), call("search", "Bergen")]}, {"text": "All is booked."}],
    "cost": [{"calls": [call("check_weather", "cost")]}, {"text": "It is cheap."}],
    "style": [{"calls": [call("check_weather", "style")]}, {"text": "It is elegant."}],
    "editor": [{"text": "A fine trip."}],
}


MANY_KILLS = 15


@pytest.mark.parametrize("kind", ["stored", "own", "program", "stream", "remembered"])
def test_a_killed_pipeline_repeats_nothing_that_is_recorded(
    kind: str, check_kills: Callable[[App], None], request: pytest.FixtureRequest
):
    if kind != "stored" and request.config.getoption("--kills") < MANY_KILLS:
        pytest.skip(f"only with --kills {MANY_KILLS}: each process imports the framework, which takes seconds")
    library = ["google.adk.agents", "google.adk.runners", "holdfast.integrations.google_adk"]
    script = Path(__file__).with_name("agent_app.py")
    check_kills(App(script, SCRIPTS, once={"charge"}, arguments=[kind], library=library))
