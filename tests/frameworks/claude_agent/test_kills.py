"""A program that uses the SDK's real executable, killed at every kind of point.

The executable's model calls are its own: a turn that was cut off asks the model again for what its transcript lacks. So
the kit's check of requests does not apply. What must hold is checked here.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kill_kit import REQUEST, App, Ending, Kill, choose_kills, make_reference, open_store, run_app

from holdfast import Client


def call(tool: str, query: str) -> dict[str, Any]:
    return {"tool": f"mcp__shop__{tool}", "arguments": {"query": query}}


SCRIPTS = {
    "trip": [
        {"text": "I look.", "calls": [call("search", "Oslo"), call("search", "Rome")]},
        {"calls": [call("charge", "card")]},
        {"text": "All is booked."},
        {"text": "All is booked, I said."},
    ]
}
APP = App(
    Path(__file__).with_name("agent_app.py"),
    SCRIPTS,
    library=["claude_agent_sdk", "holdfast.integrations.claude_agent"],
)


@pytest.mark.timeout(1800)  # with --kills 15, on several stores
def test_a_killed_turn_resumes_and_repeats_no_recorded_tool(request: pytest.FixtureRequest, tmp_path: Path):
    for store in request.config.getoption("--kill-stores").split(","):
        with open_store(store, tmp_path / f"{store}-reference") as url:
            reference = make_reference(APP, tmp_path / f"{store}-reference", url)
        for kill in choose_kills(reference, request.config.getoption("--kills")):
            folder = tmp_path / f"{store}-{kill}".replace(":", "-")
            with open_store(store, folder) as url:
                check(reference, kill, folder, url)


def check(reference: Ending, kill: Kill, folder: Path, url: str) -> None:
    first = run_app(APP, folder, url, kill)
    assert first.returncode == -signal.SIGKILL, f"{kill}: the app was not killed, but ended:\n{first.log}"
    recorded = asyncio.run(count_recorded(url))
    second = run_app(APP, folder, url)
    assert second.returncode == 0, f"{kill}: the second process failed:\n{second.log}"
    assert second.result == reference.result, f"{kill}: another output:\n{second.log}"
    assert recorded["agent turn"] < 2 or second.requests == 0, f"{kill}: a recorded turn asked the model again"
    if recorded["agent turn"] == 1:
        assert second.requests == 1, f"{kill}: the first turn is recorded, and the second one has one request"
    for name in ("search", "charge"):
        most = reference.effects[f"start:{name}"] - recorded[name]
        assert second.effects[f"start:{name}"] <= most, f"{kill}: {name} was recorded, and ran again\n{second.log}"
    charged = first.effects["start:charge"] + second.effects["start:charge"]
    assert charged <= 1, f"{kill}: the once tool ran twice"
    if kill.kind == REQUEST:  # no tool was in flight: all of them have run exactly once
        assert first.effects + second.effects == reference.effects, kill


async def count_recorded(url: str) -> Counter[str]:
    """The successful steps in the store, by name."""
    async with Client(url) as client:
        report = await client.describe("trip", limit=None)
    return Counter(entry.name for entry in report.journal if entry.ok and entry.kind == "step")
