"""A fleet of workers on one PostgreSQL database: who notices a death, how soon, and what idling costs."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from functools import partial

import pytest
from app_processes import App
from ledger import check_crash, check_end
from postgres_faults import Pooler
from postgres_pooler import SmallPooler
from postgres_processes import PgWorld, Proxy

from waits import wait_until_sync

LEASE = 60.0
SOON = 10.0
"""Seconds: far more than it takes on a busy machine, and far less than the lease that would decide otherwise."""
SHORT_LEASE = 3.0
KILLS = 2
HELD_RUN_COUNT = 8
QUIET = 3.0
"""Seconds for which an idle worker is watched."""


def kill_in_sequence(world: PgWorld, lease: float, kills: int, **settings: object) -> list[float]:
    """Kill one worker after the other, with a step in flight; returns how long it took the next one to go on."""
    delays: list[float] = []
    victims: list[int] = []
    victim = world.worker(LEASE=lease, **settings)
    for number in range(kills):
        run = world.client.start_sync("held", f"{number}")
        world.wait_for_line("hold", "start", run=run, pid=victim.pid)
        peer = world.worker(LEASE=lease, **settings)
        before = world.snapshot()
        killed_at = victim.kill()
        victims.append(victim.pid)
        delays.append(world.wait_for_line("hold", "start", run=run, pid=peer.pid).at - killed_at)
        world.open_gate(f"{number}")
        assert world.wait_for_end(run).deliveries <= 1
        check_crash(before, world.snapshot())
        victim = peer
    check_end(world.snapshot(), killed=victims)
    return delays


def test_the_runs_of_a_killed_worker_go_on_long_before_its_lease_ends(pg_world: PgWorld):
    delays = kill_in_sequence(pg_world, LEASE, KILLS)
    print(f"\nSIGKILL to the next worker's first step: {', '.join(f'{delay:.2f}' for delay in delays)} s")
    assert statistics.median(delays) < SOON, delays


def start_fleet(world: PgWorld) -> tuple[list[App], dict[str, int]]:
    """Four workers, of which the first one watches the others, and the processes that hold runs, by run."""
    workers = [world.worker(LEASE=LEASE) for _ in range(4)]
    runs = [world.client.start_sync("held", f"{number}") for number in range(HELD_RUN_COUNT)]
    return workers, {run: world.wait_for_line("hold", "start", run=run).pid for run in runs}


def find_starts(world: PgWorld, run: str, dead: set[int]) -> list[float]:
    """When the step that a gate holds back was started by workers that are not dead."""
    return [line.at for line in world.lines("hold", "start", run=run) if line.pid not in dead]


def check_runs_continue(world: PgWorld, holders: dict[str, int], killed: list[App], killed_at: float) -> None:
    """The runs of killed workers are taken over soon, and no run of the others is."""
    dead = {app.pid for app in killed}
    for run, holder in holders.items():
        if holder in dead:
            starts = partial(find_starts, world, run, dead)
            wait_until_sync(starts, f"{run} is taken over")
            assert starts()[0] - killed_at < SOON
    for number in range(HELD_RUN_COUNT):
        world.open_gate(f"{number}")
    for run, holder in holders.items():
        assert world.wait_for_end(run).epoch == 1 + (holder in dead)
        assert len(world.lines("hold", "start", run=run)) == 1 + (holder in dead)
        assert len(world.lines("call", "start", run=run)) == 2
    check_end(world.snapshot(), killed=[*dead])


def test_when_the_worker_that_watches_dies_together_with_another_one_the_rest_take_over(pg_world: PgWorld):
    workers, holders = start_fleet(pg_world)
    killed = [workers[0], next((app for app in workers[1:] if app.pid in holders.values()), workers[1])]
    killed_at = min(app.kill() for app in killed)
    check_runs_continue(pg_world, holders, killed, killed_at)


def test_while_the_worker_that_watches_is_suspended_the_others_still_notice_a_death(pg_world: PgWorld):
    (leader, *others), holders = start_fleet(pg_world)
    leader.send(signal.SIGSTOP)
    victim = next((app for app in others if app.pid in holders.values()), others[0])
    killed_at = victim.kill()
    try:
        wait_until_sync(lambda: victim.pid not in pg_world.live_workers().values(), "the death is noticed")
    finally:
        leader.send(signal.SIGCONT)
    check_runs_continue(pg_world, holders, [victim], killed_at)


def check_behind_pooler(world: PgWorld, url: str) -> None:
    (delay,) = kill_in_sequence(world, SHORT_LEASE, 1, HOLDFAST_URL=url)
    # The lease was renewed up to a third of it before the kill.
    assert SHORT_LEASE / 2 < delay < SHORT_LEASE + SOON


def test_with_a_pooler_the_runs_of_a_killed_worker_continue_when_its_lease_ends(pg_world: PgWorld):
    pooler = SmallPooler(pg_world.url)
    try:
        check_behind_pooler(pg_world, pooler.url)
        assert pooler.transaction_count
    finally:
        pooler.stop()


def test_the_same_holds_with_a_real_pooler(pg_world: PgWorld):
    pooler = Pooler(pg_world.url)
    try:
        check_behind_pooler(pg_world, pooler.url)
    finally:
        pooler.stop()


@pytest.fixture
def watched(pg_world: PgWorld) -> Iterator[tuple[App, Proxy]]:
    """A worker of which every statement is counted."""
    proxy = Proxy(pg_world.url)
    yield pg_world.worker(HOLDFAST_URL=proxy.url), proxy
    proxy.close()


def test_a_worker_that_has_nothing_to_do_asks_at_most_twice_a_second(watched: tuple[App, Proxy], pg_world: PgWorld):
    _, proxy = watched
    run = pg_world.client.start_sync("shared", "x")
    pg_world.wait_for_end(run)

    def is_quiet() -> bool:
        """Whether it has been for a while; the run, and what is looked at once a minute, come to an end."""
        before, began = proxy.passed.copy(), time.monotonic()
        time.sleep(QUIET)
        asked, seconds = proxy.passed - before, time.monotonic() - began
        assert asked, "a worker that never looks would not find what nobody tells it"
        print(f"\nan idle worker asks {asked.total() / seconds:.2f} times a second")
        return asked.total() <= 2 * seconds

    wait_until_sync(is_quiet, "at most two statements a second", describe=lambda: proxy.passed)
