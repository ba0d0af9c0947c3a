"""Whatever happens, in whatever order, all stores give the same answers and end in the same state."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from queue_values import make_limits
from store_values import CLAIM_FILTER, FLOW, Clock, new_run, new_worker

from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.core.records import Attempt, Record, RecordKind, Rewind
from holdfast.core.states import RunState
from holdfast.stores.approvals import (
    AnswerApproval,
    ApprovalFilter,
    ApprovalRequest,
    RemindApproval,
    RequestApproval,
    WithdrawApproval,
)
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    AwaitRun,
    CancelRun,
    FinishRun,
    ForkRun,
    LiveEvent,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    ReserveUsage,
    ResumeRun,
    RunLink,
    SaveAttempt,
    SendSignal,
    SetBudget,
    Settlement,
    StartRun,
)
from holdfast.stores.queues import NewQueue
from holdfast.stores.sqlite import SqliteStore

RUNS = ["r1", "r2", "r3"]
WORKERS = st.integers(1, 3)
ids = st.sampled_from(RUNS)
positions = st.integers(0, 2)
rarely = st.sampled_from([False, False, False, True])
FILTERS = [RunFilter(parent="r1"), RunFilter(owner=1), RunFilter(text="R2"), RunFilter(text="holdfast retry")]
APPROVALS = [
    ApprovalFilter(only_open=False), ApprovalFilter(), ApprovalFilter(run_id="r1"), ApprovalFilter(assignee="bob"),
    ApprovalFilter(id_prefix="a"), ApprovalFilter(workflow=FLOW), ApprovalFilter(workflow="none", only_open=False),
    ApprovalFilter(after=(1_000_000.0, "a1")), ApprovalFilter(only_open=False, after=(1_000_000.0, "a2")),
    ApprovalFilter(only_closed=True, after=(1_000_000.0, "a1")), ApprovalFilter(only_closed=True, after=(1e9, "gone")),
]  # fmt: skip
SEARCHES = ["dog", "dog cafe", "the dogs likes", "京", "e", "''\"", "a OR dog*"]
keys, epochs, seqs = st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)
times = st.sampled_from([999_990.0, 1_000_000.0, 1_000_010.0])
names = st.sampled_from(["go", "stop"])
ends = st.sampled_from([RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED])
usages = st.builds(Usage, st.just(1), st.integers(0, 40), st.integers(0, 40), nano_usd=st.integers(0, 9))
budgets = st.builds(
    BudgetLimits, st.none() | st.just(20), st.none() | st.just(90), st.none() | st.just(3), st.none() | st.just(60.0)
)
# What is left out, Hypothesis draws by the annotations, and a time is never NaN or infinite.
attempts = st.builds(
    Attempt,
    st.integers(1, 2),
    st.integers(1, 3),
    at=times,
    retry_at=st.none() | times,
    failing_since=st.none() | times,
)


LIMITS = [
    make_limits(1),
    make_limits(2, "1/5s", "60 tokens/10s", key_concurrency=1),
    make_limits(None, key_rates=("1/10s",)),
]
QUESTIONS = [
    ApprovalRequest("really?", "ann"),
    ApprovalRequest("really?", "ann", form_schema=b"{}"),
    ApprovalRequest("why?", choices=("a", "b")),
]
asked = st.sampled_from(["a1", "a2", "b1"])
told = st.builds(
    LiveEvent, positions, st.sampled_from(["1", "2"]), st.integers(0, 2), st.sampled_from(["started", "text"]),
    st.sampled_from([b"1", b"2"]), times,
)  # fmt: skip
spaces = st.sampled_from(["ann", "bob"])
places = st.sampled_from(["likes", "a-dog", "Café"])
texts = st.lists(st.sampled_from(["dog", "Dogs,", "café", "CAFE\u0301", "the", "東京", "e"]), max_size=4).map(" ".join)
memories = st.builds(PutMemory, spaces, places, st.sampled_from([b"1", b"2"]), texts, times) | st.builds(
    DeleteMemory, spaces, places
)
approvals = st.one_of(
    st.builds(RequestApproval, keys, epochs, positions, asked, st.sampled_from(QUESTIONS), times, st.none() | times),
    st.builds(RequestApproval, keys, epochs, positions, asked, st.sampled_from(QUESTIONS), times, st.none() | times),
    st.builds(
        RemindApproval,
        keys,
        epochs,
        asked,
        st.integers(1, 2),
        st.sampled_from(["bob", "\udc80"]),
        times,
        st.none() | times,
    ),
    st.builds(WithdrawApproval, keys, epochs, asked, times),
    st.builds(AnswerApproval, asked, st.sampled_from([b"true", b"false"]), st.sampled_from(["ann", "bob"]), times),
)


@st.composite
def new_runs(draw: st.DrawFn) -> Any:
    return new_run(
        draw(ids),
        seed=draw(st.sampled_from([b"s", b"t"])),
        priority=draw(st.integers(0, 1)),
        available_at=draw(st.sampled_from([0.0, 1_000_005.0])),
        has_generated_id=draw(st.booleans()),
        starter=draw(st.none() | WORKERS),
        max_deliveries=draw(st.integers(1, 2)),
        parent=draw(st.sampled_from(["", *RUNS])),
        budget=draw(st.none() | budgets),
        session=draw(st.sampled_from(["", "talk"])),
        previous_run=draw(st.sampled_from(["", "r1"])),
        inputs=draw(st.sampled_from([b"1", b"2"])),
        queue_key=draw(st.sampled_from(["", "acme"])),
        dedup_key=draw(st.sampled_from(["", "", "same"])),
        max_debounce_s=draw(st.sampled_from([None, 4.0])),
        is_delivery=draw(st.booleans()),
        deadline=draw(st.sampled_from([None, 1_000_001.0, 1_000_004.0])),
    )


@st.composite
def rewinds(draw: st.DrawFn) -> Rewind:
    failed = draw(st.lists(seqs, max_size=2).map(tuple))
    return Rewind(failed, draw(positions), draw(positions), draw(rarely), failed[:1] if draw(rarely) else ())


@st.composite
def settlements(draw: st.DrawFn) -> Settlement:
    given = Record(0, RecordKind.STEP, draw(positions), "pay", True, b"1", 1_000_003.0, attempts=0)
    return Settlement(draw(st.integers(0, 2)), draw(rewinds()), draw(st.none() | st.just(given)))


@st.composite
def forks(draw: st.DrawFn) -> ForkRun:
    keep = draw(seqs)
    last = Record(keep, RecordKind.STEP, 1, "x", True, b"q", 1.0)
    return ForkRun(draw(ids), draw(new_runs()), keep, draw(st.none() | st.just(last)))


@st.composite
def appends(draw: st.DrawFn) -> AppendRecord:
    made = Record(
        draw(seqs), draw(st.sampled_from(RecordKind)), draw(positions), "x", draw(st.booleans()), b"p",
        draw(st.sampled_from([1.0, 90_000.0])), epoch=draw(epochs),
    )  # fmt: skip
    return AppendRecord(
        draw(keys), made, draw(st.none() | st.integers(1, 3)), clear_attempt=draw(st.booleans()),
        reset_delivery_count=draw(st.booleans()), used=draw(st.none() | usages), memory=draw(st.none() | memories),
        clear_live_events=draw(st.booleans()), model=draw(st.sampled_from(["", "a:1"])),
    )  # fmt: skip


links = st.builds(RunLink, keys, epochs, positions, st.sampled_from([True, True, False]))
finishes = st.builds(
    FinishRun, keys, epochs, ends, st.none() | st.just(b"o"), st.none() | st.just(b"e"), times,
    st.none() | rewinds(), st.booleans(),
)  # fmt: skip
operations = st.one_of(
    appends(),
    st.builds(StartRun, new_runs(), st.none() | WORKERS, st.booleans(), st.none() | links),
    st.builds(AwaitRun, ids, links),
    st.builds(SaveAttempt, keys, epochs, attempts),
    finishes,
    finishes,
    st.builds(
        ParkRun,
        keys,
        epochs,
        st.none() | times,
        st.lists(names, max_size=2).map(tuple),
        st.just("x"),
        st.none() | seqs,
        st.lists(positions, max_size=2).map(tuple),
        st.booleans(),
        st.lists(asked, max_size=2).map(tuple),
    ),
    st.builds(ReleaseRun, keys, epochs, st.none() | times, st.none() | st.just(b"e")),
    st.builds(ReserveUsage, keys, epochs, positions, usages),
    st.builds(ReserveUsage, keys, epochs, positions, usages),
    st.builds(SetBudget, ids, budgets, times),
    st.builds(SendSignal, ids, names, st.just(b"1"), st.none() | st.just("dedup"), times),
    st.builds(CancelRun, ids, times, st.sampled_from([None, None, b"s"])),
    st.builds(PauseRun, ids, times),
    st.builds(ResumeRun, ids, times),
    st.builds(ReopenRun, ids, times, st.booleans(), settlement=st.none()),
    st.builds(ReopenRun, ids, times, settlement=settlements()),
    st.builds(ReopenRun, ids, times, st.booleans(), settlement=st.none()),
    forks(),
    approvals,
    approvals,
    st.builds(AppendLiveEvents, keys, epochs, st.lists(told, max_size=3).map(tuple)),
    memories,
)
batches = st.lists(operations, min_size=1, max_size=6).map(lambda ops: ("commit", ops))
events = st.one_of(
    batches,
    batches,
    batches.map(lambda event: ("twice", event[1])),
    st.tuples(st.just("claim"), WORKERS),
    st.tuples(st.just("retire"), WORKERS),
    st.tuples(st.just("kill"), WORKERS),
    st.tuples(st.just("later"), st.sampled_from([1.0, 6.0])),
    st.tuples(st.just("register"), st.booleans()),
    st.tuples(st.just("keep"), WORKERS),
    st.tuples(st.just("expire"), st.integers(1, 2)),
    st.tuples(st.just("sweep"), st.sampled_from([0.0, 100_000.0])),
    st.tuples(st.just("off"), st.just(0)),
    st.tuples(st.just("on"), st.just(0)),
    st.tuples(st.just("limit"), st.none() | st.sampled_from(LIMITS)),
    st.tuples(st.just("announce"), st.sampled_from(LIMITS)),
    st.tuples(st.just("pause"), st.just(0)),
    st.tuples(st.just("resume"), st.just(0)),
    st.tuples(st.just("put"), st.tuples(spaces, st.sampled_from([None, 0, 1, 2]))),
    st.tuples(st.just("drop"), spaces),
)


async def live(store: Any, clock: Clock, story: list[tuple[str, Any]]) -> list[Any]:
    """Lets a store go through a story, and tells all that can be seen of it."""
    seen: list[Any] = []
    await store.open()
    for _ in range(2):
        await store.workers.register(new_worker(), 5.0)
    for event, detail in story:
        match event:
            case "commit":
                seen.append(await store.commit(detail))
            case "twice":
                await store.commit(detail)
                seen.append(await store.commit(detail))
            case "claim":
                seen.append(await store.claims.claim(detail, **CLAIM_FILTER, limit=2))
            case "retire":
                await store.workers.retire(detail)
            case "kill":
                kill(store, detail)
                seen.append(await store.workers.reap_dead())
            case "later":
                clock.advance(detail)
                seen.append(await store.workers.reap_dead(include_listeners=detail > 5.0))
            case "keep":
                seen.append(await store.workers.renew_listener_lease(detail, 2.0))
            case "expire":
                seen.append(await store.claims.expire_runs(detail))
            case "sweep":
                clock.advance(detail)
                await store.retention.sweep()
                seen.append(await store.list_workers([1, 2, 3, 4]))
            case "off":
                seen.append(await store.disabled_workflows.disable(FLOW))
            case "on":
                seen.append(await store.disabled_workflows.enable(FLOW))
            case "limit":
                seen.append(await store.queues.set_limits("default", detail))
            case "announce":
                await store.queues.declare([NewQueue("default", detail)])
            case "pause":
                seen.append(await store.queues.pause("default"))
            case "resume":
                seen.append(await store.queues.resume("default"))
            case "put":
                name, version = detail
                seen.append(await store.documents.put("key", name, f"{len(seen)}".encode(), if_version=version))
            case "drop":
                seen.append(await store.documents.delete("key", detail))
            case _:
                seen.append(await store.workers.register(new_worker(is_listener=detail), 5.0))
        seen.append(await look(store))
    await store.close()
    return seen


def kill(store: Any, worker: int) -> None:
    if isinstance(store, MemoryStore):
        store.simulate_worker_death(worker)
    elif worker in store.workers._own_workers:
        store.workers._locks.release(store.workers._own_workers[worker])


async def look(store: Store) -> list[Any]:
    runs = await store.list_runs(RunFilter())
    histories = await store.get_histories([run.key for run in runs])
    wake, queues = await store.claims.get_next_wake_at(**CLAIM_FILTER), await store.queues.list()
    return [
        runs,
        [(list(h.records), dict(h.attempts), list(h.signals)) for h in histories],
        # Where there are limits, it may be too early.
        None if wake is None or queues else max(wake, store.now()),
        queues,
        await store.list_workers(),
        await store.count_runs(),
        [list((await store.claims.get_new_signals(worker, 0)).signals) for worker in (1, 2, 3)],
        [await store.claims.get_run_requests(worker) for worker in (1, 2, 3)],
        await store.disabled_workflows.get_all(),
        await store.get_usages(RUNS),
        [[run.id for run in await store.list_runs(where)] for where in FILTERS],
        [await store.list_approvals(where) for where in APPROVALS],
        [await follow(store, run_id) for run_id in RUNS],
        [await store.get_last_record(run_id, "x") for run_id in RUNS],
        [await store.memories.list(space, after=after) for space in ("ann", "bob") for after in ("", "likes")],
        [await store.memories.search("ann", words) for words in SEARCHES],
        await store.documents.list("key"),
        await store.daily_usage.get("1970-01-01", "1970-01-02"),
        await store.daily_usage.get_run_counts("1970-01-01", "1970-01-31"),
    ]


async def follow(store: Store, run_id: str) -> Any:
    """All that is told of a run; which numbers notices have is the store's business, as long as they rise."""
    found = await store.get_run_updates(run_id, -1, 0)
    if found is None:
        return None
    numbers = [number for number, _ in found.live_events]
    assert numbers == sorted(set(numbers))
    behind = await store.get_run_updates(run_id, 1, numbers[0] if numbers else 0)
    assert behind is not None
    assert behind.live_events == found.live_events[1:]
    assert behind.records == [made for made in found.records if made.seq > 1]
    return found.run, list(found.records), [notice for _, notice in found.live_events]


@settings(max_examples=150)
@example([("register", True), ("kill", 3)])  # no store can see whether the process of a worker by lease is there
@given(st.lists(events, min_size=1, max_size=12))
def test_the_stores_agree_on_every_story(story: list[tuple[str, Any]]):
    with tempfile.TemporaryDirectory() as folder:
        here, there = Clock(), Clock()
        in_memory = asyncio.run(live(MemoryStore(clock=here), here, story))
        in_a_file = asyncio.run(live(SqliteStore(Path(folder) / "runs.db", clock=there), there, story))
    assert in_a_file == in_memory
