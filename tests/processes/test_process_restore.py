"""A database goes back to a backup after its workers went on: nothing that must happen once happens again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import postgres_server
import psycopg
from app_processes import App, World
from ledger import Journal
from postgres_processes import PgWorld
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

import forked_python
from holdfast import Client
from waits import wait_until_sync

ON_POSTGRES = ("test_once_steps_that_happened_after_the_backup_are_unknown_and_not_executed_again",)
"""What always runs on PostgreSQL, too."""


def holdfast(*words: str) -> dict[str, Any]:
    done = forked_python.run(
        [sys.executable, "-m", "holdfast.cli", *words, "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer if isinstance(answer, dict) else answer[0]


def refused(*words: str) -> str:
    done: subprocess.CompletedProcess[str] = forked_python.run(
        [sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stdout
    return done.stderr


def spawn(world: World) -> App:
    return world.spawn("restored_worker.py").wait_for_output("ready")


def is_unknown(journal: Journal) -> bool:
    """Its last record is that of a step whose outcome is unknown."""
    assert journal.state == "failed", journal
    return b"StepOutcomeUnknown" in (journal.records[-1].payload or b"")


class PostgresBackup:
    """A copy of a database, which its server makes while nobody is connected."""

    def __init__(self, url: str) -> None:
        name = str(conninfo_to_dict(url)["dbname"])
        self._copy = f"{name}_copy"
        self.url = url.replace(name, self._copy, 1)
        self.at = datetime.now(UTC)
        with psycopg.connect(postgres_server.database_url("postgres"), autocommit=True) as server:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            copy, original = sql.Identifier(self._copy), sql.Identifier(name)
            server.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(copy, original))

    def delete(self) -> None:
        with psycopg.connect(postgres_server.database_url("postgres"), autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self._copy)))


def test_once_steps_that_happened_after_the_backup_are_unknown_and_not_executed_again(world: World, folder: Path):
    worker = spawn(world)
    order = world.client.start_sync("order", "ada")
    family = world.client.start_sync("parts", "wheel")
    shipping = world.client.start_sync("shipping", "bob")
    world.wait_for_line("hold", "start", run=order)
    world.wait_for_line("hold", "start", run=family)
    world.wait_for_line("hold", "start", run=shipping)
    copy: PostgresBackup | None = None
    if isinstance(world, PgWorld):
        worker.kill()
        world.client.close_sync()
        copy = PostgresBackup(world.url)
        worker = spawn(world)
    else:
        holdfast("backup", str(folder / "backup.db"), "--url", world.url)
    backup_at = time.time()
    for gate in ("order", "ship"):
        world.open_gate(gate)
    for run in (order, family, shipping):
        world.wait_for_end(run)
    wait_until_sync(lambda: len(world.lines("charge", "finish")) >= 6, "ticks have fired", describe=world.describe)
    worker.kill()
    happened = Counter((line.step, line.label) for line in world.lines(phase="start") if line.step != "hold")
    ticks = {line.run for line in world.lines("charge", "start") if line.label == "the report" and line.at > backup_at}

    there: World
    if copy is None:
        world.client.close_sync()
        answer = holdfast("restore", str(folder / "backup.db"), "--url", world.url)
        assert Path(answer["previous"]).exists()
        assert abs(datetime.fromisoformat(answer["backup_at"]).timestamp() - backup_at) < 30
        there = world
    else:
        there = PgWorld(folder, copy.url)
        # The lease of the worker that was killed is in the copy, too.
        time.sleep(2)
        answer = holdfast("mark-restored", "--since", copy.at.isoformat(), "--url", copy.url)
    assert answer["marked_run_count"] >= 3
    try:
        restored = spawn(there)
        for run in (order, family, shipping):
            assert is_unknown(there.wait_for_end(run, "failed"))
        for run in ticks:  # they fire again, and what they do is as unknown
            there.wait_for_run(run, lambda run: run.state in ("completed", "failed"), "the tick has fired again")
        again = Counter(
            (line.step, line.label)
            for line in there.lines(phase="start", pid=restored.pid)
            if line.step != "hold" and line.run not in ticks
        )
        assert {label for _, label in again} <= {"the report"}, "only ticks that are due now"
        assert not [line for line in there.lines("charge", "start", pid=restored.pid) if line.run in ticks]
        assert not there.lines("ship", pid=restored.pid)
        assert happened["charge", "ada"] == happened["ship", "bob"] == 1

        async def settle() -> None:
            async with Client(there.url) as client:
                await client.settle(order, "charge", "charged ada")
                await client.settle(shipping, "ship", happened=False)
                await client.settle("part-wheel", "charge", "charged wheel")
                await client.wait("part-wheel")
                await client.retry(family)

        asyncio.run(settle())
        # The tip may have been charged as well: a person is asked about each.
        wait_until_sync(
            lambda: there.journal(order).state == "failed" and is_unknown(there.journal(order)),
            "the next step is unknown",
            describe=there.describe,
        )
        assert there.wait_for_end(shipping).output == "shipped bob"
        assert there.wait_for_end(family).output == "charged wheel"
        there.client.settle_sync(order, 3, "charged tip for ada")
        assert there.wait_for_end(order).output == ["order", "charged ada", "charged tip for ada"]
        new = there.client.start_sync("shipping", "eve")
        assert there.wait_for_end(new).output == "shipped eve"
    finally:
        if there is not world:
            there.clean_up()
            assert copy is not None
            copy.delete()
