"""Reading: histories, rows and counts, each a function of a db (lists are in ``run_lists``)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from holdfast.core.records import Record, Signal
from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.contract import History, NewSignals, Request, RunUsage, SwitchedOff, Worker, WorkflowSpec
from holdfast.stores.operations import Answer, Run, Started
from holdfast.stores.sql.database import Database, NotText, Row
from holdfast.stores.sql.payloads import fill_records, fill_runs, fill_signals
from holdfast.stores.sql.rows import Reader, read_each, record_name
from holdfast.stores.sql.statements import NO_END
from holdfast.stores.utf8 import is_proper

log = logging.getLogger("holdfast.stores")


def get(db: Database, reader: Reader, run_id: str) -> Run | None:
    """One run's row, with references where its large payloads are."""
    row = db.one(db.sql.GET_RUN, run_id) if is_proper(run_id) else None
    return None if row is None else reader.run(row)


def get_many(db: Database, reader: Reader, run_ids: Sequence[str]) -> list[Run]:
    """The rows of those that exist. One that cannot be read is left out, and named in the log."""
    wanted = [*filter(is_proper, run_ids)]
    try:
        rows = db.ask(db.sql.GET_RUNS_BY_ID, (db.listed(wanted),))
    except NotText:
        rows = [row for run_id in dict.fromkeys(wanted) if (row := _row_of(db, run_id)) is not None]
    found: list[Run] = []
    for run in fill_runs(db, reader, read_each(rows, reader.run)):
        if isinstance(run, StoreCorrupt):
            log.warning("%s", run)
        else:
            found.append(run)
    return found


def _row_of(db: Database, run_id: str) -> Row | None:
    try:
        return db.one(db.sql.GET_RUN, run_id)
    except NotText as error:
        log.warning("run %r cannot be read: %s", run_id, error)
        return None


def read_runs(db: Database, reader: Reader, keys: Sequence[int]) -> list[Run | StoreCorrupt]:
    """The rows of runs, in order, with references where large payloads are; for one that cannot be read, why not.

    Raises ``StoreCorrupt`` if a row is missing: the keys come from an index in the same transaction.
    """
    try:
        rows = {row[0]: row for row in db.ask(db.sql.GET_RUNS_BY_KEY, (db.listed(keys),))}
    except NotText:
        return [_read_run(db, reader, key) for key in keys]
    for key in keys:
        if key not in rows:
            raise reader.missing(key)
    return [_run_or_problem(reader, rows[key]) for key in keys]


def _run_or_problem(reader: Reader, row: Row) -> Run | StoreCorrupt:
    try:
        return reader.run(row)
    except StoreCorrupt as problem:
        return problem


def _read_run(db: Database, reader: Reader, key: int) -> Run | StoreCorrupt:
    try:
        row = db.one(db.sql.GET_RUN_BY_KEY, key)
    except NotText as error:
        return reader.unreadable(f"run {key_name(db, key)!r}", str(error))
    if row is None:
        raise reader.missing(key)
    return _run_or_problem(reader, row)


def whole(db: Database, reader: Reader, runs: Sequence[Run]) -> list[Run]:
    """Rows with their large payloads."""
    found: list[Run] = []
    for run in fill_runs(db, reader, runs):
        if isinstance(run, StoreCorrupt):
            raise run
        found.append(run)
    return found


def whole_answers(db: Database, reader: Reader, answers: Sequence[Answer]) -> list[Answer]:
    """Answers whose runs have their large payloads.

    They are no concern of the other answers when they are lost: whoever reads such a run finds the reference, which is
    no payload.
    """
    started = [answer for answer in answers if isinstance(answer, Started)]
    filled = iter(fill_runs(db, reader, [answer.run for answer in started]))
    told: list[Answer] = []
    for answer in answers:
        run = next(filled) if isinstance(answer, Started) else None
        if isinstance(run, StoreCorrupt):
            log.warning("%s", run)
        told.append(answer._replace(run=run) if isinstance(answer, Started) and isinstance(run, Run) else answer)
    return told


# Histories


def histories(db: Database, reader: Reader, keys: Sequence[int]) -> list[History]:
    """The histories of these runs, all as of one moment."""
    db.begin_reading()
    places = [(key,) for key in keys]
    db.foresee(dict.fromkeys((db.sql.JOURNAL, db.sql.ATTEMPTS, db.sql.MAILBOX, db.sql.LINKED), places))
    found = [
        History(
            records=_journal(db, reader, key),
            attempts=reader.attempts(db.lookup(db.sql.ATTEMPTS, key)),
            signals=mailbox(db, reader, key),
            links={row[0]: (row[1], row[2]) for row in db.lookup(db.sql.LINKED, key)},
        )
        for key in keys
    ]
    db.commit()
    return found


def _journal(db: Database, reader: Reader, key: int) -> list[Record]:
    try:
        records = reader.records(db.lookup(db.sql.JOURNAL, key))
    except NotText:
        records = None
    if records is None:
        records = _read_singly(db, reader, key)
    return fill_records(db, reader, records, lambda: key_name(db, key))


def new_records(db: Database, reader: Reader, run: Run, after: int, limit: int) -> list[Record]:
    """The records of a run behind a number, with references where large payloads are."""
    try:
        rows = db.ask(db.sql.NEW_RECORDS, (run.key, after, limit))
    except NotText:
        _read_singly(db, reader, run.key)  # it says which one is wrong
        raise
    return [reader.record(row, run.id) for row in rows]


def _read_singly(db: Database, reader: Reader, key: int) -> list[Record]:
    """A journal in which something is wrong: find out with which record."""
    run_id = key_name(db, key)
    records: list[Record] = []
    for seq, position, name in db.ask(db.sql.JOURNAL_PLACES, (key,)):
        try:
            [row] = db.ask(db.sql.JOURNAL_ENTRY, (key, seq))
        except NotText as error:
            where = record_name(run_id, seq, _words(name), position)
            raise reader.unreadable(where, str(error)) from None
        records.append(reader.record(row, run_id))
    return records


def mailbox(db: Database, reader: Reader, key: int) -> list[Signal]:
    """What was sent to a run and is not taken yet."""
    signals = reader.signals(db.lookup(db.sql.MAILBOX, key))
    found: list[Signal] = []
    for signal in fill_signals(db, reader, signals, lambda: key_name(db, key)):
        if isinstance(signal, StoreCorrupt):
            raise signal
        found.append(signal)
    return found


def key_name(db: Database, key: int) -> str:
    """The id of a run, also if it is not proper text."""
    row = db.one(db.sql.ID_BYTES, key)
    return f"with key {key}" if row is None else _words(row[0])


def _words(text: object) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


# Held runs


def new_signals(db: Database, worker: int, after: int) -> NewSignals:
    """Signals behind ``after`` for the runs that ``worker`` holds, with references where large payloads are."""
    rows = db.ask(db.sql.NEW_SIGNALS, (after, worker))
    signals = [(row[0], Signal(*row[1:-1])) for row in rows if row[0] is not None]
    return NewSignals(signals, max((row[-1] for row in rows), default=after))


def whole_signals(db: Database, reader: Reader, found: Sequence[tuple[int, Signal]]) -> list[tuple[int, Signal]]:
    """Signals with their large payloads.

    One whose payload is lost is left out: it is no concern of the other runs. Its own run is stopped by its history
    when it is taken up the next time.
    """
    told: list[tuple[int, Signal]] = []
    for key, signal in found:
        [filled] = fill_signals(db, reader, [signal], partial(key_name, db, key))
        if isinstance(filled, StoreCorrupt):
            log.warning("%s", filled)
        else:
            told.append((key, filled))
    return told


def requests(db: Database, worker: int) -> list[Request]:
    """What has been asked of the runs that ``worker`` holds."""
    return [Request(key, cancel == 1, pause == 1) for key, cancel, pause in db.ask(db.sql.REQUESTS, (worker,))]


# All the rest


def count_runs(db: Database, reader: Reader, most: int | None) -> Mapping[tuple[str, RunState], int]:
    """How many runs there are for each workflow and state; those in no state that there is are left out."""
    counts: dict[tuple[str, RunState], int] = {}
    if most is None:
        rows = db.ask(db.sql.COUNT_RUNS)
    else:
        ended = [state.value for state in RunState if state.is_terminal]
        others = [state.value for state in RunState if not state.is_terminal]
        wanted = ((ended, most), (others, NO_END))
        rows = [row for states, few in wanted for row in db.ask(db.sql.COUNT_SOME, (db.listed(states), few)) if row[2]]
    for workflow, state, count in rows:
        try:
            counts[workflow, reader.state(state, f"a run of {workflow!r}")] = count
        except StoreCorrupt as problem:
            log.warning("%d runs are not counted: %s", count, problem)
    return counts


def count_unfinished(db: Database, workflows: Collection[str] | None) -> Mapping[tuple[str, str], int]:
    """How many runs each version of a workflow, of all or of these, has that have not ended."""
    names = [row[0] for row in db.ask(db.sql.KNOWN_WORKFLOWS)] if workflows is None else set(workflows)
    rows = db.ask(db.sql.COUNT_UNFINISHED, (db.listed(names),))
    return {(workflow, version): count for workflow, version, count in rows}


def usages(db: Database, reader: Reader, run_ids: Sequence[str]) -> dict[str, RunUsage]:
    """What runs have used, and their budgets."""
    found = {row[0]: reader.usage(row) for row in db.ask(db.sql.USAGES, (db.listed(filter(is_proper, run_ids)),))}
    return {run_id: usage for run_id, usage in found.items() if usage != RunUsage()}


def workers(db: Database, reader: Reader, also: Collection[int]) -> list[Worker]:
    """Workers that are live, or that unfinished runs refer to, or that are asked for by id."""
    return read_each(db.ask(db.sql.WORKERS, (db.listed(also),)), reader.worker)


def specs(db: Database, reader: Reader) -> dict[str, WorkflowSpec]:
    """All workflows ever announced."""
    return dict(read_each(db.ask(db.sql.SPECS), lambda row: (row[0], reader.spec(row))))


def switched_off(db: Database) -> dict[str, SwitchedOff]:
    """The workflows that are switched off."""
    return {
        name: SwitchedOff(since, by, reason, temporary == 1)
        for name, since, by, reason, temporary in db.lookup(db.sql.SWITCHES)
    }
