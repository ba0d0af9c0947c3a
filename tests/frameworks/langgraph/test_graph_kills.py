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


def make_app(kind: str) -> App:
    library = ["langgraph.graph", "langchain_openai", "holdfast.integrations.langgraph"]
    script = Path(__file__).with_name("graph_app.py")
    return App(script, SCRIPTS, once={"announce"}, arguments=[kind], library=library)


@pytest.mark.parametrize("kind", ["graph", "functional"])
def test_a_killed_graph_repeats_no_node(kind: str, check_kills):
    check_kills(make_app(kind))


@pytest.mark.usefixtures("only_with_many_kills")
def test_a_killed_program_of_parallel_graphs_repeats_no_node(check_kills):
    check_kills(make_app("program"))
