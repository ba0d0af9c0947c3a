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
GROUPS = {
    "openai": ("openai-sync", "openai-async", "openai-stream", "openai-async-stream", "responses", "responses-stream"),
    "anthropic": ("anthropic-sync", "anthropic-async", "anthropic-stream", "anthropic-async-stream"),
    "httpx": ("httpx-sync", "httpx-async-stream", "httpx2-async", "httpx2-stream"),
    "aiohttp": ("aiohttp-whole", "aiohttp-stream", "openai-over-aiohttp"),
    "urllib3": ("requests-whole", "requests-stream", "urllib3-whole"),
}
"""The agents of each library. A process runs all agents of a group, one after the other."""
APPS = {"client_app.py": ("openai", "anthropic"), "http_app.py": ("httpx", "aiohttp", "urllib3")}
FULL_KILL_COUNT = 15


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Few kills are spread over all agents of an app; many are made for each group."""
    is_full = metafunc.config.getoption("--kills") >= FULL_KILL_COUNT
    cases = [
        (app, groups) for app, all_groups in APPS.items() for groups in (zip(all_groups) if is_full else [all_groups])
    ]
    metafunc.parametrize(("app", "groups"), cases, ids=["-".join(groups) for _, groups in cases])


def test_a_killed_agent_repeats_only_what_was_in_flight(app: str, groups: tuple[str, ...], check_kills):
    agents = [agent for group in groups for agent in GROUPS[group]]
    ours = ["holdfast.integrations.anthropic", "holdfast.integrations.openai"]
    library = ["anthropic", "openai", "aiohttp", "urllib3", *ours]
    script = Path(__file__).with_name(app)
    check_kills(App(script, SCRIPTS, once={"charge"}, arguments=agents, library=library))
