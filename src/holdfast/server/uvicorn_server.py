"""uvicorn, with what a platform that others rely on needs.

**Listening.** By default, the server listens on this machine only. It listens elsewhere only if there is a key, since a
server without keys lets every client do everything.

**Stopping.** On the first SIGTERM or SIGINT, long polls and event streams end at once, requests in flight may end, and
the process exits with code 0. A second signal ends it immediately. Neither loses anything, and nor does a kill:
everything that lasts is in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from holdfast.codec import Encryption
from holdfast.errors import HoldfastError, UsageError
from holdfast.processes.readiness import STOPPING, Readiness
from holdfast.server.http.listening_sockets import DEFAULT_HOST, bind_sockets, resolve_addresses
from holdfast.stores.contract import DEFAULT_NAMESPACE

try:
    import uvicorn

    from holdfast.server.app import App, Settings, create_app
    from holdfast.server.http.http_connection import HttpConnection
    from holdfast.server.http.idle_connections import ConnectionState
    from holdfast.server.http.remote_addresses import LOCAL_HOSTS, is_loopback
except ModuleNotFoundError as error:
    raise UsageError(
        f"a server needs packages that are not installed here ({error}): pip install 'holdfast-agents[server]'"
    ) from None

DEFAULT_PORT = 7100
DEFAULT_GRACE_S = 10.0
"""Seconds that requests in flight have to end."""
MAX_CONNECTIONS = 4096
STORE_CHECK_INTERVAL_S = 2.0
STORE_CHECK_TIMEOUT_S = 2.0
_IDLE_TIMEOUT_S = 15
"""Seconds for which an idle connection stays open for another request."""
_SPARE_FILE_COUNT = 64
"""Open files besides connections: the store's files and sockets."""


async def serve(
    url: str | None = None,
    *,
    namespace: str | None = None,
    encryption: Encryption | None = None,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    allowed_hosts: Collection[str] = (),
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    trusted_proxies: Collection[str] = (),
    grace_s: float = DEFAULT_GRACE_S,
    settings: Settings | None = None,
    print_line: Callable[[str], object] = lambda line: None,
    sockets: Sequence[socket.socket] = (),
    readiness: Readiness | None = None,
) -> None:
    """Serve the platform over a store until SIGTERM or SIGINT.

    Args:
        url: the store, as for ``Client``.
        namespace: the namespace of callers that need no key.
        encryption: as for ``Client``; all namespaces are encrypted with it.
        host: the address to listen on.
        port: the port to listen on; 0: any free port.
        allowed_hosts: host names that the server answers to, besides ``host`` and this machine's own names; ``*``: any.
        tls_cert: a file with the certificate chain.
        tls_key: a file with its key, unless ``tls_cert`` has it.
        trusted_proxies: network addresses of proxies that are trusted to say where requests come from.
        grace_s: seconds that requests in flight have to end when the server stops.
        settings: how it behaves; their ``allowed_hosts`` are added.
        print_line: called with the lines that describe where it listens.
        sockets: sockets that listen on ``host`` already, shared with other server processes.
        readiness: becomes the readiness of this server.
    """
    settings = settings or Settings()
    settings = replace(settings, allowed_hosts=(*settings.allowed_hosts, *_get_host_names(host), *allowed_hosts))
    app = create_app(url, namespace=namespace, encryption=encryption, settings=settings)
    _check_tls(tls_cert, tls_key)
    async with app.running():
        is_keyless = not await app.platform.authenticator.is_key_required()
        if sockets:
            _check_bind_allowed(host, [str(bound.getsockname()[0]) for bound in sockets], is_keyless)
        else:
            addresses = await resolve_addresses(host, port)
            _check_bind_allowed(host, [address for _, (address, _) in addresses], is_keyless)
            sockets = bind_sockets(host, addresses)
        try:

            def announce() -> None:
                for line in _describe_startup(app, sockets, is_keyless, has_tls=tls_cert is not None):
                    print_line(line)
                if readiness is not None:
                    readiness.get_reason = ServerReadiness(server, app, asyncio.get_running_loop()).get_reason

            server = UvicornServer(
                app,
                on_started=announce,
                tls_cert=tls_cert,
                tls_key=tls_key,
                trusted_proxies=trusted_proxies,
                grace_s=grace_s,
                max_connections=_fit_connection_limit(MAX_CONNECTIONS),
            )
            await server.serve(list(sockets))
        finally:
            for bound in sockets:
                bound.close()
    print_line("holdfast has stopped")


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Creates the event loop of a server process: uvloop's if it is installed; ``None``: asyncio's own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


class UvicornServer(uvicorn.Server):
    """uvicorn for an app that is already running."""

    def __init__(
        self,
        app: App,
        *,
        on_started: Callable[[], None] = lambda: None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        trusted_proxies: Collection[str] = (),
        grace_s: float = DEFAULT_GRACE_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=list(trusted_proxies),
                limit_concurrency=max_connections,
                timeout_keep_alive=_IDLE_TIMEOUT_S,
                timeout_graceful_shutdown=max(1, round(grace_s)),
                ssl_certfile=tls_cert,
                ssl_keyfile=None if tls_key is None else str(tls_key),
            )
        )
        self.server_state = ConnectionState()
        self._app = app
        self._on_started = on_started
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept requests, and announce that only then: signals are handled by now."""
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """As uvicorn does, but without raising a handled signal again: the process exits with code 0."""
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, exit at the second."""
        if self.should_exit:
            os._exit(1)
        self.stop()

    def stop(self) -> None:
        """Stop cleanly; may be called from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._app.platform.closing.set)


class ServerReadiness:
    """Whether a server is ready: it accepts requests, and its store responds. Any thread but the loop's may ask.

    The store is asked at most once in ``STORE_CHECK_INTERVAL_S``.
    """

    def __init__(self, server: UvicornServer, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._app = app
        self._loop = loop
        self._store_problem = ""
        self._checked_at = float("-inf")

    def get_reason(self) -> str:
        """Why the server is not ready; empty if it is."""
        if self._server.should_exit:
            return STOPPING
        now = time.monotonic()
        if now - self._checked_at >= STORE_CHECK_INTERVAL_S:
            self._store_problem = self._find_store_problem()
            self._checked_at = now
        return self._store_problem

    def _find_store_problem(self) -> str:
        checking = asyncio.run_coroutine_threadsafe(self._app.platform.check_store(), self._loop)
        try:
            checking.result(STORE_CHECK_TIMEOUT_S)
        except (TimeoutError, HoldfastError):
            checking.cancel()
            return "its store does not respond"
        return ""


# Listening


def _check_bind_allowed(host: str, addresses: Iterable[str], is_keyless: bool) -> None:
    if is_keyless and not all(map(is_loopback, addresses)):
        raise UsageError(
            f"{host} can be reached from other machines, and there is no API key yet: whoever reaches a server without "
            f"keys may do everything. Make one with `holdfast keys create NAME --scope admin` (for the same store), or "
            f"listen on {DEFAULT_HOST}."
        )


def _get_host_names(host: str) -> tuple[str, ...]:
    """The host names that clients of a server on this address certainly use."""
    if host in ("", "0.0.0.0", "::"):
        return ()
    return (f"[{host}]" if ":" in host else host,)


def _describe_startup(app: App, sockets: Collection[socket.socket], is_keyless: bool, *, has_tls: bool) -> list[str]:
    scheme = "https" if has_tls else "http"
    addresses = [bound.getsockname()[:2] for bound in sockets]
    urls = ", ".join(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in addresses)
    tenants = app.platform.tenants
    store = tenants.display_url
    if tenants.namespace != DEFAULT_NAMESPACE:
        store = f"namespace {tenants.namespace} in {store}"
    lines = [f"holdfast serves {store} on {urls} (pid {os.getpid()})"]
    if is_keyless:
        lines.append("there is no API key yet: programs of this user may do everything (`holdfast keys create`)")
    else:
        lines.append("every request needs an API key; see `holdfast keys list`")
    if not has_tls and not all(is_loopback(host) for host, _ in addresses):
        lines.append(
            "requests are not encrypted: keys can be read on the way, unless a proxy speaks TLS to the outside, or "
            "this server does (--tls-cert, --tls-key)"
        )
    names = [name for name in app.platform.settings.allowed_hosts if name not in LOCAL_HOSTS]
    if names:
        lines.append(f"it answers under the names {', '.join(dict.fromkeys([*LOCAL_HOSTS, *names]))}")
    return lines


def _check_tls(cert: str | Path | None, key: str | Path | None) -> None:
    if cert is None:
        if key is not None:
            raise UsageError("there is a key for TLS and no certificate: pass --tls-cert as well")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificate {cert} and its key cannot be used: {error}") from None


def _fit_connection_limit(max_connections: int) -> int:
    """How many connections this process can have, after raising its limit of open files."""
    if sys.platform == "win32":
        return max_connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * max_connections + _SPARE_FILE_COUNT
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return max_connections
    return max(16, min(max_connections, soft - _SPARE_FILE_COUNT))
