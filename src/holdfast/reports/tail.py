"""What happens in all runs, as it happens: runs that begin, steps that end, answers, approvals, takeovers, ends.

A store keeps a journal for each run, but no global event list, which would cost one more write per step. So a follower
of all runs looks at those where something may be new, each time the store reports a change, and continues reading their
journals:

- runs that are new, by the order of their creation, the newest ``MAX_NEW_RUNS`` of them;
- runs that a worker holds, up to ``BATCH_SIZE``;
- runs that wait, the newest ``BATCH_SIZE`` of them, and those that were seen before: only if their row has changed
  since.

That costs a few lists of rows for each look, however many runs there are, and nothing between two changes. What happens
in a run that waits and is not among these is reported when the run is seen next: when it is held, or has ended while it
was followed. Pieces of an answer in flight are not reported: the answer is, when it is recorded.

A follower's position is a point in time. A follower that comes back names one, and gets what has happened since. Around
that time some events may come twice, since events of different runs are not written in the order of their times:
``SeenEvents`` removes those.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.reports.event_offsets import EventCursor
from holdfast.reports.events import Event, EventReader, add_approval_details, get_max_value_bytes
from holdfast.services.json_form import UserData, UtcDatetime
from holdfast.services.store_provider import StoreProvider
from holdfast.services.thread_offload import run_off_loop
from holdfast.services.timestamps import to_datetime
from holdfast.stores.change_feed import ALL_RUNS
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import CancelState, Run

BATCH_SIZE = 500
"""Maximum number of runs of a kind in one read."""
MAX_NEW_RUNS = 20_000
"""Maximum number of new runs in one read, whatever start time was given."""
MAX_TRACKED_RUNS = 5_000
"""Maximum number of runs that a follower remembers; the least recently seen are dropped first."""
POLL_INTERVAL_S = 2.0
"""Seconds between two reads if the store reports no change: a worker's death is not reported."""
MIN_POLL_INTERVAL_S = 0.25
"""Seconds between two reads of a store that changes all the time."""

OVERLAP_S = 10.0
"""Seconds that are read again for a follower that comes back: a late write may have an earlier time."""
FOLLOWING_KIND = "following"
"""The first event of a stream: the time from which it reports."""

_PAGE_SIZE = 50
_TEXT_KINDS = ("text", "retracted")
_ANSWERED_KIND = "answered"


@dataclass(frozen=True, slots=True)
class TailEvent:
    """Something that happened in one of the runs."""

    at: UtcDatetime
    run_id: str
    workflow: str
    state: RunState
    """The state of the run when the event was read."""
    kind: str
    """The kind of an ``Event`` of the run (without ``text`` and ``retracted``); also ``created``, ``taken over`` (its
    worker died, and another one continues it), and ``unreadable``."""
    step: int | None
    """The number of its step, signal, or child."""
    name: str
    """The name of its step, signal, or child."""
    worker: str
    """The worker that recorded it, or holds the run; empty if unknown."""
    usd: float | None
    """The cost of a model call, or of the whole run at its end. ``None``: nothing, or unknown."""
    data: UserData
    """More details, as plain data."""


@dataclass(frozen=True, slots=True)
class TailFilter:
    """Which runs are followed; every field that is given must match."""

    workflow: str | None = None
    tag: str | None = None
    states: tuple[RunState, ...] = ()
    """Events of a run are reported while it is in one of these."""

    def to_run_filter(self, states: Collection[RunState] = (), since: float | None = None) -> RunFilter:
        """The filter for the store."""
        return RunFilter(states=states, workflow=self.workflow, tag=self.tag, created_after=since)


class SeenEvents:
    """Recent events, so that none is reported twice."""

    def __init__(self, max_count: int = 20_000) -> None:
        self._seen: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self._max_count = max_count

    def add_if_new(self, event: TailEvent) -> bool:
        """Whether the event is new. It is remembered."""
        key = (event.run_id, event.kind, event.step, event.at)
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > self._max_count:
            self._seen.popitem(last=False)
        return True


async def read_tail(provider: StoreProvider, tail_filter: TailFilter, since: float) -> AsyncGenerator[TailEvent]:
    """Events of all runs since a time, and new ones as they happen. It continues until it is closed."""
    with provider.subscribe(ALL_RUNS) as subscription:
        tail = _TailReader(await provider.store(), tail_filter, since)
        while True:
            subscription.clear()
            try:
                events = await tail.poll()
            except StoreUnavailable:
                events = []  # it may be back in a moment, and the reader keeps its position
            for event in events:
                yield event
            await asyncio.sleep(MIN_POLL_INTERVAL_S)
            await subscription.wait(POLL_INTERVAL_S)


class _TrackedRun:
    """A run that was seen, and the position up to which it was read."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.reader = EventReader(run, EventCursor(), BATCH_SIZE)
        self.is_new = True
        self.owner = run.owner
        """The last known worker."""

    def may_have_changed(self, run: Run) -> bool:
        """Whether something may have happened since the last read."""
        if run.state is RunState.RUNNING:
            return True
        if run.state.is_terminal and self.reader.cursor.has_ended:
            return False
        return _fingerprint(run) != _fingerprint(self.run)


def _fingerprint(run: Run) -> tuple[RunState, int, float | None, CancelState, float | None]:
    return run.state, run.epoch, run.paused_at, run.cancel_state, run.finished_at


class _TailReader:
    """One follower."""

    def __init__(self, store: Store, tail_filter: TailFilter, since: float) -> None:
        self._store = store
        self._filter = tail_filter
        self._since = since
        self._tracked: OrderedDict[str, _TrackedRun] = OrderedDict()
        self._skips_past = since >= store.now() - MIN_POLL_INTERVAL_S
        """Events before the first read are not wanted."""

    async def poll(self) -> list[TailEvent]:
        """The new events, ordered by time."""
        runs = await self._find_candidates()
        events: list[TailEvent] = []
        for run in runs.values():
            tracked = self._tracked.get(run.id)
            if tracked is None:
                tracked = self._tracked[run.id] = _TrackedRun(run)
                is_old = self._skips_past and run.created_at < self._since and run.state is not RunState.RUNNING
                events += [] if is_old else await self._read_changes(tracked, run)
                tracked.is_new = False
            elif tracked.may_have_changed(run):
                events += await self._read_changes(tracked, run)
            else:
                tracked.run = run
            self._tracked.move_to_end(run.id)
        self._skips_past = False
        while len(self._tracked) > MAX_TRACKED_RUNS:
            self._tracked.popitem(last=False)
        return sorted(events, key=lambda event: event.at)

    async def _find_candidates(self) -> Mapping[str, Run]:
        """The runs that may have new events."""
        runs = {run.id: run for run in await self._find_new_runs()}
        for states in ((RunState.RUNNING,), (RunState.WAITING, RunState.PENDING)):
            found = await self._store.list_runs(self._filter.to_run_filter(states), limit=BATCH_SIZE)
            runs |= {run.id: run for run in found}
        # A tracked run that is in none of these lists has ended, or waits after many others.
        rest = [id for id, tracked in self._tracked.items() if id not in runs and not tracked.run.state.is_terminal]
        for start in range(0, len(rest), BATCH_SIZE):
            runs |= {run.id: run for run in await self._store.get_runs(rest[start : start + BATCH_SIZE])}
        return runs

    async def _find_new_runs(self) -> list[Run]:
        """Runs that were created since the last read, oldest first; in the first read, since the given time."""
        found: list[Run] = []
        while True:
            # A run may become visible a little later than runs that were created after it. So the search continues as
            # long as a page has an unknown run.
            before = found[-1].key if found else None
            page = await self._store.list_runs(
                self._filter.to_run_filter(since=self._since), limit=_PAGE_SIZE, before_key=before
            )
            found += page
            if len(page) < _PAGE_SIZE or len(found) >= MAX_NEW_RUNS or all(run.id in self._tracked for run in page):
                return found[::-1]  # the newest last: if they were dropped first, the next read would see them as new

    async def _read_changes(self, tracked: _TrackedRun, run: Run) -> list[TailEvent]:
        """The new events of one run."""
        found: list[TailEvent] = []
        if tracked.is_new and run.created_at >= self._since:
            created = to_datetime(run.created_at)
            found.append(_make_tail_event(run, Event("", "created", created, run.id), "", None))
        if (takeover := await self._find_takeover(tracked, run)) is not None:
            found.append(takeover)
        tracked.run, tracked.owner = run, run.owner or tracked.owner
        workers: dict[int, int] = {}
        try:
            events = await self._read_events(tracked, workers)
        except StoreUnavailable:
            raise
        except HoldfastError as error:  # part of it cannot be read here, which must not hide other runs
            data = {"error": {"type": type(error).__name__, "message": str(error)}}
            events = [Event("", "unreadable", to_datetime(self._store.now()), run.id, data=data)]
            tracked.reader.cursor.has_ended = run.state.is_terminal
        run = tracked.run
        wanted = [event for event in events if event.kind not in _TEXT_KINDS and event.at.timestamp() >= self._since]
        owner = run.owner or tracked.owner or 0
        names: dict[int, str] = {}
        if wanted:
            rows = await self._store.list_workers({*workers.values(), owner} - {0})
            names = {worker.id: worker.name for worker in rows}
        for event in wanted:
            recorded_by = names.get(workers.get(event.step or 0, 0), names.get(owner, ""))
            found.append(_make_tail_event(run, event, recorded_by, await self._read_cost(event)))
        states = self._filter.states
        return [event for event in found if not states or event.state in states]

    async def _read_events(self, tracked: _TrackedRun, workers: dict[int, int]) -> list[Event]:
        """The events of a run after those that were read. Adds the worker of each recorded step to ``workers``."""
        reader, events = tracked.reader, list[Event]()
        while True:
            feed = await self._store.get_run_updates(
                tracked.run.id, reader.cursor.seq, reader.cursor.live_event_number, BATCH_SIZE
            )
            if feed is None:
                return events  # it was deleted
            tracked.run = feed.run
            workers |= {record.position + 1: record.worker for record in feed.records if record.kind.has_position}
            new_events, size = reader.iter_events(feed), get_max_value_bytes(feed)
            while (event := await run_off_loop(size, lambda new_events=new_events: next(new_events, None))) is not None:
                events.append(await add_approval_details(self._store, event))
            if not reader.has_more:
                return events

    async def _find_takeover(self, tracked: _TrackedRun, run: Run) -> TailEvent | None:
        """The event that its worker died, and another one holds it now."""
        before = tracked.run
        if before.state is not RunState.RUNNING or run.epoch == before.epoch or run.owner in (None, before.owner):
            return None
        rows = await self._store.list_workers({before.owner or 0, run.owner or 0})
        workers = {worker.id: worker for worker in rows}
        old, new = workers.get(before.owner or 0), workers.get(run.owner or 0)
        if old is None or old.state != "dead":
            return None  # it was handed over
        at = to_datetime(self._store.now())
        event = Event("", "taken over", at, run.id, data={"died": old.name, "epoch": run.epoch})
        return _make_tail_event(run, event, "" if new is None else new.name, None)

    async def _read_cost(self, event: Event) -> float | None:
        if event.kind == _ANSWERED_KIND:
            return event.data["usage"]["usd"]
        if event.kind != "ended":
            return None
        usage = (await self._store.get_usages([event.run_id])).get(event.run_id)
        return None if usage is None or not usage.used.calls or usage.used.cost is None else float(usage.used.cost)


def _make_tail_event(run: Run, event: Event, worker: str, usd: float | None) -> TailEvent:
    return TailEvent(
        at=event.at,
        run_id=run.id,
        workflow=run.workflow,
        state=run.state,
        kind=event.kind,
        step=event.step,
        name=event.name,
        worker=worker,
        usd=usd,
        data=event.data | ({"text": event.text} if event.kind == _ANSWERED_KIND and event.text else {}),
    )
