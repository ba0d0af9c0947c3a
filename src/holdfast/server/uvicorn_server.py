"""Serving until told to stop: uvicorn, with what a platform that others rely on needs.

**Where it listens.** On this machine alone, unless told otherwise; and elsewhere only once there is a key, since
whoever can reach a server without keys may do everything.

**How it stops.** On the first SIGTERM or SIGINT, whoever only waits (long polls, streams of events) is let go at once,
requests in flight may end, and the process ends with code 0. A second signal ends it on the spot. Nothing is lost by
either, nor by a kill: all that lasts is in the store.
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
from collections.abc import Callable, Collection, Generator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from holdfast.codec import Encryption
from holdfast.errors import UsageError
from holdfast.stores.contract import DEFAULT_NAMESPACE

try:
    import uvicorn

    from holdfast.server.app import App, Settings, create_app
    from holdfast.server.http.http_connection import MAX_HEAD_BYTES, ConnectionState, HttpConnection
    from holdfast.server.http.remote_addresses import LOCAL_HOSTS, is_loopback
except ModuleNotFoundError as error:
    raise UsageError(
        f"a server needs packages that are not installed here ({error}): pip install 'holdfast-agents[server]'"
    ) from None

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7100
DEFAULT_GRACE_S = 10.0
"""Seconds that requests in flight get to end."""
MAX_CONNECTIONS = 4096
_IDLE_TIMEOUT_S = 15
"""So long is a connection kept for another request."""
_SPARE_FILE_COUNT = 64
"""Beside connections: the store's files and sockets."""


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
) -> None:
    """Serve the platform over a store until SIGTERM or SIGINT.

    Args:
        url: the store, as for ``Client``.
        namespace: of whoever needs no key.
        encryption: as for ``Client``; all namespaces are sealed with it.
        host: the address to listen on.
        port: and the port; 0: any that is free.
        allowed_hosts: the names that clients may call it by, besides ``host`` and this machine's own names; ``*``: any.
        tls_cert: a file with the certificate and those above it.
        tls_key: a file with its key, unless that is in the same file.
        trusted_proxies: network addresses whose word is taken for where requests come from.
        grace_s: seconds that requests in flight get to end when it is told to stop.
        settings: how it behaves; their ``allowed_hosts`` are added.
        print_line: is told where it listens.
    """
    given = settings or Settings()
    named = replace(given, allowed_hosts=(*given.allowed_hosts, *_get_host_names(host), *allowed_hosts))
    app = create_app(url, namespace=namespace, encryption=encryption, settings=named)
    _check_tls(tls_cert, tls_key)
    async with app.running():
        is_open = not await app.platform.authenticator.is_key_required()
        addresses = await _resolve_addresses(host, port)
        _check_bind_allowed(host, addresses, is_open)
        sockets = _bind_sockets(host, addresses)
        try:

            def tell() -> None:
                for line in _describe_startup(app, sockets, is_open, has_tls=tls_cert is not None):
                    print_line(line)

            server = UvicornServer(
                app,
                on_started=tell,
                tls_cert=tls_cert,
                tls_key=tls_key,
                trusted_proxies=trusted_proxies,
                grace_s=grace_s,
                max_connections=_fit_connection_limit(MAX_CONNECTIONS),
            )
            await server.serve(sockets)
        finally:
            for one in sockets:
                one.close()
    print_line("holdfast has stopped")


class UvicornServer(uvicorn.Server):
    """uvicorn, for an app that is running already."""

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
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
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
        """Take requests, and heed signals from before anybody is told of it."""
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """As uvicorn does, but a signal that was heeded is not raised again: the process ends as it should."""
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
        """A signal."""
        if self.should_exit:
            os._exit(1)
        self.stop()

    def stop(self) -> None:
        """Stop in good order; from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._app.platform.closing.set)


# Where it listens

BindAddress = tuple[socket.AddressFamily, tuple[str, int]]


async def _resolve_addresses(host: str, port: int) -> list[BindAddress]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!r} is no address of this machine: {error}. Leave --host out for {DEFAULT_HOST}."
        ) from None
    return list(dict.fromkeys((family, (str(place[0]), port)) for family, _, _, _, place in found))


def _check_bind_allowed(host: str, addresses: Collection[BindAddress], is_keyless: bool) -> None:
    if is_keyless and not all(is_loopback(place[0]) for _, place in addresses):
        raise UsageError(
            f"{host} can be reached from other machines, and there is no API key yet: whoever reaches a server without "
            f"keys may do everything. Make one with `holdfast keys create NAME --scope admin` (for the same store), or "
            f"listen on {DEFAULT_HOST}."
        )


def _bind_sockets(host: str, addresses: Collection[BindAddress]) -> list[socket.socket]:
    """Sockets on all addresses of the host, with the same port."""
    sockets: list[socket.socket] = []
    for family, (place, wanted) in addresses:
        port = wanted or (sockets[0].getsockname()[1] if sockets else 0)
        try:
            sockets.append(socket.create_server((place, port), family=family, backlog=2048))
        except OSError as error:
            for one in sockets:
                one.close()
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise UsageError(
                f"cannot listen on {shown}: {error.strerror or error}. Is another server running there? Choose "
                f"another port with --port."
            ) from None
    return sockets


def _get_host_names(host: str) -> tuple[str, ...]:
    """The names by which a server on this address is called for certain."""
    if host in ("", "0.0.0.0", "::"):
        return ()
    return (f"[{host}]" if ":" in host else host,)


def _describe_startup(app: App, sockets: Collection[socket.socket], is_keyless: bool, *, has_tls: bool) -> list[str]:
    scheme = "https" if has_tls else "http"
    places = [one.getsockname()[:2] for one in sockets]
    shown = ", ".join(f"{scheme}://{f'[{place}]' if ':' in place else place}:{port}" for place, port in places)
    tenants = app.platform.tenants
    of = (
        tenants.display_url
        if tenants.namespace == DEFAULT_NAMESPACE
        else f"namespace {tenants.namespace} in {tenants.display_url}"
    )
    lines = [f"holdfast serves {of} on {shown} (pid {os.getpid()})"]
    if is_keyless:
        lines.append("there is no API key yet: programs of this user may do everything (`holdfast keys create`)")
    else:
        lines.append("every request needs an API key; see `holdfast keys list`")
    if not has_tls and not all(is_loopback(place) for place, _ in places):
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
    """How many connections this process can have, after asking the system for more."""
    if sys.platform == "win32":
        return max_connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * max_connections + _SPARE_FILE_COUNT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        max_connections if soft == resource.RLIM_INFINITY else max(16, min(max_connections, soft - _SPARE_FILE_COUNT))
    )
