"""The ASGI application: the path of a request, from the guard to the endpoint and back.

The order matters. A caller without a key learns only that, and costs little: the server reads nothing of the body until
it knows the caller, and has checked the rate limits and the scope. A change is in the audit log before it is carried
out, and so is a request that was denied.

Every failure on the way becomes a problem response. For an error inside the server, the response has only a number,
which the log has with the traceback.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from holdfast.codec import Encryption
from holdfast.errors import HoldfastError, UsageError

try:
    import re2  # noqa: F401  # pyright: ignore[reportUnusedImport]  # callers' patterns: see ``services.json_schemas``
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.types import ASGIApp, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise UsageError(
        f"a server needs packages that are not installed here ({error}): pip install 'holdfast-agents[server]'"
    ) from None

from holdfast.server.auth.audit_log import format_target
from holdfast.server.auth.authenticator import CACHE_TTL_S, Authenticator, Caller
from holdfast.server.auth.request_admission import RequestAdmission, get_limit_key
from holdfast.server.auth.scopes import Scope as Access
from holdfast.server.background.tasks import running_task
from holdfast.server.caches.lru_dict import LruDict
from holdfast.server.calls import Call
from holdfast.server.dashboard import serve_page
from holdfast.server.deliveries.delivery import ClaimedDelivery
from holdfast.server.http.body_budget import BodyBudget, BodyReservation
from holdfast.server.http.bounded_wait import ClosingEvent, with_ticks
from holdfast.server.http.problems import Problem, problem_from_error, server_error_problem
from holdfast.server.http.remote_addresses import LOCAL_HOSTS, is_local_request
from holdfast.server.http.request_guard import REQUEST_HEADERS, RequestGuard, check_same_site
from holdfast.server.http.request_headers import IncomingRequest
from holdfast.server.http.request_ids import REQUEST_ID_KEY
from holdfast.server.http.router import Endpoint, RouteTable, build_response, parse_arguments, parse_body
from holdfast.server.http.server_sent_events import KEEPALIVE
from holdfast.server.tenants import Tenants
from holdfast.server.webhooks.target_policy import Resolver, TargetPolicy
from holdfast.services.thread_offload import TenantLocks
from holdfast.stores.urls import create_store

log = logging.getLogger("holdfast.server")

KEY_RECHECK_S = 10.0
"""Seconds after which the server checks again whether the key of a silent stream is still valid, and says so."""
MAX_CACHED_DELIVERIES = 10_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server behaves."""

    allowed_hosts: tuple[str, ...] = LOCAL_HOSTS
    """The host names that it answers to; ``*``: any."""
    max_body_bytes: int = 16 * 1024 * 1024
    requests_per_s: float = 500.0
    """Requests of one key in a second; twice as many in a burst."""
    max_open_requests: int = 1000
    """Concurrent requests of one key, long polls included."""
    max_open_streams: int = 256
    """Concurrent event streams of one key."""
    audit_retention_s: float = 90 * 86400.0
    """Seconds after which entries of the audit log are deleted."""
    allowed_webhook_hosts: tuple[str, ...] = ()
    """Hosts (or ``host:port``) that webhooks may be sent to although they are in a private network, or without TLS."""
    resolver: Resolver | None = field(default=None, compare=False)
    """Finds the network addresses of a webhook's host, for tests; default: the system's resolver."""
    clock: Callable[[], float] | None = field(default=None, compare=False)
    """The clock, for tests; default: each store's own."""

    def now(self) -> float:
        """The time."""
        return time.time() if self.clock is None else self.clock()


class Platform:
    """What the requests of a server share. Everything that lasts is in the stores."""

    def __init__(self, tenants: Tenants, settings: Settings) -> None:
        self.tenants = tenants
        self.settings = settings
        self.authenticator = Authenticator(tenants.get_default_store, tenants.namespace, settings.now)
        self.closing = ClosingEvent()
        """Set when the server is about to stop: long polls and streams end."""
        self.delivery_cache: LruDict[tuple[str, str], ClaimedDelivery] = LruDict(MAX_CACHED_DELIVERIES)
        """By namespace and delivery id, so that recording a step need not read the journal.

        Another server may write to the same journal; the next append finds out.
        """
        self.large_work = TenantLocks()
        self.body_budget = BodyBudget(settings.max_body_bytes)
        self.target_policy = TargetPolicy(settings.allowed_webhook_hosts, settings.resolver)

    async def authenticate(self, request: Request) -> Caller | None:
        """The caller, if the key of the request is valid now (see ``authenticator.CACHE_TTL_S``)."""
        token = _get_bearer_token(request)
        needs_none = token is None and not await self.authenticator.is_key_required() and is_local_request(request)
        return await self.authenticator.authenticate(token, is_local=needs_none)


BackgroundTask = Callable[[Platform], AsyncGenerator[None]]
"""A context manager's generator: it starts something that runs next to the requests, yields once, and stops it."""


class App:
    """The ASGI application."""

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
        """Handle one request, or the lifetime of the server."""
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
        """The app connected to its store, with its background tasks, until the end of the block."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.platform.tenants.close)
            await self.platform.tenants.get_default_store()
            await self.platform.tenants.get_tenant(self.platform.tenants.namespace)
            for background_task in self._background_tasks:
                await stack.enter_async_context(asynccontextmanager(background_task)(self.platform))
            stack.push_async_callback(self._admission.denial_log.flush)
            await stack.enter_async_context(running_task(self._admission.denial_log.flush_periodically()))
            stack.callback(self.platform.closing.set)
            yield

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = IncomingRequest(scope, receive, scope[REQUEST_HEADERS])
        response = serve_page(request.method, scope["path"], request.headers) or await self._respond(request)
        if response is None:
            return
        if not isinstance(response, StreamingResponse):
            await response(scope, receive, send)
            return
        chunks = cast("AsyncGenerator[Any]", response.body_iterator)  # see ``make_event_response``
        response.body_iterator = self._stream_until_closing(request, chunks)
        with self._admission.open_streams.acquire(scope[_LIMIT_KEY]):
            await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response | None:
        try:
            return await self._handle_request(request)
        except Problem as problem:
            return problem.to_response(request.scope[REQUEST_ID_KEY])
        except HoldfastError as error:
            problem = problem_from_error(error)
            if problem is None:
                return self._handle_server_error(request, error)
            request_id = request.scope[REQUEST_ID_KEY]
            if problem.status >= 500:
                log.warning("%s %r (request %s): %s", request.method, request.url.path, request_id, error)
            return problem.to_response(request_id)
        except ClientDisconnect:
            return None
        except Exception as error:
            return self._handle_server_error(request, error)

    def _handle_server_error(self, request: Request, error: Exception) -> Response:
        error_id, request_id = secrets.token_hex(4), request.scope[REQUEST_ID_KEY]
        # The path is quoted: it may have line ends, and must not look like another entry.
        message = "server error %s: %s %r (request %s)"
        log.error(message, error_id, request.method, request.url.path, request_id, exc_info=error)
        return server_error_problem(error_id).to_response(request_id)

    async def _stream_until_closing(self, request: Request, chunks: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
        """The chunks of a stream, until the server is about to stop, the key is no longer valid, or the stream fails.

        The reader reconnects.
        """
        try:
            async with aclosing(with_ticks(chunks, KEY_RECHECK_S, stop=self.platform.closing)) as ticking_chunks:
                async for chunk in ticking_chunks:
                    if await self.platform.authenticate(request) is None:
                        return
                    yield KEEPALIVE if chunk is None else chunk
        except HoldfastError as error:
            log.warning("the stream of %r ends: %s", request.url.path, error)
        except Exception as error:
            self._handle_server_error(request, error)

    async def _handle_request(self, request: Request) -> Response:
        endpoint, path = self._routes.find(request.method, request.scope.get("raw_path") or request.url.path.encode())
        if endpoint.is_mutating:
            check_same_site(request.headers, allow_navigation=False)
        caller, tenant = await self._admission.admit(endpoint, path, request)
        call, limit_key = Call(request, self.platform, caller, tenant), get_limit_key(caller)
        open_requests, body_budget = self._admission.open_requests, self.platform.body_budget
        with open_requests.acquire(limit_key), body_budget.open_reservation(limit_key) as reservation:
            response = await self._execute(endpoint, path, call, reservation)
        if request.method == "HEAD":
            return await _strip_body(response)
        if isinstance(response, StreamingResponse):
            self._admission.open_streams.check(limit_key)
            request.scope[_LIMIT_KEY] = limit_key
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
            entry = self._admission.make_audit_entry(endpoint, call.caller, target, "allowed")
            if endpoint.commits_audit_entry:
                call.audit_entry = entry
            else:
                await call.tenant.audit_writer.append(entry)
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
            if call.audit_entry is not None:  # there was nothing to commit
                await call.tenant.audit_writer.append(call.audit_entry)
            if endpoint.is_mutating:
                call.tenant.overview_feed.notify()
        return await call.run_body_work(0, lambda: build_response(endpoint, value, call.status, call.encode_value))


_LIMIT_KEY = "holdfast.payer"
"""Where the scope of a request has the key whose limit a stream counts against."""


def _get_bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def _strip_body(response: Response) -> Response:
    """The response to a HEAD request. A stream is not begun."""
    if isinstance(response, StreamingResponse):
        await cast("AsyncGenerator[Any]", response.body_iterator).aclose()
        return Response(status_code=response.status_code, headers=dict(response.headers))
    response.body = b""  # the Content-Length header stays
    return response


def create_app(
    url: str | None = None,
    *,
    namespace: str | None = None,
    encryption: Encryption | None = None,
    settings: Settings | None = None,
) -> App:
    """The whole platform over a store, as an ASGI application for any ASGI server.

    Args:
        url: the store, as for ``Client``.
        namespace: the namespace of callers that need no key.
        encryption: as for ``Client``; all namespaces are encrypted with it.
        settings: how it behaves.
    """
    from holdfast.server.endpoints import BACKGROUND_TASKS, ENDPOINTS

    chosen = settings or Settings()
    opener = partial(create_store, clock=chosen.clock, encryption=encryption)
    return App(Platform(Tenants(url, namespace, opener), chosen), ENDPOINTS, BACKGROUND_TASKS)
