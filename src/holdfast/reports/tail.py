"""What happens in all runs, as it happens: those that begin, steps that end, answers, questions, takeovers, ends.

A store keeps a journal for each run, and no list of what happened anywhere. So whoever follows all runs looks at those
where something may be new, each time the store tells of a change, and reads on in their journals:

- runs that are new, by the order of their creation, the newest ``MOST_NEW`` of them;
- runs that a worker holds, as many as ``AT_ONCE``;
- runs that wait, the newest ``AT_ONCE`` of them, and those that were seen before: only if their row has changed since.

That costs a few lists of rows for each look, however many runs there are, and nothing between two changes. What
happens in a run that waits behind so many others is told when it is seen next: when it is held, or has ended while it
was followed. Words of an answer in flight are not told: the answer is, when it is recorded.

A follower's place is a moment. Whoever comes back names one, and is told what has happened since. At its edge some may
be told twice, since what happens in different runs is not written in the order of its times: ``Told`` leaves those out.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core.states import RunState
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.reports.event_offsets import Cursor
from holdfast.reports.events import Event, Reader, Source, asked_in, largest_value
from holdfast.services.thread_offload import off_loop
from holdfast.services.timestamps import moment
from holdfast.stores.change_feed import EVERYTHING
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.operations import Cancel, Run

AT_ONCE = 500
"""So many runs of a kind are looked at."""
MOST_NEW = 20_000
"""So many runs that were created since the last look are told of, whatever moment was named."""
MOST_KNOWN = 5_000
"""So many runs that were seen are kept in mind; those that were seen least lately go first."""
LOOK_EVERY = 2.0
"""Seconds after which it is looked although the store has told of no change: workers die without a word."""
GATHER = 0.25
"""Seconds between two looks: on a busy store something is new all the time."""

OVERLAP = 10.0
"""Seconds that are told again to whoever comes back: what was written late may have an earlier time."""
FOLLOWING = "following"
"""The first event of a stream: from which moment on it tells."""

_PAGE = 50
_PIECES = ("text", "retracted")
_ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that has happened in one of the runs."""

    at: datetime
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
    data: dict[str, Any]
    """What else there is to tell, as plain data."""

    def as_json(self) -> dict[str, Any]:
        """For programs, under stable names."""
        return {
            "at": self.at.isoformat(),
            "run_id": self.run_id,
            "workflow": self.workflow,
            "state": self.state.value,
            "kind": self.kind,
            "step": self.step,
            "name": self.name,
            "worker": self.worker,
            "usd": self.usd,
            "data": self.data,
        }


@dataclass(frozen=True, slots=True)
class Followed:
    """Which runs are followed; every field that is given must match."""

    workflow: str | None = None
    tag: str | None = None
    states: tuple[RunState, ...] = ()
    """What has happened is told while the run is in one of these."""

    def runs(self, states: Collection[RunState] = (), since: float | None = None) -> RunFilter:
        """The same, for the store."""
        return RunFilter(states=states, workflow=self.workflow, tag=self.tag, created_after=since)


class Told:
    """What was told of late, so that nothing is told twice."""

    def __init__(self, most: int = 20_000) -> None:
        self._known: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self._most = most

    def is_new(self, one: Happening) -> bool:
        """Whether it was not told before; from now on it was."""
        key = (one.run_id, one.kind, one.step, one.at)
        if key in self._known:
            return False
        self._known[key] = None
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return True


async def read_tail(source: Source, followed: Followed, since: float) -> AsyncGenerator[Happening]:
    """What has happened since a moment, and whatever happens from now on. It goes on until it is closed."""
    with source.listen(EVERYTHING) as bell:
        tail = _Tail(await source.store(), followed, since)
        while True:
            bell.clear()
            try:
                found = await tail.look()
            except StoreUnavailable:
                found = []  # it may be back in a moment, and what was read was read
            for one in found:
                yield one
            await asyncio.sleep(GATHER)
            await bell.wait(LOOK_EVERY)


class _Known:
    """A run that was seen, and how far it was read."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.reader = Reader(run, Cursor(), AT_ONCE)
        self.is_new = True
        self.owner = run.owner
        """The last one that it is known to have had."""

    def may_have_news(self, run: Run) -> bool:
        """Whether something may have happened since it was read last."""
        if run.state is RunState.RUNNING:
            return True
        return not (run.state.is_terminal and self.reader.cursor.ended) and _mark(run) != _mark(self.run)


def _mark(run: Run) -> tuple[RunState, int, float | None, Cancel, float | None]:
    return run.state, run.epoch, run.paused_at, run.cancel, run.finished_at


class _Tail:
    """One follower."""

    def __init__(self, store: Store, followed: Followed, since: float) -> None:
        self._store = store
        self._followed = followed
        self._since = since
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._from_now = since >= store.now() - GATHER
        """Nothing is wanted that has happened before the first look."""

    async def look(self) -> list[Happening]:
        """What is new, in the order of its times."""
        runs = await self._candidates()
        found: list[Happening] = []
        for run in runs.values():
            known = self._known.get(run.id)
            if known is None:
                known = self._known[run.id] = _Known(run)
                is_old = self._from_now and run.created_at < self._since and run.state is not RunState.RUNNING
                found += [] if is_old else await self._news(known, run)
                known.is_new = False
            elif known.may_have_news(run):
                found += await self._news(known, run)
            else:
                known.run = run
            self._known.move_to_end(run.id)
        self._from_now = False
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return sorted(found, key=lambda one: one.at)

    async def _candidates(self) -> Mapping[str, Run]:
        """The runs where something may be new."""
        runs = {run.id: run for run in await self._new_runs()}
        for states in ((RunState.RUNNING,), (RunState.WAITING, RunState.PENDING)):
            found = await self._store.list_runs(self._followed.runs(states), limit=AT_ONCE)
            runs |= {run.id: run for run in found}
        # What was under way, and is in none of these lists any more, has ended, or waits behind many others.
        rest = [id for id, known in self._known.items() if id not in runs and not known.run.state.is_terminal]
        for at in range(0, len(rest), AT_ONCE):
            runs |= {run.id: run for run in await self._store.get_many(rest[at : at + AT_ONCE])}
        return runs

    async def _new_runs(self) -> list[Run]:
        """Those that were created since the last look, the oldest first; at first, since the moment that was named."""
        found: list[Run] = []
        while True:
            # A run may become visible a little later than others that were created behind it: so it goes on as long as
            # there was one in the page that is not known.
            before = found[-1].key if found else None
            page = await self._store.list_runs(self._followed.runs(since=self._since), limit=_PAGE, before=before)
            found += page
            if len(page) < _PAGE or len(found) >= MOST_NEW or all(run.id in self._known for run in page):
                return found[::-1]  # the newest are seen last: forgotten first, they would be new at the next look

    async def _news(self, known: _Known, run: Run) -> list[Happening]:
        """What is new of one run."""
        found: list[Happening] = []
        if known.is_new and run.created_at >= self._since:
            created = moment(run.created_at)
            found.append(_happening(run, Event("", "created", created, run.id), "", None))
        if (taken := await self._takeover(known, run)) is not None:
            found.append(taken)
        known.run, known.owner = run, run.owner or known.owner
        workers: dict[int, int] = {}
        try:
            events = await self._events(known, workers)
        except StoreUnavailable:
            raise
        except HoldfastError as error:  # something of it cannot be read here: that hides no other run
            told = {"error": {"type": type(error).__name__, "message": str(error)}}
            events = [Event("", "unreadable", moment(self._store.now()), run.id, data=told)]
            known.reader.cursor.ended = run.state.is_terminal
        run = known.run
        wanted = [event for event in events if event.kind not in _PIECES and event.at.timestamp() >= self._since]
        holding = run.owner or known.owner
        names = await self._names({*workers.values(), *([] if holding is None else [holding])}) if wanted else {}
        holder = "" if holding is None else names.get(holding, "")
        for event in wanted:
            recorded_by = names.get(workers.get(event.step or 0, 0), holder)
            found.append(_happening(run, event, recorded_by, await self._usd(event)))
        states = self._followed.states
        return [one for one in found if not states or one.state in states]

    async def _events(self, known: _Known, workers: dict[int, int]) -> list[Event]:
        """The events of a run behind what was read; ``workers`` is told who has recorded which step."""
        reader, events = known.reader, list[Event]()
        while True:
            feed = await self._store.feed(known.run.id, reader.cursor.seq, reader.cursor.notice, AT_ONCE)
            if feed is None:
                return events  # it was deleted
            known.run = feed.run
            workers |= {one.position + 1: one.worker for one in feed.records if one.kind.has_position}
            taken, size = reader.take(feed), largest_value(feed)
            while (event := await off_loop(size, lambda taken=taken: next(taken, None))) is not None:
                events.append(await asked_in(self._store, event))
            if not reader.is_behind:
                return events

    async def _takeover(self, known: _Known, run: Run) -> Happening | None:
        """That its worker died, and another one has it."""
        before = known.run
        if before.state is not RunState.RUNNING or run.epoch == before.epoch or run.owner in (None, before.owner):
            return None
        workers = {one.id: one for one in await self._store.workers({before.owner or 0, run.owner or 0})}
        old, new = workers.get(before.owner or 0), workers.get(run.owner or 0)
        if old is None or old.state != "dead":
            return None  # it was handed over in good order
        at = moment(self._store.now())
        event = Event("", "taken over", at, run.id, data={"died": old.name, "epoch": run.epoch})
        return _happening(run, event, "" if new is None else new.name, None)

    async def _names(self, workers: Collection[int]) -> dict[int, str]:
        return {one.id: one.name for one in await self._store.workers(workers)}

    async def _usd(self, event: Event) -> float | None:
        if event.kind == _ANSWERED:
            return event.data["usage"]["usd"]
        if event.kind != "ended":
            return None
        told = (await self._store.usages([event.run_id])).get(event.run_id)
        return None if told is None or not told.used.calls or told.used.cost is None else float(told.used.cost)


def _happening(run: Run, event: Event, worker: str, usd: float | None) -> Happening:
    return Happening(
        at=event.at,
        run_id=run.id,
        workflow=run.workflow,
        state=run.state,
        kind=event.kind,
        step=event.step,
        name=event.name,
        worker=worker,
        usd=usd,
        data=event.data | ({"text": event.text} if event.kind == _ANSWERED and event.text else {}),
    )
