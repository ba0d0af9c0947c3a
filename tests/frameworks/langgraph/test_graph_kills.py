"""Graphs with nodes, subgraphs, tasks, and interrupts, killed everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_kit import App

pytestmark = pytest.mark.timeout(1800)  # for many kills
SCRIPTS = {
    "read": [{"text": "It says a lot."}],
    "judge": [{"text": "Good."}],
    "review": [{"text": "A draft."}],
    "summary": [{"text": "Three pages."}],
}


@pytest.mark.parametrize("kind", ["graph", "functional", "program"])
def test_a_killed_graph_repeats_no_node(kind: str, check_kills):
    check_kills(App(Path(__file__).with_name("graph_app.py"), SCRIPTS, once={"publish"}, arguments=[kind]))
