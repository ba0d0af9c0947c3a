"""The ASGI application: the way of a request, from the guard to the endpoint and back.

The order matters. Whoever has no key learns nothing but that, and costs little: nothing of the body is read before the
caller is known, may ask so often, and may do what is asked for. What changes something is in the audit log before it is
carried out, with what it is about, and what was refused is there as well.

Whatever goes wrong on the way is answered as a problem. A fault of the server's own is told by a number only, which
stands in the log with the traceback.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import re2  # noqa: F401  # pyright: ignore[reportUnusedImport]  # patterns of others: see ``services.json_schemas``
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.codec import Encryption
from holdfast.errors import HoldfastError
from holdfast.server.auth.audit_log import Auditor, target_of
from holdfast.server.auth.authenticator import TRUSTED_FOR, Caller, Keys
from holdfast.server.auth.request_admission import Admission, payer_of
from holdfast.server.auth.scopes import Scope as Access
from holdfast.server.background.overview_feed import Changes
from holdfast.server.background.tasks import meanwhile
from holdfast.server.caches.daily_run_counts import StartedByDay
from holdfast.server.caches.disabled_workflows import Switches
from holdfast.server.calls import Call
from holdfast.server.dashboard import page_for
from holdfast.server.deliveries.delivery import HeldNow
from holdfast.server.deliveries.dispatcher import Desks
from holdfast.server.deliveries.listener_registry import Listeners
from holdfast.server.http.body_budget import BodyBudget, BodyRoom
from holdfast.server.http.problems import Problem, problem_of, server_fault
from holdfast.server.http.remote_addresses import LOCAL_HOSTS, is_local
from holdfast.server.http.request_guard import Guard, check_site
from holdfast.server.http.request_ids import SCOPE as REQUEST_ID
from holdfast.server.http.router import Endpoint, Routes, answer_of, arguments_of, body_of
from holdfast.server.tenants import Tenants
from holdfast.server.webhooks.target_policy import Resolver
from holdfast.services.thread_offload import LargeWork
from holdfast.stores.urls import open_store

log = logging.getLogger("holdfast.server")

LOOK_AGAIN = 10.0
"""Seconds after which it is looked up again whether the key of a stream is still valid."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server behaves."""

    hosts: tuple[str, ...] = LOCAL_HOSTS
    """The names that it answers under; ``*``: any."""
    max_body: int = 16 * 1024 * 1024
    """Bytes of a request's body."""
    rate: float = 500.0
    """Requests a second of one key; twice as many at once."""
    max_requests: int = 1000
    """Requests of one key that are being answered at the same time, long polls included."""
    max_streams: int = 256
    """Streams of events that one key has open at the same time."""
    keep_audit: float = 90 * 86400.0
    """Seconds after which entries of the audit log are deleted."""
    allow_webhooks_to: tuple[str, ...] = ()
    """Hosts (or ``host:port``) that webhooks may be sent to although they are in a private network, or without TLS."""
    resolve: Resolver | None = field(default=None, compare=False)
    """What finds the network addresses of a webhook's host, for tests; the system's own way unless given."""
    clock: Callable[[], float] | None = field(default=None, compare=False)
    """What tells the time, for tests; each store's own clock unless given."""

    def now(self) -> float:
        """The time."""
        return time.time() if self.clock is None else self.clock()


class Platform:
    """What a server's requests share. All that lasts is in the stores."""

    def __init__(self, tenants: Tenants, settings: Settings) -> None:
        self.tenants = tenants
        self.settings = settings
        self.keys = Keys(tenants, tenants.namespace, settings.now)
        self.closing = asyncio.Event()
        """Set when the server is about to stop: whoever waits ends."""
        self.switches = Switches()
        self.changes = Changes()
        self.started = StartedByDay()
        self.listeners = Listeners(tenants)
        self.desks = Desks()
        self.held = HeldNow()
        self.large_work = LargeWork()
        self.bodies = BodyBudget(settings.max_body)
        self._auditors: dict[str, Auditor] = {}

    async def caller_of(self, request: Request) -> Caller | None:
        """Who sends a request, if its key is valid now (see ``keys.TRUSTED_FOR``)."""
        token = _token_of(request)
        needs_none = token is None and not await self.keys.is_needed() and is_local(request)
        return await self.keys.caller(token, is_local=needs_none)

    async def auditor(self, namespace: str) -> Auditor:
        """Whoever writes the audit log of a namespace."""
        found = self._auditors.get(namespace)
        if found is None:
            store = await (await self.tenants.tenant(namespace)).store()
            found = self._auditors.setdefault(namespace, Auditor(store))
        return found


Helper = Callable[[Platform], AsyncGenerator[None]]
"""Something that runs beside the requests, from its first step to its second."""


class App:
    """Takes requests in."""

    def __init__(self, platform: Platform, endpoints: Sequence[Endpoint], helpers: Sequence[Helper] = ()) -> None:
        self.platform = platform
        self._routes = Routes(endpoints)
        self._helpers = helpers
        self._admission = Admission(platform)
        settings = platform.settings
        self._guarded: ASGIApp = Guard(self._http, hosts=settings.hosts, max_body=settings.max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the life of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._guarded(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self.running():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except HoldfastError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Connected, with all that runs beside the requests."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.platform.tenants.close)
            await self.platform.tenants.home()
            await self.platform.tenants.tenant(self.platform.tenants.namespace)
            for helper in self._helpers:
                await stack.enter_async_context(asynccontextmanager(helper)(self.platform))
            stack.push_async_callback(self._admission.denials.flush)
            await stack.enter_async_context(meanwhile(self._admission.denials.flush_regularly()))
            stack.callback(self.platform.closing.set)
            yield

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = page_for(request.method, scope["path"], request.headers) or await self._answered(request)
        if response is None:
            return
        if not isinstance(response, StreamingResponse):
            await response(scope, receive, send)
            return
        response.body_iterator = self._until_closing(request, response.body_iterator)
        with self._admission.streams.held(scope[_PAYER]):
            await response(scope, receive, send)

    async def _answered(self, request: Request) -> Response | None:
        try:
            return await self._answer(request)
        except Problem as problem:
            return problem.response(request.scope[REQUEST_ID])
        except HoldfastError as error:
            problem = problem_of(error)
            if problem is None:
                return self._fault(request, error)
            request_id = request.scope[REQUEST_ID]
            if problem.status >= 500:
                log.warning("%s %r (request %s): %s", request.method, request.url.path, request_id, error)
            return problem.response(request_id)
        except ClientDisconnect:
            return None
        except Exception as error:
            return self._fault(request, error)

    def _fault(self, request: Request, error: Exception) -> Response:
        number, request_id = secrets.token_hex(4), request.scope[REQUEST_ID]
        # The path is quoted: it may hold line ends, and must not look like another entry.
        said = "fault %s: %s %r (request %s)"
        log.error(said, number, request.method, request.url.path, request_id, exc_info=error)
        return server_fault(number).response(request_id)

    async def _until_closing(self, request: Request, parts: AsyncIterable[Any]) -> AsyncGenerator[Any]:
        """A stream, that ends when the server is about to stop, or fails: its reader comes back.

        It ends also when the key that it was opened with is not valid any more.
        """
        rest: AsyncIterator[Any] = aiter(parts)
        closing = asyncio.ensure_future(self.platform.closing.wait())
        following: asyncio.Future[Any] | None = None
        loop = asyncio.get_running_loop()
        look_at = loop.time() + LOOK_AGAIN
        try:
            while True:
                following = following or asyncio.ensure_future(anext(rest, _END))
                wait = max(0.0, look_at - loop.time())
                await asyncio.wait([following, closing], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                if closing.done() and not following.done():
                    return
                if await self.platform.caller_of(request) is None:
                    return
                look_at = loop.time() + LOOK_AGAIN
                if not following.done():
                    continue
                part, following = following.result(), None
                if part is _END:
                    return
                yield part
        except HoldfastError as error:
            log.warning("the stream of %r ends: %s", request.url.path, error)
        except Exception as error:
            self._fault(request, error)
        finally:
            closing.cancel()
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            if isinstance(rest, AsyncGenerator):
                await rest.aclose()

    async def _answer(self, request: Request) -> Response:
        endpoint, path = self._routes.find(request.method, request.scope.get("raw_path") or request.url.path.encode())
        if endpoint.changes:
            check_site(request.headers, may_be_linked=False)
        caller, tenant = await self._admission.admit(endpoint, path, request)
        call, payer = Call(request, self.platform, caller, tenant), payer_of(caller)
        with self._admission.requests.held(payer), self.platform.bodies.room(payer) as room:
            response = await self._carry_out(endpoint, path, call, room)
        if request.method == "HEAD":
            return await _without_body(response)
        if isinstance(response, StreamingResponse):
            self._admission.streams.check(payer)
            request.scope[_PAYER] = payer
        return response

    async def _carry_out(self, endpoint: Endpoint, path: dict[str, str], call: Call, room: BodyRoom) -> Response:
        arguments = arguments_of(endpoint, call.request, path)
        if (model := endpoint.body) is not None:
            data = await room.read_json(call.request)
            media_type = call.request.headers.get("content-type", "")
            arguments["body"] = await call.off_loop(len(data), lambda: body_of(model, data, media_type))
        if endpoint.audited:
            target = target_of(path, arguments.get("body"))
            auditor = await self.platform.auditor(call.caller.namespace)
            await auditor.note(self._admission.audit_entry(endpoint, call.caller, target, "allowed"))
        admitted_at = asyncio.get_running_loop().time()
        try:
            value = await endpoint.handler(call, **arguments)
            waited = asyncio.get_running_loop().time() - admitted_at
            if endpoint.scope is not None and not endpoint.changes and waited > TRUSTED_FOR:
                await call.check_key()
        except HoldfastError as error:
            if not call.caller.may(Access.READ) and (problem := problem_of(error, may_read=False)) is not None:
                raise problem from error
            raise
        finally:
            if endpoint.changes:
                self.platform.changes.stir(call.tenant)
        return await call.off_loop(0, lambda: answer_of(endpoint, value, call.status))


_END = object()
_PAYER = "holdfast.payer"
"""Where it is kept in the scope of a request for whom a stream counts."""


def _token_of(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def _without_body(response: Response) -> Response:
    """What is told without the answer itself; a stream is not begun."""
    if isinstance(response, StreamingResponse):
        parts: AsyncIterable[Any] = response.body_iterator
        if isinstance(parts, AsyncGenerator):
            await parts.aclose()
        return Response(status_code=response.status_code, headers=dict(response.headers))
    response.body = b""  # the length that it says stays
    return response


def create_app(
    url: str | None = None,
    *,
    namespace: str | None = None,
    encryption: Encryption | None = None,
    settings: Settings | None = None,
) -> App:
    """The whole platform over a store, as an ASGI application for any server of that kind.

    Args:
        url: the store, as for ``Client``.
        namespace: of whoever needs no key.
        encryption: as for ``Client``; all namespaces are sealed with it.
        settings: how it behaves.
    """
    from holdfast.server.endpoints import ENDPOINTS, HELPERS

    chosen = settings or Settings()
    opener = partial(open_store, clock=chosen.clock, encryption=encryption)
    return App(Platform(Tenants(url, namespace, opener), chosen), ENDPOINTS, HELPERS)
