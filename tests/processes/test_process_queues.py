"""A fleet in which workers die keeps to the limits of its queues, and leaves nothing behind.

The ledger outside tells which steps were under way at the same time: what a killed process had begun has ended with it.
Rates are about when the store gives out runs to begin, so workers note outside when they asked and were answered.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app_processes import World
from ledger import LedgerLine, check_end

from waits import wait_until_sync

ON_POSTGRES = ("test_no_more_is_under_way_or_begun_than_the_limits_allow_while_workers_are_killed",)
"""What always runs on PostgreSQL, too."""

CUSTOMERS = ("acme", "acme", "acme", "beta", "gamma", "delta")
"""The first one has more runs than it has time for."""
VISITS, CALLS = 36, 45
PLACES, RATE = 3, 15


class Span(NamedTuple):
    """A step under way in one process."""

    begins: float
    ends: float
    customer: str


def test_no_more_is_under_way_or_begun_than_the_limits_allow_while_workers_are_killed(world: World):
    claims = world.folder / "claims"
    workers = [world.spawn("limited_worker.py", CLAIMS=claims) for _ in range(4)]
    for worker in workers:
        worker.wait_for_output("ready")
    runs = [world.client.start_sync("visits", CUSTOMERS[n % len(CUSTOMERS)], n) for n in range(VISITS)]
    runs += [world.client.start_sync("calls", n) for n in range(CALLS)]
    killed: dict[int, float] = {}
    for number, worker in enumerate(workers[:3], 1):
        wait_until_sync(
            lambda seen=6 * number: len(world.lines("visit", "finish")) >= seen, "visits", describe=world.describe
        )
        wait_until_sync(
            lambda pid=worker.pid: is_at_work(world, pid) or not left(world),
            "the victim works",
            describe=world.describe,
        )
        killed[worker.pid] = worker.kill()
        if number < 3:
            world.spawn("limited_worker.py", CLAIMS=claims)
    for run in runs:
        world.wait_for_end(run)
    check_end(world.snapshot(), killed=list(killed))

    spans = list(list_in_progress(world.lines("visit"), killed))
    assert count_max_overlap(spans) == PLACES, spans
    for customer in set(CUSTOMERS):
        assert count_max_overlap([span for span in spans if span.customer == customer]) == 1, customer
    begun = [json.loads(line) for line in claims.read_text().splitlines()]
    given = Counter(run for _, _, several in begun for run in several)
    assert set(given.values()) == {1}, "a run begins once"
    assert len(given) >= CALLS - 3 * RATE, "only what a killed worker was about to note is missing"
    assert shortest_window(begun) >= 1.0, begun
    told = {queue.name: (queue.running_count, queue.waiting_count) for queue in world.client.queues.list_sync()}
    assert told == {"calls": (0, 0), "visits": (0, 0)}
    for worker in world.apps:
        assert "Traceback" not in worker.stderr_messages, worker


def shortest_window(begun: Sequence[tuple[float, float, list[str]]]) -> float:
    """The shortest time that surely had one more beginning than the rate allows."""
    times = [(asked, told) for asked, told, several in sorted(begun) for _ in several]
    return min(max(told for _, told in times[at : at + RATE + 1]) - times[at][0] for at in range(len(times) - RATE))


def is_at_work(world: World, pid: int) -> bool:
    lines = world.lines("visit", pid=pid)
    return bool(lines) and lines[-1].phase == "start"


def left(world: World) -> int:
    return VISITS - len({line.run for line in world.lines("visit", "finish")})


def list_in_progress(lines: Sequence[LedgerLine], killed: dict[int, float]) -> Iterator[Span]:
    """From when to when each step was under way; in a killed process at most until it was gone."""
    begun: dict[tuple[int, str], LedgerLine] = {}
    last = {line.pid: line.at for line in lines}
    for line in lines:
        if line.phase == "start":
            begun[line.pid, line.key] = line
        else:
            yield Span(begun.pop((line.pid, line.key)).at, line.at, line.label)
    for (pid, _), line in begun.items():
        yield Span(line.at, max(killed[pid], last[pid]), line.label)


def count_max_overlap(spans: Sequence[Span]) -> int:
    changes = sorted([(span.begins, 1) for span in spans] + [(span.ends, -1) for span in spans])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
