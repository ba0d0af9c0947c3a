from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from store_values import (
    DONE,
    FENCED,
    NOTIFIED,
    Clock,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    link,
    new_run,
    new_worker,
    park,
    reserve,
    save_attempt,
    signal,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.services.retention import make_prune_request
from holdfast.stores.approvals import ApprovalFilter, ApprovalRequest, RequestApproval
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import AwaitRun, ForkRun, OpStatus, ReopenRun, Run, SetBudget, StartResult, StartRun
from holdfast.stores.postgres import PgStore
from holdfast.stores.retention import PRUNE_START, KeepReason, PruneRequest
from holdfast.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio

COMPLETED, FAILED, CANCELLED, DEAD = RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.DEAD
LATER = 2_000_000.0
ALL_ENDED = frozenset({COMPLETED, FAILED, CANCELLED, DEAD})


async def prune(store: Store, **wanted: Any) -> tuple[set[str], dict[str, KeepReason]]:
    """Prune all that match, in small pieces, and sweep."""
    what = PruneRequest(**{"finished_before": LATER, **wanted})
    gone: list[str] = []
    kept: dict[str, KeepReason] = {}
    place = PRUNE_START
    while place is not None:
        done = await store.retention.prune(what, place, 3)
        gone += done.run_ids
        kept.update(done.keep_reasons)
        place = done.cursor
    assert len(gone) == len(set(gone))
    while not (await store.retention.sweep(4)).is_done:
        pass
    return set(gone), kept


async def ended(
    store: Store, run_id: str, state: RunState = COMPLETED, *, at: float = 1_000_002.0, **fields: Any
) -> Run:
    """A run that has ended."""
    run = await start_claimed_run(store, run_id, **fields)
    await commit_ops(store, append(run, 0), finish(run, state, at=at))
    return run


async def there(store: Store) -> set[str]:
    return {run.id for run in await store.list_runs(RunFilter(), limit=1000)}


def rows_left(store: Store) -> dict[str, int]:
    """How many rows each table of a database has that belong to runs."""
    tables = [
        "runs", "records", "attempts", "signals", "signal_keys", "links", "run_tags", "usages", "reservations",
        "approvals", "live_events", "blobs", "pruned",
    ]  # fmt: skip
    if isinstance(store, SqliteStore):
        with sqlite3.connect(store.path) as connection:
            return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    assert isinstance(store, PgStore)
    with psycopg.connect(store._libpq_url) as db:
        return {name: db.execute(f"SELECT count(*) FROM {store.schema}.{name}").fetchone()[0] for name in tables}  # type: ignore


async def test_ended_runs_are_deleted_and_others_stay(store: Store):
    for name, state in (("done", COMPLETED), ("off", CANCELLED), ("bad", FAILED)):
        await ended(store, name, state)
    await ended(store, "late", at=LATER)
    await start_run(store, "new", available_at=3_000_000.0)
    gone, kept = await prune(store)
    assert (gone, kept) == ({"done", "off"}, {})
    assert await there(store) == {"bad", "late", "new"}
    assert await store.get_run("done") is None
    gone, _ = await prune(store, states=ALL_ENDED)
    assert gone == {"bad"}


async def test_all_that_belongs_to_a_run_goes_with_it(store: Store):
    if not isinstance(store, SqliteStore | PgStore):
        pytest.skip("has no tables to count")
    large = secrets.token_bytes(70_000).hex().encode()
    run = await start_claimed_run(
        store, "r", tags=("a", 'b"ü'), budget=BudgetLimits(10**9, None, None, None), inputs=b'"' + large + b'"'
    )
    question = ApprovalRequest("may I?", form_schema=b'"f' + large + b'"', arguments=b'"a' + large + b'"')
    await commit_ops(
        store,
        signal("r", "go", b'"s' + large + b'"', dedup="once"),
        append(run, 0, payload=b'"p' + large + b'"', used=Usage(calls=1)),
        save_attempt(run, 1),
        RequestApproval(run.key, run.epoch, 1, "q1", question, 1_000_001.0),
    )
    child = await commit_ops(store, start_child(run, "c", 2, tags=("a",)))
    worker = await store.workers.register(new_worker(), 10.0)
    claimed = await claim_run(store, worker)
    assert claimed.id == child[0].run.id
    await commit_ops(store, finish(claimed), finish(run, output=b'"o' + large + b'"'))
    before = rows_left(store)
    assert all(before[name] for name in before if name not in ("reservations", "pruned")), before
    gone, _ = await prune(store)
    assert gone == {"r", "c"}
    assert rows_left(store) == dict.fromkeys(before, 0)


async def test_keys_are_never_used_again(store: Store):
    run = await start_claimed_run(store, "r")
    await commit_ops(store, finish(run))
    await prune(store)
    again = await start_claimed_run(store, "r")
    assert again.key > run.key
    assert again.epoch == run.epoch
    assert await commit_ops(store, append(run, 0)) == [FENCED]  # a worker that was long gone writes into nothing
    assert await commit_ops(store, finish(run, FAILED)) == [FENCED]
    assert await get_state(store, "r") is RunState.RUNNING


async def test_a_family_goes_as_a_whole_or_stays(store: Store):
    parent = await start_claimed_run(store, "p")
    await commit_ops(store, start_child(parent, "c", 0), start_child(parent, "d", 1))
    c, d = await claim_run(store), await claim_run(store)
    await commit_ops(store, finish(c, FAILED))
    gone, kept = await prune(store, states=ALL_ENDED)
    assert (gone, kept) == (set(), {"c": KeepReason.UNFINISHED})
    await commit_ops(store, finish(parent))
    gone, kept = await prune(store)
    assert (gone, kept) == (set(), {"p": KeepReason.UNFINISHED})
    await commit_ops(store, finish(d, at=LATER))
    assert (await prune(store))[1] == {"p": KeepReason.RECENT}
    gone, kept = await prune(store, finished_before=LATER + 1)  # the failed one was waited for: its parent knew
    assert (gone, kept) == ({"p", "c", "d"}, {})


async def test_a_failed_run_that_no_run_waited_for_keeps_its_group(store: Store):
    parent = await start_claimed_run(store, "p")
    detached = StartRun(new_run("c", parent="p"), link=link(parent, 0, awaited=False))
    await commit_ops(store, detached, finish(parent))
    await commit_ops(store, finish(await claim_run(store), FAILED))
    assert await prune(store) == (set(), {"p": KeepReason.NOT_SELECTED})
    assert (await prune(store, states=ALL_ENDED))[0] == {"p", "c"}


async def test_the_workflow_of_the_run_on_top_decides(store: Store):
    parent = await start_claimed_run(store, "p", workflow="main")
    await commit_ops(store, start_child(parent, "c", 0))
    await commit_ops(store, finish(await claim_run(store)))
    await commit_ops(store, finish(parent))
    assert await prune(store, workflow="etl") == (set(), {"c": KeepReason.NOT_SELECTED})
    assert (await prune(store, workflow="main"))[0] == {"p", "c"}


async def test_a_run_whose_end_an_unfinished_run_has_is_kept(store: Store):
    done = await ended(store, "shared")
    waits = await start_claimed_run(store, "w", workflow="other")
    [answer] = await commit_ops(store, AwaitRun("shared", link(waits)))
    assert isinstance(answer, StartResult)
    assert await prune(store) == (set(), {"shared": KeepReason.AWAITED})
    await commit_ops(store, finish(waits))
    assert (await prune(store))[0] == {"shared", "w"}
    assert done.key


async def test_an_end_in_the_mailbox_is_kept_for_a_parked_run(store: Store):
    shared = await start_claimed_run(store, "shared")
    waits = await start_claimed_run(store, "w", workflow="other")
    await commit_ops(store, AwaitRun("shared", link(waits)), park(waits, awaited_positions=(0,)))
    assert await commit_ops(store, finish(shared)) == [NOTIFIED]
    assert await prune(store) == (set(), {"shared": KeepReason.AWAITED})
    [history] = await store.get_histories([waits.key])
    assert history.links == {0: ("shared", b"digest")}


@pytest.mark.parametrize("run_ids", [None, ["ahead"]])
async def test_whenever_they_ended_means_also_by_a_clock_that_is_ahead(store: Store, run_ids: list[str] | None):
    await ended(store, "ahead", at=store.now() + 0.05)
    assert (await store.retention.prune(make_prune_request(store.now(), 0.01, run_ids=run_ids))).run_ids == ()
    assert (await store.retention.prune(make_prune_request(store.now(), 0, run_ids=run_ids))).run_ids == ("ahead",)


async def test_a_conversation_goes_as_a_whole(store: Store):
    for turn in range(7):
        await ended(store, f"t{turn}", session="s", at=1_000_002.0 + turn)
    fork = ForkRun("t6", new_run("f", forked_from="t6", previous_run="t5"), 0)
    [forked] = await commit_ops(store, fork)
    assert set((await prune(store))[1].values()) == {KeepReason.UNFINISHED}
    await commit_ops(store, finish(await claim_run(store)))
    assert forked.run.previous_run == "t5"
    assert set((await prune(store, finished_before=1_000_008.0))[1].values()) == {KeepReason.RECENT}
    dry = await store.retention.prune(PruneRequest(finished_before=LATER, dry_run=True), limit=100)
    assert (len(dry.run_ids), dry.record_count) == (8, 7)
    gone, _ = await prune(store)
    assert len(gone) == 8
    assert (await start_run(store, "t9", session="s")).previous_run == ""


async def test_a_dry_run_changes_nothing_and_counts_each_family_once(store: Store):
    for number in range(5):
        await ended(store, f"a{number}", session="s")
        await ended(store, f"b{number}")
    place, gone, records = PRUNE_START, [], 0
    while place is not None:
        done = await store.retention.prune(PruneRequest(finished_before=LATER, dry_run=True), place, 2)
        gone += done.run_ids
        records += done.record_count
        place = done.cursor
    assert sorted(gone) == sorted([f"a{n}" for n in range(5)] + [f"b{n}" for n in range(5)])
    assert records == 10
    assert len(await there(store)) == 10


async def test_the_newest_are_kept(store: Store):
    for number in range(6):
        await ended(store, f"r{number}", CANCELLED if number == 4 else COMPLETED)
    await ended(store, "x", workflow="other")
    gone, kept = await prune(store, keep_newest=3)
    assert gone == {"r0", "r1", "r2"}
    assert set(kept) == {"r3", "r4", "r5", "x"}
    assert set(kept.values()) == {KeepReason.NEWEST}


async def test_an_unclaimed_result_is_kept_unless_requested_otherwise(store: Store, kill_worker: Callable[[int], None]):
    starter = await store.workers.register(new_worker("script"), 10.0)
    await start_run(store, "orphan", has_generated_id=True, starter=starter)
    kill_worker(starter)
    await store.workers.reap_dead()
    await commit_ops(store, finish(await claim_run(store)))
    assert await prune(store) == (set(), {"orphan": KeepReason.UNCLAIMED_RESULT})
    assert (await prune(store, include_unclaimed=True))[0] == {"orphan"}


async def test_runs_can_be_named(store: Store):
    for name in "abc":
        await ended(store, name, FAILED)
    wanted = PruneRequest(finished_before=LATER, states=frozenset({DEAD, FAILED}), run_ids=("a", "none", "b", "a"))
    done = await store.retention.prune(wanted)
    assert (set(done.run_ids), done.keep_reasons, done.cursor) == ({"a", "b"}, {}, None)
    done = await store.retention.prune(PruneRequest(finished_before=LATER, states=frozenset({DEAD}), run_ids=("c",)))
    assert (done.run_ids, done.keep_reasons) == ((), {"c": KeepReason.NOT_SELECTED})


async def test_a_deleted_run_is_unknown(store: Store):
    await ended(store, "r", FAILED)
    await prune(store, states=ALL_ENDED)
    unknown = [OpStatus.UNKNOWN_RUN] * 2
    assert await commit_ops(store, ReopenRun("r", 1.0), signal("r")) == unknown
    assert await store.list_approvals(ApprovalFilter(run_id="r", only_open=False)) == []
    assert (await start_run(store, "r")).epoch == 0


async def test_budgets_can_be_set_when_a_run_that_was_short_is_gone(store: Store):
    limits = BudgetLimits(None, None, 0, None)
    short = await start_claimed_run(store, "short", budget=limits)
    await commit_ops(store, reserve(short, 0))
    await commit_ops(store, finish(short, FAILED))
    other = await start_claimed_run(store, "other", budget=limits)
    await prune(store, states=ALL_ENDED)
    assert await commit_ops(store, SetBudget("other", BudgetLimits(None, None, 5, None), 1.0)) == [DONE]
    assert await get_state(store, other.id) is RunState.RUNNING


async def test_large_values_go_with_the_last_that_refers_to_them(store: Store):
    if not isinstance(store, SqliteStore | PgStore):
        pytest.skip("keeps everything as it is")
    shared, own = (secrets.token_bytes(70_000).hex().encode() for _ in range(2))
    first = await start_claimed_run(store, "first")
    await commit_ops(
        store, append(first, 0, payload=shared), append(first, 1, payload=own), finish(first, output=shared)
    )
    second = await start_claimed_run(store, "second")
    await commit_ops(store, append(second, 0, payload=shared))
    assert rows_left(store)["blobs"] == 2
    await store.retention.prune(PruneRequest(finished_before=LATER))
    swept = await store.retention.sweep()
    assert (swept.record_count, swept.blob_count, swept.is_done) == (2, 1, True)
    assert swept.size_bytes > 60_000
    [history] = await store.get_histories([second.key])
    assert history.records[0].payload == shared
    await commit_ops(store, append(second, 1, payload=own))  # it was deleted, and is kept anew
    await commit_ops(store, finish(second))
    await prune(store)
    assert rows_left(store)["blobs"] == 0


async def test_two_processes_prune_at_once_while_runs_continue(store: Store, second_store: Store):
    """Nothing that is unfinished is lost, each run is deleted once, and large values are there for whoever refers."""
    blobs = [secrets.token_bytes(40_000).hex().encode() for _ in range(3)]
    for number in range(60):
        run = await start_claimed_run(store, f"old{number}")
        await commit_ops(store, append(run, 0, payload=blobs[number % 3]), finish(run))
    live = [await start_claimed_run(store, f"live{number}") for number in range(12)]

    async def clear(one: Store) -> list[str]:
        gone: list[str] = []
        place = PRUNE_START
        while place is not None:
            done = await one.retention.prune(PruneRequest(finished_before=LATER), place, 5)
            gone += done.run_ids
            place = done.cursor
            while not (await one.retention.sweep(7)).is_done:
                pass
        return gone

    async def work() -> None:
        for seq in range(10):
            for number, run in enumerate(live):
                assert await commit_ops(second_store, append(run, seq, payload=blobs[(seq + number) % 3])) == [DONE]

    first, second, _ = await asyncio.gather(clear(store), clear(second_store), work())
    assert sorted(set(first) & set(second)) == []
    rest, _ = await prune(store)  # what both were busy with at the same time
    assert {*first, *second, *rest} == {f"old{number}" for number in range(60)}
    for history in await store.get_histories([run.key for run in live]):
        assert [len(record.payload or b"") for record in history.records] == [80_000] * 10


@pytest_asyncio.fixture
async def sqlite(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "runs.db", clock=clock)
    await store.open()
    yield store
    await store.close()


async def test_a_damaged_row_is_kept_and_the_others_are_deleted(sqlite: SqliteStore):
    for name in "abc":
        await ended(sqlite, name)
    with sqlite3.connect(sqlite.path) as connection:
        connection.execute("UPDATE runs SET session = CAST(x'ff' AS TEXT) WHERE id = 'b'")
    done = await sqlite.retention.prune(PruneRequest(finished_before=LATER))
    assert done.run_ids == ("a", "c")


async def test_a_run_stays_with_an_unfinished_parent_that_has_recorded_its_end(store: Store):
    """A retry of the parent may take that back."""
    parent = await start_claimed_run(store, "p")
    await commit_ops(store, start_child(parent, "c", 0))
    await commit_ops(store, finish(await claim_run(store)))
    await commit_ops(store, append(parent, 0, kind=RecordKind.CHILD, preview="c"))
    assert (await prune(store))[1] == {"c": KeepReason.UNFINISHED}
