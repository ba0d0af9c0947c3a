"""A commit and a takeover that meet in the database: the one waits for the other, and never do both go through.

What a worker was told is recorded must be in what its successor reads. So whoever commits holds the run's row from the
moment it looks at the fence until its commit; a takeover of the run in between waits, and so does a commit that comes
in the middle of a takeover. Triggers that wait for a lock of the test's hold the one or the other open in the middle.

The last test shows that the first would notice: with statements that do not lock, both go through.
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
PATIENCE = 20.0
TRIGGERS = {
    "records": "BEFORE INSERT ON holdfast.records FOR EACH ROW",
    "ends": "BEFORE UPDATE ON holdfast.runs FOR EACH ROW WHEN (NEW.state = 'completed')",
    "parks": "BEFORE UPDATE ON holdfast.runs FOR EACH ROW WHEN (NEW.state = 'waiting')",
    "takeovers": "AFTER UPDATE ON holdfast.runs FOR EACH ROW WHEN (NEW.state = 'pending' AND OLD.state = 'running')",
}
"""In the middle of which change there is a gate."""
COMMITS: dict[str, Callable[[Run], list[Op]]] = {
    "append": lambda run: [append(run, 0)],
    "appends": lambda run: [append(run, 0), append(run, 1)],
    "batch": lambda run: [append(run, 0, clear=True), append(run, 1)],
    "end": lambda run: [append(run, 0), finish(run)],
}


class Fleet(NamedTuple):
    """Two workers, of which the first holds a run and is dead, as far as the second can see."""

    first: PgStore
    second: PgStore
    heir: int
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
        victim, heir = (
            await first.workers.register(new_worker(), 10.0),
            await second.workers.register(new_worker(), 1e6),
        )
        await start_run(first)
        run = await claim_run(first, victim)
        clock.advance(11.0)
        yield Fleet(first, second, heir, run, gate)
        for store in (first, second):
            await store.close()
        await gate.close()


@asynccontextmanager
async def gate_in_front_of(fleet: Fleet, change: str) -> AsyncIterator[None]:
    """Within this block, whoever is in the middle of such a change waits."""
    await fleet.gate.execute(f"""
        CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
            $$ BEGIN PERFORM pg_advisory_xact_lock({GATE}); RETURN NEW; END $$;
        CREATE TRIGGER gate {TRIGGERS[change]} EXECUTE FUNCTION wait_at_gate();
        SELECT pg_advisory_lock({GATE})""")
    try:
        yield
    finally:
        await fleet.gate.execute(f"SELECT pg_advisory_unlock({GATE})")


async def waiting(fleet: Fleet, *, at_gate: bool) -> None:
    """Wait until somebody waits at the gate, or for a row that somebody else has locked."""
    kind = "= 'advisory'" if at_gate else "IN ('tuple', 'transactionid')"
    query = (
        f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event {kind} "
        f"AND datname = current_database()"
    )
    async with asyncio.timeout(PATIENCE):
        while (await (await fleet.gate.execute(query)).fetchone()) == (0,):  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.005)


async def take_over(fleet: Fleet) -> list[int] | None:
    """Bury the first worker, and take its run; returns the numbers of the records that are there then.

    It is tried until it works, or the run has ended: burying somebody is given up soon while others are in the way.
    """
    async with asyncio.timeout(PATIENCE):
        while (await read_run(fleet.second)).state is not RunState.COMPLETED:
            await fleet.second.workers.reap_dead(fleet.heir)
            for run in await fleet.second.claims.claim(fleet.heir, **CLAIM_FILTER, limit=1):
                [history] = await fleet.second.get_histories([run.key])
                return [record.seq for record in history.records]
    return None


async def test_a_run_that_parks_with_unread_signals_while_its_worker_is_declared_dead_wakes(fleet: Fleet):
    await commit_ops(fleet.first, signal(name="old name"))
    async with gate_in_front_of(fleet, "parks"):
        parking = asyncio.create_task(commit_ops(fleet.first, park(fleet.run, None, "new name")))
        await waiting(fleet, at_gate=True)
        taking_over = asyncio.create_task(take_over(fleet))
        await waiting(fleet, at_gate=False)
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
    assert run.state is RunState.COMPLETED or (run.owner, run.epoch) == (fleet.heir, 2)


@pytest.mark.parametrize("kind", COMMITS)
async def test_a_takeover_waits_for_a_commit_in_progress(fleet: Fleet, kind: str):
    verdicts, read = await commit_then_take_over(fleet, kind)
    assert verdicts == [DONE] * len(verdicts)
    await check(fleet, COMMITS[kind](fleet.run), verdicts, read)


async def commit_then_take_over(fleet: Fleet, kind: str) -> tuple[list[Any], list[int] | None]:
    async with gate_in_front_of(fleet, "ends" if kind == "end" else "records"):
        commit = asyncio.create_task(fleet.first.commit(COMMITS[kind](fleet.run)))
        await waiting(fleet, at_gate=True)
        takeover = asyncio.create_task(take_over(fleet))
        waits = asyncio.create_task(waiting(fleet, at_gate=False))
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
        await waiting(fleet, at_gate=True)
        commit = asyncio.create_task(fleet.first.commit(COMMITS[kind](fleet.run)))
        waits = asyncio.create_task(waiting(fleet, at_gate=False))
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
    async with asyncio.timeout(PATIENCE):
        reaped = await fleet.second.workers.reap_dead(fleet.heir)
    assert (reaped.worker_ids, reaped.released_count) == ((other,), 0)
    await fleet.gate.execute("ROLLBACK")
    reaped = await fleet.second.workers.reap_dead(fleet.heir)
    assert (len(reaped.worker_ids), reaped.released_count) == (1, 1)
