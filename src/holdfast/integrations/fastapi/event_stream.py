"""The events of a run as server-sent events: what ``EventSource`` in a browser reads.

The id of each event is its offset. A browser that was cut off reconnects by itself and sends the last id that it got;
the stream continues after it, whichever process responds. A stream ends after the event ``ended``. A browser that does
not close it reconnects once more, and gets status 204, which tells it to stop.

Each browser has a task of its own, which reads the next event when the last one is sent: a slow browser delays no
other, and one that is gone ends its task, at the latest when the next heartbeat cannot be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.requests import Request
from starlette.responses import Response

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.client.client import Client
from holdfast.errors import UsageError
from holdfast.integrations.fastapi.errors import make_problem_response
from holdfast.integrations.fastapi.shutdown import get_shutdown
from holdfast.reports.events import Event
from holdfast.services.json_form import to_json_bytes
from holdfast.services.problems import Problem

RECONNECT_DELAY_MS = 1000
"""After this time, a browser that was cut off reconnects."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_HEARTBEAT = b": heartbeat\n\n"


async def stream_run(
    client: Client,
    run_id: str,
    request: Request,
    *,
    after: str | None = None,
    encode: Callable[[Event], Any] | None = None,
    heartbeat: Duration = 15.0,
) -> Response:
    """The events of a run, live and until its end, as a response to a browser's ``EventSource``.

    The name of an event is its kind, such as ``text``, ``step``, ``approval``, or ``ended``, and its data is JSON.
    Raises ``RunNotFound`` before the response begins.

    Args:
        client: the app's client.
        run_id: the run.
        request: the request, which may have the header ``Last-Event-ID``.
        after: continue after the event with this id, if the request has no ``Last-Event-ID``; default: from the
            beginning.
        encode: the data of an event as JSON data, or ``None`` to leave the event out; default: all of the event,
            including arguments and results of tools.
        heartbeat: the time after which a stream without events sends a comment, so that no proxy closes it.
    """
    heartbeat_s = duration_to_seconds(heartbeat, "stream_run: heartbeat")
    last_id = request.headers.get("last-event-id") or after or None
    info = await client.get(run_id)
    if last_id is not None:
        try:
            has_more = await _has_events(client, run_id, last_id)
        except UsageError as error:
            return make_problem_response(Problem(422, "bad-cursor", "The last event id does not fit", str(error)))
        if not has_more and info.state.is_terminal:
            return Response(status_code=204)
    events = _encode_events(client.events(run_id, last_id), encode, heartbeat_s, get_shutdown(request))
    return EventSourceResponse(events, headers=_HEADERS)


async def _has_events(client: Client, run_id: str, after: str) -> bool:
    async with aclosing(client.events(run_id, after, follow=False)) as events:
        return await anext(events, None) is not None


async def _encode_events(
    events: AsyncGenerator[Event],
    encode: Callable[[Event], Any] | None,
    heartbeat_s: float,
    shutdown: asyncio.Event,
) -> AsyncGenerator[bytes]:
    yield format_sse_event(retry=RECONNECT_DELAY_MS)  # so that the browser knows at once that it is connected
    is_closing = asyncio.create_task(shutdown.wait())
    try:
        async with aclosing(events):
            while not shutdown.is_set():
                reading = asyncio.ensure_future(anext(events, None))
                try:
                    while not reading.done() and not shutdown.is_set():
                        done, _ = await asyncio.wait(
                            (reading, is_closing), timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                        )
                        if not done:
                            yield _HEARTBEAT
                finally:
                    await _cancel(reading)
                if reading.cancelled() or (event := reading.result()) is None:
                    return
                data = event if encode is None else encode(event)
                if data is not None:
                    yield format_sse_event(data_str=to_json_bytes(data).decode(), event=event.kind, id=event.offset)
    finally:
        await _cancel(is_closing)


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task that may be done, and wait for its end: a generator cannot be closed while it runs."""
    task.cancel()
    await asyncio.wait([task])
