"""Response times of the dashboard's requests in a store with a million runs.

The rows are written directly to the database, because starting a million runs would take an hour: several workflows
over 30 days, some of them agents, most of them completed, some failed with one of many messages, dead, waiting, or due;
every tenth run is a child; with tags of two kinds. HOLDFAST_BENCHMARK_RUNS sets another number of runs.
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

from benchmarks.drivers import run_server
from benchmarks.platform_load import ServerProcess
from benchmarks.sqlite_benchmarks import LARGE_RUN_COUNT, Measurement, median
from holdfast.codec import encode_error
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.urls import create_store
from holdfast.stores.workers import NewWorker

DAYS = 30
WORKFLOWS = ("onboarding", "invoices", "digest", "etl", "support", "researcher", "triage", "writer")
AGENTS = WORKFLOWS[4:]
STATE_WEIGHTS = {
    "completed": 900, "failed": 55, "cancelled": 8, "dead": 2, "waiting": 28, "pending": 5, "running": 2
}  # fmt: skip
"""Of a thousand."""
ERRORS = (
    TimeoutError("the model did not answer"), ValueError("no such customer"), ConnectionError("refused by the peer")
)  # fmt: skip
RARE_WORD = "xylophone"
"""In the errors of three runs."""
WORKER_ID = 1
RUN_COLUMNS = """
    key id workflow queue state epoch owner delivery_count max_deliveries ready_state wake_at waits_for priority
    result_claim cancel_state python_version created_at clock_started_at finished_at parent forked_from rewind_points
    digest seed tags inputs output error session previous_run has_budget version
"""
USAGE_COLUMNS = """
    run parent_key calls input_tokens output_tokens cached_tokens nano_usd unpriced seconds reserved_calls
    reserved_tokens reserved_nano_usd budget short_positions
"""
APPROVAL_COLUMNS = """
    id run position state requested_at expires_at assignee reminder_count answered_by answered_at withdrawn_epoch
    request form_schema arguments answer
"""
SPENDING_COLUMNS = "day workflow model calls input_tokens output_tokens cached_tokens nano_usd unpriced"


class TableRows:
    """The rows of all tables, the same each time."""

    def __init__(self, count: int, now: float) -> None:
        self.run_count = count
        self.now = now

    def iter_runs(self) -> Iterator[tuple[Any, ...]]:
        dice = random.Random(17)
        states, weights = list(STATE_WEIGHTS), list(STATE_WEIGHTS.values())
        span = DAYS * 86400.0
        *faults, unusual = [encode_error(one) for one in (*ERRORS, LookupError(f"no {RARE_WORD} in stock"))]
        rare = (self.run_count // 3, self.run_count // 2, self.run_count - self.run_count // 5)
        for key in range(1, self.run_count + 1):
            workflow = WORKFLOWS[dice.randrange(len(WORKFLOWS))]
            [state] = ["failed"] if key in rare else dice.choices(states, weights)
            created = self.now - span * (self.run_count - key) / self.run_count
            ended = state in ("completed", "failed", "cancelled", "dead")
            parent = self._make_id(key - 1) if key % 10 == 0 else ""
            error = None
            if state in ("failed", "dead"):
                error = unusual if key in rare else faults[dice.randrange(len(faults))]
            yield (
                key, self._make_id(key), workflow, "default", state, 0 if state == "pending" else 1,
                WORKER_ID if state == "running" else None, 0, 3, 1 if state == "pending" else None,
                created if state == "pending" else None, "signal 'paid'" if state == "waiting" else "", 0, 0, "",
                "3.12",
                created, created, created + dice.random() * 60 if ended else None, parent, "", "[]", b"d" * 16,
                b"s" * 16, json.dumps(self._make_tags(key)), b'{"customer": "acme", "amount": 17}',
                b'"done"' if state == "completed" else None, error, "", "", 0, "",
            )  # fmt: skip

    def iter_tags(self) -> Iterator[tuple[str, int]]:
        for key in range(1, self.run_count + 1):
            for tag in self._make_tags(key):
                yield tag, key

    def iter_usages(self) -> Iterator[tuple[Any, ...]]:
        for key in range(3, self.run_count + 1, 3):
            yield key, None, 4, 5200, 900, 0, 13_000_000, 0, 0.0, 0, 0, 0, None, ""

    def iter_approvals(self) -> Iterator[tuple[Any, ...]]:
        for number in range(self.run_count // 50):
            key, is_open = 1 + number * 50, number % 200 == 0
            question = json.dumps(["Refund it?", "", [], "", ""])
            yield (
                f"a{number}", key, 3, "open" if is_open else "answered", self.now - number, None, "", 0,
                "" if is_open else "ada", None if is_open else self.now, 0, question, b"", b"",
                None if is_open else b'{"approved": true}',
            )  # fmt: skip

    def iter_spending(self) -> Iterator[tuple[Any, ...]]:
        for day in range(DAYS):
            for workflow in AGENTS:
                at = time.strftime("%Y-%m-%d", time.gmtime(self.now - day * 86400))
                yield at, workflow, "openai:gpt-5-mini", 4000, 5_200_000, 900_000, 0, 13_000_000_000, 0

    def _make_id(self, key: int) -> str:
        return f"run-{key * 2654435761 % 2**32:08x}-{key}"

    def _make_tags(self, key: int) -> list[str]:
        return [f"customer-{key * 7919 % 2000}", *(["trial"] if key % 4 == 0 else [])]


def fill_sqlite(path: Path, rows: TableRows) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")

    def put(table: str, columns: Sequence[str], values: Iterator[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)

    _fill_tables(put, rows)
    connection.execute("ANALYZE")
    connection.commit()
    connection.close()


def fill_postgres(url: str, rows: TableRows) -> None:
    import psycopg

    with psycopg.connect(url) as connection:

        def put(table: str, columns: Sequence[str], values: Iterator[tuple[Any, ...]]) -> None:
            if table == "spending":  # several rows a day, so that writers do not wait for each other
                columns, values = (*columns, "slot"), ((*row, 0) for row in values)
            copy = f"COPY holdfast.{table} ({', '.join(columns)}) FROM STDIN"
            with connection.cursor() as cursor, cursor.copy(copy) as writer:
                for row in values:
                    writer.write_row(row)

        _fill_tables(put, rows)
        connection.execute("SELECT setval('holdfast.run_keys', %s)", (rows.run_count + 1,))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _fill_tables(insert: Callable[[str, Sequence[str], Iterator[tuple[Any, ...]]], None], rows: TableRows) -> None:
    insert("runs", RUN_COLUMNS.split(), rows.iter_runs())
    insert("run_tags", ("tag", "run"), rows.iter_tags())
    insert("usages", USAGE_COLUMNS.split(), rows.iter_usages())
    insert("approvals", APPROVAL_COLUMNS.split(), rows.iter_approvals())
    insert("spending", SPENDING_COLUMNS.split(), rows.iter_spending())


async def prepare_store(url: str) -> None:
    """Create the tables, and register workflows as a worker does."""
    store = create_store(url)
    await store.open()
    worker = await store.workers.register(NewWorker("worker-1", "host-1", 1, WORKFLOWS, is_listener=True), 10 * 86400)
    assert worker == WORKER_ID
    await store.announce_workflows(
        [WorkflowSpec(name, ("customer",), is_agent=name in AGENTS) for name in WORKFLOWS], worker
    )
    await store.close()


def list_requests(rows: TableRows) -> dict[str, str]:
    """The requests of the dashboard's pages."""
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
        "runs: of a parent": f"/v1/runs?parent={rows._make_id(rows.run_count - rows.run_count % 10 - 1)}",
        "runs: text of many": "/v1/runs?text=timeout",
        "runs: text of three": f"/v1/runs?text={RARE_WORD}",
        "runs: text of none": "/v1/runs?text=nowhere",
        "runs: text of none, among failed": "/v1/runs?text=nowhere&state=failed",
        "runs: text of none, among a tag": "/v1/runs?text=nowhere&tag=trial",
        "runs: text of none, not ASCII": "/v1/runs?text=n%C3%B6where",
        "dead": "/v1/dead-runs",
        "agents": "/v1/agents",
        "approvals": "/v1/approvals",
        "approvals: all": "/v1/approvals?include_closed=true",
        "usage": "/v1/usage",
        "queues": "/v1/queues",
        "workers": "/v1/workers",
        "schedules": "/v1/schedules",
    }


async def measure_requests(name: str, url: str, folder: Path, rows: TableRows, rounds: int) -> list[Measurement]:
    serving = ServerProcess(url, folder / "server.log")
    serving.start()
    lines: list[Measurement] = []
    try:
        async with httpx2.AsyncClient(base_url=serving.base_url, timeout=120) as client:
            for what, path in list_requests(rows).items():
                times: list[float] = []
                for _ in range(2 * rounds + 1):
                    began = time.perf_counter()
                    answer = await client.get(path)
                    times.append((time.perf_counter() - began) * 1e3)
                    assert answer.status_code == 200, (path, answer.text)
                beside = f"first {times[0]:,.0f}, slowest {max(times):,.0f}, {len(answer.content):,} bytes"
                met = median(times) <= 100 and max(times) <= 300
                lines.append(Measurement(f"{name}: {what}", median(times), "ms", beside, "<= 100, none > 300", met))
            lines.append(await _measure_full_search(name, client))
    finally:
        serving.stop()
    return lines


async def _measure_full_search(name: str, client: httpx2.AsyncClient) -> Measurement:
    """Three runs among a million, as a page looks for them: piece by piece."""
    began, pieces, found, cursor = time.perf_counter(), 0, 0, None
    slowest = 0.0
    while pieces == 0 or cursor is not None:
        at = time.perf_counter()
        params = {"text": RARE_WORD} if cursor is None else {"text": RARE_WORD, "cursor": cursor}
        told = (await client.get("/v1/runs", params=params)).json()
        slowest = max(slowest, time.perf_counter() - at)
        pieces, found, cursor = pieces + 1, found + len(told["items"]), told["next"]
    took = time.perf_counter() - began
    beside = f"{found} found in {pieces} pieces, slowest {slowest * 1e3:,.0f} ms"
    return Measurement(f"{name}: all runs searched for a text", took, "s", beside)


async def measure_dashboard(folder: Path, rounds: int) -> list[Measurement]:
    rows = TableRows(LARGE_RUN_COUNT, time.time())
    path = folder / "runs.db"
    await prepare_store(f"sqlite:///{path}")
    await asyncio.to_thread(fill_sqlite, path, rows)
    lines = await measure_requests("SQLite", f"sqlite:///{path}", folder, rows, rounds)
    path.unlink()
    async with run_server(folder) as url:
        await prepare_store(url)
        await asyncio.to_thread(fill_postgres, url, rows)
        lines += await measure_requests("Postgres", url, folder, rows, rounds)
    return lines


BENCHMARKS = {"dashboard": measure_dashboard}
