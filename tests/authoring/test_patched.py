"""``patched`` as users have it: in functions, class workflows and children, in tests, and on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Client, RunFailed, UsageError, Workflow, patched, step, tool, wait_for_signal, workflow
from holdfast.authoring.registry import definitions
from holdfast.authoring.runtime import Runtime
from holdfast.cli.runs.show import show_run
from holdfast.services.journal_files import export_run
from holdfast.stores.urls import create_store
from holdfast.testing import Runner, ScriptedModel, call
from holdfast.testing.crash_points import CrashPoint, parse_schedule
from holdfast.testing.journal_replay import JournalMismatch, replay_journal

did: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


@step
async def charge(amount: str) -> str:
    did.append(amount)
    return amount


@step
async def fetch(what: str) -> str:
    did.append(what)
    return what


def deploy(function: Any) -> Workflow[..., Any]:
    """Another version of the workflow ``order``."""
    definitions.pop("order", None)
    return workflow(name="order", id="the-order")(function)


async def old_order() -> list[str]:
    return [await fetch("price"), await charge("7 euros"), await wait_for_signal("paid")]


async def new_order() -> list[str]:
    price = await fetch("price")
    if patched("charge-in-cents"):
        charged = await charge("700 cents")
    else:
        charged = await charge("7 euros")
    return [price, charged, await wait_for_signal("paid")]


# Where it may be called


@pytest.mark.asyncio
async def test_outside_workflow_code_it_is_refused():
    @step
    async def asks() -> bool:
        return patched("x")

    @step
    def asks_in_a_thread() -> bool:
        return patched("x")

    @workflow
    async def flow(plain: bool) -> bool:
        return await (asks_in_a_thread() if plain else asks())

    said = "patched\\(\\) can be called only in workflow code, not in a step and not outside a run"
    with pytest.raises(UsageError, match=said):
        patched("x")
    for plain in (False, True):
        with pytest.raises(RunFailed, match=said):
            await flow(plain)


@pytest.mark.asyncio
async def test_a_change_without_a_name_is_refused():
    @workflow
    async def flow() -> bool:
        return patched("")

    with pytest.raises(RunFailed, match="a change needs a name, such as 'charge-in-cents'"):
        await flow()


@pytest.mark.asyncio
async def test_in_the_condition_of_a_declared_step():
    @workflow
    class Order:
        @step(1)
        async def price(self) -> int:
            return 7

        @step(2, depends_on=1, when=lambda price: patched("charge-in-cents"))
        async def in_cents(self, price: int) -> str:
            return f"{price}00 cents"

        @step(3, depends_on=1, when=lambda price: not patched("charge-in-cents"))
        async def in_euros(self, price: int) -> str:
            return f"{price} euros"

    runner = Runner()
    runner.simulate_crash_after(patch="charge-in-cents")
    result = await runner.run(Order)
    assert result.has_crashed
    result = await runner.resume(result.run_id)
    assert result.status == "completed"
    assert [one.output for one in result.steps] == [7, "700 cents"]


@pytest.mark.asyncio
async def test_a_child_decides_for_itself():
    @workflow
    async def child() -> bool:
        return patched("x")

    @workflow
    async def parent() -> list[bool]:
        return [await child(), patched("x"), await child()]

    runner = Runner()
    result = await runner.run(parent)
    assert result.output == [True, True, True]
    for run_id in (result.run_id, *(one.run_id for one in result.children)):
        assert [event.name for event in await runner.events(run_id) if event.kind == "patch"] == ["x"]


@pytest.mark.asyncio
async def test_around_an_agent_and_not_in_its_tools():
    @tool
    async def look() -> bool:
        """Look at it."""
        return patched("in a tool")

    watcher = Agent("openai:gpt-4o", name="patched-watcher", tools=[look])

    @workflow
    async def flow() -> str:
        if patched("say please"):
            return (await watcher("Look, please")).output
        return (await watcher("Look")).output

    model = ScriptedModel([call("look"), "seen"])
    runner = Runner(model=model)
    runner.simulate_crash_after(patch="say please")
    result = await runner.run(flow)
    result = await runner.resume(result.run_id)
    assert result.output == "seen"
    assert "Look, please" in str(model.calls[0].last_message)
    assert "can be called only in workflow code" in str(model.calls[-1].last_message)


# In tests


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_crash_at_the_record_of_a_patch(moment: str):
    flow = deploy(new_order)
    runner = Runner()
    runner.answer_signal("paid", "yes")
    getattr(runner, f"simulate_crash_{moment}")(patch="charge-in-cents")
    result = await runner.run(flow)
    assert result.has_crashed
    assert did == ["price"]
    result = await runner.resume(result.run_id)
    assert result.output == ["price", "700 cents", "yes"]
    assert did == ["price", "700 cents"]


def test_a_patch_is_reported_by_its_name():
    with pytest.raises(UsageError, match="patch=3: give its name"):
        Runner().simulate_crash_after(patch=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["charge-in-cents", "it's; after step 2", 'a "b"'])
def test_a_schedule_with_a_patch_can_be_read_again(name: str):
    points = [
        CrashPoint("before", "patch", 0, name),
        CrashPoint("after", "patch", 0, name, run_id="the run"),
        CrashPoint("after", "step", 2, "fetch"),
    ]
    assert parse_schedule("; ".join(map(str, points))) == points
    assert points[0].description == f"the process dies before patch {name!r} is recorded"


def test_crash_everywhere_finds_nothing_wrong_with_patches():
    @workflow
    async def flow() -> Any:
        async def branch(n: int) -> list[str]:
            told = [await fetch(f"{n}")]
            if patched("in all branches"):
                told.append(await fetch(f"{n} new"))
            if patched(f"in branch {n}"):
                await asyncio.sleep(n)
            return told

        told: list[Any] = await asyncio.gather(branch(1), branch(2))
        return [*told, patched("at the end"), await charge("7 euros")]

    report = Runner(max_pairs=20, replay_processes=0).crash_everywhere_sync(flow)
    assert report.result.output == [["1", "1 new"], ["2", "2 new"], True, "7 euros"]
    # Start, five steps, one or two timers, four patches, end: before, (during) and after each.
    assert report.point_count > 2 * (1 + 4 + 1 + 1) + 3 * 5 - 1


# Journals from before a change


async def exported(runtime: Runtime, path: Path) -> Path:
    store = create_store(runtime.url)
    await store.open()
    (await export_run(store, "the-order")).write(path)
    await store.close()
    return path


@pytest.mark.asyncio
async def test_journals_from_before_and_after_a_change_fit_the_code_of_both_ways(tmp_path: Path):
    async def newest() -> list[str]:
        return [await fetch("price"), await charge("700 cents"), await wait_for_signal("paid")]

    runtime = await Runtime.current()
    handle = await runtime.start(deploy(old_order))
    await handle.signal("paid", "yes")
    await handle.result()
    old = await exported(runtime, tmp_path / "old.json")
    assert replay_journal(old, deploy(new_order)).output == ["price", "7 euros", "yes"]

    handle = await runtime.start(deploy(new_order).options(id="newer"))
    await handle.signal("paid", "yes")
    assert await handle.result() == ["price", "700 cents", "yes"]
    store = create_store(runtime.url)
    await store.open()
    (await export_run(store, "newer")).write(new := tmp_path / "new.json")
    await store.close()
    assert '"kind": "patch"' in new.read_text()
    for code in (new_order, newest):
        assert replay_journal(new, deploy(code)).output == ["price", "700 cents", "yes"]
    await runtime.close()


@pytest.mark.asyncio
async def test_a_run_that_has_ended_has_been_at_its_end(tmp_path: Path):
    async def old() -> str:
        return await fetch("price")

    async def new() -> str:
        price = await fetch("price")
        return price.upper() if patched("loud") else price

    async def newest() -> str:
        return (await fetch("price")).upper()

    runtime = await Runtime.current()
    await (await runtime.start(deploy(old))).result()
    path = await exported(runtime, tmp_path / "old.json")
    await runtime.close()
    assert replay_journal(path, deploy(new)).output == "price"
    with pytest.raises(JournalMismatch):
        replay_journal(path, deploy(newest))


# For people


@pytest.mark.asyncio
async def test_a_patch_is_shown_in_events_and_by_show(url: str, capsys: pytest.CaptureFixture[str]):
    runtime = await Runtime.current()
    handle = await runtime.start(deploy(new_order))
    await handle.signal("paid", "yes")
    await handle.result()
    await runtime.close()
    async with Client(url) as client:
        events = [event async for event in client.handle("the-order").events()]
    [event] = [event for event in events if event.kind == "patch"]
    assert (event.name, event.step, event.data) == ("charge-in-cents", None, {})
    kinds = [event.kind for event in events]
    assert kinds.index("patch") == kinds.index("step") + 1

    await asyncio.to_thread(show_run, url, "the-order", as_json=False)
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines() if "patch charge-in-cents" in line] == [["–", "patch"]]
    await asyncio.to_thread(show_run, url, "the-order", as_json=True)
    [record] = [one for one in json.loads(capsys.readouterr().out)["journal"] if one["kind"] == "patch"]
    assert (record["number"], record["name"], record["ok"]) == (None, "charge-in-cents", True)
