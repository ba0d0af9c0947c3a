"""Stores for the peers: each job gets a new one, whose size in bytes can be measured."""

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
from benchmarks.drivers import run_server as postgres_server
from benchmarks.peers import environments
from benchmarks.peers.catalog import Peer
from benchmarks.postgres_benchmarks import PostgresBaseline
from benchmarks.temporal_benchmarks import run_server as temporal_server

_counter = itertools.count()

LIST_TABLES_SQL = """
SELECT format('%I.%I', nspname, relname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind = 'r' AND nspname NOT IN ('pg_catalog', 'information_schema')
"""


class PeerStore(ABC):
    """A new store."""

    url: str
    """As the peer's program takes it."""

    @abstractmethod
    def measure_size(self) -> int:
        """The bytes that it holds now."""

    @abstractmethod
    def measure_baseline(self) -> float:
        """Commits per second of the bare database: SQLite on the same disk, or Postgres if the peer uses it."""


class SqliteStore(PeerStore):
    """A file, or the file of a development server."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self._path = path

    def measure_size(self) -> int:
        """Pages in use."""
        connection = sqlite3.connect(self._path, timeout=30)
        pages, unused, each = [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        ]
        connection.close()
        return (pages - unused) * each

    def measure_baseline(self) -> float:
        return sqlite_baseline.measure_commit_rate(self._path.with_suffix(".bare"))


class PostgresStore(PeerStore):
    """A database."""

    def __init__(self, url: str, server: str) -> None:
        self.url = url
        self._server = server

    def measure_size(self) -> int:
        """Tables with their indexes, without dead rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables = [name for (name,) in connection.execute(LIST_TABLES_SQL).fetchall()]
            for name in tables:
                connection.execute(f"VACUUM FULL {name}".encode())
            sizes = connection.execute(
                "SELECT pg_total_relation_size(name) FROM unnest(%s::regclass[]) name", (tables,)
            )
            return sum(size for (size,) in sizes.fetchall())

    def measure_baseline(self) -> float:
        yardstick = PostgresBaseline(self._server)  # in another database, so that it does not count as the peer's
        rate = yardstick.measure_commit_rate()
        yardstick.close()
        return rate


class FolderStore(PeerStore):
    """Restate's files."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    def measure_size(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())

    def measure_baseline(self) -> float:
        return sqlite_baseline.measure_commit_rate(self._folder.with_suffix(".bare"))


class PeerStoreFactory:
    """Creates new stores. All of them share one Postgres server, started when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exit_stack = AsyncExitStack()
        self._postgres_url = ""

    async def __aenter__(self) -> PeerStoreFactory:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stack.aclose()

    @asynccontextmanager
    async def create(self, peer: Peer) -> AsyncIterator[PeerStore]:
        """A store for this peer, with the server that it needs, until the block ends."""
        place = self._folder / f"{peer.key}-{next(_counter)}"
        place.mkdir()
        if peer.store == "sqlite":
            path = place / "runs.db"
            yield SqliteStore(f"sqlite:///{path}", path)
        elif peer.store == "postgres":
            if not self._postgres_url:
                self._postgres_url = await self._exit_stack.enter_async_context(postgres_server(self._folder))
            yield PostgresStore(_create_database(self._postgres_url, peer.family), self._postgres_url)
        elif peer.store == "temporal":
            async with temporal_server(place, environments.find_command(peer.family, "temporal")) as address:
                yield SqliteStore(address, place / "temporal.db")
        else:
            with RestateServer(place) as url:
                yield FolderStore(url, place)


def _create_database(server: str, family: str) -> str:
    """The URL of a new database on that server, with the peer's schema if it has to be installed first."""
    name = f"peers_{os.getpid()}_{next(_counter)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    url = url if "://" in url else url.replace(":", "://", 1)  # a URL without a host
    if family == "absurd":
        order = [environments.find_command(family, "absurdctl"), "init", "-d", url]
        subprocess.run(order, check=True, capture_output=True)
    return url


class RestateServer:
    """Restate's server, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ingress_port, self._admin_port, self._service_port, self._node_port = (find_free_port() for _ in range(4))

    def __enter__(self) -> str:
        settings = {
            "RESTATE_BASE_DIR": str(self._folder),
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_PORT": str(self._node_port),
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{self._ingress_port}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{self._admin_port}",
            "RESTATE_LOG_FILTER": "error",
            "DO_NOT_TRACK": "1",
        }
        program = environments.find_command("restate", "restate-server")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([program], env={**os.environ, **settings}, stdout=log, stderr=log)
        self._wait_until_healthy()
        return f"{self._ingress_port},{self._admin_port},{self._service_port}"

    def _wait_until_healthy(self) -> None:
        until = time.monotonic() + 60
        for port, path in ((self._admin_port, "health"), (self._ingress_port, "restate/health")):
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}").close()
                    break
                except OSError:
                    if time.monotonic() > until or self._process.poll() is not None:
                        said = (self._folder / "log").read_text()[-500:]
                        raise environments.PeerUnavailable(f"restate-server does not answer: {said}") from None
                    time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
