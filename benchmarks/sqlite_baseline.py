"""The baseline: the same driver, file system, and durability, and nothing else."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

PAYLOAD = b"x" * 200


def connect(path: Path) -> sqlite3.Connection:
    """A connection with the settings that Holdfast writes with."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, run INTEGER, seq INTEGER, name TEXT, output BLOB, "
        "at REAL)"
    )
    return connection


def measure_commit_rate(path: Path, count: int = 200) -> float:
    """Insert and commit one row after the other."""
    connection = connect(path)
    started = time.perf_counter()
    for number in range(count):
        connection.execute(
            "INSERT INTO rows (run, seq, name, output, at) VALUES (1, ?, 'one', ?, 0.0)", (number, PAYLOAD)
        )
    rate = count / (time.perf_counter() - started)
    connection.close()
    return rate
