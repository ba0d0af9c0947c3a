"""The events of a run, as a stream that readers can follow from any process and continue at any time.

Events are made from two streams of the store: the run's records, which are durable and have every outcome, and its live
events, which show what is in flight (see ``stores.live_events``). A reader's cursor is a position in both, and says how
much of each answer in flight it has seen (``event_offsets``). So no state of a reader is stored: a reader that leaves
costs nothing, and one that returns with its last offset misses nothing and sees nothing twice.

**Texts.** For every model call, the "text" events since the last "retracted", joined, are the recorded text by the time
the call's "answered" comes. A reader that followed the call gets it in pieces; one that came too late gets it as one
piece, from the record; one that saw a part gets the rest. If the part that it saw is not the beginning of the recorded
text (another attempt answered, because the process died during the first one or the request failed), it gets
"retracted" first.

**A retry** removes records, and their numbers are used again. It leaves a live event from which the reader knows where
to continue. In one read, records above that position are newer than this live event, and come after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.codec import check_decrypted, decode_plain
from holdfast.core.execution import get_current_execution
from holdfast.core.records import Record, RecordKind
from holdfast.errors import CodecError, RunNotFound, StoreUnavailable, UsageError
from holdfast.reports.agent_result import decode_plain_output
from holdfast.reports.event_offsets import EventCursor, SeenText, decode_cursor
from holdfast.reports.formatting import value_to_json
from holdfast.reports.journal_entries import is_internal
from holdfast.reports.plans import plan_from_record
from holdfast.reports.recorded_reply import ModelCallReport, reply_from_record
from holdfast.reports.recorded_values import decode_recorded_error, get_record_error
from holdfast.reports.types import RecordedError
from holdfast.services.json_form import UserData, UtcDatetime, to_json
from holdfast.services.lookup import find_run
from holdfast.services.store_provider import POLL_INTERVAL_S, OpenStoreProvider, StoreProvider
from holdfast.services.thread_offload import OffLoopRunner, run_off_loop
from holdfast.services.timestamps import to_datetime
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.contract import Store
from holdfast.stores.live_events import (
    APPROVAL_REMINDED,
    APPROVAL_REQUESTED,
    APPROVAL_WITHDRAWN,
    DELIVERED,
    REOPENED,
    RETURNED,
    STARTED,
    TEXT,
    RunUpdates,
)
from holdfast.stores.operations import LiveEvent, Run

MIN_POLL_INTERVAL_S = 0.05
"""Seconds between two reads of a run: a busy store changes all the time, mostly because of other runs."""

PAGE_SIZE = 200
"""Maximum number of records, and of live events, in one read."""

COMPACTION_STEP = "compaction"
"""The step in which an agent summarizes its conversation: see ``agents.compaction``."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run."""

    offset: str
    """The position after this event. Pass it unchanged to ``events(after=...)`` to continue from here."""
    kind: str
    """``started``, ``text``, ``retracted``, ``answered``, ``step``, ``plan``, ``approval``, ``compacted``, ``child``,
    ``start``, ``signal``, ``timer``, ``compensation``, ``cancel``, ``deadline``, ``patch``, ``delivered``,
    ``returned``, ``reopened`` or ``ended``."""
    at: UtcDatetime
    run_id: str
    step: int | None = None
    """The number of its step, signal, or child, as in ``holdfast show``."""
    name: str = ""
    """The name of its tool, step, signal, or agent; ``model call``."""
    text: str = ""
    """For ``text``: the piece. For ``answered`` and ``compacted``: the whole text."""
    data: UserData = field(default_factory=dict[str, Any])
    """More details, as plain data."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form, for programs."""
        return to_json(self)


async def read_events(
    provider: StoreProvider,
    run_id: str,
    after: str | None = None,
    *,
    follow: bool = True,
    runner: OffLoopRunner = run_off_loop,
) -> AsyncGenerator[Event]:
    """The events of a run after the offset ``after``, until it has ended; without ``follow``, those so far.

    ``runner`` decodes large values.
    """
    check_not_in_workflow(run_id)
    store = await provider.store()
    run = await find_run(store, run_id)
    reader = EventReader(run, decode_cursor(after, run))
    with provider.subscribe(run_id) as subscription:
        while True:
            subscription.clear()
            try:
                feed = await store.get_run_updates(
                    run_id, reader.cursor.seq, reader.cursor.live_event_number, PAGE_SIZE
                )
            except StoreUnavailable:
                if not follow:
                    raise
                await subscription.wait(POLL_INTERVAL_S)  # the store may return soon, and the reader keeps its position
                continue
            if feed is None:
                raise RunNotFound(f"run {run_id!r} is not in {store.url} any more", run_id)
            events, size = reader.iter_events(feed), get_max_value_bytes(feed)
            while (event := await runner(size, lambda events=events: next(events, None))) is not None:
                yield await add_approval_details(store, event)
            if reader.has_more:
                continue
            if reader.cursor.has_ended or not follow:
                return
            read_at = asyncio.get_running_loop().time()
            await subscription.wait(POLL_INTERVAL_S)
            await asyncio.sleep(MIN_POLL_INTERVAL_S - (asyncio.get_running_loop().time() - read_at))


def get_max_value_bytes(feed: RunUpdates) -> int:
    """Bytes of the largest value that was read."""
    return max(len(feed.run.output or b""), *(len(record.payload or b"") for record in feed.records), 0)


def check_not_in_workflow(run_id: str) -> None:
    """Raise ``UsageError`` in workflow code, which cannot follow a run."""
    if get_current_execution() is not None:
        raise UsageError(
            f"the events of run {run_id!r} were asked for in workflow code, where they would differ on replay: follow "
            f"a run from a step, or from outside"
        )


async def list_events(store: Store, run_id: str, after: str | None = None) -> list[Event]:
    """The events of a run so far, after an offset, from an open store."""
    return [event async for event in read_events(OpenStoreProvider(store), run_id, after, follow=False)]


async def add_approval_details(store: Store, event: Event) -> Event:
    """An event; that of an approval gets the question."""
    if event.kind != "approval" or event.data["state"] in ("withdrawn", "answered"):
        return event
    found = await store.list_approvals(ApprovalFilter(id_prefix=event.data["id"], only_open=False), limit=1)
    return replace(event, data=_approval_to_json(found[0]) | event.data) if found else event


def _approval_to_json(approval: Approval) -> dict[str, Any]:
    question = approval.request
    return {
        "question": question.question,
        "assignee": approval.assignee,
        "choices": list(question.choices),
        "tool": question.tool,
        "arguments": json.loads(question.arguments) if question.arguments else None,
        "reason": question.reason,
    }


class EventReader:
    """Builds events from records and live events, and keeps the reader's position."""

    def __init__(self, run: Run, cursor: EventCursor, page_size: int = PAGE_SIZE) -> None:
        self.cursor = cursor
        self.has_more = True
        """Whether there is more to read now."""
        self._run = run
        self._page_size = page_size

    def iter_events(self, feed: RunUpdates) -> Iterator[Event]:
        """The events in what was read after the cursor. Each one moves the cursor, so take one at a time."""
        self._run = feed.run
        has_more_records = len(feed.records) >= self._page_size
        has_more_live_events = len(feed.live_events) >= self._page_size
        records, live_events = list(feed.records), list(feed.live_events)
        barriers = _find_barriers(live_events)
        self.has_more = True
        while records or live_events:
            if not records and has_more_records:
                return  # the next record may be earlier than these live events
            if not live_events and has_more_live_events:
                return
            if live_events and (not records or _is_before(live_events[0][1], barriers[0], records[0])):
                number, live_event = live_events.pop(0)
                barriers.pop(0)
                seq = self.cursor.seq
                yield from self._from_live_event(number, live_event)
                if self.cursor.seq < seq:
                    return  # a retry removed records that this reader has seen: the new ones come next
            else:
                yield from self._from_record(records.pop(0))
        if has_more_records or has_more_live_events:
            return
        self.has_more = False
        if feed.run.state.is_terminal and not self.cursor.has_ended:
            yield from self._from_run_end(feed.run)

    # Live events

    def _from_live_event(self, number: int, live_event: LiveEvent) -> Iterator[Event]:
        check_decrypted(live_event.data, f"what a step of run {self._run.id!r} has told")
        data = json.loads(live_event.data)
        position, at = live_event.position, live_event.at
        if live_event.kind in (STARTED, TEXT):
            seen = self.cursor.seen_texts.get(position)
            if seen is not None and seen.part != live_event.stream:
                yield from self._retract(position, at)
        if live_event.kind == TEXT:
            seen = self.cursor.seen_texts.get(position, SeenText(live_event.stream))
            self.cursor.live_event_number = number
            if seen.char_count == live_event.number:
                self.cursor.seen_texts[position] = seen.extend(data)
                yield self._make_event("text", at, position, "", text=data)
            return
        self.cursor.live_event_number = number
        if live_event.kind == STARTED:
            name = data.pop("name")
            yield self._make_event("started", at, position, name, data)
        elif live_event.kind in (APPROVAL_REQUESTED, APPROVAL_WITHDRAWN):
            yield self._make_event("approval", at, position, "approval", {"state": live_event.kind, "id": data})
        elif live_event.kind == APPROVAL_REMINDED:
            yield self._make_event("approval", at, position, "approval", {"state": live_event.kind, **data})
        elif live_event.kind in (DELIVERED, RETURNED):
            yield self._make_event(live_event.kind, at, None, "", data)
        elif live_event.kind == REOPENED:
            self.cursor.has_ended = False
            self.cursor.seq = min(self.cursor.seq, data)
            yield self._make_event("reopened", at, None, "")

    def _retract(self, position: int, at: float) -> Iterator[Event]:
        """Declare the part of this answer that the reader has seen invalid."""
        seen = self.cursor.seen_texts.pop(position)
        if seen.char_count:
            yield self._make_event("retracted", at, position, "", {"char_count": seen.char_count})

    # Records

    def _from_record(self, record: Record) -> Iterator[Event]:
        check_decrypted(record.payload or b"", f"record {record.seq} of run {self._run.id!r}")
        if record.ok and is_internal(record, self._run):
            self.cursor.seq = record.seq
            return
        reply = reply_from_record(record)
        if reply is not None and record.name != COMPACTION_STEP:
            yield from self._from_model_reply(record, reply)
            return
        if record.kind.has_position and (seen := self.cursor.seen_texts.get(record.position)) is not None:
            if record.ok and seen.part.startswith(f"{record.epoch}.{record.attempts}."):
                del self.cursor.seen_texts[record.position]  # text that the step published before this outcome
            else:
                yield from self._retract(record.position, record.at)
        self.cursor.seq = record.seq
        if reply is not None:
            yield self._make_record_event(record, "compacted", _reply_to_json(reply), text=reply.text)
        elif (plan := plan_from_record(record)) is not None:
            items = [{"task": item.task, "status": item.status} for item in plan]
            yield self._make_record_event(record, "plan", {"plan": items})
        elif record.kind is RecordKind.APPROVAL:
            answer = _decode_json(record.payload)
            data: dict[str, Any] = {"state": "answered", "id": record.preview}
            if isinstance(answer, dict):
                data |= answer
            yield self._make_record_event(record, "approval", data)
        else:
            yield self._make_record_event(record, record.kind.label, _outcome_to_json(record))

    def _from_model_reply(self, record: Record, reply: ModelCallReport) -> Iterator[Event]:
        """A model's answer, after the part of its text that the reader has not seen."""
        position, part = record.position, f"{record.epoch}.{record.attempts}.{len(reply.failed_models)}"
        seen = self.cursor.seen_texts.get(position)
        if seen is not None and (seen.part != part or not seen.is_prefix_of(reply.text)):
            yield from self._retract(position, record.at)
            seen = None
        seen = seen or SeenText(part)
        rest = reply.text[seen.char_count :]
        if rest:
            self.cursor.seen_texts[position] = seen.extend(rest)
            yield self._make_event("text", record.at, position, "", text=rest)
        self.cursor.seen_texts.pop(position, None)
        self.cursor.seq = record.seq
        yield self._make_record_event(record, "answered", _reply_to_json(reply), text=reply.text)

    def _from_run_end(self, run: Run) -> Iterator[Event]:
        at = run.created_at if run.finished_at is None else run.finished_at
        for position in list(self.cursor.seen_texts):
            yield from self._retract(position, at)  # it will not be recorded
        self.cursor.has_ended = True
        data: dict[str, Any] = {"state": run.state.value}
        if run.error is not None:
            data["error"] = _summarize_error(decode_recorded_error(run.error))
        elif run.output is not None:
            data["output"] = _decode_output(run.output)
        yield self._make_event("ended", at, None, "", data)

    def _make_record_event(self, record: Record, kind: str, data: dict[str, Any] | None, *, text: str = "") -> Event:
        position = record.position if record.kind.has_position else None
        return self._make_event(kind, record.at, position, record.name, data, text=text)

    def _make_event(
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
            offset=self.cursor.encode(self._run),
            kind=kind,
            at=to_datetime(at),
            run_id=self._run.id,
            step=None if position is None else position + 1,
            name=name,
            text=text,
            data=data or {},
        )


# Order


def _find_barriers(live_events: Sequence[tuple[int, LiveEvent]]) -> list[int | None]:
    """For each live event, the last record that comes before the next retry: all later retries kept it, too."""
    barriers: list[int | None] = []
    lowest: int | None = None
    for _, live_event in reversed(live_events):
        if live_event.kind == REOPENED:
            kept_seq = json.loads(live_event.data)
            lowest = kept_seq if lowest is None else min(lowest, kept_seq)
        barriers.append(lowest)
    return barriers[::-1]


def _is_before(live_event: LiveEvent, kept_seq: int | None, record: Record) -> bool:
    """Whether the live event comes before the record. ``kept_seq`` is the last record that the next retry kept."""
    if kept_seq is not None and record.seq > kept_seq:
        return True  # the retry was made before this was recorded
    if live_event.kind == REOPENED:
        return False
    return live_event.at < record.at


# Data


def _reply_to_json(reply: ModelCallReport) -> dict[str, Any]:
    data: dict[str, Any] = to_json(reply)
    del data["text"]  # it is the event's own
    return data


def _outcome_to_json(record: Record) -> dict[str, Any]:
    if record.kind in (RecordKind.TIMER, RecordKind.DEADLINE, RecordKind.CANCEL, RecordKind.PATCH):
        return {}
    if record.kind is RecordKind.SIGNAL:
        return {"value": _decode_json(record.payload)}
    is_run = record.kind in (RecordKind.CHILD, RecordKind.START)
    details = {"run_id": record.preview} if is_run else {"arguments": record.preview, "attempts": record.attempts}
    data: dict[str, Any] = {"ok": record.ok, **details}
    if not record.ok:
        return data | {"error": record_error_to_json(record)}
    if record.kind is RecordKind.START:
        return data  # the run does not wait for its result
    return data | {"value": _decode_output(record.payload or b"null") if is_run else _decode_json(record.payload)}


def _decode_json(payload: bytes | None) -> Any:
    return value_to_json(_try_decode(decode_plain, payload or b"null"))


def _decode_output(payload: bytes) -> Any:
    """The output of a run; the answer of an agent."""
    return value_to_json(_try_decode(decode_plain_output, payload))


def record_error_to_json(record: Record) -> dict[str, str]:
    """The type and the message of the error in a record that is not ``ok``."""
    return _summarize_error(get_record_error(record))


def _summarize_error(error: RecordedError | None) -> dict[str, str]:
    return {"type": "", "message": ""} if error is None else {"type": error.type, "message": error.message}


def _try_decode(decode: Callable[[bytes], Any], payload: bytes) -> Any:
    """The recorded value; ``None`` if this version cannot decode it, so that readers can still follow the run."""
    try:
        return decode(payload)
    except (CodecError, ValueError, KeyError, TypeError):
        return None
