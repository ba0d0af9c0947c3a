"""A client reads an agent's plan without the agent's code, while the run is under way and afterwards."""

from __future__ import annotations

import asyncio

import pytest
from model_scripts import write_plan

from holdfast import Agent, Client, Plan, RunFailed, RunNotFound, Runtime, step, tool, wait_for_signal, workflow
from holdfast.core.records import Record, RecordKind
from holdfast.reports.plans import PlanItem, plan_from_record
from holdfast.testing import ScriptedModel, call

URL = "sqlite:///runs.db"


def test_the_plan_is_read_by_id_and_is_live() -> None:
    gate, seen = asyncio.Event(), asyncio.Event()

    @tool
    async def dig() -> str:
        """Waits until somebody has looked at the plan."""
        gate.set()
        await seen.wait()
        return "a bone"

    script = [write_plan(dig="working", bury="open"), call("dig"), write_plan(dig="done", bury="dropped"), "A bone."]
    agent = Agent(ScriptedModel(script), name="client-digger", tools=[dig], planning=True)

    async def main() -> None:
        async with Runtime(URL), Client(URL) as client:
            handle = await agent.options(id="dig-1").start("Dig.")
            await gate.wait()
            now = await client.plan("dig-1")
            assert now == Plan((PlanItem("dig", "working"), PlanItem("bury", "open")))
            assert await client.handle("dig-1").plan() == await handle.plan() == now
            assert repr(now) == "Plan(working: 'dig', open: 'bury')"
            seen.set()
            await handle.result()
            now = await client.plan("dig-1")
            assert (now.done_count, now.open_count, len(now), now[-1].status) == (1, 0, 2, "dropped")
            assert [item.task for item in now[:1]] == ["dig"]

    asyncio.run(main())
    assert Client(URL).plan_sync("dig-1").done_count == 1


@step(name="write_plan")
async def write_something_else() -> dict[str, str]:
    return {"task": "x"}


@workflow(id="client-not-planning")
async def not_planning() -> None:
    await write_something_else()


def test_a_run_that_has_no_plan_has_an_empty_one_and_one_that_is_not_there_is_an_error() -> None:
    async def main() -> None:
        async with Runtime(URL), Client(URL) as client:
            await not_planning()
            assert await client.plan("client-not-planning") == Plan()
            with pytest.raises(RunNotFound, match="no-such-run"):
                await client.plan("no-such-run")

    asyncio.run(main())


def test_workflow_code_cannot_ask_for_a_plan_because_it_changes() -> None:
    @workflow
    async def client_child() -> None:
        await wait_for_signal("never")

    @workflow
    async def client_asking() -> None:
        await (await client_child.start()).plan()

    async def main() -> None:
        async with Runtime(URL):
            with pytest.raises(RunFailed, match="workflow code cannot read other runs"):
                await client_asking()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "ok", "payload"),
    [
        (RecordKind.STEP, False, b'[{"task":"a","status":"open"}]'),
        (RecordKind.CHILD, True, b'[{"task":"a","status":"open"}]'),
        (RecordKind.STEP, True, b"[]"),
        (RecordKind.STEP, True, b'[{"task":"a","status":"lost"}]'),
        (RecordKind.STEP, True, b'[{"task":1,"status":"open"}]'),
        (RecordKind.STEP, True, b'["a"]'),
        (RecordKind.STEP, True, b"{"),
    ],
    ids=["failed", "child", "empty", "status", "task", "texts", "broken"],
)
def test_a_record_that_is_no_plan_is_none(kind: RecordKind, ok: bool, payload: bytes) -> None:
    record = Record(seq=0, kind=kind, position=0, name="write_plan", ok=ok, payload=payload, at=0.0)
    assert plan_from_record(record) is None
    good = Record(seq=0, kind=RecordKind.STEP, position=0, name="write_plan", ok=True, payload=PLANNED, at=0.0)
    assert plan_from_record(good) == Plan((PlanItem("a"),))


PLANNED = b'[{"task":"a","status":"open"}]'
