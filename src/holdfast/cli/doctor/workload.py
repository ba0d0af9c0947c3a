"""What ``doctor`` tells of workers and runs: who is there, and whether there is work that nobody does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.cli.disabled_workflows import unfinished
from holdfast.cli.doctor.checks import FAIL, OK, WARN, Check
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import ago, command, counted
from holdfast.cli.store_access import placed, reached
from holdfast.core.states import UNFINISHED, RunState
from holdfast.errors import HoldfastError
from holdfast.services.health import Health
from holdfast.services.queues import QueueInfo
from holdfast.services.stalls import how_to_switch_on
from holdfast.services.workers import WorkerInfo


def work_checks(url: str | None) -> Iterator[Check]:
    """Who is alive, how many runs there are, and what somebody should see to."""
    for check in _checks(url):
        yield replace(check, advice=placed(url, check.advice))


def _checks(url: str | None) -> Iterator[Check]:
    try:
        found = in_loop(_read(url))
    except HoldfastError as error:
        yield Check("runs", FAIL, str(error))
        return
    states: Counter[RunState] = Counter()
    for one in found.health:
        states.update(one.runs)
    yield _workers(found.workers, any(states[state] for state in UNFINISHED))
    yield from _listeners(found.workers)
    more = {state for one in found.health for state in one.more}
    told = ", ".join(f"{states[state]}{'+' if state in more else ''} {state}" for state in RunState if states[state])
    yield Check("runs", OK, told or "none yet")
    yield from _unserved(found.health)
    yield from _switched_off(found.health)
    yield from _paused_queues(found.queues)
    yield from _unsuccessful(states)


class _Found(NamedTuple):
    """What is told of workers and runs."""

    health: Sequence[Health]
    workers: Sequence[WorkerInfo]
    queues: Sequence[QueueInfo]


async def _read(url: str | None) -> _Found:
    async with reached(url) as client:
        return _Found(await client.health(), await client.workers(), await client.queues.list())


def _workers(workers: Sequence[WorkerInfo], work: bool) -> Check:
    alive = [worker for worker in workers if worker.alive]
    own = [worker for worker in alive if not worker.listener]
    gone = sum(worker.state == "live" and not worker.listener for worker in workers) - len(own)
    message = _how_many(own)
    if gone:
        message += f"; {counted(gone, 'dead one')} whose runs the next worker takes over"
    if not alive and work:
        return Check("workers", WARN, message, "start one with `holdfast worker module`, or run your program again")
    return Check("workers", OK, message)


def _listeners(workers: Sequence[WorkerInfo]) -> Iterator[Check]:
    """Those that a server speaks for, if there are any."""
    known = [worker for worker in workers if worker.listener and worker.state == "live"]
    own = [worker for worker in known if worker.alive]
    if known:
        gone = len(known) - len(own)
        lost = f"; {counted(gone, 'silent one')} whose runs a server gives to others" if gone else ""
        yield Check("listeners", OK, _how_many(own) + lost)


def _how_many(workers: Sequence[WorkerInfo]) -> str:
    places = ", ".join(worker.place for worker in workers[:4]) + (" …" if len(workers) > 4 else "")
    return f"{len(workers)} alive" + (f" ({places})" if workers else "")


def _unserved(health: Sequence[Health]) -> Iterator[Check]:
    for left in sorted((left for one in health for left in one.unserved), key=lambda left: left.fact):
        yield Check("unserved", WARN, f"{left.fact} ({counted(left.runs, 'unfinished run')})", left.remedy)


def _switched_off(health: Sequence[Health]) -> Iterator[Check]:
    for one in health:
        if one.off_since is not None:
            since = ago(time.time() - one.off_since.timestamp())
            by = f" by {one.off_by}" if one.off_by else ""
            why = f": {one.off_reason}" if one.off_reason else ""
            message = f"workflow {one.name!r}, {since}{by}{why} ({counted(unfinished(one), 'unfinished run')})"
            yield Check("switched off", WARN, message, how_to_switch_on(one.name).partition(": ")[2])


def _paused_queues(queues: Sequence[QueueInfo]) -> Iterator[Check]:
    for queue in queues:
        if queue.paused_at is not None:
            waiting = f"{counted(queue.waiting, 'run')} {'waits' if queue.waiting == 1 else 'wait'} in it"
            message = f"queue {queue.name!r}, {ago(time.time() - queue.paused_at.timestamp())} ({waiting})"
            yield Check("paused", WARN, message, f"`{command('queues', 'resume', queue.name)}` lets its runs go on")


def _unsuccessful(states: Mapping[RunState, int]) -> Iterator[Check]:
    for state in (RunState.FAILED, RunState.DEAD):
        if count := states.get(state):
            advice = f"see them with `holdfast runs --state {state}`; `holdfast retry ID` lets one go on"
            yield Check(state.value, WARN, counted(count, "run"), advice)
