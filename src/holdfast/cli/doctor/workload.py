"""Checks of workers and runs: who is alive, and whether there is work that no worker serves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.cli.doctor.checks import CheckResult, fail, ok, warn
from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import format_ago, format_command, format_count
from holdfast.cli.shared.store_access import open_client, with_store_options
from holdfast.cli.workflows.disable import count_unfinished_runs
from holdfast.core.states import UNFINISHED_STATES, RunState
from holdfast.errors import HoldfastError
from holdfast.services.health import Health
from holdfast.services.queues import QueueInfo
from holdfast.services.stalls import describe_disabled
from holdfast.services.workers import WorkerInfo


def diagnose_workload(url: str | None) -> Iterator[CheckResult]:
    """Check workers, listeners, and runs."""
    for check in _diagnose(url):
        yield replace(check, advice=with_store_options(url, check.advice))


def _diagnose(url: str | None) -> Iterator[CheckResult]:
    try:
        found = run_in_loop(_fetch_workload(url))
    except HoldfastError as error:
        yield fail("runs", str(error))
        return
    states: Counter[RunState] = Counter()
    for one in found.health:
        states.update(one.run_counts)
    yield _diagnose_workers(found.workers, any(states[state] for state in UNFINISHED_STATES))
    yield from _diagnose_listeners(found.workers)
    more = {state for one in found.health for state in one.capped_states}
    counts = ", ".join(f"{states[state]}{'+' if state in more else ''} {state}" for state in RunState if states[state])
    yield ok("runs", counts or "none yet")
    yield from _diagnose_unserved(found.health)
    yield from _diagnose_disabled(found.health)
    yield from _diagnose_paused_queues(found.queues)
    yield from _diagnose_unsuccessful(states)


class _Workload(NamedTuple):
    health: Sequence[Health]
    workers: Sequence[WorkerInfo]
    queues: Sequence[QueueInfo]


async def _fetch_workload(url: str | None) -> _Workload:
    async with open_client(url) as client:
        return _Workload(await client.health(), await client.workers(), await client.queues.list())


def _diagnose_workers(workers: Sequence[WorkerInfo], has_work: bool) -> CheckResult:
    alive = [worker for worker in workers if worker.is_alive]
    own = [worker for worker in alive if not worker.is_listener]
    other_count = sum(worker.state == "live" and not worker.is_listener for worker in workers) - len(own)
    message = _format_live_workers(own)
    if other_count:
        message += f"; {format_count(other_count, 'dead one')} whose runs the next worker takes over"
    if not alive and has_work:
        return warn("workers", message, "start one with `holdfast worker MODULE`, or start your program again")
    return ok("workers", message)


def _diagnose_listeners(workers: Sequence[WorkerInfo]) -> Iterator[CheckResult]:
    """Check the listeners of servers, if there are any."""
    known = [worker for worker in workers if worker.is_listener and worker.state == "live"]
    own = [worker for worker in known if worker.is_alive]
    if known:
        other_count = len(known) - len(own)
        lost = f"; {format_count(other_count, 'silent one')} whose runs a server gives to others" if other_count else ""
        yield ok("listeners", _format_live_workers(own) + lost)


def _format_live_workers(workers: Sequence[WorkerInfo]) -> str:
    places = ", ".join(worker.location for worker in workers[:4]) + (" …" if len(workers) > 4 else "")
    return f"{len(workers)} alive" + (f" ({places})" if workers else "")


def _diagnose_unserved(health: Sequence[Health]) -> Iterator[CheckResult]:
    for left in sorted((left for one in health for left in one.unserved_runs), key=lambda left: left.reason):
        yield warn("unserved", f"{left.reason} ({format_count(left.run_count, 'unfinished run')})", left.remedy)


def _diagnose_disabled(health: Sequence[Health]) -> Iterator[CheckResult]:
    for one in health:
        if one.disabled_at is not None:
            since = format_ago(time.time() - one.disabled_at.timestamp())
            by = f" by {one.disabled_by}" if one.disabled_by else ""
            why = f": {one.disabled_reason}" if one.disabled_reason else ""
            message = (
                f"workflow {one.name!r}, {since}{by}{why} "
                f"({format_count(count_unfinished_runs(one), 'unfinished run')})"
            )
            yield warn("disabled", message, describe_disabled(one.name).partition(": ")[2])


def _diagnose_paused_queues(queues: Sequence[QueueInfo]) -> Iterator[CheckResult]:
    for queue in queues:
        if queue.paused_at is not None:
            waiting = (
                f"{format_count(queue.waiting_count, 'run')} {'waits' if queue.waiting_count == 1 else 'wait'} in it"
            )
            message = f"queue {queue.name!r}, {format_ago(time.time() - queue.paused_at.timestamp())} ({waiting})"
            yield warn(
                "paused", message, f"`{format_command('queues', 'resume', queue.name)}` lets its runs start again"
            )


def _diagnose_unsuccessful(states: Mapping[RunState, int]) -> Iterator[CheckResult]:
    for state in (RunState.FAILED, RunState.DEAD):
        if count := states.get(state):
            advice = f"see them with `holdfast runs --state {state}`; `holdfast retry ID` retries one"
            yield warn(state.value, format_count(count, "run"), advice)
