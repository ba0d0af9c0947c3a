"""A concurrent commit and takeover in the database: one waits for the other, and never do both succeed.

Whatever a worker was confirmed as recorded, its successor must read. So a commit holds the run's row from its check of
the fence to its end; a takeover of the run in between waits, and so does a commit during a takeover. Triggers that wait
for a lock of the test hold one or the other open in the middle.

The last test shows that the first would notice: with statements that do not lock, both succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import postgres_server
import psycopg
import pytest
import pytest_asyncio
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    Clock,
    append,
    claim_run,
    commit_ops,
    finish,
    new_worker,
    park,
    read_run,
    signal,
    start_run,
)

from holdfast.core.states import RunState
from holdfast.stores.operations import Op, OpStatus, Run
from holdfast.stores.postgres import PgStore, database

pytestmark = pytest.mark.asyncio

GATE = 4711
TIMEOUT_S = 20.0
TRIGGERS = {
    "records": "BEFORE INSERT ON holdfast.records FOR EACH ROW",
    "ends": "BEFORE UPDATE ON holdfast.runs FOR EACH ROW WHEN (NEW.state = 'completed')",
    "parks": "BEFORE UPDATE ON holdfast.runs FOR EACH ROW WHEN (NEW.state = 'waiting')",
    "takeovers": "AFTER UPDATE ON holdfast.runs FOR EACH ROW WHEN (NEW.state = 'pending' AND OLD.state = 'running')",
}
"""The changes during which a gate stops a transaction."""
COMMITS: dict[str, Callable[[Run], list[Op]]] = {
    "append": lambda run: [append(run, 0)],
    "appends": lambda run: [append(run, 0), append(run, 1)],
    "batch": lambda run: [append(run, 0, clear=True), append(run, 1)],
    "end": lambda run: [append(run, 0), finish(run)],
}


class Fleet(NamedTuple):
    """Two workers: the first holds a run, and seems dead to the second."""

    first: PgStore
    second: PgStore
    successor: int
    run: Run
    gate: psycopg.AsyncConnection[Any]


@pytest_asyncio.fixture
async def fleet() -> AsyncIterator[Fleet]:
    clock = Clock()
    with postgres_server.database() as url:
        first, second = (PgStore(url, clock=clock, poll_interval_s=0.0) for _ in range(2))
        gate = await psycopg.AsyncConnection.connect(url, autocommit=True)
        for store in (first, second):
            await store.open()
        victim, successor = (
            await first.workers.register(new_worker(), 10.0),
            await second.workers.register(new_worker(), 1e6),
        )
        await start_run(first)
        run = await claim_run(first, victim)
        clock.advance(11.0)
        yield Fleet(first, second, successor, run, gate)
        for store in (first, second):
            await store.close()
        await gate.close()


@asynccontextmanager
async def gate_in_front_of(fleet: Fleet, change: str) -> AsyncIterator[None]:
    """During this block, a transaction with such a change waits at the gate."""
    await fleet.gate.execute(f"""
        CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
            $$ BEGIN PERFORM pg_advisory_xact_lock({GATE}); RETURN NEW; END $$;
        CREATE TRIGGER gate {TRIGGERS[change]} EXECUTE FUNCTION wait_at_gate();
        SELECT pg_advisory_lock({GATE})""")
    try:
        yield
    finally:
        await fleet.gate.execute(f"SELECT pg_advisory_unlock({GATE})")


async def wait_until_blocked(fleet: Fleet, *, at_gate: bool) -> None:
    """Wait until a transaction waits at the gate, or for a locked row."""
    kind = "= 'advisory'" if at_gate else "IN ('tuple', 'transactionid')"
    query = (
        f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event {kind} "
        f"AND datname = current_database()"
    )
    async with asyncio.timeout(TIMEOUT_S):
        while (await (await fleet.gate.execute(query)).fetchone()) == (0,):  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.005)


async def take_over(fleet: Fleet) -> list[int] | None:
    """Declare the first worker dead, and claim its run. Returns the ``seq`` of the records that it then has.

    Retries until it works, or the run has ended: declaring a worker dead does not wait long for locked rows.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while (await read_run(fleet.second)).state is not RunState.COMPLETED:
            await fleet.second.workers.reap_dead(fleet.successor)
            for run in await fleet.second.claims.claim(fleet.successor, **CLAIM_FILTER, limit=1):
                [history] = await fleet.second.get_histories([run.key])
                return [record.seq for record in history.records]
    return None


async def test_a_run_that_parks_with_unread_signals_while_its_worker_is_declared_dead_wakes(fleet: Fleet):
    await commit_ops(fleet.first, signal(name="old name"))
    async with gate_in_front_of(fleet, "parks"):
        parking = asyncio.create_task(commit_ops(fleet.first, park(fleet.run, None, "new name")))
        await wait_until_blocked(fleet, at_gate=True)
        taking_over = asyncio.create_task(take_over(fleet))
        await wait_until_blocked(fleet, at_gate=False)
    assert await parking == [DONE]
    assert await taking_over == []


async def check(fleet: Fleet, ops: list[Op], verdicts: list[OpStatus], read: list[int] | None) -> None:
    """The successor has read what was told to be recorded, and nothing else came in."""
    run = await read_run(fleet.second)
    [history] = await fleet.second.get_histories([run.key])
    records = [record.seq for record in history.records]
    if verdicts == [DONE] * len(ops):
        assert records == list(range(len(records)))
        assert records
        assert read == records or (read is None and run.state is RunState.COMPLETED)
    else:
        assert verdicts == [FENCED] * len(ops)
        assert records == read == []
    assert run.state is RunState.COMPLETED or (run.owner, run.epoch) == (fleet.successor, 2)


@pytest.mark.parametrize("kind", COMMITS)
async def test_a_takeover_waits_for_a_commit_in_progress(fleet: Fleet, kind: str):
    verdicts, read = await commit_then_take_over(fleet, kind)
    assert verdicts == [DONE] * len(verdicts)
    await check(fleet, COMMITS[kind](fleet.run), verdicts, read)


async def commit_then_take_over(fleet: Fleet, kind: str) -> tuple[list[Any], list[int] | None]:
    async with gate_in_front_of(fleet, "ends" if kind == "end" else "records"):
        commit = asyncio.create_task(fleet.first.commit(COMMITS[kind](fleet.run)))
        await wait_until_blocked(fleet, at_gate=True)
        takeover = asyncio.create_task(take_over(fleet))
        waits = asyncio.create_task(wait_until_blocked(fleet, at_gate=False))
        await asyncio.wait([takeover, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
    return await commit, await takeover


@pytest.mark.parametrize("kind", COMMITS)
async def test_a_commit_during_a_takeover_waits_and_is_fenced(fleet: Fleet, kind: str):
    verdicts, read = await take_over_then_commit(fleet, kind)
    assert verdicts == [FENCED] * len(verdicts)
    await check(fleet, COMMITS[kind](fleet.run), verdicts, read)


async def take_over_then_commit(fleet: Fleet, kind: str) -> tuple[list[Any], list[int] | None]:
    async with gate_in_front_of(fleet, "takeovers"):
        takeover = asyncio.create_task(take_over(fleet))
        await wait_until_blocked(fleet, at_gate=True)
        commit = asyncio.create_task(fleet.first.commit(COMMITS[kind](fleet.run)))
        waits = asyncio.create_task(wait_until_blocked(fleet, at_gate=False))
        await asyncio.wait([commit, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
    return await commit, await takeover


@pytest.mark.parametrize(
    ("statement", "lock", "kind"),
    [
        ("APPEND_ONE", " FOR SHARE", "append"),
        ("APPEND_FENCED", " FOR SHARE", "appends"),
        ("FENCES", " FOR NO KEY UPDATE", "batch"),
    ],
)
async def test_without_its_lock_both_would_go_through(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, statement: str, lock: str, kind: str
):
    statements = database._get_statements("holdfast")
    text = getattr(statements, statement)
    assert lock in text
    monkeypatch.setattr(statements, statement, text.replace(lock, ""))
    verdicts, read = await commit_then_take_over(fleet, kind)
    assert (verdicts, read) == ([DONE] * len(verdicts), [])
    with pytest.raises(AssertionError):
        await check(fleet, COMMITS[kind](fleet.run), verdicts, read)


async def test_a_worker_that_was_stopped_in_a_commit_does_not_delay_other_reaping(fleet: Fleet):
    # It holds its run's row for as long as the server lets it. Who waited for that could write nothing meanwhile.
    other = await fleet.first.workers.register(new_worker(), -1.0)
    await fleet.gate.execute("BEGIN")
    await fleet.gate.execute("SELECT FROM holdfast.runs WHERE id = 'r' FOR UPDATE")
    async with asyncio.timeout(TIMEOUT_S):
        reaped = await fleet.second.workers.reap_dead(fleet.successor)
    assert (reaped.worker_ids, reaped.released_count) == ((other,), 0)
    await fleet.gate.execute("ROLLBACK")
    reaped = await fleet.second.workers.reap_dead(fleet.successor)
    assert (len(reaped.worker_ids), reaped.released_count) == (1, 1)
