"""What a client sees of runs that Temporal's workers execute: journals, events, retries, forks and questions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import temporal_server
from holdfast import Agent, Client, Runtime, ask, patched, step, wait_for_signal, workflow
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.errors import ApprovalClosed, RetryRefused, RunCancelled, RunUnsuccessful
from holdfast.stores.contract import RunFilter
from holdfast.stores.temporal.history import fetch_events
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.journals import infer_records, make_exact_records
from holdfast.stores.temporal.outcomes import Outcomes, read_outcomes
from holdfast.stores.temporal.requests import find_run
from holdfast.stores.temporal.run_details import query_journal
from holdfast.stores.temporal.store import TemporalStore
from holdfast.testing.scripted_model import ScriptedModel
from temporal_server import own
from waits import wait_until

pytestmark = pytest.mark.asyncio


# Each step notes what it does in a file outside of everything


def _done(ledger: str, what: str) -> None:
    with open(ledger, "a") as file:
        file.write(f"{what}\n")


def _lines(ledger: Path) -> Counter[str]:
    return Counter(ledger.read_text().splitlines()) if ledger.exists() else Counter()


@step
async def ts_double(ledger: str, n: int) -> int:
    _done(ledger, f"double {n}")
    return n * 2


@step
async def ts_fail_without(ledger: str, mark: str) -> str:
    _done(ledger, "attempt")
    if not Path(f"{ledger}.{mark}").exists():
        raise ValueError(f"there is no {mark} yet")
    return mark


@step(effect="once")
async def ts_pay_without(ledger: str, mark: str) -> str:
    _done(ledger, "pay")
    if not Path(f"{ledger}.{mark}").exists():
        raise ValueError(f"there is no {mark} yet")
    return mark


@step
async def ts_wait_for(ledger: str, mark: str) -> str:
    while not Path(f"{ledger}.{mark}").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return mark


@step
async def ts_unbook(ledger: str) -> None:
    _done(ledger, "unbook")


@step(compensate=ts_unbook)
async def ts_book(ledger: str) -> str:
    _done(ledger, "book")
    return "booked"


@workflow
async def ts_child(ledger: str, n: int) -> int:
    return await ts_double(ledger, n)


@workflow
async def ts_all_sorts(ledger: str, n: int) -> list[Any]:
    own_way = await ts_child.options(id=f"{ledger}-own-way").start(ledger, 50)
    first, awaited = await asyncio.gather(ts_double(ledger, n), ts_child(ledger, 7))
    is_delivered = [await wait_for_signal("go")]
    if patched("new way"):
        await asyncio.sleep(0.02)
    is_delivered.append(await wait_for_signal("go"))
    other = await own_way.result()
    return [awaited, is_delivered, other, await ts_double(ledger, first)]


@workflow
async def ts_fails(ledger: str) -> list[Any]:
    first = await ts_double(ledger, 1)
    is_delivered = await wait_for_signal("go")
    return [first, is_delivered, await ts_fail_without(ledger, "mark"), await ts_double(ledger, 3)]


@workflow
async def ts_fails_in_child(ledger: str) -> list[Any]:
    return [await ts_double(ledger, 1), await ts_failing_child(ledger)]


@workflow
async def ts_failing_child(ledger: str) -> str:
    await ts_double(ledger, 2)
    return await ts_fail_without(ledger, "mark")


@workflow
async def ts_pays(ledger: str) -> str:
    return await ts_pay_without(ledger, "mark")


@workflow
async def ts_undoes(ledger: str) -> str:
    await ts_book(ledger)
    return await ts_fail_without(ledger, "mark")


@workflow
async def ts_waits(ledger: str) -> list[Any]:
    first = await ts_double(ledger, 4)
    is_delivered = await wait_for_signal("go")
    return [first, is_delivered]


@workflow
async def ts_asks(ledger: str) -> str:
    await ts_double(ledger, 5)
    return await ask("Which one?", choices=["a", "b"])


@workflow
async def ts_begins(ledger: str) -> str:
    return await ts_wait_for(ledger, "mark")


ts_agent = Agent(ScriptedModel(["hello"]), name="ts_agent")


@workflow
async def ts_talks(ledger: str) -> str:
    return (await ts_agent.run("hi")).output


FLOWS = [
    "ts_agent", "ts_talks",
    "ts_child", "ts_all_sorts", "ts_fails", "ts_fails_in_child", "ts_failing_child", "ts_pays", "ts_undoes", "ts_waits",
    "ts_asks", "ts_begins",
]  # fmt: skip


class World:
    """A worker, a client, and what the client reads."""

    def __init__(self, client: Client, store: TemporalStore, ledger: Path) -> None:
        self.client = client
        self.store = store
        self.ledger = ledger

    async def start(self, flow: str, *args: Any) -> Any:
        return await self.client.options(id=own(flow)).start(flow, str(self.ledger), *args)

    def mark(self) -> None:
        Path(f"{self.ledger}.mark").touch()

    async def records(self, run_id: str) -> list[Record]:
        run = await self.store.get_run(run_id)
        assert run is not None
        [history] = await self.store.get_histories([run.key])
        return [*history.records]

    async def waits(self, run_id: str) -> None:
        async def is_waiting() -> bool:
            run = await self.store.get_run(run_id)
            return run is not None and run.state is RunState.WAITING

        await wait_until(is_waiting)

    async def kinds(self, run_id: str) -> list[str]:
        return [event.kind async for event in self.client.events(run_id)]


@pytest_asyncio.fixture
async def world(store: TemporalStore, tmp_path: Path) -> AsyncIterator[World]:
    url = temporal_server.url()
    async with Runtime(url, workflows=FLOWS), Client(url) as client:
        yield World(client, store, tmp_path / own("ledger"))


def _shape(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(one.seq, one.kind, one.position, one.name, one.ok, one.payload, one.preview) for one in records]


async def test_a_history_has_the_records_that_the_code_saw_and_never_loses_one(world: World):
    handle = await world.start("ts_all_sorts", 3)
    await world.waits(handle.run_id)
    await handle.signal("go", 1)
    await handle.signal("go", 1, id="twice")
    await handle.signal("go", 2, id="twice")
    assert await handle.result() == [14, [1, 1], 100, 12]
    is_delivered = await find_run(world.store.client, handle.run_id)
    assert is_delivered is not None
    events = await fetch_events(world.store.client, handle.run_id)
    outcomes = read_outcomes(events)
    exact, unheard = make_exact_records(
        outcomes, (await query_journal(world.store.client, is_delivered))["order"], handle.run_id
    )
    seen, left = infer_records(outcomes, handle.run_id)
    assert unheard == left == []
    assert sorted(map(repr, _shape_without_order(exact))) == sorted(map(repr, _shape_without_order(seen)))
    traced = [_traced(records, outcomes) for records in (exact, seen)]
    assert traced[0] == traced[1]
    for length in range(1, len(events) + 1):
        so_far, _ = infer_records(read_outcomes(events[:length]), handle.run_id)
        assert _shape(so_far) == _shape(seen)[: len(so_far)], f"after {length} events"
    assert {record.kind for record in exact} >= {
        RecordKind.STEP,
        RecordKind.CHILD,
        RecordKind.START,
        RecordKind.SIGNAL,
        RecordKind.TIMER,
        RecordKind.PATCH,
    }


def _traced(records: list[Record], outcomes: Outcomes) -> list[tuple[RecordKind, int]]:
    """Those whose place the history tells: not a wait for a signal, nor for a run that another command had started."""
    ended = {*outcomes.ended_steps, *outcomes.children}
    return [(one.kind, one.position) for one in records if one.kind is RecordKind.TIMER or one.position in ended]


def _shape_without_order(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(one.kind, one.position, one.name, one.ok, one.payload, one.preview) for one in records]


async def test_a_failed_run_is_retried_from_where_it_failed(world: World):
    handle = await world.start("ts_fails")
    await handle.signal("go", "now")
    with pytest.raises(RunUnsuccessful, match="there is no mark yet"):
        await handle.result()
    assert [(one.name, one.ok) for one in await world.records(handle.run_id)] == [
        ("ts_double", True), ("go", True), ("ts_fail_without", False),
    ]  # fmt: skip
    before = [event async for event in world.client.events(handle.run_id)]
    assert [event.kind for event in before] == ["step", "signal", "step", "ended"]
    world.mark()
    await world.client.retry(handle.run_id)
    assert await handle.result() == [2, "now", "mark", 6]
    assert _lines(world.ledger) == {"double 1": 1, "attempt": 2, "double 3": 1}
    assert [one.name for one in await world.records(handle.run_id)] == [
        "ts_double", "go", "ts_fail_without", "ts_double",
    ]  # fmt: skip
    since = [event.kind async for event in world.client.events(handle.run_id, after=before[-1].offset)]
    assert since == ["reopened", "step", "step", "ended"], "who had seen the end is told of what came after it"
    assert await world.kinds(handle.run_id) == ["step", "signal", "reopened", "step", "step", "ended"]
    with pytest.raises(RetryRefused, match="is completed"):
        await world.client.retry(handle.run_id)


async def test_a_run_is_retried_with_the_child_that_has_failed(world: World):
    handle = await world.start("ts_fails_in_child")
    with pytest.raises(RunUnsuccessful):
        await handle.result()
    world.mark()
    await world.client.retry(handle.run_id)
    assert await handle.result() == [2, "mark"]
    assert _lines(world.ledger) == {"double 1": 1, "double 2": 1, "attempt": 2}
    family = [one.preview for one in await world.records(handle.run_id) if one.kind is RecordKind.CHILD]
    run = await world.store.get_run(family[0])
    assert run is not None
    assert (run.state, run.parent) == (RunState.COMPLETED, handle.run_id)

    async def is_listed_once() -> bool:
        children = await world.store.list_runs(RunFilter(parent=handle.run_id))
        return [(child.id, child.state) for child in children] == [(run.id, RunState.COMPLETED)]

    await wait_until(is_listed_once)  # by its first execution, though the second one is nobody's child in Temporal
    [child] = await world.store.list_runs(RunFilter(parent=handle.run_id))
    assert await world.store.list_runs(RunFilter(parent=handle.run_id), before_key=child.key) == [], (
        "nor on the next page"
    )
    [history] = await world.store.get_histories([child.key])
    assert history == await world.store.read_journal(run.id)


async def test_a_once_step_runs_a_second_time_only_on_request(world: World):
    handle = await world.start("ts_pays")
    with pytest.raises(RunUnsuccessful):
        await handle.result()
    world.mark()
    with pytest.raises(RetryRefused, match="`once` step"):
        await world.client.retry(handle.run_id)
    assert _lines(world.ledger) == {"pay": 1}
    await world.client.retry(handle.run_id, run_again=True)
    assert await handle.result() == "mark"


async def test_what_was_undone_is_not_gone_on_with(world: World):
    handle = await world.start("ts_undoes")
    with pytest.raises(RunUnsuccessful):
        await handle.result()
    assert RecordKind.COMPENSATION in [one.kind for one in await world.records(handle.run_id)]
    with pytest.raises(RetryRefused, match="have undone"):
        await world.client.retry(handle.run_id)
    assert _lines(world.ledger) == {"book": 1, "attempt": 1, "unbook": 1}


async def test_a_cancelled_run_goes_on_where_it_was(world: World):
    handle = await world.start("ts_waits")
    await world.waits(handle.run_id)
    assert await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert (await world.records(handle.run_id))[-1].kind is RecordKind.CANCEL
    await world.client.retry(handle.run_id)
    await handle.signal("go", "on")
    assert await handle.result() == [8, "on"]
    assert _lines(world.ledger) == {"double 4": 1}


async def test_a_fork_shares_the_beginning_and_leaves_its_origin_alone(world: World):
    handle = await world.start("ts_waits")
    await handle.signal("go", "origin")
    assert await handle.result() == [8, "origin"]
    fork = await world.client.fork(handle.run_id, at="go", with_output="fork", id=own("fork"))
    assert await fork.result() == [8, "fork"]
    again = await world.client.fork(handle.run_id, at=1)
    await again.signal("go", "again")
    assert await again.result() == [8, "again"]
    assert _lines(world.ledger) == {"double 4": 2}
    assert await handle.result() == [8, "origin"]
    assert (await world.client.get(fork.run_id)).forked_from == handle.run_id


async def test_a_question_is_answered_once(world: World):
    handle = await world.start("ts_asks")

    async def is_approval_open() -> bool:
        return bool(await handle.approvals())

    await wait_until(is_approval_open)
    [asked] = await handle.approvals()
    assert (asked.question, asked.choices, asked.step_number) == ("Which one?", ("a", "b"), 2)

    async def is_listed() -> bool:
        return asked.id in [one.id for one in await world.client.approvals()]

    await wait_until(is_listed)
    assert await world.client.approve(asked.id, "b", by="me")
    assert await handle.result() == "b"
    assert await world.client.approve(asked.id, "b", by="me") is False
    with pytest.raises(ApprovalClosed, match="me answered it"):
        await world.client.deny(asked.id, by="you")
    kinds = [(event.kind, event.data.get("state")) async for event in world.client.events(handle.run_id)]
    assert [state for kind, state in kinds if kind == "approval"] == ["requested", "answered"]


async def test_a_question_of_a_run_that_was_cancelled_is_withdrawn(world: World):
    handle = await world.start("ts_asks")

    async def is_approval_open() -> bool:
        return bool(await handle.approvals())

    await wait_until(is_approval_open)
    [asked] = await handle.approvals()
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result()
    assert await handle.approvals() == []
    with pytest.raises(ApprovalClosed, match="was cancelled"):
        await world.client.approve(asked.id, "a")


async def test_who_follows_a_run_hears_of_steps_when_they_begin(world: World):
    handle = await world.start("ts_begins")
    seen: list[str] = []
    async with asyncio.timeout(20):
        async for event in world.client.events(handle.run_id):
            seen.append(f"{event.kind} {event.name}")
            if event.kind == "started":
                [history] = await world.store.get_histories([(await world.store.get_run(handle.run_id)).key])  # type: ignore[union-attr]
                assert [(one.name, one.attempt) for one in history.attempts.values()] == [("ts_wait_for", 1)]
                assert (await world.client.get(handle.run_id)).state is RunState.RUNNING
                world.mark()
    assert seen == ["started ts_wait_for", "step ts_wait_for", "ended "]


async def test_a_run_has_used_what_the_runs_below_it_have_used(world: World):
    handle = await world.start("ts_talks")
    assert await handle.result() == "hello"
    assert (await handle.usage()).calls == 1
    [child] = [one.preview for one in await world.records(handle.run_id)]
    assert await world.client.usage(child) == await handle.usage()


async def test_a_list_shows_usage_without_reading_histories(world: World, monkeypatch: pytest.MonkeyPatch):
    handle = await world.start("ts_talks")
    assert await handle.result() == "hello"
    [child] = [one.preview for one in await world.records(handle.run_id)]
    used = await handle.usage()

    async def is_delivered(run_id: str) -> bool:
        listed = {info.id: info.usage for info in await world.client.list(id_prefix=run_id)}
        return listed.get(run_id) == used

    read: list[object] = []
    monkeypatch.setattr(HistoryCache, "_load", lambda _, is_delivered: read.append(is_delivered))
    for run_id in (handle.run_id, child):  # the parent has used what its child has used
        await wait_until(lambda run_id=run_id: is_delivered(run_id))
    assert read == []


async def test_who_polls_is_who_serves(world: World):
    health = {one.name: one for one in await world.client.health()}
    assert health["ts_waits"].state == "serving"
    handle = await world.start("ts_waits")
    await world.waits(handle.run_id)
    info = await world.client.get(handle.run_id)
    assert info.stall_advice is None
    await handle.cancel()
