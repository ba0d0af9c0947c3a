"""Reading what the processes of the soak have done, piece by piece and only once.

The process tests read the whole ledger and all journals each time; a soak of hours cannot.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ledger import ATTEMPTS, ENDED, RECORDS, RUNS, SIGNALS, AttemptRow, Journal, RecordRow
from postgres_processes import Database


class Tail:
    """The lines that were appended to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[Any]:
        """The new lines, read as JSON; one that is being written at this moment comes next time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._at += end
        return [json.loads(line) for line in text[:end].splitlines()]


class WorkerRow(NamedTuple):
    """A worker as the store has it. A process that was taken for dead comes back as another worker."""

    id: int
    pid: int
    state: str
    started_at: float


class RunRow(NamedTuple):
    """A run that has not ended, as the store has it."""

    id: str
    state: str
    epoch: int
    deliveries: int
    owner: int | None
    wake_at: float | None


ONE_RUN = RUNS.replace("ORDER BY key", "WHERE id = ?")
ID_FILTER = "WHERE id IN (SELECT value FROM json_each(?))"


class StoreReader(Protocol):
    """A database, read without Holdfast's own code."""

    def close(self) -> None: ...

    def list_ended(self, runs: Iterable[str]) -> list[tuple[str, str]]:
        """Those of these runs that have ended, with their state."""
        ...

    def list_runs(self, runs: Iterable[str]) -> list[RunRow]:
        """What the store knows of these runs."""
        ...

    def journals(self, runs: Iterable[str]) -> dict[str, Journal]:
        """These runs, each as of one moment."""
        ...

    def workers(self, first: int) -> list[WorkerRow]:
        """The workers from this number on."""
        ...


class PgReader:
    """A PostgreSQL database."""

    def __init__(self, tables: Database) -> None:
        self._tables = tables

    def close(self) -> None:
        self._tables.close()

    def list_ended(self, runs: Iterable[str]) -> list[tuple[str, str]]:
        query = "SELECT id, state FROM runs WHERE id = ANY(?::text[]) AND state = ANY(?::text[])"
        return [(id, state) for id, state in self._tables.ask(query, list(runs), list(ENDED))]

    def list_runs(self, runs: Iterable[str]) -> list[RunRow]:
        query = f"SELECT {', '.join(RunRow._fields)} FROM runs WHERE id = ANY(?::text[])"
        return [RunRow(*row) for row in self._tables.ask(query, list(runs))]

    def journals(self, runs: Iterable[str]) -> dict[str, Journal]:
        return self._tables.journals("WHERE id = ANY(?::text[])", list(runs))

    def workers(self, first: int) -> list[WorkerRow]:
        query = f"SELECT {', '.join(WorkerRow._fields)} FROM workers WHERE id >= ? ORDER BY id"
        return [WorkerRow(*row) for row in self._tables.ask(query, first)]


class SqliteReader:
    """A SQLite database."""

    def __init__(self, database: Path) -> None:
        self._connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def list_ended(self, runs: Iterable[str]) -> list[tuple[str, str]]:
        query = f"SELECT id, state FROM runs {ID_FILTER} AND state IN (SELECT value FROM json_each(?))"
        return self._connection.execute(query, (json.dumps(list(runs)), json.dumps(ENDED))).fetchall()

    def list_runs(self, runs: Iterable[str]) -> list[RunRow]:
        query = f"SELECT {', '.join(RunRow._fields)} FROM runs {ID_FILTER}"
        return [RunRow(*row) for row in self._connection.execute(query, (json.dumps(list(runs)),))]

    def journals(self, runs: Iterable[str]) -> dict[str, Journal]:
        return {run: self._journal(run) for run in runs}

    def _journal(self, run: str) -> Journal:
        connection = self._connection
        connection.execute("BEGIN")
        try:
            key, *row, output, error, seed = connection.execute(ONE_RUN, (run,)).fetchone()
            return Journal(
                *row,
                output=None if output is None else json.loads(output),
                error="" if error is None else json.loads(error)["message"],
                seed=seed,
                records=tuple(RecordRow(*r[:4], r[4] == 1, *r[5:]) for r in connection.execute(RECORDS, (key,))),
                attempts={r[0]: AttemptRow(r[1], r[2] == 1, r[3]) for r in connection.execute(ATTEMPTS, (key,))},
                signals=tuple(r[0] for r in connection.execute(SIGNALS, (key,))),
            )
        finally:
            connection.execute("ROLLBACK")

    def workers(self, first: int) -> list[WorkerRow]:
        query = f"SELECT {', '.join(WorkerRow._fields)} FROM workers WHERE id >= ? ORDER BY id"
        return [WorkerRow(*row) for row in self._connection.execute(query, (first,))]
