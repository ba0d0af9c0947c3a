"""Postgres fails over to a standby while a fleet is under load.

With synchronous replication, nothing is lost that was reported as committed. With asynchronous replication, the last
commits are, and the runs continue from what is left. ``pytest -s`` prints the figures of docs/high-availability.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fleets
import pytest
from app_processes import App
from postgres_processes import PgWorld
from postgres_standby import Node, ReplicatedServers

from waits import wait_until_sync

WORKER_COUNT = 3
FAILURES: dict[str, Callable[[Node], None]] = {"killed": Node.kill, "demoted": Node.demote, "fenced": Node.fence}


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[ReplicatedServers]:
    servers = ReplicatedServers(synchronous="asynchronous" not in request.node.name)
    yield servers
    servers.remove()


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, folder: Path, servers: ReplicatedServers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PgWorld]:
    """``--full-load``: with many runs at once."""
    if request.config.getoption("--full-load"):
        monkeypatch.setattr(fleets, "SLOTS", fleets.MANY_SLOTS)
    world = PgWorld(folder, servers.url)
    yield world
    world.clean_up()


def find_first_commit(world: PgWorld, since: float) -> float | None:
    """When the first record after a moment was committed, or recorded."""
    [(at,)] = world.tables.ask("SELECT min(at) FROM records WHERE at > ?", since)
    return at


def find_start(world: PgWorld, worker: App, since: float) -> float | None:
    """When a worker started its first step after a moment."""
    return min((line.at for line in world.lines(phase="start", pid=worker.pid) if line.at > since), default=None)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_fleet_survives_the_failover_of_its_database(fleet: PgWorld, servers: ReplicatedServers, failure: str):
    workers = [fleets.start_worker(fleet) for _ in range(WORKER_COUNT)]
    clients = [fleets.start_client(fleet, name, RETRY=1) for name in ("one", "two")]
    fleets.wait_until_at_work(fleet, workers)
    for client in clients:
        fleets.wait_until_confirmed(fleet, client, "ended")

    failed_at = time.time()
    FAILURES[failure](servers.primary)
    promoted_at = servers.standby.promote()

    first_commit = wait_until_sync(lambda: find_first_commit(fleet, promoted_at), "the first commit")
    starts = [
        wait_until_sync(lambda app=app: find_start(fleet, app, promoted_at), "a step", describe=fleet.describe)
        for app in workers
    ]
    print(
        f"\n{failure}: promoted after {promoted_at - failed_at:.2f} s; from then on, the first commit after "
        f"{first_commit - promoted_at:.2f} s, all workers at work after {max(starts) - promoted_at:.2f} s"
    )
    for client in clients:
        fleets.wait_until_confirmed(fleet, client, "ended")
    fleets.close(fleet, clients)

    fleets.check_fleet(fleet, clients)
    assert set(fleet.live_workers().values()) == {worker.pid for worker in workers}, "none was declared dead"
    for app in (*workers, *clients):
        assert "Traceback" not in app.stderr_messages, str(app)


def test_after_an_asynchronous_failover_runs_continue_from_what_is_left(fleet: PgWorld, servers: ReplicatedServers):
    workers = [fleets.start_worker(fleet) for _ in range(WORKER_COUNT)]
    clients = [fleets.start_client(fleet, name, RETRY=1) for name in ("one", "two")]
    fleets.wait_until_at_work(fleet, workers)
    for client in clients:
        fleets.wait_until_confirmed(fleet, client, "ended")

    kept = fleet.journals()
    servers.wait_until_replicated()
    servers.cut_replication()
    for client in clients:
        fleets.wait_until_confirmed(fleet, client, "ended", 2)
    servers.primary.kill()
    seen = len(fleet.lines())
    servers.standby.promote()
    for client in clients:
        fleets.wait_until_confirmed(fleet, client, "ended")
    fleets.close(fleet, clients)

    end = fleet.snapshot()
    answered = fleets.read_confirmations(clients)["ended"].keys()
    unfinished = {run for run, journal in end.journals.items() if journal.state == "waiting"}
    assert unfinished <= answered, "only what a client does not send again is waited for"
    for run, journal in end.journals.items():
        assert [record.seq for record in journal.records] == list(range(len(journal.records))), f"{run} has a gap"
        if run in unfinished:
            continue
        assert journal.state == "completed", f"{run}: {journal.state} {journal.error}"
        if run.startswith("parcel-"):
            fleets.check_result(run, journal.output, may_be_unknown=True)
    repeated = {line.key for line in end.lines[:seen]} & {line.key for line in end.lines[seen:]}
    assert repeated, "steps whose records were lost are executed again"
    for run, journal in kept.items():
        assert end.journals[run].records[: len(journal.records)] == journal.records, f"{run}: a record is gone"
        assert not repeated & journal.steps.keys(), f"{run}: a step with a replicated record was executed again"
    assert set(fleet.live_workers().values()) == {worker.pid for worker in workers}, "none was declared dead"
    for app in (*workers, *clients):
        assert "Traceback" not in app.stderr_messages, str(app)
    lost = (answered - end.journals.keys()) | unfinished
    print(f"\n{len(repeated)} steps repeated, {len(lost)} runs lost after their results were read")
