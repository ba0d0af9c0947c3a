"""What happens in all runs, as it happens: runs that begin, steps that end, answers, approvals, takeovers, ends.

A store keeps a journal for each run, and no list of what happened anywhere, which would cost each step one more write.
So a follower of all runs looks at those where something may be new, each time the store reports a change, and continues
reading their journals:

- runs that are new, by the order of their creation, the newest ``MAX_NEW_RUNS`` of them;
- runs that a worker holds, as many as ``BATCH_SIZE``;
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
"""So many runs of a kind are looked at."""
MAX_NEW_RUNS = 20_000
"""So many runs that were created since the last look are told of, whatever moment was named."""
MAX_TRACKED_RUNS = 5_000
"""So many runs that were seen are kept in mind; those that were seen least lately go first."""
POLL_INTERVAL_S = 2.0
"""Seconds after which it is looked although the store has told of no change: workers die without a word."""
MIN_POLL_INTERVAL_S = 0.25
"""Seconds between two looks: on a busy store something is new all the time."""

OVERLAP_S = 10.0
"""Seconds that are told again to whoever comes back: what was written late may have an earlier time."""
FOLLOWING_KIND = "following"
"""The first event of a stream: from which moment on it tells."""

_PAGE_SIZE = 50
_TEXT_KINDS = ("text", "retracted")
_ANSWERED_KIND = "answered"


@dataclass(frozen=True, slots=True)
class TailEvent:
    """Something that has happened in one of the runs."""

    at: UtcDatetime
    run_id: str
    workflow: str
    state: RunState
    """The run's, when this was read."""
    kind: str
    """As that of an ``Event`` of the run (but for ``text`` and ``retracted``); also ``created``, ``taken over`` (its
    worker died, and another one goes on with it) and ``unreadable``."""
    step: int | None
    """The number of the step, signal or child that it belongs to."""
    name: str
    """The name of that."""
    worker: str
    """Who has recorded it, or holds the run; empty if that is not known."""
    usd: float | None
    """Of a model call, what it has cost; of the end of a run, what all of it has. ``None``: nothing, or not known."""
    data: UserData
    """What else there is to tell, as plain data."""


@dataclass(frozen=True, slots=True)
class TailFilter:
    """Which runs are followed; every field that is given must match."""

    workflow: str | None = None
    tag: str | None = None
    states: tuple[RunState, ...] = ()
    """What has happened is told while the run is in one of these."""

    def to_run_filter(self, states: Collection[RunState] = (), since: float | None = None) -> RunFilter:
        """The same, for the store."""
        return RunFilter(states=states, workflow=self.workflow, tag=self.tag, created_after=since)


class SeenEvents:
    """What was told of late, so that nothing is told twice."""

    def __init__(self, max_count: int = 20_000) -> None:
        self._seen: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self._max_count = max_count

    def add_if_new(self, event: TailEvent) -> bool:
        """Whether it was not told before; from now on it was."""
        key = (event.run_id, event.kind, event.step, event.at)
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > self._max_count:
            self._seen.popitem(last=False)
        return True


async def read_tail(provider: StoreProvider, tail_filter: TailFilter, since: float) -> AsyncGenerator[TailEvent]:
    """What has happened since a moment, and whatever happens from now on. It goes on until it is closed."""
    with provider.subscribe(ALL_RUNS) as subscription:
        tail = _TailReader(await provider.store(), tail_filter, since)
        while True:
            subscription.clear()
            try:
                found = await tail.poll()
            except StoreUnavailable:
                found = []  # it may be back in a moment, and what was read was read
            for one in found:
                yield one
            await asyncio.sleep(MIN_POLL_INTERVAL_S)
            await subscription.wait(POLL_INTERVAL_S)


class _TrackedRun:
    """A run that was seen, and how far it was read."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.reader = EventReader(run, EventCursor(), BATCH_SIZE)
        self.is_new = True
        self.owner = run.owner
        """The last one that it is known to have had."""

    def may_have_changed(self, run: Run) -> bool:
        """Whether something may have happened since it was read last."""
        if run.state is RunState.RUNNING:
            return True
        return not (run.state.is_terminal and self.reader.cursor.has_ended) and _fingerprint(run) != _fingerprint(
            self.run
        )


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
        """Nothing is wanted that has happened before the first look."""

    async def poll(self) -> list[TailEvent]:
        """What is new, in the order of its times."""
        runs = await self._find_candidates()
        found: list[TailEvent] = []
        for run in runs.values():
            known = self._tracked.get(run.id)
            if known is None:
                known = self._tracked[run.id] = _TrackedRun(run)
                is_old = self._skips_past and run.created_at < self._since and run.state is not RunState.RUNNING
                found += [] if is_old else await self._read_changes(known, run)
                known.is_new = False
            elif known.may_have_changed(run):
                found += await self._read_changes(known, run)
            else:
                known.run = run
            self._tracked.move_to_end(run.id)
        self._skips_past = False
        while len(self._tracked) > MAX_TRACKED_RUNS:
            self._tracked.popitem(last=False)
        return sorted(found, key=lambda one: one.at)

    async def _find_candidates(self) -> Mapping[str, Run]:
        """The runs where something may be new."""
        runs = {run.id: run for run in await self._find_new_runs()}
        for states in ((RunState.RUNNING,), (RunState.WAITING, RunState.PENDING)):
            found = await self._store.list_runs(self._filter.to_run_filter(states), limit=BATCH_SIZE)
            runs |= {run.id: run for run in found}
        # What was under way, and is in none of these lists any more, has ended, or waits behind many others.
        rest = [id for id, known in self._tracked.items() if id not in runs and not known.run.state.is_terminal]
        for at in range(0, len(rest), BATCH_SIZE):
            runs |= {run.id: run for run in await self._store.get_runs(rest[at : at + BATCH_SIZE])}
        return runs

    async def _find_new_runs(self) -> list[Run]:
        """Those that were created since the last look, the oldest first; at first, since the moment that was named."""
        found: list[Run] = []
        while True:
            # A run may become visible a little later than others that were created behind it: so it goes on as long as
            # there was one in the page that is not known.
            before = found[-1].key if found else None
            page = await self._store.list_runs(
                self._filter.to_run_filter(since=self._since), limit=_PAGE_SIZE, before_key=before
            )
            found += page
            if len(page) < _PAGE_SIZE or len(found) >= MAX_NEW_RUNS or all(run.id in self._tracked for run in page):
                return found[::-1]  # the newest are seen last: forgotten first, they would be new at the next look

    async def _read_changes(self, tracked: _TrackedRun, run: Run) -> list[TailEvent]:
        """What is new of one run."""
        found: list[TailEvent] = []
        if tracked.is_new and run.created_at >= self._since:
            created = to_datetime(run.created_at)
            found.append(_make_tail_event(run, Event("", "created", created, run.id), "", None))
        if (taken := await self._find_takeover(tracked, run)) is not None:
            found.append(taken)
        tracked.run, tracked.owner = run, run.owner or tracked.owner
        workers: dict[int, int] = {}
        try:
            events = await self._read_events(tracked, workers)
        except StoreUnavailable:
            raise
        except HoldfastError as error:  # something of it cannot be read here: that hides no other run
            told = {"error": {"type": type(error).__name__, "message": str(error)}}
            events = [Event("", "unreadable", to_datetime(self._store.now()), run.id, data=told)]
            tracked.reader.cursor.has_ended = run.state.is_terminal
        run = tracked.run
        wanted = [event for event in events if event.kind not in _TEXT_KINDS and event.at.timestamp() >= self._since]
        holding = run.owner or tracked.owner
        names = (
            await self._read_worker_names({*workers.values(), *([] if holding is None else [holding])})
            if wanted
            else {}
        )
        holder = "" if holding is None else names.get(holding, "")
        for event in wanted:
            recorded_by = names.get(workers.get(event.step or 0, 0), holder)
            found.append(_make_tail_event(run, event, recorded_by, await self._read_cost(event)))
        states = self._filter.states
        return [one for one in found if not states or one.state in states]

    async def _read_events(self, tracked: _TrackedRun, workers: dict[int, int]) -> list[Event]:
        """The events of a run behind what was read; ``workers`` is told who has recorded which step."""
        reader, events = tracked.reader, list[Event]()
        while True:
            feed = await self._store.get_run_updates(
                tracked.run.id, reader.cursor.seq, reader.cursor.live_event_number, BATCH_SIZE
            )
            if feed is None:
                return events  # it was deleted
            tracked.run = feed.run
            workers |= {one.position + 1: one.worker for one in feed.records if one.kind.has_position}
            taken, size = reader.iter_events(feed), get_max_value_bytes(feed)
            while (event := await run_off_loop(size, lambda taken=taken: next(taken, None))) is not None:
                events.append(await add_approval_details(self._store, event))
            if not reader.has_more:
                return events

    async def _find_takeover(self, tracked: _TrackedRun, run: Run) -> TailEvent | None:
        """That its worker died, and another one has it."""
        before = tracked.run
        if before.state is not RunState.RUNNING or run.epoch == before.epoch or run.owner in (None, before.owner):
            return None
        workers = {one.id: one for one in await self._store.list_workers({before.owner or 0, run.owner or 0})}
        old, new = workers.get(before.owner or 0), workers.get(run.owner or 0)
        if old is None or old.state != "dead":
            return None  # it was handed over in good order
        at = to_datetime(self._store.now())
        event = Event("", "taken over", at, run.id, data={"died": old.name, "epoch": run.epoch})
        return _make_tail_event(run, event, "" if new is None else new.name, None)

    async def _read_worker_names(self, workers: Collection[int]) -> dict[int, str]:
        return {one.id: one.name for one in await self._store.list_workers(workers)}

    async def _read_cost(self, event: Event) -> float | None:
        if event.kind == _ANSWERED_KIND:
            return event.data["usage"]["usd"]
        if event.kind != "ended":
            return None
        told = (await self._store.get_usages([event.run_id])).get(event.run_id)
        return None if told is None or not told.used.calls or told.used.cost is None else float(told.used.cost)


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
