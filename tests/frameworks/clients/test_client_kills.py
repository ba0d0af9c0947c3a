"""Agents that call ``openai`` and ``anthropic`` themselves, killed everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kill_kit import App


def call(tool: str, query: str) -> dict[str, Any]:
    return {"tool": tool, "arguments": {"query": query}}


SCRIPTS = {
    "trip": [
        {"text": "I look.", "calls": [call("search", "Oslo"), call("search", "Rome")]},
        {"calls": [call("charge", "card"), call("search", "Bergen")]},
        {"text": "All is booked."},
    ]
}
KINDS = [
    "openai-sync",
    "openai-async",
    "openai-stream",
    "openai-async-stream",
    "responses",
    "responses-stream",
    "anthropic-sync",
    "anthropic-async",
    "anthropic-stream",
    "anthropic-async-stream",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_agent_repeats_only_what_was_in_flight(kind: str, check_kills):
    check_kills(App(Path(__file__).with_name("client_app.py"), SCRIPTS, once={"charge"}, arguments=[kind]))
