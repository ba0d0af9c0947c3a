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
APPS = {
    "client_app.py": [
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
    ],
    "http_app.py": [
        "httpx-sync",
        "httpx-async-stream",
        "httpx2-async",
        "httpx2-stream",
        "aiohttp-whole",
        "aiohttp-stream",
        "openai-over-aiohttp",
        "requests-whole",
        "requests-stream",
        "urllib3-whole",
    ],
}
FULL_KILL_COUNT = 15


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Few kills are spread over all agents of an app, which run one after the other; many are made of each agent."""
    is_full = metafunc.config.getoption("--kills") >= FULL_KILL_COUNT
    groups = [(app, [kind]) for app, kinds in APPS.items() for kind in kinds] if is_full else list(APPS.items())
    metafunc.parametrize(("app", "kinds"), groups, ids=[kinds[0] if is_full else app for app, kinds in groups])


def test_a_killed_agent_repeats_only_what_was_in_flight(app: str, kinds: list[str], check_kills):
    check_kills(App(Path(__file__).with_name(app), SCRIPTS, once={"charge"}, arguments=kinds))
