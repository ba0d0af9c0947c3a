"""Namespaces of one database: nothing that is said in one is seen, changed, fenced, claimed or woken in another.

Two namespaces hold the very same ids, keys and workers. Every method of the contract, and every operation of a commit,
is called through one of them with what belongs to the other; a new one without a case here fails the first test.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit, urlunsplit

import postgres_server
import psycopg
import pytest
import pytest_asyncio
from psycopg import sql
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    FLOW,
    Clock,
    append,
    commit_ops,
    finish,
    link,
    new_run,
    new_worker,
    park,
    read_run,
    release,
    reserve,
    save_attempt,
    signal,
    start_run,
)

from holdfast.admission.queue_limits import QueueLimits
from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.codec import ERASED
from holdfast.core.records import Attempt
from holdfast.core.states import RunState
from holdfast.errors import StoreError, StoreReadOnly
from holdfast.stores.approvals import (
    AnswerApproval,
    ApprovalFilter,
    ApprovalRequest,
    RemindApproval,
    RequestApproval,
    WithdrawApproval,
)
from holdfast.stores.archives import ArchivedRun, RunExtras
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.capabilities import Capability
from holdfast.stores.claims import ClaimNext, NewSignals
from holdfast.stores.contract import MAX_INLINE_BYTES, RunFilter, RunSearchPage, Store, WorkflowSpec
from holdfast.stores.erasure import EraseRequest, EraseResult
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import (
    AppendLiveEvents,
    AwaitRun,
    CancelRun,
    ForkRun,
    LiveEvent,
    Op,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    SetBudget,
    StartResult,
    StartRun,
)
from holdfast.stores.postgres import PgStore
from holdfast.stores.postgres.migrations import ddl
from holdfast.stores.queues import NewQueue
from holdfast.stores.retention import PruneRequest
from holdfast.stores.schedules import ScheduleDefinition
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import ReapResult

pytestmark = pytest.mark.asyncio
on_databases = pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
"""A store in memory shares nothing with another one anyway."""

LARGE = b'"' + b"x" * (MAX_INLINE_BYTES + 1) + b'"'
UNKNOWN = OpStatus.UNKNOWN_RUN
AT = 1_000_009.0
EVER = ("0001-01-01", "9999-12-31")
EVERYTHING = PruneRequest(
    finished_before=3_000_000.0, states=frozenset({RunState.COMPLETED, RunState.FAILED}), include_unclaimed=True
)


@dataclass
class Shared:
    """A database with two namespaces."""

    open: Callable[[str], Store]
    """Another connection to a namespace."""
    dump: Callable[[str], Any]
    """All that a namespace holds, row by row."""
    kill_worker: Callable[[Any, int], None]


def sqlite_rows(path: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM [{name}]").fetchall() for name in names}


def postgres_rows(url: str, schema: str) -> dict[str, list[Any]]:
    kinds = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'S')"
    with psycopg.connect(url) as connection:
        names = [name for (name,) in connection.execute(kinds, (schema,))]
        every = sql.SQL("SELECT * FROM {}")
        return {
            name: sorted(connection.execute(every.format(sql.Identifier(schema, name))), key=repr) for name in names
        }


@pytest.fixture
def shared(request: pytest.FixtureRequest, backend: Any, tmp_path: Path, clock: Clock) -> Iterator[Shared]:
    with backend.place(tmp_path) as place:
        if request.node.callspec.params["backend"] == "sqlite":

            def of(namespace: str) -> SqliteStore:
                return SqliteStore(tmp_path / "runs.db", namespace=namespace, clock=clock)

            yield Shared(of, lambda namespace: sqlite_rows(of(namespace).path), backend.kill_worker)
        else:

            def on(namespace: str) -> PgStore:
                return PgStore(place, namespace=namespace, clock=clock, poll_interval_s=0.0)

            yield Shared(on, lambda namespace: postgres_rows(place, on(namespace).schema), backend.kill_worker)


@pytest_asyncio.fixture
async def ours(shared: Shared) -> AsyncIterator[Store]:
    store = shared.open("default")
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def theirs(shared: Shared) -> AsyncIterator[Store]:
    store = shared.open("acme")
    await store.open()
    yield store
    await store.close()


def spec(name: str = FLOW) -> WorkflowSpec:
    return WorkflowSpec(name, ("customer",))


def schedule(name: str) -> ScheduleDefinition:
    return ScheduleDefinition(name, FLOW, "every 15 min", b"{}")


def audited(target: str) -> AuditEvent:
    return AuditEvent(AT, "k1", "Ann", "cancelRun", target, "allowed", "::1")


def question(run: Run) -> RequestApproval:
    return RequestApproval(run.key, run.epoch, 5, "a1", ApprovalRequest("May it?", "ann"), AT)


async def fill(store: Store, payload: bytes = LARGE) -> Run:
    """Something of everything. The run that is returned is held by worker 1."""
    worker = await store.workers.register(new_worker(), 1000.0)
    assert worker == 1, "workers of a namespace are numbered by themselves"
    await store.announce_workflows([spec(), spec("off")], worker)
    await store.disabled_workflows.disable("off")
    await store.documents.put("key", "ann", b"1")
    await store.documents.put("key", "bob", b"1")
    await store.audit_log.append([audited("ours")])
    await store.schedules.put([schedule("nightly")], worker=worker)
    run = await start_run(
        store, "r", claim_as=worker, inputs=payload, tags=("red",), session="s", budget=BudgetLimits(tokens=1000)
    )
    await commit_ops(
        store,
        StartRun(new_run("kid", parent="r"), link=link(run, 1)),
        append(run, 0, payload=payload, used=Usage(calls=1, input_tokens=7)),
        save_attempt(run, 3),
        reserve(run, 4, tokens=10),
        question(run),
        AppendLiveEvents(run.key, run.epoch, (LiveEvent(3, "", 1, "progress", b"1", AT),)),
        signal("r", "go", payload, "once"),
        PutMemory("user", "k", b'"v"', "red car", AT),
        PauseRun("r", AT),
    )
    await start_run(store, "pending")
    await start_run(store, "timer", available_at=2_000_000.0)
    await store.queues.set_limits("llm", QueueLimits(1))
    await store.queues.pause("paused")
    await start_run(store, "limited", queue="llm", queue_key="acme", dedup_key="same")
    await store.workers.register(new_worker("listener", is_listener=True, workflows=("address",)), -1.0)
    await start_run(store, "late", workflow="address", is_delivery=True, deadline=1.0)
    ended = await start_run(store, "ended", claim_as=worker)
    await commit_ops(store, finish(ended, RunState.FAILED, error=b'{"type":"ValueError","message":"no"}'))
    return run


# What each method is called with, and what must come of it, in a namespace that holds nothing: `run` is in the other.

Case = Callable[[Store, Run, Store], Awaitable[None]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


@case
async def open(store: Store, run: Run, other: Store) -> None:
    await store.open()


@case
async def commit(store: Store, run: Run, other: Store) -> None:
    key, epoch = run.key, run.epoch
    foreign: list[tuple[Op, OpStatus]] = [
        (AwaitRun("kid", link(run, 2)), FENCED),
        (append(run, 1), FENCED),
        (save_attempt(run, 3, 2), FENCED),
        (reserve(run, 6), FENCED),
        (finish(run), FENCED),
        (park(run), FENCED),
        (release(run), FENCED),
        (signal("r"), UNKNOWN),
        (CancelRun("pending", AT), UNKNOWN),
        (PauseRun("pending", AT), UNKNOWN),
        (ResumeRun("r", AT), UNKNOWN),
        (ReopenRun("ended", AT), UNKNOWN),
        (SetBudget("r", BudgetLimits(calls=1), AT), UNKNOWN),
        (ForkRun("r", new_run("f", forked_from="r"), 1), UNKNOWN),
        (AppendLiveEvents(key, epoch, (LiveEvent(3, "", 2, "progress", b"2", AT),)), FENCED),
        (RemindApproval(key, epoch, "a1", 1, "bob", AT), FENCED),
        (WithdrawApproval(key, epoch, "a1", AT), FENCED),
        (question(run), FENCED),
        (AnswerApproval("a1", b"true", "ann", AT), OpStatus.UNKNOWN_APPROVAL),
        (StartRun(new_run("c", parent="r"), link=link(run, 9)), FENCED),
        (DeleteMemory("user", "k"), DONE),
        (PutMemory("nobody", "k", b"1", "", AT), DONE),
        (audited("committed"), DONE),
    ]
    assert {type(op) for op, _ in foreign} == set(get_args(Op)), "each operation has its case"
    for op, expected in foreign:
        assert await commit_ops(store, op) == [expected], op


@case
async def commit_and_claim(store: Store, run: Run, other: Store) -> None:
    assert run.owner is not None
    claim = ClaimNext(run.owner, FLOW, lambda _: LiveEvent(1, "", -1, "delivered", b"{}", AT))
    assert await store.commit_and_claim([DeleteMemory("user", "k"), claim]) == [DONE, None]


@case
async def step_transactions_begin(store: Store, run: Run, other: Store) -> None:
    assert await store.step_transactions.begin(run, Attempt(7, 1), is_sync=False) is None


@case
async def workers_register(store: Store, run: Run, other: Store) -> None:
    """Worker 1 is there in the other one: a second one is counted by itself. (See `workers_retire`.)"""
    assert await store.list_workers() == []


@case
async def workers_renew_lease(store: Store, run: Run, other: Store) -> None:
    assert run.owner is not None
    assert not await asyncio.to_thread(store.workers.renew_lease, run.owner, 5000.0)


@case
async def workers_renew_listener_lease(store: Store, run: Run, other: Store) -> None:
    [listener] = [worker for worker in await other.list_workers() if worker.is_listener]
    assert not await store.workers.renew_listener_lease(listener.id, 5000.0)


@case
async def claims_expire_runs(store: Store, run: Run, other: Store) -> None:
    assert (await read_run(other, "late")).deadline == 1.0
    assert await store.claims.expire_runs() == []


@case
async def workers_retire(store: Store, run: Run, other: Store) -> None:
    assert run.owner is not None
    await store.workers.retire(run.owner)
    assert await asyncio.to_thread(other.workers.renew_lease, run.owner, 1000.0)


@case
async def workers_reap_dead(store: Store, run: Run, other: Store) -> None:
    assert await store.workers.reap_dead() == ReapResult()
    assert await store.workers.reap_dead(run.owner, include_listeners=True) == ReapResult()


@case
async def list_workers(store: Store, run: Run, other: Store) -> None:
    assert await store.list_workers([1, 2]) == []


@case
async def claims_claim(store: Store, run: Run, other: Store) -> None:
    assert await store.claims.claim(1, **CLAIM_FILTER, limit=10) == []


@case
async def claims_get_next_wake_at(store: Store, run: Run, other: Store) -> None:
    assert await other.claims.get_next_wake_at(**CLAIM_FILTER) is not None
    assert await store.claims.get_next_wake_at(**CLAIM_FILTER) is None


@case
async def get_histories(store: Store, run: Run, other: Store) -> None:
    [history] = await store.get_histories([run.key])
    assert not any((history.records, history.attempts, history.signals, history.links))


@case
async def claims_get_new_signals(store: Store, run: Run, other: Store) -> None:
    found = await other.claims.get_new_signals(1, 0)
    assert len(found.signals) == 1
    assert (await store.claims.get_new_signals(1, 0)).signals == []
    assert isinstance(await store.claims.get_new_signals(1, found.cursor), NewSignals)


@case
async def claims_get_run_requests(store: Store, run: Run, other: Store) -> None:
    assert len(await other.claims.get_run_requests(1)) == 1
    assert await store.claims.get_run_requests(1) == []


@case
async def disabled_workflows_disable(store: Store, run: Run, other: Store) -> None:
    assert await store.disabled_workflows.disable("off"), "it was on here"
    assert await store.disabled_workflows.disable(FLOW)
    assert set(await other.disabled_workflows.get_all()) == {"off"}


@case
async def disabled_workflows_enable(store: Store, run: Run, other: Store) -> None:
    assert await store.disabled_workflows.enable("off")
    assert await store.disabled_workflows.enable(FLOW)
    assert set(await other.disabled_workflows.get_all()) == {"off"}


@case
async def disabled_workflows_get_all(store: Store, run: Run, other: Store) -> None:
    assert await store.disabled_workflows.get_all() == {}


@case
async def get_run(store: Store, run: Run, other: Store) -> None:
    assert await store.get_run("r") is None


@case
async def get_runs(store: Store, run: Run, other: Store) -> None:
    assert await store.get_runs(["r", "pending"]) == []


@case
async def get_ended_runs(store: Store, run: Run, other: Store) -> None:
    assert await store.get_ended_runs(["r", "pending"]) == ([], {"r", "pending"})


@case
async def list_runs(store: Store, run: Run, other: Store) -> None:
    for where in (RunFilter(), RunFilter(tag="red"), RunFilter(parent="r"), RunFilter(owner=1), RunFilter(text="r")):
        assert await other.list_runs(where) != []
        assert await store.list_runs(where) == []


@case
async def search_runs(store: Store, run: Run, other: Store) -> None:
    assert (await other.search_runs(RunFilter(text="r"), max_scanned=1)).runs != []
    assert await store.search_runs(RunFilter(text="r"), max_scanned=1) == RunSearchPage([], None)


@case
async def get_usages(store: Store, run: Run, other: Store) -> None:
    assert await store.get_usages(["r"]) == {}


@case
async def get_approximate_usages(store: Store, run: Run, other: Store) -> None:
    assert await store.get_approximate_usages(["r"]) == {}


@case
async def count_runs(store: Store, run: Run, other: Store) -> None:
    assert await store.count_runs() == {}
    assert await store.count_runs(1) == {}


@case
async def count_unfinished_runs(store: Store, run: Run, other: Store) -> None:
    assert await store.count_unfinished_runs() == {}


@case
async def get_last_record(store: Store, run: Run, other: Store) -> None:
    assert await other.get_last_record("r", "extract") is not None
    assert await store.get_last_record("r", "extract") is None


@case
async def get_run_updates(store: Store, run: Run, other: Store) -> None:
    assert await store.get_run_updates("r", -1, 0) is None


@case
async def get_journal_page(store: Store, run: Run, other: Store) -> None:
    assert await other.get_journal_page("r") is not None
    assert await store.get_journal_page("r") is None


@case
async def list_approvals(store: Store, run: Run, other: Store) -> None:
    for where in (ApprovalFilter(), ApprovalFilter(only_open=False), ApprovalFilter(id_prefix="a")):
        assert len(await other.list_approvals(where)) == 1
        assert await store.list_approvals(where) == []


@case
async def memories_get(store: Store, run: Run, other: Store) -> None:
    assert await store.memories.get("user", "k") is None


@case
async def memories_list(store: Store, run: Run, other: Store) -> None:
    assert await store.memories.list("user") == []


@case
async def memories_namespaces(store: Store, run: Run, other: Store) -> None:
    assert "user" in await other.memories.namespaces()
    assert "user" not in await store.memories.namespaces()


@case
async def memories_search(store: Store, run: Run, other: Store) -> None:
    assert len(await other.memories.search("user", "red car")) == 1
    assert await store.memories.search("user", "red car") == []


@case
async def announce_workflows(store: Store, run: Run, other: Store) -> None:
    await store.announce_workflows([WorkflowSpec(FLOW, ("other",))], run.owner)


@case
async def get_workflow_specs(store: Store, run: Run, other: Store) -> None:
    assert set(await other.get_workflow_specs()) == {FLOW, "off"}
    assert await store.get_workflow_specs() == {FLOW: WorkflowSpec(FLOW, ("other",))}


@case
async def queues_declare(store: Store, run: Run, other: Store) -> None:
    await store.queues.declare([NewQueue("llm", QueueLimits(9))])


@case
async def queues_set_limits(store: Store, run: Run, other: Store) -> None:
    assert not await store.queues.set_limits("llm", None), "what was set by hand was set elsewhere"
    assert await store.queues.set_limits("by hand", QueueLimits(1))


@case
async def queues_pause(store: Store, run: Run, other: Store) -> None:
    assert await store.queues.pause("paused"), "it was not paused here"


@case
async def queues_resume(store: Store, run: Run, other: Store) -> None:
    assert await store.queues.resume("paused")


@case
async def queues_list(store: Store, run: Run, other: Store) -> None:
    assert [(queue.name, queue.waiting_count) for queue in await other.queues.list()] == [("llm", 1), ("paused", 0)]
    assert [(queue.name, queue.waiting_count) for queue in await store.queues.list()] == [("by hand", 0), ("llm", 0)]
    joins = StartRun(new_run("limited-too", queue="llm", dedup_key="same"))
    [started] = await commit_ops(store, joins)
    assert isinstance(started, StartResult)
    assert (started.is_new, started.is_deduplicated) == (True, False), "the key is another one's elsewhere"


@case
async def schedules_put(store: Store, run: Run, other: Store) -> None:
    await store.schedules.put([schedule("hourly")])


@case
async def schedules_list(store: Store, run: Run, other: Store) -> None:
    assert [known.definition.name for known in await other.schedules.list()] == ["nightly"]
    assert [known.definition.name for known in await store.schedules.list()] == ["hourly"]
    assert await store.schedules.list(["nightly"]) == []


@case
async def schedules_advance(store: Store, run: Run, other: Store) -> None:
    [known] = await other.schedules.list()
    assert not await store.schedules.advance("nightly", known.fired_up_to, known.fired_up_to + 9.0)


@case
async def schedules_pause(store: Store, run: Run, other: Store) -> None:
    assert not await store.schedules.pause("nightly")


@case
async def schedules_resume(store: Store, run: Run, other: Store) -> None:
    assert not await store.schedules.resume("nightly")


@case
async def schedules_delete(store: Store, run: Run, other: Store) -> None:
    assert not await store.schedules.delete("nightly")


@case
async def documents_put(store: Store, run: Run, other: Store) -> None:
    assert await store.documents.put("key", "ann", b"2", if_version=1) is None, "there is none here"
    kept = await store.documents.put("key", "bob", b"2", if_version=0)
    assert kept is not None
    assert kept.version == 1


@case
async def documents_list(store: Store, run: Run, other: Store) -> None:
    assert [document.name for document in await other.documents.list("key")] == ["ann", "bob"]
    assert [document.data for document in await store.documents.list("key")] == [b"2"]


@case
async def documents_delete(store: Store, run: Run, other: Store) -> None:
    assert not await store.documents.delete("key", "ann")
    assert await store.documents.delete("key", "bob")


@case
async def audit_log_append(store: Store, run: Run, other: Store) -> None:
    await store.audit_log.append([audited("theirs")])


@case
async def audit_log_list(store: Store, run: Run, other: Store) -> None:
    assert [one.event.target for one in await other.audit_log.list()] == ["ours"]
    assert [one.event.target for one in await store.audit_log.list()] == ["theirs", "committed"]


@case
async def audit_log_trim(store: Store, run: Run, other: Store) -> None:
    assert await store.audit_log.trim(AT + 1) == 2


@case
async def daily_usage_get(store: Store, run: Run, other: Store) -> None:
    [line] = await other.daily_usage.get(*EVER)
    assert line.used == Usage(calls=1, input_tokens=7)
    assert await store.daily_usage.get(*EVER) == []


@case
async def daily_usage_get_run_counts(store: Store, run: Run, other: Store) -> None:
    counts = [sum(line.run_count for line in await place.daily_usage.get_run_counts(*EVER)) for place in (other, store)]
    assert counts == [len(await place.list_runs(RunFilter())) for place in (other, store)]
    assert counts[1] == 1


@case
async def retention_prune(store: Store, run: Run, other: Store) -> None:
    assert not (await store.retention.prune(EVERYTHING)).run_ids


@case
async def retention_sweep(store: Store, run: Run, other: Store) -> None:
    assert (await store.retention.sweep()).record_count == 0


@case
async def archives_get_extras(store: Store, run: Run, other: Store) -> None:
    assert await other.archives.get_extras(run.key) != RunExtras()
    assert await store.archives.get_extras(run.key) == RunExtras()


@case
async def archives_activate(store: Store, run: Run, other: Store) -> None:
    await store.archives.activate(ArchivedRun(await read_run(other)))


@case
async def archives_mark_restored(store: Store, run: Run, other: Store) -> None:
    [before] = await other.get_histories([run.key])
    await store.archives.mark_restored("a backup")
    assert await other.get_histories([run.key]) == [before]


@case
async def erasure_erase(store: Store, run: Run, other: Store) -> None:
    assert await store.erasure.erase(EraseRequest(["ended"])) == EraseResult()
    assert (await read_run(other, "ended")).inputs != ERASED


@case
async def erasure_scrub(store: Store, run: Run, other: Store) -> None:
    await store.erasure.scrub()
    assert (await read_run(other)).id == run.id


@case
async def archives_restore(store: Store, run: Run, other: Store) -> None:
    assert await store.archives.restore(ArchivedRun(await read_run(other, "ended"))), "its id is free here"


@case
async def wait_for_change(store: Store, run: Run, other: Store) -> None:
    while await store.wait_for_change(0.05):
        """What was done through other connections is told by now."""
    waiting = asyncio.create_task(store.wait_for_change(0.4))
    await asyncio.sleep(0.05)
    await other.disabled_workflows.disable("on and off")
    await other.disabled_workflows.enable("on and off")
    assert not await waiting


@case
async def now(store: Store, run: Run, other: Store) -> None:
    assert store.now() == other.now()


@case
async def abandon(store: Store, run: Run, other: Store) -> None:
    store.abandon()
    await store.open()


@case
async def close(store: Store, run: Run, other: Store) -> None:
    await store.close()
    assert await other.get_run("r") is not None


def methods_of(store: Store) -> Iterator[str]:
    """All methods of the contract, with those of the store's capabilities."""
    for name, attribute in vars(Store).items():
        if isinstance(attribute, Capability):
            bases = type(getattr(store, name)).__mro__
            yield from {f"{name}_{method}" for base in bases for method in getattr(base, "__abstractmethods__", ())}
        elif callable(attribute) and not name.startswith("_") and name not in ("supports", "make_unsupported_error"):
            yield name


@on_databases
async def test_no_method_reaches_the_data_of_another_namespace(shared: Shared, ours: Store, theirs: Store):
    assert set(CASES) == set(methods_of(ours))
    run = await fill(ours)
    before = shared.dump("default")
    assert before["runs"]
    assert before["blobs"]
    for name, called in CASES.items():
        await called(theirs, run, ours)
        assert shared.dump("default") == before, name


@on_databases
async def test_the_same_ids_in_two_namespaces_lead_lives_of_their_own(shared: Shared, ours: Store, theirs: Store):
    run, twin = await fill(ours), await fill(theirs)
    assert (run.key, run.owner) == (twin.key, twin.owner)
    before = shared.dump("default")
    while await ours.wait_for_change(0.05):
        """What was done before is told by now."""
    woken = asyncio.create_task(ours.wait_for_change(1.0))

    answers = await commit_ops(
        theirs,
        ResumeRun("r", AT),
        append(twin, 1, payload=b"2", used=Usage(calls=1, input_tokens=5)),
        AnswerApproval("a1", b"true", "ann", AT),
        SetBudget("r", BudgetLimits(tokens=5000), AT),
        signal("r", "go", b"2", "twice"),
        DeleteMemory("user", "k"),
        CancelRun("pending", AT),
        ReopenRun("ended", AT),
        ForkRun("r", new_run("f", forked_from="r"), 1),
        finish(twin),
    )
    assert all(answer is DONE or isinstance(answer, StartResult | Run) for answer in answers), answers
    taken = await theirs.claims.claim(1, **CLAIM_FILTER, limit=10)
    assert [one.id for one in taken] == ["kid", "limited", "ended", "f"]
    for taken in await theirs.list_runs(RunFilter(owner=1)):
        await commit_ops(theirs, finish(taken))
    await theirs.disabled_workflows.enable("off")
    await theirs.workers.retire(1)
    pruned = await theirs.retention.prune(EVERYTHING)
    assert {"r", "kid", "limited", "ended", "f"} <= set(pruned.run_ids)
    swept = await theirs.retention.sweep()
    assert swept.blob_count > 0
    left = shared.dump("acme")
    assert (left["records"], left["blobs"]) == ([], [])

    assert shared.dump("default") == before
    [history] = await ours.get_histories([run.key])
    assert history.records[0].payload == LARGE, "large values are kept once in each namespace"
    assert not await woken, "no news of others"
    again = shared.open("default")
    await again.open()
    woken = asyncio.create_task(ours.wait_for_change(5.0))
    await asyncio.sleep(0.05)
    await commit_ops(again, ResumeRun("r", AT))
    assert await woken, "but of one's own"
    await again.close()


@on_databases
async def test_worker_1_of_a_namespace_may_die_while_worker_1_of_another_lives(
    shared: Shared, ours: Store, theirs: Store
):
    await fill(ours)
    await fill(theirs)
    shared.kill_worker(theirs, 1)  # the one that came second has a lock of its own
    assert await ours.workers.reap_dead() == ReapResult()
    for namespace, dead in {"default": (), "acme": (1,)}.items():
        other = shared.open(namespace)  # the lock that is held in the other namespace says nothing of this one
        await other.open()
        assert (await other.workers.reap_dead()).worker_ids == dead, namespace
        await other.close()
    assert not await asyncio.to_thread(theirs.workers.renew_lease, 1, 10.0)
    assert await asyncio.to_thread(ours.workers.renew_lease, 1, 10.0)
    assert (await read_run(ours)).owner == 1
    assert (await read_run(theirs)).owner is None


async def test_a_file_of_another_program_is_not_taken_for_a_namespace(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "runs.acme.db")) as connection:
        connection.execute("CREATE TABLE customers (id)")
    with pytest.raises(StoreError, match="another program"):
        await SqliteStore(tmp_path / "runs.db", namespace="acme").open()


# Roles


@pytest.fixture
def tenants() -> Iterator[dict[str, str]]:
    """A database in which two users have a namespace each, made for them by somebody who may do so: their URLs."""
    with postgres_server.database(empty=True) as url:
        parts = urlsplit(url)
        users = {name: f"{parts.path[1:]}_{name}" for name in ("acme", "bolt")}
        with psycopg.connect(url, autocommit=True) as admin:
            for name, user in users.items():
                admin.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'sesame'")
                admin.execute(ddl(f"holdfast_{name}", user).encode())
            host = parts.netloc.rpartition("@")[2]
            yield {name: urlunsplit(parts._replace(netloc=f"{user}:sesame@{host}")) for name, user in users.items()}
            for user in users.values():
                admin.execute(f"DROP OWNED BY {user}")
                admin.execute(f"DROP ROLE {user}")


async def test_a_role_that_may_use_only_its_own_schema_is_all_that_a_tenant_needs(
    tenants: dict[str, str], clock: Clock
):
    stores = {name: PgStore(url, namespace=name, clock=clock, poll_interval_s=0.0) for name, url in tenants.items()}
    for store in stores.values():
        await store.open()
        run = await fill(store)
        await store.workers.retire(1)
        assert [
            taken.id
            for taken in await store.claims.claim(
                await store.workers.register(new_worker(), 9.0), **CLAIM_FILTER, limit=9
            )
        ]
        assert len(await store.memories.search("user", "red")) == 1
        assert len((await store.get_histories([run.key]))[0].records) == 1
        assert await store.list_runs(RunFilter(text="valueerror")) != []
        await store.retention.prune(EVERYTHING)
        await store.retention.sweep()
    for store in stores.values():
        await store.close()
    with psycopg.connect(tenants["acme"]) as connection:
        names = [
            row[0]
            for row in connection.execute(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'holdfast_acme'::regnamespace"
            )
        ]
        for name in names:
            connection.execute(f"SELECT 1 FROM holdfast_acme.{name} LIMIT 1")
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(f"SELECT 1 FROM holdfast_bolt.{name} LIMIT 1")
    for namespace, told in {"bolt": "permission denied for schema holdfast_bolt", "default": "GRANT CREATE ON"}.items():
        with pytest.raises(StoreReadOnly) as raised:
            await PgStore(tenants["acme"], namespace=namespace).open()
        assert told in str(raised.value)
        assert "sesame" not in str(raised.value)
