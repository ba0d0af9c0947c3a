"""An overview of a namespace in a few numbers, and a stream that reports changes.

A page that shows lists does not poll them: it follows ``/v1/changes``, and reads them again after a change.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.server.auth.scopes import Scope
from holdfast.server.background.overview_feed import Overview, read_overview
from holdfast.server.calls import Call
from holdfast.server.http.response import StreamingResponse
from holdfast.server.http.router import Router
from holdfast.server.http.server_sent_events import ServerSentEvent, make_event_response
from holdfast.services.json_form import to_json_bytes

router = Router()


@router("GET", "/v1/overview", scope=Scope.READ)
async def get_overview(call: Call) -> Overview:
    """An overview of the namespace, in a few numbers."""
    return await read_overview(call.store)


@router("GET", "/v1/changes", scope=Scope.READ)
async def follow_changes(call: Call) -> StreamingResponse:
    """An event `changed` with the overview whenever something has changed, at most once a second.

    The first event comes at once. Events do not say what has changed: read what you show again.
    """
    return make_event_response(_stream_changes(call))


async def _stream_changes(call: Call) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(call.tenant.overview_feed.follow()) as overviews:
        async for overview in overviews:
            yield ServerSentEvent(to_json_bytes(overview), "changed")
