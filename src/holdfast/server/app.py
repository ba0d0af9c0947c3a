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
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from holdfast.codec import Encryption
from holdfast.errors import HoldfastError, UsageError

try:
    import re2  # noqa: F401  # pyright: ignore[reportUnusedImport]  # callers' patterns: see ``services.json_schemas``
except ModuleNotFoundError as error:
    raise UsageError(
        f"a server needs packages that are not installed here ({error}): pip install 'holdfast-agents[server]'"
    ) from None

from holdfast.run_log import RunLog
from holdfast.server.auth.audit_log import format_target
from holdfast.server.auth.authenticator import CACHE_TTL_S, Authenticator
from holdfast.server.auth.request_admission import RequestAdmission
from holdfast.server.auth.scopes import Scope as Access
from holdfast.server.background.tasks import running_task
from holdfast.server.caches.lru_dict import LruDict
from holdfast.server.calls import Call
from holdfast.server.dashboard import serve_page
from holdfast.server.deliveries.delivery import ClaimedDelivery
from holdfast.server.http.asgi import Receive, Scope, Send
from holdfast.server.http.body_budget import BodyBudget, BodyReservation
from holdfast.server.http.bounded_wait import ClosingEvent
from holdfast.server.http.problems import make_problem_response, server_error_problem
from holdfast.server.http.remote_addresses import LOCAL_HOSTS
from holdfast.server.http.request import ClientDisconnect, Request
from holdfast.server.http.request_guard import RequestGuard, check_same_site
from holdfast.server.http.response import Response, StreamingResponse
from holdfast.server.http.router import Endpoint, RouteTable, build_response, parse_arguments, parse_body
from holdfast.server.http.stream_sender import StreamSender
from holdfast.server.tenants import Tenants
from holdfast.server.webhooks.target_policy import Resolver, TargetPolicy
from holdfast.services.api_keys import DOCUMENT_KIND
from holdfast.services.problems import Problem, problem_from_error
from holdfast.services.thread_offload import LARGE_BYTES, TenantLocks
from holdfast.stores.urls import create_store
from holdfast.telemetry.telemetry import Telemetry
from holdfast.trace_context import TRACE_PARENT_HEADER, request_trace_parent

log = logging.getLogger("holdfast.server")

MAX_CACHED_DELIVERIES = 10_000
_HIDDEN_DETAIL = "A key with the scope 'read' is told more."


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
        self.telemetry: Telemetry | None = None

    async def check_store(self) -> None:
        """Raise ``StoreError`` if the store does not respond."""
        await (await self.tenants.get_default_store()).documents.list(DOCUMENT_KIND, limit=1)


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
        self._guard = RequestGuard(allowed_hosts=settings.allowed_hosts, max_body_bytes=settings.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifetime of the server."""
        if scope["type"] == "http":
            await self._handle_http(Request(scope, receive, self.platform.settings.max_body_bytes), send)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
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
            store = await self.platform.tenants.get_default_store()
            self.platform.telemetry = Telemetry.find(RunLog.from_store(store))
            await self.platform.tenants.get_tenant(self.platform.tenants.namespace)
            for background_task in self._background_tasks:
                await stack.enter_async_context(asynccontextmanager(background_task)(self.platform))
            stack.push_async_callback(self._admission.denial_log.flush)
            await stack.enter_async_context(running_task(self._admission.denial_log.flush_periodically()))
            stack.callback(self.platform.closing.set)
            yield

    async def _handle_http(self, request: Request, send: Send) -> None:
        request_trace_parent.set(request.headers.get(TRACE_PARENT_HEADER, ""))
        response = await self._respond(request)
        if response is None:
            return
        request.has_response_started = True
        await send(response.make_start_message(request.response_headers))
        if isinstance(response, StreamingResponse):
            await self._send_stream(request, response, send)
        await send({"type": "http.response.body", "body": response.body})

    async def _respond(self, request: Request) -> Response | None:
        try:
            self._guard.check(request)
            page = serve_page(request.method, request.path, request.headers)
            return await self._handle_request(request) if page is None else page
        except Problem as problem:
            return make_problem_response(problem, request.id)
        except HoldfastError as error:
            problem = problem_from_error(error)
            if problem is None:
                return self._handle_server_error(request, error)
            if problem.status >= 500:
                log.warning("%s %r (request %s): %s", request.method, request.path, request.id, error)
            return make_problem_response(problem, request.id)
        except ClientDisconnect:
            return None
        except Exception as error:
            return self._handle_server_error(request, error)

    def _handle_server_error(self, request: Request, error: Exception) -> Response:
        error_id = secrets.token_hex(4)
        # The path is quoted: it may have line ends, and must not look like another entry.
        message = "server error %s: %s %r (request %s)"
        log.error(message, error_id, request.method, request.path, request.id, exc_info=error)
        return make_problem_response(server_error_problem(error_id), request.id)

    async def _send_stream(self, request: Request, response: StreamingResponse, send: Send) -> None:
        open_streams, platform = self._admission.open_streams, self.platform
        open_streams.acquire(request.limit_key)
        try:
            await StreamSender(request, platform.authenticator, platform.closing, send).send(response)
        except HoldfastError as error:
            log.warning("the stream of %r ends: %s", request.path, error)
        except Exception as error:
            self._handle_server_error(request, error)
        finally:
            open_streams.release(request.limit_key)

    async def _handle_request(self, request: Request) -> Response:
        endpoint, path_params = self._routes.find(
            request.method, request.scope.get("raw_path") or request.path.encode()
        )
        if endpoint.is_mutating:
            check_same_site(request.headers, allow_navigation=False)
        caller, tenant = await self._admission.admit(endpoint, path_params, request)
        limit_key, open_requests = request.limit_key, self._admission.open_requests
        body = None if endpoint.body_model is None else self.platform.body_budget.open_reservation(limit_key)
        open_requests.acquire(limit_key)
        try:
            response = await self._execute(endpoint, path_params, Call(request, self.platform, caller, tenant), body)
        finally:
            open_requests.release(limit_key)
            if body is not None:
                body.release()
        if request.method == "HEAD":
            return await _strip_body(response)
        if isinstance(response, StreamingResponse):
            self._admission.open_streams.check(limit_key)
        return response

    async def _execute(
        self, endpoint: Endpoint, path_params: dict[str, str], call: Call, body: BodyReservation | None
    ) -> Response:
        request = call.request
        arguments = parse_arguments(endpoint, request, path_params)
        if (model := endpoint.body_model) is not None and body is not None:
            data = await body.read_json(request)
            media_type = request.headers.get("content-type", "")
            arguments["body"] = await call.run_body_work(len(data), lambda: parse_body(model, data, media_type))
        if endpoint.is_audited:
            target = format_target(path_params, arguments.get("body"))
            entry = self._admission.make_audit_entry(endpoint, call.caller, target, "allowed")
            if endpoint.commits_audit_entry:
                call.audit_entry = entry
            else:
                await call.tenant.audit_writer.append(entry)
        loop = asyncio.get_running_loop()
        admitted_at = loop.time()
        try:
            value = await endpoint.handler(call, **arguments)
            if endpoint.scope is not None and not endpoint.is_mutating and loop.time() - admitted_at > CACHE_TTL_S:
                await call.check_key()
        except HoldfastError as error:
            if (
                not call.caller.has_scope(Access.READ)
                and (problem := problem_from_error(error, hidden_detail=_HIDDEN_DETAIL)) is not None
            ):
                raise problem from error
            raise
        finally:
            if call.audit_entry is not None:  # there was nothing to commit
                await call.tenant.audit_writer.append(call.audit_entry)
            if endpoint.is_mutating:
                call.tenant.overview_feed.notify()
                if endpoint.scope is not Access.SUBMIT:  # it may have changed workers, or disabled a workflow
                    call.tenant.environment.clear()
        if call.value_bytes <= LARGE_BYTES:
            return build_response(endpoint, value, call.status, call.encode_value)
        return await call.run_body_work(0, lambda: build_response(endpoint, value, call.status, call.encode_value))


async def _strip_body(response: Response) -> Response:
    """The response to a HEAD request. A stream is not begun."""
    if isinstance(response, StreamingResponse):
        await response.chunks.aclose()
        stripped = Response()
        stripped.headers += response.headers
        return stripped
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
