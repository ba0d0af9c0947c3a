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
    from holdfast.server.http.http_connection import MAX_HEAD, Connection, ConnectionState
    from holdfast.server.http.remote_addresses import LOCAL_HOSTS, is_loopback
except ModuleNotFoundError as error:
    raise UsageError(
        f"a server needs packages that are not installed here ({error}): pip install 'holdfast-agents[server]'"
    ) from None

HOST = "127.0.0.1"
PORT = 7100
GRACE = 10.0
"""Seconds that requests in flight get to end."""
MOST_CONNECTIONS = 4096
_IDLE_SECONDS = 15
"""So long is a connection kept for another request."""
_SPARE_FILES = 64
"""Beside connections: the store's files and sockets."""


async def serve(
    url: str | None = None,
    *,
    namespace: str | None = None,
    encryption: Encryption | None = None,
    host: str = HOST,
    port: int = PORT,
    hosts: Collection[str] = (),
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    trust_proxy: Collection[str] = (),
    grace: float = GRACE,
    settings: Settings | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> None:
    """Serve the platform over a store until SIGTERM or SIGINT.

    Args:
        url: the store, as for ``Client``.
        namespace: of whoever needs no key.
        encryption: as for ``Client``; all namespaces are sealed with it.
        host: the address to listen on.
        port: and the port; 0: any that is free.
        hosts: the names that clients may call it by, beside ``host`` and those of this machine's own; ``*``: any.
        tls_cert: a file with the certificate and those above it.
        tls_key: a file with its key, unless that is in the same file.
        trust_proxy: network addresses whose word is taken for where requests come from.
        grace: seconds that requests in flight get to end when it is told to stop.
        settings: how it behaves; their ``hosts`` are added.
        say: is told where it listens.
    """
    given = settings or Settings()
    named = replace(given, hosts=(*given.hosts, *_names(host), *hosts))
    app = create_app(url, namespace=namespace, encryption=encryption, settings=named)
    _check_tls(tls_cert, tls_key)
    async with app.running():
        is_open = not await app.platform.keys.is_needed()
        addresses = await _resolved(host, port)
        _check_that_it_may_listen(host, addresses, is_open)
        sockets = _bound(host, addresses)
        try:

            def tell() -> None:
                for line in _told(app, sockets, is_open, tls=tls_cert is not None):
                    say(line)

            server = Server(
                app,
                on_started=tell,
                tls_cert=tls_cert,
                tls_key=tls_key,
                trust_proxy=trust_proxy,
                grace=grace,
                connections=_room_for(MOST_CONNECTIONS),
            )
            await server.serve(sockets)
        finally:
            for one in sockets:
                one.close()
    say("holdfast has stopped")


class Server(uvicorn.Server):
    """uvicorn, for an app that is running already."""

    def __init__(
        self,
        app: App,
        *,
        on_started: Callable[[], None] = lambda: None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        trust_proxy: Collection[str] = (),
        grace: float = GRACE,
        connections: int = MOST_CONNECTIONS,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(trust_proxy),
                forwarded_allow_ips=list(trust_proxy),
                limit_concurrency=connections,
                h11_max_incomplete_event_size=MAX_HEAD,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=max(1, round(grace)),
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

Address = tuple[socket.AddressFamily, tuple[str, int]]


async def _resolved(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{host!r} is no address of this machine: {error}. Leave --host out for {HOST}.") from None
    return list(dict.fromkeys((family, (str(place[0]), port)) for family, _, _, _, place in found))


def _check_that_it_may_listen(host: str, addresses: Collection[Address], is_open: bool) -> None:
    if is_open and not all(is_loopback(place[0]) for _, place in addresses):
        raise UsageError(
            f"{host} can be reached from other machines, and there is no API key yet: whoever reaches a server without "
            f"keys may do everything. Make one with `holdfast keys create NAME --scope admin` (for the same store), or "
            f"listen on {HOST}."
        )


def _bound(host: str, addresses: Collection[Address]) -> list[socket.socket]:
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


def _names(host: str) -> tuple[str, ...]:
    """The names by which a server on this address is called for certain."""
    if host in ("", "0.0.0.0", "::"):
        return ()
    return (f"[{host}]" if ":" in host else host,)


def _told(app: App, sockets: Collection[socket.socket], is_open: bool, *, tls: bool) -> list[str]:
    scheme = "https" if tls else "http"
    places = [one.getsockname()[:2] for one in sockets]
    shown = ", ".join(f"{scheme}://{f'[{place}]' if ':' in place else place}:{port}" for place, port in places)
    tenants = app.platform.tenants
    of = tenants.url if tenants.namespace == DEFAULT_NAMESPACE else f"namespace {tenants.namespace} in {tenants.url}"
    lines = [f"holdfast serves {of} on {shown} (pid {os.getpid()})"]
    if is_open:
        lines.append("there is no API key yet: programs of this user may do everything (`holdfast keys create`)")
    else:
        lines.append("every request needs an API key; see `holdfast keys list`")
    if not tls and not all(is_loopback(place) for place, _ in places):
        lines.append(
            "requests are not encrypted: keys can be read on the way, unless a proxy speaks TLS to the outside, or "
            "this server does (--tls-cert, --tls-key)"
        )
    names = [name for name in app.platform.settings.hosts if name not in LOCAL_HOSTS]
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


def _room_for(connections: int) -> int:
    """How many connections this process can have, after asking the system for more."""
    if sys.platform == "win32":
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if soft == resource.RLIM_INFINITY else max(16, min(connections, soft - _SPARE_FILES))
