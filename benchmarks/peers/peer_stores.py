"""Stores for the peers: each job gets a new one, and what a store holds can be told in bytes."""

from __future__ import annotations

import itertools
import os
import socket
import sqlite3
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks import sqlite_baseline
from benchmarks.drivers import server as postgres_server
from benchmarks.peers import environments
from benchmarks.peers.catalog import Peer
from benchmarks.postgres_benchmarks import Bare
from benchmarks.temporal_benchmarks import server as temporal_server

_numbers = itertools.count()

TABLES = """
SELECT format('%I.%I', nspname, relname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind = 'r' AND nspname NOT IN ('pg_catalog', 'information_schema')
"""


class Store(ABC):
    """A new store."""

    url: str
    """As the peer's program takes it."""

    @abstractmethod
    def size(self) -> int:
        """The bytes that it holds now."""

    @abstractmethod
    def bare(self) -> float:
        """Commits a second of the bare database: SQLite on the same disk, unless the peer is on Postgres."""


class SqliteStore(Store):
    """A file, or the file of a development server."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self._path = path

    def size(self) -> int:
        """Pages in use."""
        connection = sqlite3.connect(self._path, timeout=30)
        pages, unused, each = [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        ]
        connection.close()
        return (pages - unused) * each

    def bare(self) -> float:
        return sqlite_baseline.commits_per_second(self._path.with_suffix(".bare"))


class PostgresStore(Store):
    """A database."""

    def __init__(self, url: str, server: str) -> None:
        self.url = url
        self._server = server

    def size(self) -> int:
        """Tables with their indexes, without dead rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables = [name for (name,) in connection.execute(TABLES).fetchall()]
            for name in tables:
                connection.execute(f"VACUUM FULL {name}".encode())
            sizes = connection.execute(
                "SELECT pg_total_relation_size(name) FROM unnest(%s::regclass[]) name", (tables,)
            )
            return sum(size for (size,) in sizes.fetchall())

    def bare(self) -> float:
        yardstick = Bare(self._server)  # in another database, so that it does not count as the peer's
        rate = yardstick.commits_per_second()
        yardstick.close()
        return rate


class FolderStore(Store):
    """Restate's files."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())

    def bare(self) -> float:
        return sqlite_baseline.commits_per_second(self._folder.with_suffix(".bare"))


class Stores:
    """Where new stores come from. There is one Postgres for all of them, started when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = AsyncExitStack()
        self._postgres = ""

    async def __aenter__(self) -> Stores:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @asynccontextmanager
    async def new(self, peer: Peer) -> AsyncIterator[Store]:
        """A store for this peer, with the server that it needs, until the block ends."""
        place = self._folder / f"{peer.key}-{next(_numbers)}"
        place.mkdir()
        if peer.store == "sqlite":
            path = place / "runs.db"
            yield SqliteStore(f"sqlite:///{path}", path)
        elif peer.store == "postgres":
            if not self._postgres:
                self._postgres = await self._open.enter_async_context(postgres_server(self._folder))
            yield PostgresStore(_database(self._postgres, peer.family), self._postgres)
        elif peer.store == "temporal":
            async with temporal_server(place, environments.command(peer.family, "temporal")) as address:
                yield SqliteStore(address, place / "temporal.db")
        else:
            with RestateServer(place) as url:
                yield FolderStore(url, place)


def _database(server: str, family: str) -> str:
    """The URL of a new database on that server, with the schema that has to be installed beforehand if there is one."""
    name = f"peers_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    url = url if "://" in url else url.replace(":", "://", 1)  # a URL without a host
    if family == "absurd":
        order = [environments.command(family, "absurdctl"), "init", "-d", url]
        subprocess.run(order, check=True, capture_output=True)
    return url


class RestateServer:
    """Restate's server, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ingress, self._admin, self._service, self._node = (_free_port() for _ in range(4))

    def __enter__(self) -> str:
        settings = {
            "RESTATE_BASE_DIR": str(self._folder),
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_PORT": str(self._node),
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{self._ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{self._admin}",
            "RESTATE_LOG_FILTER": "error",
            "DO_NOT_TRACK": "1",
        }
        program = environments.command("restate", "restate-server")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([program], env={**os.environ, **settings}, stdout=log, stderr=log)
        self._wait()
        return f"{self._ingress},{self._admin},{self._service}"

    def _wait(self) -> None:
        until = time.monotonic() + 60
        for port, path in ((self._admin, "health"), (self._ingress, "restate/health")):
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}").close()
                    break
                except OSError:
                    if time.monotonic() > until or self._process.poll() is not None:
                        said = (self._folder / "log").read_text()[-500:]
                        raise environments.Missing(f"restate-server does not answer: {said}") from None
                    time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
