"""Probes: a small HTTP listener for the liveness and readiness checks of service managers.

``/healthz`` answers 200 as long as the process can answer at all: restarting it would not bring back a store that is
away. ``/readyz`` answers 200 while the process is ready, and otherwise 503 with the reason.

The listener has threads of its own, so that a step that blocks the event loop does not make the process look dead. If
native code holds the interpreter's lock, no thread runs and nothing answers, and only a restart helps then.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from holdfast.errors import UsageError
from holdfast.processes.readiness import Readiness

REQUEST_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.1


class ProbeResponse(NamedTuple):
    """What a probe answers."""

    status: int
    body: bytes
    content_type: str = "application/json"


ProbeRoutes = Mapping[str, Callable[[], ProbeResponse]]
"""What answers each path."""


def make_probe_routes(readiness: Readiness) -> dict[str, Callable[[], ProbeResponse]]:
    """The probes of a process."""

    def get_health() -> ProbeResponse:
        return _make_json_response(200, {"ok": True})

    def get_readiness() -> ProbeResponse:
        reason = readiness.get_reason()
        return _make_json_response(503 if reason else 200, {"ready": not reason, "reason": reason or None})

    return {"/healthz": get_health, "/readyz": get_readiness}


class ProbeListener:
    """Answers probes until the end of the block. Raises ``UsageError`` if it cannot listen on the address."""

    def __init__(self, host: str, port: int, routes: ProbeRoutes) -> None:
        try:
            self._server = _ProbeServer(host, port, routes)
        except OSError as error:
            raise UsageError(f"cannot answer probes on {host}:{port}: {error.strerror or error}") from None
        self.port: int = self._server.server_address[1]
        if hasattr(os, "register_at_fork"):  # a child that outlives this process must not keep the port
            os.register_at_fork(after_in_child=self._server.socket.close)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_INTERVAL_S,), name="holdfast-probes", daemon=True
        )

    def __enter__(self) -> ProbeListener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _ProbeServer(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, routes: ProbeRoutes) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        super().__init__((host, port), _ProbeRequest)

    def server_bind(self) -> None:
        """Bind without the search for the host's full name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """A prober that hangs up is nothing to report."""


class _ProbeRequest(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        """Answer a probe."""
        assert isinstance(self.server, _ProbeServer)
        respond = self.server.routes.get(self.path.partition("?")[0])
        response = ProbeResponse(404, b"not found\n", "text/plain") if respond is None else respond()
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        """The header ``Server``, without the version of Python."""
        return "holdfast"

    def log_message(self, format: str, *args: object) -> None:
        """Probes are not logged: there is one every few seconds."""


def _make_json_response(status: int, value: object) -> ProbeResponse:
    return ProbeResponse(status, json.dumps(value).encode() + b"\n")
