"""What the dashboard asks for, in a store with a million runs: how long does each answer take?

The runs are put there by the database itself, since starting them would take an hour: several workflows over 30 days,
some of them agents, most of them completed, some failed with one of many messages, dead, waiting or due; every tenth
started by another one; with tags of two kinds. HOLDFAST_BENCHMARK_RUNS says how many, if not a million.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.drivers import server
from benchmarks.platform_load import Server
from benchmarks.sqlite_benchmarks import MILLION, Line, median
from holdfast.codec import encode_error
from holdfast.stores.contract import NewWorker, WorkflowSpec
from holdfast.stores.urls import open_store

DAYS = 30
WORKFLOWS = ("onboarding", "invoices", "digest", "etl", "support", "researcher", "triage", "writer")
AGENTS = WORKFLOWS[4:]
STATES = {
    "completed": 900, "failed": 55, "cancelled": 8, "dead": 2, "waiting": 28, "pending": 5, "running": 2
}  # fmt: skip
"""Of a thousand."""
FAULTS = (
    TimeoutError("the model did not answer"), ValueError("no such customer"), ConnectionError("refused by the peer")
)  # fmt: skip
RARE = "xylophone"
"""In the errors of three runs."""
WORKER = 1
COLUMNS = """
    key id workflow queue state epoch owner deliveries max_deliveries ready wake_at waits_for priority unclaimed cancel
    python created_at began_at finished_at parent forked_from rewound digest seed tags inputs output error session
    previous has_budget version
"""
USAGES = """
    run above calls input_tokens output_tokens cached_tokens nano_usd unpriced seconds reserved_calls reserved_tokens
    reserved_nano_usd budget short
"""
APPROVALS = """
    id run position state asked_at expires_at asked_of reminders answered_by answered_at withdrawn_in question form
    arguments answer
"""
SPENDING = "day workflow model calls input_tokens output_tokens cached_tokens nano_usd unpriced"


class Rows:
    """The rows of all tables, the same ones each time."""

    def __init__(self, count: int, now: float) -> None:
        self.count = count
        self.now = now

    def runs(self) -> Iterator[tuple[Any, ...]]:
        dice = random.Random(17)
        states, weights = list(STATES), list(STATES.values())
        span = DAYS * 86400.0
        *faults, unusual = [encode_error(one) for one in (*FAULTS, LookupError(f"no {RARE} in stock"))]
        rare = (self.count // 3, self.count // 2, self.count - self.count // 5)
        for key in range(1, self.count + 1):
            workflow = WORKFLOWS[dice.randrange(len(WORKFLOWS))]
            [state] = ["failed"] if key in rare else dice.choices(states, weights)
            created = self.now - span * (self.count - key) / self.count
            ended = state in ("completed", "failed", "cancelled", "dead")
            parent = self._id(key - 1) if key % 10 == 0 else ""
            error = None
            if state in ("failed", "dead"):
                error = unusual if key in rare else faults[dice.randrange(len(faults))]
            yield (
                key, self._id(key), workflow, "default", state, 0 if state == "pending" else 1,
                WORKER if state == "running" else None, 0, 3, 1 if state == "pending" else None,
                created if state == "pending" else None, "signal 'paid'" if state == "waiting" else "", 0, 0, "",
                "3.12",
                created, created, created + dice.random() * 60 if ended else None, parent, "", "[]", b"d" * 16,
                b"s" * 16, json.dumps(self._tags(key)), b'{"customer": "acme", "amount": 17}',
                b'"done"' if state == "completed" else None, error, "", "", 0, "",
            )  # fmt: skip

    def tags(self) -> Iterator[tuple[str, int]]:
        for key in range(1, self.count + 1):
            for tag in self._tags(key):
                yield tag, key

    def usages(self) -> Iterator[tuple[Any, ...]]:
        for key in range(3, self.count + 1, 3):
            yield key, None, 4, 5200, 900, 0, 13_000_000, 0, 0.0, 0, 0, 0, None, ""

    def approvals(self) -> Iterator[tuple[Any, ...]]:
        for number in range(self.count // 50):
            key, is_open = 1 + number * 50, number % 200 == 0
            question = json.dumps(["Refund it?", "", [], "", ""])
            yield (
                f"a{number}", key, 3, "open" if is_open else "answered", self.now - number, None, "", 0,
                "" if is_open else "ada", None if is_open else self.now, 0, question, b"", b"",
                None if is_open else b'{"approved": true}',
            )  # fmt: skip

    def spending(self) -> Iterator[tuple[Any, ...]]:
        for day in range(DAYS):
            for workflow in AGENTS:
                at = time.strftime("%Y-%m-%d", time.gmtime(self.now - day * 86400))
                yield at, workflow, "openai:gpt-5-mini", 4000, 5_200_000, 900_000, 0, 13_000_000_000, 0

    def _id(self, key: int) -> str:
        return f"run-{key * 2654435761 % 2**32:08x}-{key}"

    def _tags(self, key: int) -> list[str]:
        return [f"customer-{key * 7919 % 2000}", *(["trial"] if key % 4 == 0 else [])]


def fill_sqlite(path: Path, rows: Rows) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")

    def put(table: str, columns: Sequence[str], values: Iterator[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)

    _fill(put, rows)
    connection.execute("ANALYZE")
    connection.commit()
    connection.close()


def fill_postgres(url: str, rows: Rows) -> None:
    import psycopg

    with psycopg.connect(url) as connection:

        def put(table: str, columns: Sequence[str], values: Iterator[tuple[Any, ...]]) -> None:
            if table == "spending":  # several rows a day there, so that nobody waits for another
                columns, values = (*columns, "slot"), ((*row, 0) for row in values)
            copy = f"COPY holdfast.{table} ({', '.join(columns)}) FROM STDIN"
            with connection.cursor() as cursor, cursor.copy(copy) as writer:
                for row in values:
                    writer.write_row(row)

        _fill(put, rows)
        connection.execute("SELECT setval('holdfast.run_keys', %s)", (rows.count + 1,))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _fill(put: Callable[[str, Sequence[str], Iterator[tuple[Any, ...]]], None], rows: Rows) -> None:
    put("runs", COLUMNS.split(), rows.runs())
    put("run_tags", ("tag", "run"), rows.tags())
    put("usages", USAGES.split(), rows.usages())
    put("approvals", APPROVALS.split(), rows.approvals())
    put("spending", SPENDING.split(), rows.spending())


async def prepare(url: str) -> None:
    """The tables, and what a worker has announced."""
    store = open_store(url)
    await store.open()
    worker = await store.register_worker(NewWorker("worker-1", "host-1", 1, WORKFLOWS, by_lease=True), 10 * 86400)
    assert worker == WORKER
    await store.publish([WorkflowSpec(name, ("customer",), is_agent=name in AGENTS) for name in WORKFLOWS], worker)
    await store.close()


def asked(rows: Rows) -> dict[str, str]:
    """What the pages ask for."""
    hour = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(rows.now - 3600))
    day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(rows.now - 86400))
    week = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(rows.now - 7 * 86400))
    return {
        "overview": "/v1/overview",
        "runs": "/v1/runs?limit=50",
        "runs: completed": "/v1/runs?state=completed",
        "runs: dead": "/v1/runs?state=dead",
        "runs: waiting, pending, running": "/v1/runs?state=waiting&state=pending&state=running",
        "runs: of a workflow": "/v1/runs?workflow=etl",
        "runs: of a workflow, failed": "/v1/runs?workflow=etl&state=failed",
        "runs: with a tag of many": "/v1/runs?tag=trial",
        "runs: with a tag of few": "/v1/runs?tag=customer-12",
        "runs: with a tag of many, dead": "/v1/runs?tag=trial&state=dead",
        "runs: with a tag of none": "/v1/runs?tag=nobody&state=completed",
        "runs: of the last hour": f"/v1/runs?created_after={hour}",
        "runs: of the last day, failed": f"/v1/runs?created_after={day}&state=failed",
        "runs: of the last week, dead": f"/v1/runs?created_after={week}&state=dead",
        "runs: of a parent": f"/v1/runs?parent={rows._id(rows.count - rows.count % 10 - 1)}",
        "runs: text of many": "/v1/runs?text=timeout",
        "runs: text of three": f"/v1/runs?text={RARE}",
        "runs: text of none": "/v1/runs?text=nowhere",
        "runs: text of none, among failed": "/v1/runs?text=nowhere&state=failed",
        "runs: text of none, among a tag": "/v1/runs?text=nowhere&tag=trial",
        "runs: text of none, not ASCII": "/v1/runs?text=n%C3%B6where",
        "dead": "/v1/dead",
        "agents": "/v1/agents",
        "approvals": "/v1/approvals",
        "approvals: all": "/v1/approvals?all=true",
        "usage": "/v1/usage",
        "queues": "/v1/queues",
        "workers": "/v1/workers",
        "schedules": "/v1/schedules",
    }


async def measure(name: str, url: str, folder: Path, rows: Rows, rounds: int) -> list[Line]:
    serving = Server(url, folder / "server.log")
    serving.start()
    lines: list[Line] = []
    try:
        async with httpx2.AsyncClient(base_url=serving.address, timeout=120) as client:
            for what, path in asked(rows).items():
                times: list[float] = []
                for _ in range(2 * rounds + 1):
                    began = time.perf_counter()
                    answer = await client.get(path)
                    times.append((time.perf_counter() - began) * 1e3)
                    assert answer.status_code == 200, (path, answer.text)
                beside = f"first {times[0]:,.0f}, slowest {max(times):,.0f}, {len(answer.content):,} bytes"
                met = median(times) <= 100 and max(times) <= 300
                lines.append(Line(f"{name}: {what}", median(times), "ms", beside, "<= 100, none > 300", met))
            lines.append(await _search_to_the_end(name, client))
    finally:
        serving.stop()
    return lines


async def _search_to_the_end(name: str, client: httpx2.AsyncClient) -> Line:
    """Three runs among a million, as a page looks for them: piece by piece."""
    began, pieces, found, cursor = time.perf_counter(), 0, 0, None
    slowest = 0.0
    while pieces == 0 or cursor is not None:
        at = time.perf_counter()
        params = {"text": RARE} if cursor is None else {"text": RARE, "cursor": cursor}
        told = (await client.get("/v1/runs", params=params)).json()
        slowest = max(slowest, time.perf_counter() - at)
        pieces, found, cursor = pieces + 1, found + len(told["items"]), told["next"]
    took = time.perf_counter() - began
    beside = f"{found} found in {pieces} pieces, slowest {slowest * 1e3:,.0f} ms"
    return Line(f"{name}: all runs searched for a text", took, "s", beside)


async def dashboard(folder: Path, rounds: int) -> list[Line]:
    rows = Rows(MILLION, time.time())
    path = folder / "runs.db"
    await prepare(f"sqlite:///{path}")
    await asyncio.to_thread(fill_sqlite, path, rows)
    lines = await measure("SQLite", f"sqlite:///{path}", folder, rows, rounds)
    path.unlink()
    async with server(folder) as url:
        await prepare(url)
        await asyncio.to_thread(fill_postgres, url, rows)
        lines += await measure("Postgres", url, folder, rows, rounds)
    return lines


MEASURES = {"dashboard": dashboard}
