"""Disks that fill up, databases that are locked: progress stops, nothing is lost, and progress resumes by itself."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Runtime, step, workflow
from holdfast.errors import StoreError, StoreFull, StoreSchemaError

PROGRAM = Path(__file__).parent / "full_disk.py"


def test_a_full_disk_stops_progress_and_progress_resumes_when_there_is_room(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert 0 < seen["stopped_at"] < 60
    assert seen["state_when_full"] == "running"
    assert seen["start_when_full"] == StoreFull.__name__
    assert "no room" in seen["message"]
    assert (seen["result"], seen["state"], seen["late"]) == (60, "completed", 1)
    ran = Counter(int(number) for number in (tmp_path / "ledger").read_text().split())
    assert ran == Counter(range(60)), "each step ran once, also the one that could not be recorded at first"
    assert "no room" in done.stderr
    assert "takes writes again" in done.stderr


@step
async def count(number: int) -> int:
    return number + 1


@workflow(id="locked-{upto}")
async def counting(upto: int) -> int:
    number = 0
    while number < upto:
        number = await count(number)
    return number


def test_a_run_continues_when_another_program_unlocks_the_database(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
            assert await counting(3) == 3
            intruder = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
            intruder.execute("BEGIN IMMEDIATE")
            threading.Timer(1.0, intruder.rollback).start()
            assert await asyncio.wait_for(counting(20), 20) == 20
            intruder.close()

    asyncio.run(main())


def test_a_database_of_a_newer_holdfast_is_refused_and_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
            await counting(1)
        connection = sqlite3.connect(tmp_path / "runs.db")
        connection.execute("UPDATE meta SET value = 999 WHERE name = 'compatible_from'")
        connection.execute("PRAGMA user_version = 999")
        connection.commit()
        connection.close()
        before = (tmp_path / "runs.db").read_bytes()
        with pytest.raises(StoreSchemaError, match="999"):
            async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
                pass
        assert (tmp_path / "runs.db").read_bytes() == before

    asyncio.run(main())


def test_a_path_that_cannot_be_written_is_a_clear_error() -> None:
    async def main() -> None:
        with pytest.raises(StoreError, match="/proc"):
            async with Runtime("sqlite:////proc/holdfast/runs.db"):
                pass

    asyncio.run(main())


def test_a_database_that_lost_a_column_is_reported_instead_of_retried_forever(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
            await counting(1)
        connection = sqlite3.connect(tmp_path / "runs.db")
        connection.execute("ALTER TABLE attempts DROP COLUMN name")
        connection.execute("ALTER TABLE runs RENAME COLUMN seed TO seeds")
        connection.close()
        with pytest.raises(StoreSchemaError, match="changed by hand"):
            async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
                await counting(2)

    asyncio.run(main())
