"""A minimal pooler in transaction mode, for machines without PgBouncer.

Clients share a few sessions of the server: a client gets one with its first message, and keeps it until the server is
ready for the next transaction. So everything that depends on a session (locks, listening, settings, prepared
statements) is lost, or found by another client. Like PgBouncer, it makes up the process id of the server for each
client.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

SESSIONS = 2
_REPORTED_PARAMETERS = (
    b"server_version",
    b"server_encoding",
    b"client_encoding",
    b"standard_conforming_strings",
    b"DateStyle",
)


class SmallPooler:
    """Listens on a port of its own, for one database."""

    def __init__(self, server: str) -> None:
        # libpq connects and logs in; then the pooler takes its sockets.
        self._owners = [psycopg.connect(server) for _ in range(SESSIONS)]
        self._free: queue.Queue[Any] = queue.Queue()
        self._sockets = [socket.socket(fileno=os.dup(owner.pgconn.socket)) for owner in self._owners]
        for one in self._sockets:
            one.setblocking(True)
            self._free.put(one)
        reported = ((name, self._owners[0].pgconn.parameter_status(name) or b"") for name in _REPORTED_PARAMETERS)
        self._greeting = _message(b"R", struct.pack("!i", 0)) + b"".join(
            _message(b"S", b"%s\0%s\0" % parameter) for parameter in reported
        )
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: set[socket.socket] = set()
        self.transaction_count = 0
        """The number of transactions so far."""
        port, database = self._listener.getsockname()[1], conninfo_to_dict(server)["dbname"]
        self.url = f"postgresql://postgres@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.close()
        for one in (*self._clients, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for owner in self._owners:
            owner.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._clients.add(client)
        with suppress(OSError), client:
            (size,) = struct.unpack("!i", receive_exactly(client, 4))
            receive_exactly(client, size - 4)
            backend_key = _message(b"K", struct.pack("!ii", 1_000_000 + len(self._clients), 7))
            client.sendall(self._greeting + backend_key + _message(b"Z", b"I"))
            while True:
                kind, body = receive(client)
                if kind == b"X":
                    break
                server = self._free.get()
                try:
                    self._forward_transaction(client, server, kind, body)
                except OSError:
                    self._roll_back(server)
                    raise
                finally:
                    self._free.put(server)
                self.transaction_count += 1
        self._clients.discard(client)

    def _forward_transaction(self, client: socket.socket, server: socket.socket, kind: bytes, body: bytes) -> None:
        """Forward messages in both directions until the transaction has ended."""
        while True:
            server.sendall(_message(kind, body))
            if kind in (b"S", b"Q") and self._forward_answer(client, server) == b"I":
                return
            kind, body = receive(client)

    def _roll_back(self, server: socket.socket) -> None:
        """The client has disconnected in a transaction."""
        server.sendall(_message(b"S", b"") + _message(b"Q", b"ROLLBACK\0"))
        for _ in range(2):
            while receive(server)[0] != b"Z":
                pass

    def _forward_answer(self, client: socket.socket, server: socket.socket) -> bytes:
        """Forward an answer. Returns the server's transaction state."""
        answer = b""
        while True:
            kind, body = receive(server)
            answer += _message(kind, body)
            if kind == b"Z":
                client.sendall(answer)
                return body


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def receive(source: socket.socket) -> tuple[bytes, bytes]:
    """The next message: its kind and its body."""
    kind, size = struct.unpack("!ci", receive_exactly(source, 5))
    return kind, receive_exactly(source, size - 4)


def receive_exactly(source: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes. Raises ``ConnectionError`` at the end of the stream."""
    parts: list[bytes] = []
    while size:
        part = source.recv(size)
        if not part:
            raise ConnectionError("hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
