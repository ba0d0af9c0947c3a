"""A durable graph in code without an event loop."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph

from holdfast import Client
from holdfast.integrations.langgraph import durable


class State(TypedDict):
    seen: Annotated[list[int], operator.add]


def test_plain_code_streams_and_invokes(provider):
    def work(state: State) -> State:
        return {"seen": [1]}

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    graph = durable(builder.compile(name="plain"))
    assert graph.invoke({"seen": []}) == {"seen": [1]}
    assert list(graph.stream({"seen": [0]}, stream_mode="values")) == [{"seen": [0]}, {"seen": [0, 1]}]
    assert list(graph.with_config(tags=["x"]).stream({"seen": [0]}, stream_mode="updates")) == [{"work": {"seen": [1]}}]
    assert "work" in graph.get_graph().nodes
    changed = graph.with_config(configurable={"run_id": "plain-1"}, recursion_limit=7)
    assert changed.invoke({"seen": []}) == {"seen": [1]}
    assert changed.invoke({"seen": [2]}, {"configurable": {"run_id": "plain-2"}}) == {"seen": [2, 1]}
    assert Client().get_sync("plain-1").workflow == "plain"
