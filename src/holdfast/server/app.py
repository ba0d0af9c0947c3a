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

from holdfast.codec import Encryption
from holdfast.errors import HoldfastError, UsageError

try:
    import re2  # noqa: F401  # pyright: ignore[reportUnusedImport]  # patterns of others: see ``services.json_schemas``
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.types import ASGIApp, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise UsageError(
        f"a server needs packages that are not installed here ({error}): pip install 'holdfast-agents[server]'"
    ) from None

from holdfast.server.auth.audit_log import AuditWriter, format_target
from holdfast.server.auth.authenticator import CACHE_TTL_S, Authenticator, Caller
from holdfast.server.auth.request_admission import RequestAdmission, get_limit_key
from holdfast.server.auth.scopes import Scope as Access
from holdfast.server.background.overview_feed import OverviewFeeds
from holdfast.server.background.tasks import running_task
from holdfast.server.caches.daily_run_counts import DailyRunCounts
from holdfast.server.caches.disabled_workflows import DisabledWorkflows
from holdfast.server.calls import Call
from holdfast.server.dashboard import serve_page
from holdfast.server.deliveries.delivery import DeliveryCache
from holdfast.server.deliveries.dispatcher import Dispatchers
from holdfast.server.deliveries.listener_registry import ListenerRegistry
from holdfast.server.http.body_budget import BodyBudget, BodyReservation
from holdfast.server.http.problems import Problem, problem_from_error, server_error_problem
from holdfast.server.http.remote_addresses import LOCAL_HOSTS, is_local_request
from holdfast.server.http.request_guard import RequestGuard, check_same_site
from holdfast.server.http.request_ids import REQUEST_ID_KEY as REQUEST_ID
from holdfast.server.http.router import Endpoint, RouteTable, build_response, parse_arguments, parse_body
from holdfast.server.tenants import Tenants
from holdfast.server.webhooks.target_policy import Resolver
from holdfast.services.thread_offload import TenantLocks
from holdfast.stores.urls import create_store

log = logging.getLogger("holdfast.server")

KEY_RECHECK_S = 10.0
"""Seconds after which it is looked up again whether the key of a stream is still valid."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server behaves."""

    allowed_hosts: tuple[str, ...] = LOCAL_HOSTS
    """The names that it answers under; ``*``: any."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Bytes of a request's body."""
    requests_per_s: float = 500.0
    """Requests a second of one key; twice as many at once."""
    max_open_requests: int = 1000
    """Requests of one key that are being answered at the same time, long polls included."""
    max_open_streams: int = 256
    """Streams of events that one key has open at the same time."""
    audit_retention_s: float = 90 * 86400.0
    """Seconds after which entries of the audit log are deleted."""
    allowed_webhook_hosts: tuple[str, ...] = ()
    """Hosts (or ``host:port``) that webhooks may be sent to although they are in a private network, or without TLS."""
    resolver: Resolver | None = field(default=None, compare=False)
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
        self.authenticator = Authenticator(tenants.get_home_store, tenants.namespace, settings.now)
        self.closing = asyncio.Event()
        """Set when the server is about to stop: whoever waits ends."""
        self.disabled_workflows = DisabledWorkflows()
        self.overview_feeds = OverviewFeeds()
        self.daily_run_counts = DailyRunCounts()
        self.listeners = ListenerRegistry(tenants)
        self.dispatchers = Dispatchers()
        self.delivery_cache = DeliveryCache()
        self.large_work = TenantLocks()
        self.body_budget = BodyBudget(settings.max_body_bytes)
        self._audit_writers: dict[str, AuditWriter] = {}

    async def authenticate(self, request: Request) -> Caller | None:
        """Who sends a request, if its key is valid now (see ``keys.CACHE_TTL_S``)."""
        token = _get_bearer_token(request)
        needs_none = token is None and not await self.authenticator.is_key_required() and is_local_request(request)
        return await self.authenticator.authenticate(token, is_local=needs_none)

    async def get_audit_writer(self, namespace: str) -> AuditWriter:
        """Whoever writes the audit log of a namespace."""
        found = self._audit_writers.get(namespace)
        if found is None:
            store = await (await self.tenants.get_tenant(namespace)).store()
            found = self._audit_writers.setdefault(namespace, AuditWriter(store))
        return found


BackgroundTask = Callable[[Platform], AsyncGenerator[None]]
"""Something that runs beside the requests, from its first step to its second."""


class App:
    """Takes requests in."""

    def __init__(
        self, platform: Platform, endpoints: Sequence[Endpoint], background_tasks: Sequence[BackgroundTask] = ()
    ) -> None:
        self.platform = platform
        self._routes = RouteTable(endpoints)
        self._background_tasks = background_tasks
        self._admission = RequestAdmission(platform)
        settings = platform.settings
        self._guard: ASGIApp = RequestGuard(
            self._handle_http, allowed_hosts=settings.allowed_hosts, max_body_bytes=settings.max_body_bytes
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the life of the server."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._guard(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
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
            await self.platform.tenants.get_home_store()
            await self.platform.tenants.get_tenant(self.platform.tenants.namespace)
            for helper in self._background_tasks:
                await stack.enter_async_context(asynccontextmanager(helper)(self.platform))
            stack.push_async_callback(self._admission.denial_log.flush)
            await stack.enter_async_context(running_task(self._admission.denial_log.flush_periodically()))
            stack.callback(self.platform.closing.set)
            yield

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = serve_page(request.method, scope["path"], request.headers) or await self._respond(request)
        if response is None:
            return
        if not isinstance(response, StreamingResponse):
            await response(scope, receive, send)
            return
        response.body_iterator = self._stream_until_closing(request, response.body_iterator)
        with self._admission.open_streams.acquire(scope[_LIMIT_KEY]):
            await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response | None:
        try:
            return await self._handle_request(request)
        except Problem as problem:
            return problem.to_response(request.scope[REQUEST_ID])
        except HoldfastError as error:
            problem = problem_from_error(error)
            if problem is None:
                return self._handle_server_error(request, error)
            request_id = request.scope[REQUEST_ID]
            if problem.status >= 500:
                log.warning("%s %r (request %s): %s", request.method, request.url.path, request_id, error)
            return problem.to_response(request_id)
        except ClientDisconnect:
            return None
        except Exception as error:
            return self._handle_server_error(request, error)

    def _handle_server_error(self, request: Request, error: Exception) -> Response:
        number, request_id = secrets.token_hex(4), request.scope[REQUEST_ID]
        # The path is quoted: it may hold line ends, and must not look like another entry.
        said = "server error %s: %s %r (request %s)"
        log.error(said, number, request.method, request.url.path, request_id, exc_info=error)
        return server_error_problem(number).to_response(request_id)

    async def _stream_until_closing(self, request: Request, chunks: AsyncIterable[Any]) -> AsyncGenerator[Any]:
        """A stream, that ends when the server is about to stop, or fails: its reader comes back.

        It ends also when the key that it was opened with is not valid any more.
        """
        rest: AsyncIterator[Any] = aiter(chunks)
        closing = asyncio.ensure_future(self.platform.closing.wait())
        following: asyncio.Future[Any] | None = None
        loop = asyncio.get_running_loop()
        look_at = loop.time() + KEY_RECHECK_S
        try:
            while True:
                following = following or asyncio.ensure_future(anext(rest, _END_OF_STREAM))
                wait = max(0.0, look_at - loop.time())
                await asyncio.wait([following, closing], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                if closing.done() and not following.done():
                    return
                if await self.platform.authenticate(request) is None:
                    return
                look_at = loop.time() + KEY_RECHECK_S
                if not following.done():
                    continue
                part, following = following.result(), None
                if part is _END_OF_STREAM:
                    return
                yield part
        except HoldfastError as error:
            log.warning("the stream of %r ends: %s", request.url.path, error)
        except Exception as error:
            self._handle_server_error(request, error)
        finally:
            closing.cancel()
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            if isinstance(rest, AsyncGenerator):
                await rest.aclose()

    async def _handle_request(self, request: Request) -> Response:
        endpoint, path = self._routes.find(request.method, request.scope.get("raw_path") or request.url.path.encode())
        if endpoint.is_mutating:
            check_same_site(request.headers, allow_navigation=False)
        caller, tenant = await self._admission.admit(endpoint, path, request)
        call, payer = Call(request, self.platform, caller, tenant), get_limit_key(caller)
        with self._admission.open_requests.acquire(payer), self.platform.body_budget.open_reservation(payer) as room:
            response = await self._execute(endpoint, path, call, room)
        if request.method == "HEAD":
            return await _strip_body(response)
        if isinstance(response, StreamingResponse):
            self._admission.open_streams.check(payer)
            request.scope[_LIMIT_KEY] = payer
        return response

    async def _execute(
        self, endpoint: Endpoint, path_params: dict[str, str], call: Call, reservation: BodyReservation
    ) -> Response:
        arguments = parse_arguments(endpoint, call.request, path_params)
        if (model := endpoint.body_model) is not None:
            data = await reservation.read_json(call.request)
            media_type = call.request.headers.get("content-type", "")
            arguments["body"] = await call.run_body_work(len(data), lambda: parse_body(model, data, media_type))
        if endpoint.is_audited:
            target = format_target(path_params, arguments.get("body"))
            auditor = await self.platform.get_audit_writer(call.caller.namespace)
            await auditor.append(self._admission.make_audit_entry(endpoint, call.caller, target, "allowed"))
        admitted_at = asyncio.get_running_loop().time()
        try:
            value = await endpoint.handler(call, **arguments)
            waited = asyncio.get_running_loop().time() - admitted_at
            if endpoint.scope is not None and not endpoint.is_mutating and waited > CACHE_TTL_S:
                await call.check_key()
        except HoldfastError as error:
            if (
                not call.caller.has_scope(Access.READ)
                and (problem := problem_from_error(error, can_read=False)) is not None
            ):
                raise problem from error
            raise
        finally:
            if endpoint.is_mutating:
                self.platform.overview_feeds.notify(call.tenant)
        return await call.run_body_work(0, lambda: build_response(endpoint, value, call.status, call.encode_value))


_END_OF_STREAM = object()
_LIMIT_KEY = "holdfast.payer"
"""Where it is kept in the scope of a request for whom a stream counts."""


def _get_bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def _strip_body(response: Response) -> Response:
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
    from holdfast.server.endpoints import BACKGROUND_TASKS, ENDPOINTS

    chosen = settings or Settings()
    opener = partial(create_store, clock=chosen.clock, encryption=encryption)
    return App(Platform(Tenants(url, namespace, opener), chosen), ENDPOINTS, BACKGROUND_TASKS)
