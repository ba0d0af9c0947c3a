"""A crew of three agents, killed everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kill_kit import App
from quiet import QUIET

HERE = Path(__file__).parent


def call(tool: str, query: str) -> dict[str, Any]:
    return {"tool": tool, "arguments": {"query": query}}


SCRIPTS = {
    "researcher": [
        {"calls": [call("search", "Oslo"), call("search", "Bergen")]},
        {"text": "Oslo is nice."},
    ],
    "booker": [
        {"calls": [call("search", "hotel")]},
        {"calls": [call("charge", "card")]},
        {"text": "All is booked: {results}"},
    ],
    "writer": [{"text": "Dear traveler, all is booked."}],
}


@pytest.mark.parametrize("kind", ["own-run", "program", "async-program"])
def test_a_killed_crew_repeats_no_task(kind: str, check_kills, request: pytest.FixtureRequest):
    if kind != "own-run" and request.config.getoption("--kills") <= 2:
        pytest.skip("the gate kills the crew in a run of its own; --kills 3 or more kills it in programs, too")
    library = ["crewai", "crewai.tools", "holdfast.integrations.crewai"]
    script = HERE / "crew_app.py"
    app = App(script, SCRIPTS, once={"charge"}, arguments=[kind], environment=QUIET, library=library)
    check_kills(app)
