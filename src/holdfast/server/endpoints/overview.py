"""How everything is, in a few numbers, and a stream that tells when something has changed.

A page that shows lists does not ask for them again and again: it follows ``/v1/changes``, and asks when that says so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response

from holdfast.server.auth.scopes import Scope
from holdfast.server.background.overview_feed import Overview, read_overview
from holdfast.server.calls import Call
from holdfast.server.http.router import Router
from holdfast.server.http.server_sent_events import ServerSentEvent, make_event_response
from holdfast.services.json_form import to_json_bytes

router = Router()


@router("GET", "/v1/overview", scope=Scope.READ)
async def get_overview(call: Call) -> Overview:
    """How everything is, in a few numbers."""
    return await read_overview(await call.store())


@router("GET", "/v1/changes", scope=Scope.READ)
async def follow_changes(call: Call) -> Response:
    """Told whenever something has changed, at most once a second, as server-sent events: `changed`, with the overview.

    The first one comes at once. What has changed is not told: whoever shows something asks for it again.
    """
    return make_event_response(_stream_changes(call))


async def _stream_changes(call: Call) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(call.platform.overview_feeds.follow(call.tenant)) as overviews:
        async for overview in overviews:
            yield ServerSentEvent(to_json_bytes(overview), "changed")
