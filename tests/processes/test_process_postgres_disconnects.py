"""A connection is cut in the middle of a commit, before or after the server has heard of it: nothing lost or doubled.

The worker's connections go through a proxy that knows which statements pass. The test's own do not.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator

import pytest
from app_processes import TIMEOUT_S, App
from ledger import check_end
from postgres_processes import PgWorld, Proxy

from waits import wait_until_sync

STATEMENTS = {"append": "FOR SHARE", "finish": "RETURNING runs.key", "batch": "COMMIT"}
"""What is in the statements that append records and end runs on their own, and in the last one of any other batch."""
MOMENTS = ("before", "after", "stall")
STALL = 0.3


@pytest.fixture
def proxy(pg_world: PgWorld) -> Iterator[Proxy]:
    proxy = Proxy(pg_world.url)
    yield proxy
    proxy.close()


def test_a_connection_that_is_cut_in_the_middle_of_a_commit_loses_and_doubles_nothing(pg_world: PgWorld, proxy: Proxy):
    world = pg_world
    worker = world.worker(HOLDFAST_URL=proxy.url)
    for moment in MOMENTS:
        for sort, statement in STATEMENTS.items():
            name = f"{moment}-{sort}"
            run = world.client.start_sync("held", name)
            world.wait_for_line("hold", "start", run=run)
            wait_for_live_event(world)
            cut = proxy.cut(statement, moment, seconds=STALL)
            world.open_gate(name)
            assert world.wait_for_end(run).output == [f"{name} before", name, f"{name} after"]
            assert cut.done.wait(TIMEOUT_S), f"{name}: nothing was cut, of {proxy.passed}"
    assert worker.exit_code is None
    check_end(world.snapshot())


def test_records_that_arrive_when_the_run_is_anothers_change_nothing(pg_world: PgWorld, proxy: Proxy):
    world = pg_world
    zombie, peer, run = stop_during_commit(world, proxy, "append")
    ended = world.wait_for_end(run)
    proxy.last.go_on.set()
    assert proxy.last.done.wait(TIMEOUT_S)
    reconnect_zombie(world, zombie)
    assert world.journal(run) == ended, "the zombie changed the run"
    end = world.snapshot()
    assert [end.pids[record.worker] for record in ended.records] == [zombie.pid, zombie.pid, peer.pid]
    assert [line.pid for line in world.lines("call", "finish") if line.label == "x after"] == [zombie.pid, peer.pid]
    check_end(end, killed=[zombie.pid])


def test_a_takeover_waits_for_a_batch_that_has_locked_the_run(pg_world: PgWorld, proxy: Proxy):
    world = pg_world
    zombie, peer, run = stop_during_commit(world, proxy, "batch")
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    wait_until_sync(lambda: world.tables.ask(waiting), "the peer waits for the run", describe=world.describe)
    assert world.journal(run).epoch == 1
    other = world.client.start_sync("shared", "y")
    assert world.wait_for_end(other).output == peer.pid, "only what needs the run has to wait"
    proxy.last.go_on.set()
    ended = world.wait_for_end(run)
    reconnect_zombie(world, zombie)
    end = world.snapshot()
    recorders = [end.pids[record.worker] for record in ended.records]
    if recorders[1] == zombie.pid:
        assert not world.lines("hold", "start", pid=peer.pid), "it was recorded in time, and begun again"
    else:  # this machine is so slow that the server gave up on the zombie before
        assert world.lines("hold", "start", pid=peer.pid)
    assert recorders[2] == peer.pid
    check_end(end, killed=[zombie.pid])


def stop_during_commit(world: PgWorld, proxy: Proxy, sort: str) -> tuple[App, App, str]:
    """A worker that is stopped with a commit on its way to the server, one that is not, and the run."""
    zombie = world.worker(HOLDFAST_URL=proxy.url, LEASE=1.0)
    run = world.client.start_sync("held", "x")
    world.wait_for_line("hold", "start", run=run)
    wait_for_live_event(world)
    peer = world.worker()
    cut = proxy.cut(STATEMENTS[sort], "stall")
    world.open_gate("x")
    assert cut.begun.wait(TIMEOUT_S)
    zombie.send(signal.SIGSTOP)
    return zombie, peer, run


def wait_for_live_event(world: PgWorld) -> None:
    """Wait for a live event of the step in flight: it is deleted with the step's outcome, in a batch. The step after it
    has a record alone."""
    wait_until_sync(
        lambda: world.tables.ask("SELECT 1 FROM live_events"), "the step has live events", describe=world.describe
    )


def reconnect_zombie(world: PgWorld, zombie: App) -> None:
    """Let a stopped worker go on that was taken for dead, and wait until it knows."""
    wait_until_sync(
        lambda: zombie.pid not in world.live_workers().values(), "the zombie is buried", describe=world.describe
    )
    zombie.send(signal.SIGCONT)
    wait_until_sync(
        lambda: "registers anew" in zombie.stderr_messages, "the zombie comes back", describe=world.describe
    )


WHATEVER = ("COMMIT", "FOR SHARE", "BEGIN", "lease_expires_at =", "pg_notify", "LISTEN", "SELECT")
"""Pieces of statements of every connection that a worker has."""


def test_connections_that_are_cut_again_and_again_under_load_lose_and_double_nothing(pg_world: PgWorld, proxy: Proxy):
    world = pg_world
    worker = world.worker(HOLDFAST_URL=proxy.url, LEASE=1.5)
    runs = [world.client.start_sync("mixed", f"mixed-{n}") for n in range(3)]
    letters = world.client.start_sync("letters", "x", 14)
    world.open_gate("x")
    others: list[str] = []

    def work(name: str) -> None:
        others.extend(world.client.start_sync(flow, name) for flow in ("slow_payment", "parent"))
        world.open_gate(name)

    cuts = itertools.product(("before", "after"), WHATEVER)
    for number, (moment, statement) in enumerate(cuts):
        cut = proxy.cut(statement, moment, skip=0 if statement == "LISTEN" else number % 3)
        work(f"{number}")
        world.client.signal_sync(letters, "letter", f"{number}")
        if statement == "LISTEN":
            proxy.cut_all()  # then all connections are made again
        more = 0
        while not cut.done.wait(1.0):  # what is told together is one statement, and some are skipped
            more += 1
            assert more < TIMEOUT_S, f"{moment} {statement}: nothing was cut, of {proxy.passed}"
            work(f"{number}-{more}")
    for n, run in enumerate(runs):
        world.open_gate(f"mixed-{n}")
        world.wait_for_end(run)
    for run in others:
        assert "unknown" not in world.wait_for_end(run).output
    assert world.wait_for_end(letters).output == ["x", *(f"{number}" for number in range(14))]
    assert worker.exit_code is None
    assert "Traceback" not in worker.stderr_messages, str(worker)
    check_end(world.snapshot())
    assert all(journal.deliveries == 0 for journal in world.journals().values())
