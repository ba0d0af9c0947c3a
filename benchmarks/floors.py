"""The floors: what the parts cost that every other figure is made of.

A commit, a round trip, a task, a hop to a thread, a value encoded and decoded, a bare HTTP request: each as cheap as
this machine, Python, and the same libraries allow, with nothing of Holdfast. The page on benchmarks uses these figures
to say how far the others are from what is possible. CPU time includes the kernel's.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks import sqlite_baseline
from benchmarks.drivers import run_server
from benchmarks.platform_requests import RawConnection
from benchmarks.postgres_benchmarks import PostgresBaseline
from benchmarks.sqlite_benchmarks import Measurement, median

ROWS_PER_COMMIT = 50
BARE_APP = """
import socket, sys
import uvicorn

database = sys.argv[2]
if database:
    from benchmarks.sqlite_baseline import PAYLOAD, connect
    connection = connect(database)

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    if database:
        connection.execute("INSERT INTO rows (run, seq, name, output, at) VALUES (1, 1, 'one', ?, 0.0)", (PAYLOAD,))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})

config = uvicorn.Config(app, http="httptools", loop="uvloop", log_level="error", access_log=False)
uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[1]))])
"""


class Stopwatch:
    """Wall time and CPU time of this process, of several rounds."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.wall_us: list[float] = []
        self.cpu_us: list[float] = []

    def add(self, count: int, wall_s: float, cpu_s: float) -> None:
        self.wall_us.append(wall_s / count * 1e6)
        self.cpu_us.append(cpu_s / count * 1e6)

    def measure(self, count: int, call: Callable[[], object]) -> None:
        began, cpu_began = time.perf_counter(), time.process_time()
        call()
        self.add(count, time.perf_counter() - began, time.process_time() - cpu_began)

    def to_measurement(self) -> Measurement:
        return Measurement(self.title, median(self.wall_us), "us", f"{median(self.cpu_us):,.1f} us of CPU")


async def measure_floors(folder: Path, rounds: int) -> list[Measurement]:
    lines = measure_sqlite(folder, rounds)
    async with run_server(folder) as url:
        lines += measure_postgres(url, rounds)
    lines += await measure_asyncio(rounds)
    lines.append(measure_codec(rounds))
    for title, database in (
        ("a bare HTTP request, CPU of the server", ""),
        ("the same, with one SQLite commit", str(folder / "http.db")),
    ):
        values = [await asyncio.to_thread(measure_http, database) for _ in range(rounds)]
        lines.append(Measurement(title, median(values), "us of CPU", "uvicorn with httptools and uvloop"))
    return lines


def measure_sqlite(folder: Path, rounds: int) -> list[Measurement]:
    path = folder / "floors.db"
    single, shared = Stopwatch("SQLite: one row, one commit"), Stopwatch("SQLite: one of 50 rows in a commit")
    insert = "INSERT INTO rows (run, seq, name, output, at) VALUES (1, ?, 'one', ?, 0.0)"
    connection = sqlite_baseline.connect(path)

    def commit_rows() -> None:
        for _ in range(10):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(insert, [(seq, sqlite_baseline.PAYLOAD) for seq in range(ROWS_PER_COMMIT)])
            connection.execute("COMMIT")

    for _ in range(rounds):
        single.measure(200, lambda: sqlite_baseline.measure_commit_rate(path, 200))
        shared.measure(10 * ROWS_PER_COMMIT, commit_rows)
    connection.close()
    return [single.to_measurement(), shared.to_measurement()]


def measure_postgres(url: str, rounds: int) -> list[Measurement]:
    import psycopg

    single, shared, trip = (
        Stopwatch("Postgres: one row, one commit"),
        Stopwatch("Postgres: one of 50 rows in a commit"),
        Stopwatch("Postgres: a round trip"),
    )
    bare = PostgresBaseline(url)
    insert = "INSERT INTO bare_rows (run, seq, name, output, at) SELECT 1, n, 'one', %b, 0.0 FROM unnest(%b::int8[]) n"
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        numbers = list(range(ROWS_PER_COMMIT))

        def commit_rows() -> None:
            for _ in range(10):
                connection.execute(insert, (sqlite_baseline.PAYLOAD, numbers))

        def select_one() -> None:
            for _ in range(200):
                connection.execute("SELECT 1")

        for _ in range(rounds):
            single.measure(200, lambda: bare.measure_commit_rate(200))
            shared.measure(10 * ROWS_PER_COMMIT, commit_rows)
            trip.measure(200, select_one)
    bare.close()
    return [single.to_measurement(), shared.to_measurement(), trip.to_measurement()]


async def measure_asyncio(rounds: int) -> list[Measurement]:
    loop = asyncio.get_running_loop()
    tasks, hops = Stopwatch("asyncio: a task created and awaited"), Stopwatch("asyncio: to a thread and back")

    async def nothing() -> None:
        pass

    async def run_many(count: int, stopwatch: Stopwatch, start: Callable[[], asyncio.Future[None]]) -> None:
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(count):
            await start()
        stopwatch.add(count, time.perf_counter() - began, time.process_time() - cpu_began)

    for _ in range(rounds):
        await run_many(5000, tasks, lambda: loop.create_task(nothing()))
        await run_many(1000, hops, lambda: loop.run_in_executor(None, int))
    return [tasks.to_measurement(), hops.to_measurement()]


def measure_codec(rounds: int) -> Measurement:
    from pydantic import TypeAdapter

    adapter, value = TypeAdapter(str), "x" * 200
    stopwatch = Stopwatch("a text of 200 characters, encoded and decoded")

    def repeat() -> None:
        for _ in range(5000):
            adapter.validate_json(adapter.dump_json(value))

    for _ in range(rounds):
        stopwatch.measure(5000, repeat)
    return stopwatch.to_measurement()


def measure_http(database: str, request_count: int = 3000) -> float:
    """CPU microseconds for a request of a server that only answers, or only commits a row and answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        command = [sys.executable, "-c", BARE_APP, str(listening.fileno()), database]
        server = subprocess.Popen(command, pass_fds=[listening.fileno()], cwd=Path(__file__).parent.parent)
        try:
            connection = RawConnection(listening.getsockname()[1])
            process = psutil.Process(server.pid)
            connection.request("GET", "/")
            began = process.cpu_times()
            for _ in range(request_count):
                connection.request("GET", "/")
            ended = process.cpu_times()
            connection.close()
        finally:
            server.terminate()
            server.wait()
    return (ended.user + ended.system - began.user - began.system) / request_count * 1e6


BENCHMARKS = {"floors": measure_floors}
