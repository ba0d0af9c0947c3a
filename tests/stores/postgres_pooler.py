"""The least that a pooler in transaction mode is, for machines without PgBouncer.

Clients share a few sessions of the server: each gets one when it begins to ask, and keeps it until the server is ready
for the next transaction. What depends on a session (locks, listening, settings, prepared statements) is therefore lost
on it, or found by somebody else. As PgBouncer does, it invents the number of the server process for each client.
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
_SAID = (b"server_version", b"server_encoding", b"client_encoding", b"standard_conforming_strings", b"DateStyle")


class SmallPooler:
    """Listens on a port of its own, for one database."""

    def __init__(self, server: str) -> None:
        # libpq connects and logs in; then its sockets are ours.
        self._owners = [psycopg.connect(server) for _ in range(SESSIONS)]
        self._free: queue.Queue[Any] = queue.Queue()
        self._sockets = [socket.socket(fileno=os.dup(owner.pgconn.socket)) for owner in self._owners]
        for each in self._sockets:
            each.setblocking(True)
            self._free.put(each)
        said = ((name, self._owners[0].pgconn.parameter_status(name) or b"") for name in _SAID)
        self._greeting = _message(b"R", struct.pack("!i", 0)) + b"".join(
            _message(b"S", b"%s\0%s\0" % parameter) for parameter in said
        )
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._clients: set[socket.socket] = set()
        self.served = 0
        """How many transactions there were."""
        port, database = self._listener.getsockname()[1], conninfo_to_dict(server)["dbname"]
        self.url = f"postgresql://postgres@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.close()
        for each in (*self._clients, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
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
            (size,) = struct.unpack("!i", exactly(client, 4))
            exactly(client, size - 4)
            invented = _message(b"K", struct.pack("!ii", 1_000_000 + len(self._clients), 7))
            client.sendall(self._greeting + invented + _message(b"Z", b"I"))
            while True:
                kind, body = receive(client)
                if kind == b"X":
                    break
                server = self._free.get()
                try:
                    self._transaction(client, server, kind, body)
                except OSError:
                    self._roll_back(server)
                    raise
                finally:
                    self._free.put(server)
                self.served += 1
        self._clients.discard(client)

    def _transaction(self, client: socket.socket, server: socket.socket, kind: bytes, body: bytes) -> None:
        """Pass on what both say, until the server is in no transaction any more."""
        while True:
            server.sendall(_message(kind, body))
            if kind in (b"S", b"Q") and self._answered(client, server) == b"I":
                return
            kind, body = receive(client)

    def _roll_back(self, server: socket.socket) -> None:
        """The client is gone in the middle of a transaction."""
        server.sendall(_message(b"S", b"") + _message(b"Q", b"ROLLBACK\0"))
        for _ in range(2):
            while receive(server)[0] != b"Z":
                pass

    def _answered(self, client: socket.socket, server: socket.socket) -> bytes:
        """Pass on an answer; returns in which state of a transaction the server is."""
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
    kind, size = struct.unpack("!ci", exactly(source, 5))
    return kind, exactly(source, size - 4)


def exactly(source: socket.socket, size: int) -> bytes:
    """So many bytes. Raises ``ConnectionError`` if there are no more."""
    parts: list[bytes] = []
    while size:
        part = source.recv(size)
        if not part:
            raise ConnectionError("hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
