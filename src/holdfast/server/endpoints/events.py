"""The events of a run, as a stream or page by page, and its journal.

A reader whose stream breaks reconnects with the id of the last event that it got (``Last-Event-ID``, or ``?after=``),
and continues after it: no event is missing, and none comes twice, whichever server responds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from holdfast.codec import decode_plain
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.errors import CodecError
from holdfast.reports.agent_result import decode_plain_output
from holdfast.reports.event_offsets import decode_cursor
from holdfast.reports.events import Event, read_events, record_error_to_json
from holdfast.reports.run_info import RunErrorInfo, get_values_size
from holdfast.reports.tail import FOLLOWING_KIND, OVERLAP_S, TailEvent, TailFilter, read_tail
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.http.bounded_wait import wait_at_most
from holdfast.server.http.models import (
    Cursor,
    Name,
    Page,
    PageQuery,
    PageSize,
    UtcDatetime,
    WaitSeconds,
    bad_cursor_problem,
    parse_number_cursor,
    to_cursor,
)
from holdfast.server.http.request_headers import LAST_EVENT_ID
from holdfast.server.http.response import StreamingResponse
from holdfast.server.http.router import RequestModel, Router
from holdfast.server.http.server_sent_events import MEDIA_TYPE, ServerSentEvent, make_event_response
from holdfast.services.json_form import UserValue, to_json, to_json_bytes
from holdfast.services.lookup import make_run_not_found
from holdfast.services.thread_offload import estimate_size
from holdfast.services.timestamps import to_datetime
from holdfast.services.wire_values import VALUES_HEADER

router = Router("runs")

_AFTER_ALL_LIVE_EVENTS = 2**62
_DATETIME_ADAPTER: TypeAdapter[datetime] = TypeAdapter(UtcDatetime)


# Events


class EventsQuery(RequestModel):
    """Which events."""

    after: Annotated[Cursor | None, Field(description="The offset of the last event that you got.")] = None
    follow: Annotated[bool, Field(description="For a stream: continue until the run has ended.")] = True
    wait: WaitSeconds = 0.0
    limit: PageSize = 100


@router("GET", "/v1/runs/{id}/events", scope=Scope.READ, headers=(VALUES_HEADER, LAST_EVENT_ID))
async def get_events(call: Call, id: str, query: EventsQuery) -> Page[Event] | StreamingResponse:
    """The events of a run, from its beginning or after `after`.

    With `Accept: text/event-stream`, a stream that ends after the event `ended`. The `id` of each event is its offset,
    `event` is its kind, and `data` is the event as below. To continue after an event, reconnect with its id as
    `Last-Event-ID`. Do so, too, if the stream ends without the event `ended`: the server stopped, or something failed.

    Otherwise, a page of at most `limit` events. If there are none, `wait` is how many seconds to wait for one. To
    continue, send its `next` as `after`.
    """
    after = query.after or call.request.headers.get(LAST_EVENT_ID.lower()) or None
    connections = call.tenant.connections
    decode_cursor(after, await connections.read(id))
    if MEDIA_TYPE in call.request.headers.get("accept", ""):
        events = read_events(connections, id, after, follow=query.follow, runner=call.run_large_work)
        return make_event_response(_stream_run(call, events))
    found = await _read_page(call, id, after, query.limit)
    if not found and query.wait:
        first = await wait_at_most(call, query.wait, _read_first(call, id, after))
        if first is not None:
            found = [first, *await _read_page(call, id, first.offset, query.limit - 1)]
    call.value_bytes += sum(estimate_size(event.data) for event in found)
    return Page[Event](items=found, next=found[-1].offset if found else after)


class FollowQuery(RequestModel):
    """Which runs to follow, and since when."""

    workflow: Name | None = None
    tag: Name | None = None
    state: Annotated[tuple[RunState, ...], Field(description="Events of runs that are in one of these states.")] = ()
    since: Annotated[UtcDatetime | None, Field(description="Events since then; default: since now.")] = None


@router("GET", "/v1/events", scope=Scope.READ, headers=(LAST_EVENT_ID, VALUES_HEADER))
async def follow_runs(call: Call, query: FollowQuery) -> StreamingResponse:
    """The events of all runs, as they happen, as server-sent events: runs that start, steps that end, approvals,
    answers, takeovers, and ends.

    The first event, `following`, says since when. The id of an event is a time, too: to continue after a broken
    connection, send the last id as `Last-Event-ID` or `since`. You get a few events a second time.
    """
    since = query.since
    if (last := call.request.headers.get(LAST_EVENT_ID.lower())) is not None and since is None:
        since = _parse_datetime(last)
    position = call.store.now() if since is None else since.timestamp()
    start = position if since is None else position - OVERLAP_S
    return make_event_response(
        _stream_all_runs(call, TailFilter(query.workflow, query.tag, query.state), start, position)
    )


def _parse_datetime(text: str) -> datetime:
    try:
        return _DATETIME_ADAPTER.validate_python(text)
    except ValidationError:
        raise bad_cursor_problem(text) from None


async def _stream_all_runs(
    call: Call, tail_filter: TailFilter, start: float, position: float
) -> AsyncGenerator[ServerSentEvent]:
    latest = to_datetime(position)
    yield ServerSentEvent(to_json_bytes({"since": latest}), FOLLOWING_KIND, to_json(latest))
    async with aclosing(read_tail(call.tenant.connections, tail_filter, start)) as events:
        async for event in events:
            latest = max(latest, event.at)
            yield ServerSentEvent(await _encode_event(call, event), event.kind, to_json(latest))


async def _stream_run(call: Call, events: AsyncGenerator[Event]) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(events):
        async for event in events:
            yield ServerSentEvent(await _encode_event(call, event), event.kind, event.offset)


async def _read_page(call: Call, run_id: str, after: str | None, limit: int) -> list[Event]:
    found: list[Event] = []
    reading = read_events(call.tenant.connections, run_id, after, follow=False, runner=call.run_large_work)
    async with aclosing(reading) as events:
        while len(found) < limit and (event := await anext(events, None)) is not None:
            found.append(event)
    return found


async def _read_first(call: Call, run_id: str, after: str | None) -> Event | None:
    async with aclosing(read_events(call.tenant.connections, run_id, after, runner=call.run_large_work)) as events:
        return await anext(events, None)


async def _encode_event(call: Call, event: Event | TailEvent) -> bytes:
    return await call.run_large_work(estimate_size(event.data), partial(to_json_bytes, event, call.encode_value))


# The journal


class JournalStep(BaseModel):
    """A record of a run's journal."""

    number: Annotated[int | None, Field(description="The number that a fork takes; null for timers and the like.")]
    name: str
    kind: Annotated[str, Field(description="step, signal, approval, child, start, timer, compensation, cancel, …")]
    ok: bool
    value: Annotated[UserValue, Field(description="What it returned.")] = None
    error: Annotated[RunErrorInfo | None, Field(description="What it failed with.")] = None
    arguments: Annotated[str, Field(description="Shortened, for people to read.")]
    attempts: int
    started_at: datetime | None
    recorded_at: datetime
    worker: Annotated[str, Field(description="The name of the worker that recorded it.")]


@router("GET", "/v1/runs/{id}/journal", scope=Scope.READ)
async def get_journal(call: Call, id: str) -> dict[str, Any]:
    """A run and its whole journal, as `holdfast export` writes it and `holdfast replay` reads it."""
    journal = await call.client.export(id)
    size = get_values_size(journal.run) + sum(len(record.payload or b"") for record in journal.records)
    return await call.run_body_work(size, journal.to_json)


@router("GET", "/v1/runs/{id}/steps", scope=Scope.READ, headers=(VALUES_HEADER,))
async def list_steps(call: Call, id: str, query: PageQuery) -> Page[JournalStep]:
    """The records of a run, in the order in which its code saw them."""
    store = call.store
    after = -1 if query.cursor is None else parse_number_cursor("steps", query.cursor)
    updates = await store.get_run_updates(id, after, _AFTER_ALL_LIVE_EVENTS, query.limit + 1)
    if updates is None:
        raise make_run_not_found(store, id)
    page, has_more = query.split(updates.records)
    names = {worker.id: worker.name for worker in await store.list_workers({record.worker for record in page})}
    size = sum(len(record.payload or b"") for record in page)
    return Page[JournalStep](
        items=await call.run_body_work(size, lambda: [_build_step(row, names.get(row.worker, "")) for row in page]),
        next=to_cursor("steps", page[-1].seq) if has_more else None,
    )


def _build_step(record: Record, worker: str) -> JournalStep:
    error = None if record.ok else RunErrorInfo(**record_error_to_json(record))
    return JournalStep(
        number=record.position + 1 if record.kind.has_position else None,
        name=record.name,
        kind=record.kind.label,
        ok=record.ok,
        value=_decode_value(record) if record.ok else None,
        error=error,
        arguments=record.preview,
        attempts=record.attempts,
        started_at=to_datetime(record.started_at or None),
        recorded_at=to_datetime(record.at),
        worker=worker,
    )


def _decode_value(record: Record) -> Any:
    """The recorded value as plain data; ``None`` if this version cannot read it, so that the list can be shown."""
    payload = record.payload or b"null"
    try:
        return decode_plain_output(payload) if record.kind is RecordKind.CHILD else decode_plain(payload)
    except (CodecError, ValueError, KeyError, TypeError):
        return None
