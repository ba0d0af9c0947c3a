"""Claims: which runs are due, and claiming them; and the workflows that are disabled.

An index holds due runs in claim order, one range per workflow version, so a backlog that no worker serves does not slow
other claims. A timer that is due is first moved there (at most ``MAX_PROMOTED_TIMERS`` at a time: after a long
pause, a million timers may be due). ``Database.lock_due_runs`` does both. ``limited_queues`` handles
queues with limits, and ``suspects`` isolated runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores import run_errors
from holdfast.stores.claims import Claims, EventFactory, NewSignals, RunRequests
from holdfast.stores.contract import History
from holdfast.stores.disabled_workflows import DisabledWorkflow, DisabledWorkflows
from holdfast.stores.live_events import LASTING_KINDS
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import split_served_name
from holdfast.stores.sql import blobs, delivery_expiry, limited_queues, payloads, queries, suspects
from holdfast.stores.sql.approval_operations import live_event_to_row
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.database_access import SqlCapability
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.transaction import Transaction

log = logging.getLogger("holdfast.stores")

MAX_PROMOTED_TIMERS = 10_000
"""Timers of one version of a workflow that a claim moves to the due runs."""


class ClaimScope:
    """The versions of workflows and the queues that a worker serves."""

    def __init__(self, workflows: Collection[str], queues: Collection[str] | None) -> None:
        self.workflows = tuple(sorted({split_served_name(name) for name in workflows}))
        self.queues = None if queues is None else tuple(sorted(set(queues)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClaimScope) and (self.workflows, self.queues) == (other.workflows, other.queues)

    __hash__ = None  # type: ignore[assignment] - compared, and never a key

    def to_parameters(self, db: Database) -> dict[str, Any]:
        """The values for statements."""
        queues = None if self.queues is None else db.to_list_parameter(self.queues)
        return {**db.to_served_parameters(self.workflows), "queues": queues}


class ClaimResult(NamedTuple):
    """What a claim has taken."""

    runs: list[Run] = []  # noqa: RUF012 - never changed
    histories: Mapping[int, History] = MappingProxyType({})
    """By key, if they were read."""
    is_ordinary: bool = True
    """There was no limited queue, no disabled workflow, and no suspect."""


class SqlClaims(SqlCapability, Claims):
    """The runs that workers claim from a database."""

    _due_scope: ClaimScope | None = None
    """What a worker serves for whom the last read has found a due run: its claim need not look again."""
    _is_ordinary = True
    """Whether the last claim has met no limited queue, no disabled workflow, and no suspect. The next is expected to be
    like it."""
    appends_events = True
    reads_histories = False
    """Whether ``claim`` reads the histories of its runs. It saves round trips, and makes the transaction longer."""
    _histories: Mapping[int, History] = MappingProxyType({})
    """The histories of the runs of the last claim."""

    async def claim(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        if limit <= 0 or not workflows:
            return []
        database, scope = self._database, ClaimScope(workflows, queues)
        is_due, self._due_scope = scope == self._due_scope, None
        if not is_due and not await database.read(lambda db: _has_due_runs(db, scope, database.now()), is_slow=False):
            return []
        return await self._claim(
            [worker] * limit, scope, suspect_delay_s, max_suspects=limit, with_histories=self.reads_histories
        )

    async def claim_each(
        self,
        workers: Sequence[int],
        *,
        workflows: Collection[str],
        suspect_delay_s: float | None = 0.0,
        make_event: EventFactory | None = None,
    ) -> list[Run]:
        if not workers or not workflows:
            return []
        return await self._claim(
            workers, ClaimScope(workflows, None), suspect_delay_s, max_suspects=1, make_event=make_event
        )

    async def _claim(
        self,
        workers: Sequence[int],
        scope: ClaimScope,
        suspect_delay_s: float | None,
        *,
        max_suspects: int,
        with_histories: bool = False,
        make_event: EventFactory | None = None,
    ) -> list[Run]:
        """Claim a run for each of these workers, which may be the same one."""
        database = self._database
        runs, self._histories, self._is_ordinary = await database.write(
            lambda db: _claim_runs(
                db, database.reader, workers, scope, database.now(), database.resolve_time, suspect_delay_s,
                max_suspects, expect_ordinary=self._is_ordinary, with_histories=with_histories, make_event=make_event,
            ),
            len(workers),
        )  # fmt: skip
        if not any(map(payloads.has_references, runs)):
            return runs
        filled = await database.read(lambda db: payloads.fill_runs(db, database.reader, runs))
        unreadable = [(run.key, read) for run, read in zip(runs, filled, strict=True) if isinstance(read, StoreCorrupt)]
        if unreadable:
            await database.write(lambda db: _end_unreadable_and_commit(db, unreadable, database.now()))
        return [run for run in filled if isinstance(run, Run)]

    async def take_histories(self, keys: Sequence[int]) -> list[History] | None:
        histories, self._histories = self._histories, {}
        return [histories[key] for key in keys] if histories.keys() >= {*keys} else None

    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        database, scope = self._database, ClaimScope(workflows, queues)
        [(ready, *others)] = await database.query(lambda db: (db.sql.NEXT_READY, scope.to_parameters(db)))
        next_wake_at = min((at for at in others if at is not None), default=None) if ready is None else ready
        self._due_scope = scope if next_wake_at is not None and next_wake_at <= database.now() else None
        return next_wake_at

    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        database = self._database
        found = queries.make_new_signals(await database.query(lambda db: (db.sql.NEW_SIGNALS, (after, worker))), after)
        if any(blobs.is_reference(signal.payload) for _, signal in found.signals):
            signals = await database.read(lambda db: queries.fill_new_signals(db, database.reader, found.signals))
            return found._replace(signals=signals)
        return found

    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        rows = await self._database.query(lambda db: (db.sql.REQUESTS, (worker,)))
        return [RunRequests(key, cancel == 1, pause == 1) for key, cancel, pause in rows]

    async def expire_runs(self, limit: int = 100) -> list[str]:
        database = self._database
        if not await database.read(lambda db: db.query(db.sql.OVERDUE, (database.now(), 1)), is_slow=False):
            return []
        ended = await database.write(lambda db: delivery_expiry.expire_runs(db, database.now(), limit), limit)
        if ended:
            database.notify_all()
        return ended


class SqlDisabledWorkflows(SqlCapability, DisabledWorkflows):
    """The table ``disabled_workflows``."""

    async def disable(self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False) -> bool:
        row = (workflow, self._database.now(), actor, reason, int(is_temporary))
        return await self._write_and_notify(lambda db: db.execute(db.sql.DISABLE_WORKFLOW, row) == 1)

    async def enable(self, workflow: str, *, only_temporary: bool = False) -> bool:
        row = (workflow, int(only_temporary))
        return await self._write_and_notify(lambda db: db.execute(db.sql.ENABLE_WORKFLOW, row) == 1)

    async def get_all(self) -> Mapping[str, DisabledWorkflow]:
        return _make_disabled_workflows(await self._database.query(lambda db: (db.sql.DISABLED_WORKFLOWS, ())))


def _has_due_runs(db: Database, scope: ClaimScope, now: float) -> bool:
    """Whether there is anything to claim. Checked first, because it takes no lock."""
    return db.query(db.sql.HAS_DUE, {**scope.to_parameters(db), "now": now})[0][0] == 1


def _claim_runs(
    db: Database,
    reader: RowReader,
    workers: Sequence[int],
    scope: ClaimScope,
    now: float,
    get_time: Callable[[float | None], float],
    suspect_delay_s: float | None,
    max_suspects: int,
    *,
    expect_ordinary: bool,
    with_histories: bool,
    make_event: EventFactory | None,
) -> ClaimResult:
    """Claim a due run for each of these workers, as far as there are any. Large payloads stay references.

    ``get_time`` turns the time that the database reports once the queues are locked into the current time; ``now`` may
    be older. With ``expect_ordinary``, the due runs are locked together with the first reads, and if the claim turns
    out not to be ordinary, it begins again.
    """
    db.begin()
    due_before = None if suspect_delay_s is None else now - suspect_delay_s
    lookups = {**limited_queues.get_lookups(db, scope.queues), **suspects.get_lookups(db, scope.workflows, due_before)}
    distinct = dict.fromkeys(workers)
    db.prefetch({db.sql.IS_WORKER_LIVE: [(worker,) for worker in distinct], db.sql.DISABLED_WORKFLOWS: [()], **lookups})
    due = db.lock_due_runs(scope.workflows, scope.queues, len(workers), now) if expect_ordinary else None
    live = {worker for worker in distinct if db.lookup(db.sql.IS_WORKER_LIVE, worker)}
    claimants = [worker for worker in workers if worker in live]
    if not claimants:
        db.commit()
        return ClaimResult()
    disabled = {row[0] for row in db.lookup(db.sql.DISABLED_WORKFLOWS)}
    served = [(name, version) for name, version in scope.workflows if name not in disabled]
    limited = limited_queues.lock_limited_queues(db, scope.queues, get_time)
    keys = suspects.choose_runs(db, limited, served, scope.queues, max_suspects, due_before)
    is_ordinary = not (disabled or limited or keys)
    if expect_ordinary and not is_ordinary:
        db.roll_back()
        return _claim_runs(
            db, reader, workers, scope, now, get_time, suspect_delay_s, max_suspects,
            expect_ordinary=False, with_histories=with_histories, make_event=make_event,
        )  # fmt: skip
    if keys:
        limited = []  # a claim of suspects leaves the queue rows unchanged
    elif limited:
        keys = limited_queues.choose_runs(db, limited, served, scope.queues, len(claimants), now)
    else:
        due = db.lock_due_runs(served, scope.queues, len(claimants), now) if due is None else due
        keys = [key for _, key in due[: len(claimants)]]
    for queue in limited:
        queue.save(db)
    if not keys:
        db.commit()
        return ClaimResult(is_ordinary=is_ordinary)
    db.write(db.sql.CLAIM_RUN, list(zip(claimants, keys, strict=False)))
    if with_histories:  # they are complete: the rows are locked, so no earlier holder can append until this commits
        queries.prefetch_histories(db, keys)
    read = queries.read_runs(db, reader, keys, and_commit=make_event is None)
    if make_event is not None:
        events = [(run.key, make_event(run)) for run in read if isinstance(run, Run)]
        rows = [live_event_to_row(key, event, int(event.kind in LASTING_KINDS)) for key, event in events]
        db.write(db.sql.ADD_LIVE_EVENT, rows)
        db.commit()
    unreadable = [(key, run) for key, run in zip(keys, read, strict=True) if isinstance(run, StoreCorrupt)]
    if unreadable:
        _end_unreadable_and_commit(db, unreadable, now)
    runs = [run for run in read if isinstance(run, Run)]
    histories: dict[int, History] = {}
    if with_histories:
        with suppress(StoreCorrupt):  # the engine reads them again, and gets the error
            found = queries.look_up_histories(db, reader, [run.key for run in runs])
            histories = {run.key: history for run, history in zip(runs, found, strict=True)}
    return ClaimResult(runs, histories, is_ordinary)


def _end_unreadable_and_commit(db: Database, unreadable: Sequence[tuple[int, StoreCorrupt]], now: float) -> None:
    """End claimed runs that cannot be read, in a transaction of their own."""
    db.begin()
    transaction = Transaction(db, now)
    for key, problem in unreadable:
        error = run_errors.encode_corrupt_error(str(problem))
        if db.execute(db.sql.FAIL_UNREADABLE, (error, now, key)):
            log.error("a run is ended, because it cannot be read: %s", problem)
            transaction.handle_run_end(key, RunState.FAILED, error, now)
    transaction.flush()
    db.commit()


def _make_disabled_workflows(rows: Iterable[Row]) -> dict[str, DisabledWorkflow]:
    return {
        name: DisabledWorkflow(disabled_at, actor, reason, is_temporary == 1)
        for name, disabled_at, actor, reason, is_temporary in rows
    }
