"""LangGraph, functional or as a graph, with a checkpointer on SQLite or Postgres and ``durability="sync"``."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from typing import Any, TypedDict

import peer_protocol
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    """The state of the graph: a counter and the last output."""

    ledger: str
    steps: int
    number: int
    output: str


@task
async def one(ledger: str, number: int) -> str:
    return await peer_protocol.run_step(ledger, number)


def build_functional(checkpointer: Any) -> Any:
    @entrypoint(checkpointer=checkpointer)
    async def sequence(wanted: dict[str, Any]) -> int:
        for number in range(1, wanted["steps"] + 1):
            await one(wanted["ledger"], number)
        return wanted["steps"]

    return sequence


def build_graph(checkpointer: Any) -> Any:
    async def node(state: State) -> dict[str, Any]:
        number = state["number"] + 1
        return {"number": number, "output": await peer_protocol.run_step(state["ledger"], number)}

    builder = StateGraph(State)
    builder.add_node("one", node)
    builder.add_edge(START, "one")
    builder.add_conditional_edges("one", lambda state: END if state["number"] == state["steps"] else "one")
    return builder.compile(checkpointer=checkpointer)


class LangGraph:
    async def open(self, store: str, variant: str) -> None:
        self._exit_stack = AsyncExitStack()
        checkpointer = await (self._open_postgres(store) if store.startswith("postgres") else self._open_sqlite(store))
        await checkpointer.setup()
        self._graph = (build_graph if variant == "graph" else build_functional)(checkpointer)

    async def _open_sqlite(self, store: str) -> Any:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        saver = AsyncSqliteSaver.from_conn_string(store.removeprefix("sqlite:///"))
        return await self._exit_stack.enter_async_context(saver)

    async def _open_postgres(self, store: str) -> Any:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool: Any = AsyncConnectionPool(store, min_size=4, max_size=10, kwargs=settings, open=False)
        return AsyncPostgresSaver(await self._exit_stack.enter_async_context(pool))

    async def _invoke(self, state: Any, thread: str, steps: int) -> None:
        config = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
        await self._graph.ainvoke(state, config, durability="sync")

    async def run_many(self, runs: int, steps: int) -> None:
        wanted = {"ledger": "", "steps": steps, "number": 0, "output": ""}
        await asyncio.gather(*[self._invoke(wanted, str(uuid.uuid4()), steps) for _ in range(runs)])

    async def start_run(self, ledger: str) -> None:
        wanted = {"ledger": ledger, "steps": peer_protocol.STEP_COUNT, "number": 0, "output": ""}
        self._started_run = asyncio.create_task(self._invoke(wanted, "crash", peer_protocol.STEP_COUNT))

    async def resume_run(self, ledger: str) -> None:
        await self._invoke(None, "crash", peer_protocol.STEP_COUNT)


peer_protocol.serve(LangGraph())
