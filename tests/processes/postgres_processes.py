"""Real processes on PostgreSQL: a world whose runs are in a database of a server, and a proxy to cut its connections.

The ledger stays outside: it is the same file as in the other process tests. The database is read here without
Holdfast's own code, also while the server is being restarted.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from app_processes import TIMEOUT_S, World
from ledger import ATTEMPTS, RECORDS, RUNS, SIGNALS, AttemptRow, Journal, RecordRow
from postgres_pooler import receive, receive_exactly
from psycopg.conninfo import conninfo_to_dict

from holdfast import Client

T = TypeVar("T")


class Database:
    """The tables, read by somebody who waits for the server if he must."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    def read(self, reading: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Read something as of one moment."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(self._url, autocommit=True, application_name="test")
                    self._connection.execute("SET search_path = holdfast")
                    self._connection.execute("SET default_transaction_isolation = 'repeatable read'")
                with self._connection.transaction():
                    return reading(self._connection)
            except psycopg.OperationalError:
                self.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of one statement."""
        return self.read(
            lambda connection: connection.execute(statement.replace("?", "%s").encode(), values).fetchall()
        )

    def journals(self, where: str = "", *values: Any) -> dict[str, Journal]:
        """All runs by id, or those for which a condition holds, in as few questions as possible."""
        try:
            return self.read(lambda connection: _journals(connection, where, values))
        except psycopg.errors.UndefinedTable:
            return {}  # nobody has made them yet

    def close(self) -> None:
        """Have no connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class PgWorld(World):
    """A world on a server."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url
        self.client = Client(url)
        self.tables = Database(url)

    def journals(self) -> dict[str, Journal]:
        return self.tables.journals()

    def workers(self) -> dict[int, tuple[int, str]]:
        return {number: (pid, state) for number, pid, state in self.tables.ask("SELECT id, pid, state FROM workers")}

    def is_writable(self) -> bool:
        return True  # there is no lock for all: a worker in a transaction holds the rows of its own runs

    def clean_up(self) -> None:
        super().clean_up()
        self.tables.close()


def _journals(connection: psycopg.Connection[Any], where: str, values: Sequence[Any]) -> dict[str, Journal]:
    def rows(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return connection.execute(statement.replace("?", "%s").encode(), values).fetchall()

    runs = rows(RUNS.replace("ORDER BY", f"{where} ORDER BY"), *values)
    keys = [row[0] for row in runs]

    def of_runs(statement: str) -> dict[int, list[tuple[Any, ...]]]:
        """The rows of many runs by the run's key."""
        found: dict[int, list[tuple[Any, ...]]] = {key: [] for key in keys}
        for key, *row in rows(statement.replace("SELECT ", "SELECT run, ").replace("run = ?", "run = ANY(?)"), keys):
            found[key].append(tuple(row))
        return found

    records, attempts, signals = of_runs(RECORDS), of_runs(ATTEMPTS), of_runs(SIGNALS)
    return {
        id: Journal(
            id,
            *row,
            output=None if output is None else json.loads(output),
            error="" if error is None else json.loads(error)["message"],
            seed=seed,
            records=tuple(RecordRow(*r[:4], r[4] == 1, *r[5:]) for r in records[key]),
            attempts={r[0]: AttemptRow(r[1], r[2] == 1, r[3]) for r in attempts[key]},
            signals=tuple(r[0] for r in signals[key]),
        )
        for key, id, *row, output, error, seed in runs
    }


# Cutting connections


@dataclass
class CutPoint:
    """What is to happen to the next statement of a sort, on whichever connection it comes along."""

    statement: str
    """A piece of its text."""
    moment: str
    """``before`` it is sent on, ``after`` it was and before the answer, or ``stall``: it takes its time."""
    seconds: float = TIMEOUT_S
    """So long, unless the test lets it go on before."""
    skip: int = 0
    """So many of them are let through."""
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Stands between workers and the server, knows the statements that pass, and cuts where it is told to."""

    def __init__(self, url: str) -> None:
        target = conninfo_to_dict(url)
        host, port = str(target["host"]), int(target.get("port") or 5432)
        self._server: Any = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        user, password = target.get("user") or "postgres", target.get("password") or ""
        own = self._listener.getsockname()[1]
        self.url = (
            f"postgresql://{user}:{password}@127.0.0.1:{own}/{target['dbname']}?sslmode=disable&gssencmode=disable"
        )
        self.passed: Counter[str] = Counter()
        """How often each statement has been carried out."""
        self.last = CutPoint("", "before")
        """What it was told to do last."""
        self._cut: CutPoint | None = None
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, statement: str, moment: str, *, seconds: float = TIMEOUT_S, skip: int = 0) -> CutPoint:
        """Do this to the next statement that contains this text."""
        self._cut = self.last = CutPoint(statement, moment, seconds, skip)
        return self.last

    def cut_all(self) -> None:
        """Hang up on everybody."""
        for each in list(self._open):
            _close_socket(each)

    def close(self) -> None:
        """Hang up, for good."""
        self._listener.close()
        self.cut_all()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET)
        try:
            server.connect(self._server)
        except OSError:
            client.close()
            return
        self._open |= {client, server}
        answers = AnswerRelay(server, client)
        with suppress(OSError):
            self._relay_requests(client, server, answers)
        _close_socket(client)
        _close_socket(server)
        answers.join()
        self._open -= {client, server}
        client.close()
        server.close()

    def _relay_requests(self, client: socket.socket, server: socket.socket, answers: AnswerRelay) -> None:
        """Pass on what the client sends, message by message."""
        texts: dict[bytes, str] = {}
        waiting: CutPoint | None = None
        (size,) = struct.unpack("!i", receive_exactly(client, 4))
        server.sendall(struct.pack("!i", size) + receive_exactly(client, size - 4))
        while True:
            kind, body = receive(client)
            text = ""
            if kind == b"Q":
                text = body[:-1].decode()
            elif kind == b"P":
                name, statement, *_ = body.split(b"\0", 2)
                texts[name] = statement.decode()
            elif kind == b"B":
                text = texts.get(body.split(b"\0", 2)[1], "")
            cut = None
            if text:
                self.passed[text] += 1
                cut = self._find_cut(text)
            if cut is not None:
                cut.begun.set()
            if cut is not None and cut.moment == "before":
                cut.done.set()
                return
            if cut is not None and cut.moment == "after":
                answers.withhold()
            if cut is not None and cut.moment == "stall":
                cut.go_on.wait(cut.seconds)
                cut.done.set()
            server.sendall(kind + struct.pack("!i", len(body) + 4) + body)
            if cut is not None and cut.moment == "after":
                waiting = cut
            if waiting is not None and kind in (b"S", b"Q"):
                answers.wait()  # it is done, and nobody is told
                waiting.done.set()
                return

    def _find_cut(self, text: str) -> CutPoint | None:
        cut = self._cut
        if cut is None or cut.statement not in text:
            return None
        if cut.skip:
            cut.skip -= 1
            return None
        self._cut = None
        return cut


class AnswerRelay(threading.Thread):
    """Passes on what the server says, as long as the client is to hear it."""

    def __init__(self, server: socket.socket, client: socket.socket) -> None:
        super().__init__(daemon=True)
        self._server, self._client = server, client
        self._withheld = False
        self._complete = threading.Event()
        self.start()

    def withhold(self) -> None:
        """The client hears nothing from now on."""
        self._withheld = True

    def wait(self) -> None:
        """Until the server has answered all that it was asked."""
        self._complete.wait(TIMEOUT_S)

    def run(self) -> None:
        said = b""
        with suppress(OSError):
            while data := self._server.recv(65536):
                said = said[-6:] + data
                if not self._withheld:
                    self._client.sendall(data)
                elif said[-6:-1] == b"Z\0\0\0\5":  # ready for what comes next
                    self._complete.set()
        self._complete.set()
        _close_socket(self._client)


def _close_socket(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
