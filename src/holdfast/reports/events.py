"""What happens in a run, as a stream of events that anybody can follow, from anywhere, and go on with at any time.

Events are made from two streams of the store: the run's records, which are durable and tell every outcome, and its
notices, which tell what is in flight (see ``stores.live_events``). A reader's cursor is a place in both, and says how
much of each answer in flight it has seen (``event_offsets``). So nothing about readers is kept anywhere: one that is
gone costs nothing, and one that comes back with its last offset goes on without loss and without repeats.

**Texts.** For every model call, what the "text" events since the last "retracted" say, put together, is the recorded
text by the time the call's "answered" comes. A reader that was there has it piece by piece; one that came too late has
it as one piece, made from the record; one that had seen a part gets the rest. When what it had seen is not the
beginning of what was recorded (another attempt answered: the process died over the first one, or the request failed),
it is told so first: "retracted".

**A retry** takes records back, and their numbers are used again. It leaves a notice, from which the reader knows where
to go on. In what is read at one moment, records above that place are newer than the notice, and come after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from holdfast.codec import refuse_sealed, to_plain
from holdfast.core.execution import current_execution
from holdfast.core.records import Kind, Record
from holdfast.errors import CodecError, RunNotFound, StoreUnavailable, UsageError
from holdfast.reports.agent_result import plain_output
from holdfast.reports.event_offsets import Cursor, Seen, cursor_of
from holdfast.reports.formatting import jsonable
from holdfast.reports.plans import plan_in
from holdfast.reports.recorded_reply import PlainReply, reply_of
from holdfast.reports.recorded_values import error_of, failure_of
from holdfast.reports.types import Fault
from holdfast.services.lookup import find_run
from holdfast.services.thread_offload import Work, off_loop
from holdfast.services.timestamps import moment
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.change_feed import Bell, News
from holdfast.stores.contract import Store
from holdfast.stores.live_events import ASKED, BEGUN, DELIVERED, REMINDED, REOPENED, RETURNED, TEXT, WITHDRAWN, Feed
from holdfast.stores.operations import Notice, Run

POLL = 0.5
"""Seconds after which the store is asked again although nothing told of a change."""

GATHER = 0.05
"""Seconds between two looks at a run: on a busy store something is new all the time, mostly of other runs."""

PAGE = 200
"""So many records, and as many notices, are read at once."""

COMPACTION = "compaction"
"""The step by which an agent sums up what was said: see ``agents.compaction``."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened in a run."""

    offset: str
    """Where to go on behind this event: hand it to ``events(after=...)``. Keep it as it is."""
    kind: str
    """``begun``, ``text``, ``retracted``, ``answered``, ``step``, ``plan``, ``approval``, ``compacted``, ``child``,
    ``start``, ``signal``, ``timer``, ``compensation``, ``cancel``, ``deadline``, ``patch``, ``delivered``,
    ``returned``, ``reopened`` or ``ended``."""
    at: datetime
    run_id: str
    step: int | None = None
    """The number of the step, signal or child that it belongs to, as ``holdfast show`` has it."""
    name: str = ""
    """The name of that: of a tool, a step, a signal, an agent; ``model call``."""
    text: str = ""
    """Of ``text``: the piece. Of ``answered`` and ``compacted``: the whole text."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else there is to tell, as plain data."""

    def as_json(self) -> dict[str, Any]:
        """For programs, under stable names."""
        return {
            "offset": self.offset,
            "kind": self.kind,
            "at": self.at.isoformat(),
            "run_id": self.run_id,
            "step": self.step,
            "name": self.name,
            "text": self.text,
            "data": self.data,
        }


class Source(Protocol):
    """Where events are read from."""

    async def store(self) -> Store:
        """The store, open."""
        ...

    def listen(self, run_id: str) -> AbstractContextManager[Bell]:
        """A bell that rings whenever something may be new of this run."""
        ...


async def read_events(
    source: Source, run_id: str, after: str | None = None, *, follow: bool = True, work: Work = off_loop
) -> AsyncGenerator[Event]:
    """The events of a run behind the offset ``after``, until it has ended; without ``follow``, those that are there.

    ``work`` decodes large values.
    """
    refuse_in_workflow(run_id)
    store = await source.store()
    run = await find_run(store, run_id)
    reader = Reader(run, cursor_of(after, run))
    with source.listen(run_id) as bell:
        while True:
            bell.clear()
            try:
                feed = await store.feed(run_id, reader.cursor.seq, reader.cursor.notice, PAGE)
            except StoreUnavailable:
                if not follow:
                    raise
                await bell.wait(POLL)  # the store may be back in a moment, and the reader has its place
                continue
            if feed is None:
                raise RunNotFound(f"run {run_id!r} is not in {store.url} any more", run_id)
            taken, size = reader.take(feed), largest_value(feed)
            while (event := await work(size, lambda taken=taken: next(taken, None))) is not None:
                yield await asked_in(store, event)
            if reader.is_behind:
                continue
            if reader.cursor.ended or not follow:
                return
            looked = asyncio.get_running_loop().time()
            await bell.wait(POLL)
            await asyncio.sleep(GATHER - (asyncio.get_running_loop().time() - looked))


def largest_value(feed: Feed) -> int:
    """Bytes of the largest value in what was read."""
    return max(len(feed.run.output or b""), *(len(one.payload or b"") for one in feed.records), 0)


def refuse_in_workflow(run_id: str) -> None:
    """Nobody follows a run in workflow code. Raises ``UsageError``."""
    if current_execution() is not None:
        raise UsageError(
            f"the events of run {run_id!r} were asked for in workflow code, where they would differ on replay: follow "
            f"a run from a step, or from outside"
        )


async def events_so_far(store: Store, run_id: str, after: str | None = None) -> list[Event]:
    """The events of a run behind an offset that are there now, from a store that is open."""
    return [event async for event in read_events(_Still(store), run_id, after, follow=False)]


class _Still:
    """A store that nobody waits for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def store(self) -> Store:
        return self._store

    def listen(self, run_id: str) -> AbstractContextManager[Bell]:
        return News().listen(run_id)


async def asked_in(store: Store, event: Event) -> Event:
    """An event; of an approval, with what is asked."""
    if event.kind != "approval" or event.data["state"] in ("withdrawn", "answered"):
        return event
    found = await store.approvals(ApprovalFilter(id_prefix=event.data["id"], only_open=False), limit=1)
    return replace(event, data=_asked(found[0]) | event.data) if found else event


def _asked(approval: Approval) -> dict[str, Any]:
    question = approval.question
    return {
        "question": question.text,
        "asked_of": approval.asked_of,
        "choices": list(question.choices),
        "tool": question.tool,
        "arguments": json.loads(question.arguments) if question.arguments else None,
        "reason": question.reason,
    }


class Reader:
    """Makes events of what is read from the store, and knows how far it has come."""

    def __init__(self, run: Run, cursor: Cursor, page: int = PAGE) -> None:
        self.cursor = cursor
        self.is_behind = True
        """Whether there is more to read at once."""
        self._run = run
        self._page = page

    def take(self, feed: Feed) -> Iterator[Event]:
        """The events in what was read behind the cursor; each moves the cursor, so take one at a time."""
        self._run = feed.run
        more_records, more_notices = len(feed.records) >= self._page, len(feed.notices) >= self._page
        records, notices = list(feed.records), list(feed.notices)
        places = _barriers(notices)
        self.is_behind = True
        while records or notices:
            if not records and more_records:
                return  # what comes next may be earlier than these notices
            if not notices and more_notices:
                return
            if notices and (not records or _comes_first(notices[0][1], places[0], records[0])):
                number, notice = notices.pop(0)
                places.pop(0)
                seq = self.cursor.seq
                yield from self._of_notice(number, notice)
                if self.cursor.seq < seq:
                    return  # a retry has taken back what this reader had seen: what is there now comes next
            else:
                yield from self._of_record(records.pop(0))
        if more_records or more_notices:
            return
        self.is_behind = False
        if feed.run.state.is_terminal and not self.cursor.ended:
            yield from self._of_end(feed.run)

    # What is in flight

    def _of_notice(self, number: int, notice: Notice) -> Iterator[Event]:
        refuse_sealed(notice.data, f"what a step of run {self._run.id!r} has told")
        data = json.loads(notice.data)
        position, at = notice.position, notice.at
        if notice.kind in (BEGUN, TEXT):
            seen = self.cursor.seen.get(position)
            if seen is not None and seen.part != notice.part:
                yield from self._retracted(position, at)
        if notice.kind == TEXT:
            seen = self.cursor.seen.get(position, Seen(notice.part))
            self.cursor.notice = number
            if seen.characters == notice.number:
                self.cursor.seen[position] = seen.and_then(data)
                yield self._event("text", at, position, "", text=data)
            return
        self.cursor.notice = number
        if notice.kind == BEGUN:
            name = data.pop("name")
            yield self._event("begun", at, position, name, data)
        elif notice.kind in (ASKED, WITHDRAWN):
            yield self._event("approval", at, position, "approval", {"state": notice.kind, "id": data})
        elif notice.kind == REMINDED:
            yield self._event("approval", at, position, "approval", {"state": notice.kind, **data})
        elif notice.kind in (DELIVERED, RETURNED):
            yield self._event(notice.kind, at, None, "", data)
        elif notice.kind == REOPENED:
            self.cursor.ended = False
            self.cursor.seq = min(self.cursor.seq, data)
            yield self._event("reopened", at, None, "")

    def _retracted(self, position: int, at: float) -> Iterator[Event]:
        """What was seen of this answer is void."""
        seen = self.cursor.seen.pop(position)
        if seen.characters:
            yield self._event("retracted", at, position, "", {"characters": seen.characters})

    # What is recorded

    def _of_record(self, record: Record) -> Iterator[Event]:
        refuse_sealed(record.payload or b"", f"record {record.seq} of run {self._run.id!r}")
        reply = reply_of(record)
        if reply is not None and record.name != COMPACTION:
            yield from self._of_answer(record, reply)
            return
        if record.kind.has_position and (seen := self.cursor.seen.get(record.position)) is not None:
            if record.ok and seen.part.startswith(f"{record.epoch}.{record.attempts}."):
                del self.cursor.seen[record.position]  # what a step has said itself, on its way to this outcome
            else:
                yield from self._retracted(record.position, record.at)
        self.cursor.seq = record.seq
        if reply is not None:
            yield self._told(record, "compacted", _data_of(reply), text=reply.text)
        elif (plan := plan_in(record)) is not None:
            items = [{"task": item.task, "status": item.status} for item in plan]
            yield self._told(record, "plan", {"plan": items})
        elif record.kind is Kind.APPROVAL:
            yield self._told(
                record, "approval", {"state": "answered", "id": record.preview, **(_plain(record.payload) or {})}
            )
        else:
            yield self._told(record, record.kind.label, _outcome(record))

    def _of_answer(self, record: Record, reply: PlainReply) -> Iterator[Event]:
        """A model's answer: first what the reader lacks of its text."""
        position, part = record.position, f"{record.epoch}.{record.attempts}.{len(reply.failed)}"
        seen = self.cursor.seen.get(position)
        if seen is not None and (seen.part != part or not seen.begins(reply.text)):
            yield from self._retracted(position, record.at)
            seen = None
        seen = seen or Seen(part)
        rest = reply.text[seen.characters :]
        if rest:
            self.cursor.seen[position] = seen.and_then(rest)
            yield self._event("text", record.at, position, "", text=rest)
        self.cursor.seen.pop(position, None)
        self.cursor.seq = record.seq
        yield self._told(record, "answered", _data_of(reply), text=reply.text)

    def _of_end(self, run: Run) -> Iterator[Event]:
        at = run.created_at if run.finished_at is None else run.finished_at
        for position in list(self.cursor.seen):
            yield from self._retracted(position, at)  # nobody will record it
        self.cursor.ended = True
        data: dict[str, Any] = {"state": run.state.value}
        if run.error is not None:
            data["error"] = _in_short(error_of(run.error))
        elif run.output is not None:
            data["output"] = _output(run.output)
        yield self._event("ended", at, None, "", data)

    def _told(self, record: Record, kind: str, data: dict[str, Any] | None, *, text: str = "") -> Event:
        position = record.position if record.kind.has_position else None
        return self._event(kind, record.at, position, record.name, data, text=text)

    def _event(
        self,
        kind: str,
        at: float,
        position: int | None,
        name: str,
        data: dict[str, Any] | None = None,
        *,
        text: str = "",
    ) -> Event:
        return Event(
            offset=self.cursor.offset(self._run),
            kind=kind,
            at=moment(at),
            run_id=self._run.id,
            step=None if position is None else position + 1,
            name=name,
            text=text,
            data=data or {},
        )


# In which order


def _barriers(notices: Sequence[tuple[int, Notice]]) -> list[int | None]:
    """For each notice of a retry, the last record that comes before it: one that all later retries have kept, too."""
    places: list[int | None] = []
    least: int | None = None
    for _, notice in reversed(notices):
        if notice.kind == REOPENED:
            kept = json.loads(notice.data)
            least = kept if least is None else min(least, kept)
        places.append(least)
    return places[::-1]


def _comes_first(notice: Notice, kept: int | None, record: Record) -> bool:
    """Whether the notice comes before the record. ``kept`` is of the next retry, if one is among the notices."""
    if kept is not None and record.seq > kept:
        return True  # a retry was made before this was recorded
    if notice.kind == REOPENED:
        return False
    return notice.at < record.at


# What there is to tell


def _data_of(reply: PlainReply) -> dict[str, Any]:
    data = reply.as_json()
    del data["text"]  # it is the event's own
    return data


def _outcome(record: Record) -> dict[str, Any]:
    if record.kind in (Kind.TIMER, Kind.DEADLINE, Kind.CANCEL, Kind.PATCH):
        return {}
    if record.kind is Kind.SIGNAL:
        return {"value": _plain(record.payload)}
    is_run = record.kind in (Kind.CHILD, Kind.START)
    told = {"run": record.preview} if is_run else {"arguments": record.preview, "attempts": record.attempts}
    data: dict[str, Any] = {"ok": record.ok, **told}
    if not record.ok:
        return data | {"error": failure_in(record)}
    if record.kind is Kind.START:
        return data  # what it comes to, nobody waits for
    return data | {"value": _output(record.payload or b"null") if is_run else _plain(record.payload)}


def _plain(payload: bytes | None) -> Any:
    return jsonable(_or_none(to_plain, payload or b"null"))


def _output(payload: bytes) -> Any:
    """The output of a run: of an agent, its answer."""
    return jsonable(_or_none(plain_output, payload))


def failure_in(record: Record) -> dict[str, str]:
    """The type and the message of what a record that is not ``ok`` tells."""
    return _in_short(failure_of(record))


def _in_short(fault: Fault | None) -> dict[str, str]:
    return {"type": "", "message": ""} if fault is None else {"type": fault.type, "message": fault.message}


def _or_none(read: Callable[[bytes], Any], payload: bytes) -> Any:
    """What is recorded; ``None`` for what this version cannot read: it stops nobody from following the run."""
    try:
        return read(payload)
    except (CodecError, ValueError, KeyError, TypeError):
        return None
