"""Runs that nobody executes: they are started, read, listed and asked for things over a real Temporal server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from store_values import new_run
from temporal_stores import opened_store
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from holdfast.admission.queue_limits import QueueLimits
from holdfast.admission.usage import BudgetLimits
from holdfast.codec import read_error_info
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.errors import RunNotFound, UsageError, ValueTooLarge
from holdfast.stores.contract import RunFilter, WorkflowSpec
from holdfast.stores.memories import PutMemory
from holdfast.stores.operations import (
    AppendRecord,
    CancelRun,
    CancelState,
    NewRun,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    SendSignal,
    SetBudget,
    StartResult,
    StartRun,
)
from holdfast.stores.queues import NewQueue
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.rows import ExecutionDescription
from holdfast.stores.temporal.store import TemporalStore
from temporal_server import own
from waits import wait_until

pytestmark = pytest.mark.asyncio


async def start(store: TemporalStore, new: NewRun) -> StartResult:
    [answer] = await store.commit([StartRun(new)])
    assert isinstance(answer, StartResult)
    return answer


def a_run(name: str, **fields: Any) -> NewRun:
    return new_run(own(name), created_at=time.time(), **fields)


async def read(store: TemporalStore, run_id: str) -> Run:
    run = await store.get_run(run_id)
    assert run is not None
    return run


async def verdict(store: TemporalStore, op: Any) -> OpStatus:
    [answer] = await store.commit([op])
    assert isinstance(answer, OpStatus)
    return answer


# Starting


async def test_a_run_that_was_started_is_there_with_all_that_it_was_given(store: TemporalStore):
    new = a_run(
        "all", queue="gpu", version="2", priority=1, tags=("a", "b"), deadline=time.time() + 900, max_deliveries=7,
        python_version="3.11", queue_key="acme", parent="above",
    )  # fmt: skip
    answer = await start(store, new)
    assert answer.is_new
    found = await read(store, new.id)
    for name in ("id", "workflow", "inputs", "digest", "seed", "queue", "version", "priority", "tags", "deadline",
                 "max_deliveries", "python_version", "created_at", "queue_key", "parent"):  # fmt: skip
        assert getattr(found, name) == getattr(answer.run, name) == getattr(new, name), name
    assert (found.state, found.epoch, found.output, found.error) == (RunState.PENDING, 0, None, None)
    assert not found.has_budget
    told = await store.client.get_workflow_handle(new.id).describe()
    assert told.task_queue == "gpu/etl@2"
    assert told.raw_description.workflow_execution_info.priority.priority_key == 2, "smaller goes first over there"


async def test_a_start_that_is_repeated_is_answered_alike_and_another_one_finds_the_run(store: TemporalStore):
    new = a_run("once")
    assert (await start(store, new)).is_new
    assert (await start(store, new)).is_new, "the same seed: it is the same start"
    again = await start(store, replace(new, seed=b"another", digest=b"another"))
    assert not again.is_new
    assert (again.run.seed, again.run.digest) == (new.seed, new.digest)


async def test_a_run_is_not_started_before_its_time(store: TemporalStore):
    new = a_run("later", available_at=time.time() + 300)
    await start(store, new)
    found = await read(store, new.id)
    assert found.state is RunState.PENDING
    assert found.wake_at == pytest.approx(new.available_at, abs=5)


async def test_a_session_hears_of_a_run_when_it_is_started(store: TemporalStore):
    session, flow = own("talk"), own("agent")
    first, second = (a_run(name, session=session, workflow=flow) for name in ("one", "two"))
    await start(store, first)
    await start(store, second)
    await start(store, second)  # nobody has heard the answer
    history = await store.client.get_workflow_handle(identifiers.format_session_id(flow, session)).fetch_history()
    told = [event.workflow_execution_signaled_event_attributes for event in history.events]
    heard = [payload.data.decode() for one in told for payload in one.input.payloads]
    assert heard == [f'"{run.id}"' for run in (first, second, second)]


async def test_the_account_of_a_budget_hears_of_another_one(store: TemporalStore):
    new = a_run("spends", budget=BudgetLimits(calls=1))
    other = a_run("spends-nothing")
    await start(store, new)
    await start(store, other)
    given = BudgetLimits(calls=2)
    answers = [(await store.commit([SetBudget(id, given, 0.0)]))[0] for id in (new.id, other.id, "nobody")]
    assert answers == [OpStatus.DONE, OpStatus.REFUSED, OpStatus.UNKNOWN_RUN]
    assert (await store.get_usages([new.id]))[new.id].budget == new.budget  # until a worker is there, who hears of it
    account = await store.client.get_workflow_handle(identifiers.format_account_id(new.id)).fetch_history()
    assert sum(event.HasField("workflow_execution_signaled_event_attributes") for event in account.events) == 1


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"dedup_key": "etl:x"}, "dedup= or debounce=: not on Temporal"),
        ({"is_delivery": True}, "sending work to 'etl': not on Temporal"),
    ],
    ids=["dedup", "delivery"],
)
async def test_a_start_that_temporal_cannot_carry_out_is_refused(
    store: TemporalStore, fields: dict[str, Any], hint: str
):
    new = a_run("refused", **fields)
    with pytest.raises(UsageError, match=hint):
        await start(store, new)
    assert await store.get_run(new.id) is None


async def test_inputs_that_are_too_large_say_where_to_keep_them(store: TemporalStore):
    new = a_run("large", inputs=b'"' + b"x" * 3_000_000 + b'"')
    with pytest.raises(ValueTooLarge, match="payloads=/a/shared/folder"):
        await start(store, new)


# Asking for things


async def test_a_signal_is_kept_for_the_run_and_counts_once(store: TemporalStore):
    new = a_run("signalled")
    await start(store, new)
    assert await verdict(store, SendSignal(new.id, "go", b"1", None, 0.0)) is OpStatus.DONE
    assert await verdict(store, SendSignal(new.id, "go", b"2", "key", 0.0)) is OpStatus.DONE
    assert await verdict(store, SendSignal(new.id, "go", b"2", "key", 0.0)) is OpStatus.DUPLICATE
    assert await verdict(store, SendSignal(own("nobody"), "go", b"1", None, 0.0)) is OpStatus.UNKNOWN_RUN
    [history] = await store.get_histories([(await read(store, new.id)).key])
    assert [(one.name, one.payload) for one in history.signals] == [("go", b"1"), ("go", b"2")]
    assert history.records == []
    with pytest.raises(UsageError, match="are Holdfast's own"):
        await verdict(store, SendSignal(new.id, identifiers.PAUSE_SIGNAL, b"null", None, 0.0))


async def test_a_run_is_paused_and_resumed(store: TemporalStore):
    new = a_run("paused")
    await start(store, new)
    assert await verdict(store, ResumeRun(new.id, 0.0)) is OpStatus.DUPLICATE
    assert await verdict(store, PauseRun(new.id, 0.0)) is OpStatus.DONE
    assert await verdict(store, PauseRun(new.id, 0.0)) is OpStatus.DUPLICATE
    assert (await read(store, new.id)).paused_at == pytest.approx(time.time(), abs=60)
    assert await verdict(store, ResumeRun(new.id, 0.0)) is OpStatus.DONE
    assert (await read(store, new.id)).paused_at is None


async def test_a_cancel_is_requested_once_and_only_for_this_run(store: TemporalStore):
    new = a_run("cancelled")
    await start(store, new)
    assert await verdict(store, CancelRun(new.id, 0.0, seed=b"another")) is OpStatus.REFUSED
    assert await verdict(store, CancelRun(new.id, 0.0, seed=new.seed)) is OpStatus.DONE
    assert await verdict(store, CancelRun(new.id, 0.0)) is OpStatus.DUPLICATE
    assert (await read(store, new.id)).cancel_state is CancelState.REQUESTED
    assert await verdict(store, CancelRun(own("nobody"), 0.0)) is OpStatus.UNKNOWN_RUN


async def test_a_run_that_was_ended_by_other_means_has_failed_and_says_how(store: TemporalStore):
    new = a_run("terminated")
    await start(store, new)
    await read(store, new.id)
    waiting = asyncio.create_task(store.wait_until_ended(new.id))
    changed = asyncio.create_task(store.wait_for_change(30.0))
    await asyncio.sleep(0.1)
    await store.client.get_workflow_handle(new.id).terminate(reason="out of order")
    found = await asyncio.wait_for(waiting, 10)
    assert await asyncio.wait_for(changed, 10) is True, "whoever waits for a run that was read is told of its end"
    assert found.state is RunState.FAILED
    assert found.finished_at is not None
    assert read_error_info(found.error or b"").message == f"run {new.id!r} was terminated in Temporal (out of order)"
    for op in (
        SendSignal(new.id, "go", b"1", None, 0.0), CancelRun(new.id, 0.0), PauseRun(new.id, 0.0), ResumeRun(new.id, 0.0)
    ):  # fmt: skip
        assert await verdict(store, op) is OpStatus.ENDED, op
    assert await verdict(store, ReopenRun(own("nobody"), 0.0)) is OpStatus.UNKNOWN_RUN
    with pytest.raises(RunNotFound):
        await store.wait_until_ended(own("nobody"))


async def test_a_run_that_never_began_is_retried_with_its_mailbox(store: TemporalStore):
    new = a_run("retried", tags=("kept",), version="3")
    await start(store, new)
    assert await verdict(store, ReopenRun(new.id, 0.0)) is OpStatus.ENDED, "it has not ended"
    await verdict(store, SendSignal(new.id, "go", b"7", None, 0.0))
    await store.client.get_workflow_handle(new.id).terminate()
    assert await verdict(store, ReopenRun(new.id, 0.0, version="4")) is OpStatus.DONE
    assert await verdict(store, ReopenRun(new.id, 0.0)) is OpStatus.ENDED
    found = await read(store, new.id)
    assert (found.state, found.version, found.tags) == (RunState.PENDING, "4", ("kept",))
    assert (found.seed, found.created_at, found.inputs) == (new.seed, new.created_at, new.inputs)
    [history] = await store.get_histories([found.key])
    assert [(one.name, one.payload) for one in history.signals] == [("go", b"7")]
    assert (await store.client.get_workflow_handle(new.id).describe()).task_queue == "default/etl@4"


# Lists


async def test_runs_are_listed_by_what_they_are_the_newest_first(store: TemporalStore):
    flow = own("listed's \\ flow")
    runs = [a_run(f"list{number}", workflow=flow, tags=(f"t{number % 2}",)) for number in range(5)]
    for new in runs:
        await start(store, new)
    ids = [new.id for new in reversed(runs)]

    async def found(limit: int = 50, before: int | None = None, **fields: Any) -> list[str]:
        where = RunFilter(workflow=flow, **fields)
        return [run.id for run in await store.list_runs(where, limit=limit, before_key=before)]

    async def all_listed() -> bool:
        return await found() == ids

    await wait_until(all_listed)
    page = await store.list_runs(RunFilter(workflow=flow), limit=2)
    assert [run.id for run in page] == ids[:2]
    assert await found(before=page[-1].key) == ids[2:]
    assert await found(tag="t1") == [ids[1], ids[3]]
    store._has_tags = False
    assert await found(tag="t1") == [ids[1], ids[3]], "without the search attribute, too"
    assert await found(states=[RunState.PENDING]) == ids
    assert await found(states=[RunState.RUNNING, RunState.COMPLETED]) == []
    assert await found(text="LIST3") == [ids[1]]
    assert await found(id_prefix="list3") == [ids[1]]
    assert await found(created_after=runs[3].created_at) == ids[:2]
    assert await found(created_before=runs[3].created_at) == ids[2:]
    assert await found(parent="above") == []
    assert await found(owner=3) == []
    assert (await store.count_unfinished_runs())[flow, ""] == 5

    await store.client.get_workflow_handle(ids[0]).terminate()

    async def counted() -> bool:
        return await found(states=[RunState.FAILED]) == [ids[0]] and await found(states=[RunState.PENDING]) == ids[1:]

    await wait_until(counted)
    await verdict(store, ReopenRun(ids[0], 0.0))

    async def one_row() -> bool:
        return await found(states=[RunState.PENDING]) == ids and await found(states=[RunState.FAILED]) == []

    await wait_until(one_row)  # its former execution is not listed beside it
    assert sorted(await found()) == sorted(ids)


async def test_a_search_in_pieces_finds_what_a_list_finds_over_temporal(
    store: TemporalStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.stores.temporal.store.MAX_SEARCHED_RUNS", 2)
    flow = own("searched")
    runs = [await start(store, a_run(f"piece{number}", workflow=flow)) for number in range(5)]
    wanted = runs[1].run.id

    async def all_listed() -> bool:
        return len(await store.list_runs(RunFilter(workflow=flow))) == 5

    await wait_until(all_listed)
    found, before, pieces = [], None, 0
    while pieces == 0 or before is not None:
        piece = await store.search_runs(RunFilter(workflow=flow, text=wanted.upper()), limit=5, before_key=before)
        found += [run.id for run in piece.runs]
        assert (piece.cursor is None) == (piece.cursor_created_at is None)
        before, pieces = piece.cursor, pieces + 1
    assert (found, pieces) == ([wanted], 3)


async def test_an_outline_is_made_from_a_history(store: TemporalStore):
    new = a_run("outlined")
    await start(store, new)
    outline = await store.get_journal_page(new.id)
    assert outline is not None
    assert (outline.run.id, list(outline.records), list(outline.segments)) == (new.id, [], [])
    assert await store.get_journal_page(own("nobody")) is await store.get_journal_page("half \udc80") is None


async def test_a_run_paused_with_temporals_own_tools_has_not_ended():
    paused = WorkflowExecutionInfo(status=WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED)
    assert ExecutionDescription(paused, {}).is_open


async def test_many_runs_are_read_span_by_span(store: TemporalStore, monkeypatch: pytest.MonkeyPatch):
    from holdfast.stores.temporal import visibility

    monkeypatch.setattr(visibility, "_MAX_WINDOW_COUNT", 8)
    flow = own("many")
    runs = [a_run(f"many{number}", workflow=flow) for number in range(30)]
    await asyncio.gather(*(start(store, new) for new in runs))
    query = visibility.make_query(RunFilter(workflow=flow), has_tags=False)

    async def all_listed() -> bool:
        return await visibility.count_executions(store.client, query) == 30

    await wait_until(all_listed)
    found: list[Run] = []
    while page := await store.list_runs(RunFilter(workflow=flow), limit=7, before_key=found[-1].key if found else None):
        found += page
    assert sorted(run.id for run in found) == sorted(new.id for new in runs)
    assert [run.key for run in found] == sorted((run.key for run in found), reverse=True)


async def test_a_journal_is_found_by_the_key_of_its_run_also_by_another_process(store: TemporalStore):
    new = a_run("keyed")
    await start(store, new)
    run = await read(store, new.id)
    other = await opened_store()

    async def is_found() -> bool:
        try:
            return await other._find_run_id(run.key) == new.id
        except Exception:
            return False

    await wait_until(is_found)
    [history] = await other.get_histories([run.key])
    assert history.records == []
    await other.close()


# Workflows


async def test_a_workflow_is_known_to_all_once_it_is_announced(store: TemporalStore):
    name = own("flow")
    spec = WorkflowSpec(name, ("customer",), timeout_s=3.0, tags=("a",), budget=BudgetLimits(calls=2), version="1")
    await store.announce_workflows([spec, WorkflowSpec(name, ("customer",), version="2")])
    other = await opened_store()
    found = await other.get_workflow_specs()
    assert found[f"{name}@1"] == spec
    assert found[f"{name}@2"].version == "2"
    first = found[f"{name}@1"].announced_at
    await store.announce_workflows([spec, replace(spec, version="2", queue="gpu")])
    found = await other.get_workflow_specs()
    assert found[f"{name}@2"].queue == "gpu"
    assert found[f"{name}@1"].announced_at == first
    assert all(run.workflow != identifiers.ANNOUNCEMENT_TYPE for run in await store.list_runs(RunFilter(), limit=500))
    assert await store.get_run(f"{identifiers.ANNOUNCEMENT_ID_PREFIX}{name}@1") is None, "it is no run"
    assert [worker for worker in await other.list_workers() if f"{name}@1" in worker.workflows] == []
    await other.close()


# What there is not


async def test_memories_are_kept_where_the_url_says(store: TemporalStore, tmp_path: Any):
    with pytest.raises(UsageError, match=r"\?memory=postgresql"):
        await store.commit([PutMemory("ns", "k", b"1", "", 0.0)])
    with pytest.raises(UsageError, match=r"\?memory=postgresql"):
        await store.memories.get("ns", "k")
    keeping = await opened_store(f"memory=sqlite:///{tmp_path}/memories.db")
    await keeping.commit([PutMemory("ns", "k", b"1", "some words", 0.0)])
    assert (await keeping.memories.get("ns", "k")).value == b"1"  # type: ignore[union-attr]
    assert [one.key for one in await keeping.memories.search("ns", "words")] == ["k"]
    assert [one.key for one in await keeping.memories.list("ns")] == ["k"]
    await keeping.close()


async def test_what_temporal_cannot_do_is_refused_in_the_same_way(store: TemporalStore):
    record = Record(0, RecordKind.STEP, 0, "fetch", True, b"1", 0.0)
    asked = {
        "record": lambda: store.commit([AppendRecord(1, record)]),
        "work": lambda: store.workers,
        "claim": lambda: store.claims,
        "steps": lambda: store.step_transactions,
        "prune": lambda: store.retention,
        "off": lambda: store.disabled_workflows.disable("etl"),
        "schedules": lambda: store.schedules,
        "limits": lambda: store.queues.declare([NewQueue("gpu", QueueLimits(concurrency=1))]),
        "audit": lambda: store.audit_log,
        "documents": lambda: store.documents.list("key"),
        "days": lambda: store.daily_usage,
        "archive": lambda: store.archives,
    }
    for what, ask in asked.items():
        with pytest.raises(UsageError) as raised:
            await ask()
        told = str(raised.value)
        assert ": not on Temporal, " in told, what
        assert ". Instead, " in told, what
        assert told.endswith("See docs/temporal.md."), what
        assert what != "documents" or told.startswith("API keys: ")
    await store.queues.declare([NewQueue("gpu", QueueLimits())])
    assert await store.disabled_workflows.get_all() == {}
    assert await store.queues.list() == []
