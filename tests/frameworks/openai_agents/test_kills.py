"""The travel agency of ``agent_app``, killed everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_parts import call
from kill_kit import App

SCRIPTS = {
    "triage": [
        {"text": "I look.", "calls": [call("search", query="Oslo"), call("search", query="Rome")]},
        {"calls": [call("transfer_to_booking")]},
    ],
    # The conversation before the handoff has two answers.
    "booking": [
        {},
        {},
        {"calls": [call("ask_meteorologist", input="Oslo?"), call("search", query="hotel")]},
        {"calls": [call("charge", query="card"), call("search", query="Bergen")]},
        {"text": "All is booked."},
    ],
    "weather": [{"calls": [call("check_weather", query="Oslo")]}, {"text": "It is {results}."}],
}


@pytest.mark.parametrize("kind", ["own", "program", "stream", "stream-program", "sync"])
@pytest.mark.parametrize("api", ["responses", "chat"])
def test_a_killed_agent_repeats_only_what_was_in_flight(api: str, kind: str, request, check_kills):
    if request.config.getoption("--kills") < 5 and (api, kind) not in (("responses", "own"), ("chat", "stream")):
        pytest.skip("a part of the full matrix: --kills 5 or more")
    library = ["agents", "holdfast.integrations.openai_agents"]
    script = Path(__file__).with_name("agent_app.py")
    app = App(script, SCRIPTS, once={"charge"}, arguments=[api, kind], library=library)
    check_kills(app)
