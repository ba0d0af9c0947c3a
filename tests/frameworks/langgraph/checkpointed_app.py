"""A graph with a checkpointer, and no durable run: what it does before a kill is in the ledger of ``effects``.

Started again, it continues the thread, as a program with a checkpointer does.
"""

from __future__ import annotations

import operator
from typing import Annotated

from effects import effect
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from holdfast.integrations.langgraph_checkpoints import HoldfastSaver

NODES = ["search", "choose", "charge", "report"]


class State(TypedDict):
    done: Annotated[list[str], operator.add]


def make_node(name: str):
    def node(state: State) -> State:
        with effect(name):
            return {"done": [name]}

    return node


def main() -> None:
    builder = StateGraph(State)
    for before, name in zip([START, *NODES], NODES, strict=False):
        builder.add_node(name, make_node(name)).add_edge(before, name)
    config = {"configurable": {"thread_id": "trip"}}
    with HoldfastSaver() as saver:
        graph = builder.compile(checkpointer=saver)
        began = graph.get_state(config).created_at is not None
        result = graph.invoke(None if began else {"done": []}, config, durability="sync")
    print(f"RESULT: {result['done']}")


if __name__ == "__main__":
    main()
