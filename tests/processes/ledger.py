"""The ledger: what steps really did to the world, kept where no crash of a run can reach it.

Every step of the apps writes a line when its effect starts and another when it ends, each one appended and synced
before the step goes on. The journal says what the runs believe; the ledger says what happened. ``check_crash`` and
``check_end`` hold the two together:

- a step that was recorded before a crash never appears in the ledger after it;
- only steps that were in flight at a crash may appear twice;
- a recorded step's effect ended exactly once in the process that recorded it, and nowhere else except in processes
  that died with it in flight;
- records that were there before a crash are there after it, byte for byte.

Apps use the writing half (``effect``, ``write_line``), tests the reading half.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

STEP, TIMER, SIGNAL, CHILD, COMPENSATION, CANCEL, PATCH = 1, 2, 3, 5, 7, 8, 10
"""``RecordKind`` as it is stored."""
ENDED = ("completed", "failed", "cancelled", "dead")

# Writing, in the apps


class LedgerLine(NamedTuple):
    """One thing that happened."""

    step: str
    run: str
    key: str
    """The step's idempotency key: the same for every attempt at one step of one run."""
    phase: str
    """``start``; then ``finish``, ``fail`` (it raised), ``stopped`` (it was told to), or nothing at all (it died)."""
    attempt: int
    pid: int
    at: float
    label: str


def write_line(phase: str, label: str = "") -> None:
    """Append a line about the current step, and return when it is on disk."""
    from holdfast import current_step

    step = current_step()
    line = LedgerLine(
        step.name, step.run_id, step.idempotency_key, phase, step.attempt, os.getpid(), time.time(), label
    )
    descriptor = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{json.dumps(line)}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def effect(label: str = "") -> Iterator[None]:
    """What a step does to the world, from its start to its end, however it ends."""
    from holdfast.errors import FenceLost

    write_line("start", label)
    try:
        yield
    except (asyncio.CancelledError, FenceLost):
        write_line("stopped", label)
        raise
    except BaseException:
        write_line("fail", label)
        raise
    write_line("finish", label)


# Reading, in the tests


def read_ledger(path: Path) -> list[LedgerLine]:
    """All lines so far; one that is being written at this moment is left out."""
    if not path.exists():
        return []
    return [LedgerLine(*json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class RecordRow(NamedTuple):
    """One record of a journal."""

    seq: int
    kind: int
    position: int
    name: str
    ok: bool
    payload: bytes | None
    at: float
    attempts: int
    worker: int
    epoch: int


class AttemptRow(NamedTuple):
    """What the store knows of a step without an outcome."""

    attempt: int
    intent: bool
    progress: bytes | None


@dataclass(frozen=True)
class Journal:
    """One run as the store has it."""

    id: str
    workflow: str
    state: str
    deliveries: int
    epoch: int
    wake_at: float | None
    output: Any
    error: str
    seed: bytes
    records: tuple[RecordRow, ...]
    attempts: dict[int, AttemptRow]
    signals: tuple[str, ...]
    """Names of signals that nobody has consumed."""

    def derive_key(self, position: int, name: str) -> str:
        """The idempotency key of a step: a promise to the outside world, so pinned here."""
        # A fork's seed is a chain, of which the last link is its own.
        return hashlib.blake2b(f"step:{position}:{name}".encode(), key=self.seed[-16:], digest_size=16).hexdigest()

    @property
    def steps(self) -> dict[str, RecordRow]:
        """The recorded steps and compensations by their key; those that work on memory write no ledger."""
        done = [record for record in self.records if record.kind in (STEP, COMPENSATION)]
        done = [record for record in done if not record.name.startswith("memory.")]
        return {self.derive_key(record.position, record.name): record for record in done}

    def list_records(self, kind: int) -> list[RecordRow]:
        """The records of one kind."""
        return [record for record in self.records if record.kind == kind]


RUNS = "SELECT key, id, workflow, state, delivery_count, epoch, wake_at, output, error, seed FROM runs ORDER BY key"
RECORDS = "SELECT {} FROM records WHERE run = ? ORDER BY seq".format(", ".join(RecordRow._fields))
ATTEMPTS = "SELECT position, attempt, intent, progress FROM attempts WHERE run = ?"
SIGNALS = "SELECT name FROM signals WHERE run = ? ORDER BY id"


def read_journals(database: Path) -> dict[str, Journal]:
    """All runs of a database by id, as of one moment; read without Holdfast's own code."""
    found: dict[str, Journal] = {}
    with closing(_connect(database)) as connection:
        connection.execute("BEGIN")
        for key, *row, output, error, seed in connection.execute(RUNS).fetchall():
            found[row[0]] = Journal(
                *row,
                output=None if output is None else json.loads(output),
                error="" if error is None else json.loads(error)["message"],
                seed=seed,
                records=tuple(RecordRow(*r[:4], r[4] == 1, *r[5:]) for r in connection.execute(RECORDS, (key,))),
                attempts={r[0]: AttemptRow(r[1], r[2] == 1, r[3]) for r in connection.execute(ATTEMPTS, (key,))},
                signals=tuple(r[0] for r in connection.execute(SIGNALS, (key,))),
            )
    return found


def read_workers(database: Path) -> dict[int, tuple[int, str]]:
    """Pid and state of every worker there ever was, by its number."""
    with closing(_connect(database)) as connection:
        rows = connection.execute("SELECT id, pid, state FROM workers ORDER BY id").fetchall()
    return {number: (pid, state) for number, pid, state in rows}


def _connect(database: Path) -> sqlite3.Connection:
    """The database, or an empty one if it is not there, or has no tables yet."""
    if database.exists():
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10, isolation_level=None)
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'workflows'").fetchone():
            return connection
        connection.close()
    # Not at the top of the module: apps of an earlier release import it, too.
    from holdfast.stores.sql.tables import BASELINE
    from holdfast.stores.sqlite.connections import render_sqlite

    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(render_sqlite(BASELINE))
    return connection


# The invariant


@dataclass(frozen=True)
class Snapshot:
    """Ledger and journals together, read while nobody writes."""

    lines: list[LedgerLine]
    journals: dict[str, Journal]
    pids: dict[int, int]
    """The process of every worker there ever was."""

    @classmethod
    def read(cls, folder: Path) -> Snapshot:
        """What there is in a folder with ``runs.db`` and ``ledger``."""
        database = folder / "runs.db"
        pids = {number: pid for number, (pid, _) in read_workers(database).items()}
        return cls(read_ledger(folder / "ledger"), read_journals(database), pids)

    def without_run(self, run_id: str) -> Snapshot:
        """The same without one of the runs."""
        lines = [line for line in self.lines if line.run != run_id]
        return Snapshot(lines, {id: journal for id, journal in self.journals.items() if id != run_id}, self.pids)

    def in_flight(self) -> set[str]:
        """Keys of the steps that have begun and have no record."""
        recorded = {key for journal in self.journals.values() for key in journal.steps}
        return {line.key for line in self.lines} - recorded


def check_crash(before: Snapshot, after: Snapshot, *, max_in_flight: int = 1) -> None:
    """Hold what came after a crash against what there was at the crash.

    ``at_once`` is how many steps the runs may have had in flight together when they were killed.
    """
    seen = len(before.lines)
    assert after.lines[:seen] == before.lines, "the ledger was rewritten"
    assert len(before.in_flight()) <= max_in_flight, f"in flight: {before.in_flight()} in {before.lines}"
    later = after.lines[seen:]
    for run_id, was in before.journals.items():
        now = after.journals[run_id]
        assert now.records[: len(was.records)] == was.records, f"run {run_id}: a record was changed or lost"
        again = [line for line in later if line.key in was.steps]
        assert not again, f"run {run_id}: recorded before the crash, and carried out again: {again}"
        for key, position in _open_positions(was, {line.key: line.step for line in later}):
            _check_next_attempt(was.attempts.get(position), [line for line in later if line.key == key])


def _open_positions(journal: Journal, steps: dict[str, str]) -> list[tuple[str, int]]:
    """The positions of those steps, given as key and name, that belong to this run."""
    names = set(steps.values())
    positions = {journal.derive_key(position, name): position for position in range(500) for name in names}
    return [(key, positions[key]) for key in steps if key in positions]


def _check_next_attempt(noted: AttemptRow | None, later: Sequence[LedgerLine]) -> None:
    """What the store knew of a step at the crash decides whether and how it goes on."""
    if noted is not None and noted.intent:
        raise AssertionError(f"its intent was recorded, so nobody may start it again: {later}")
    expected = 1 if noted is None else noted.attempt + 1
    first = later[0]
    assert (first.phase, first.attempt) == ("start", expected), f"next after {noted} is {expected}: {later}"


def check_end(end: Snapshot, *, killed: Sequence[int] = (), silent: Collection[str] = ()) -> None:
    """Hold the ledger against the journals of runs that have all ended.

    ``killed`` are the processes that died, or were made to let go, with a step in flight; ``silent`` are steps that do
    nothing to the world.
    """
    known: set[str] = set()
    by_key: dict[str, list[LedgerLine]] = {}
    for line in end.lines:
        by_key.setdefault(line.key, []).append(line)
    for journal in end.journals.values():
        assert journal.state in ENDED, f"run {journal.id} has not ended: {journal.state}"
        _check_shape(journal)
        for key, record in journal.steps.items():
            if record.name in silent:
                continue
            known.add(key)
            lines = by_key.get(key, [])
            _check_step(f"run {journal.id}: {record} {lines}", record, lines, end.pids.get(record.worker, 0), killed)
    unknown_lines = [line for line in end.lines if line.key not in known]
    assert not unknown_lines, f"effects of which no journal knows: {unknown_lines}"


def _check_shape(journal: Journal) -> None:
    """Records count up without a gap, no command has two outcomes, and fences only rise."""
    assert [record.seq for record in journal.records] == list(range(len(journal.records))), f"run {journal.id}: gaps"
    commands = [(record.kind == TIMER, record.position) for record in journal.records]
    assert len(set(commands)) == len(commands), f"run {journal.id}: a command has two outcomes: {journal.records}"
    epochs = [record.epoch for record in journal.records]
    assert epochs == sorted(epochs), f"run {journal.id}: an older lease wrote after a newer one: {journal.records}"


def _check_step(where: str, record: RecordRow, lines: list[LedgerLine], recorder: int, killed: Sequence[int]) -> None:
    """One recorded step: ended once where it was recorded.

    Elsewhere it was begun only in processes that died, or that gave the run away between two attempts.
    """
    is_unknown = not record.ok and b"StepOutcomeUnknown" in (record.payload or b"")
    if is_unknown or record.attempts == 0:  # and a person has said what came of it
        assert sum(line.phase == "start" for line in lines) <= 1, f"a `once` step was started twice: {where}"
        return
    if not record.ok and b"holdfast.errors.ContextFull" in (record.payload or b""):
        assert not lines, f"not asked, and carried out all the same: {where}"
        return
    if not record.ok and b"BudgetExceeded" in (record.payload or b""):
        # A process that died may have been allowed to: when another one asks, others have had its share.
        live = [line for line in lines if line.pid not in killed]
        assert not live, f"not allowed, and carried out all the same: {where}"
        return
    assert lines, f"recorded, and never carried out: {where}"
    own = [at for at, line in enumerate(lines) if line.pid == recorder]
    assert own, f"recorded by a process that has not carried it out: {where}"
    last, after = lines[own[-1]], lines[own[-1] + 1 :]
    # What was in flight in a process that had to let go may come to its end there, before it hears of that.
    continued = [line for line in after if line.pid not in killed or line.phase == "start"]
    assert not continued, f"somebody went on with it after it was recorded: {where}"
    assert last.phase == ("finish" if record.ok else "fail"), f"recorded otherwise than it ended: {where}"
    assert last.attempt == record.attempts, f"the journal counts attempts otherwise: {where}"
    for pid in {line.pid for line in lines}:
        begun = [line.attempt for line in lines if line.pid == pid and line.phase == "start"]
        failed = [line.attempt for line in lines if line.pid == pid and line.phase == "fail"]
        is_over = pid in killed or begun == failed
        assert pid == recorder or is_over, f"begun by process {pid}, which did not die: {where}"
        ends = [line for line in lines if line.pid == pid and line.phase == "finish"]
        assert len(ends) <= 1, f"ended twice in process {pid}: {where}"
        attempts = [line.attempt for line in lines if line.pid == pid and line.phase == "start"]
        assert attempts == sorted(set(attempts)), f"an attempt was made twice in process {pid}: {where}"
