"""Deleting ended runs: a few groups in a transaction, and sweeping the rows that they leave, in batches.

A group is first examined without a lock (``_plan_prune``), once, however many of its runs match. Only a group to delete
is examined again with its rows and its sessions locked (``_delete_planned``), so none of its runs can be retried,
awaited, or continued at the same moment.

A large value is deleted when nothing refers to it any more. Partial indexes on the columns that may refer to one tell
that. A transaction that is about to refer to a large value locks it (``PUT_BLOB``), and so does one that checks whether
it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.stores import rules
from holdfast.stores.retention import (
    PRUNE_START,
    GroupMember,
    KeepReason,
    PruneCursor,
    PruneGroup,
    PruneProgress,
    PruneRequest,
    PruneResult,
    RelationReader,
    Retention,
    SweepResult,
    decide_groups,
    get_keep_reasons,
    list_ids,
)
from holdfast.stores.sql import blobs
from holdfast.stores.sql.database import Database, InvalidText
from holdfast.stores.sql.database_access import SqlCapability
from holdfast.stores.sql.queue_settings import delete_idle_keys
from holdfast.stores.sql.statements import MAX_INT64
from holdfast.stores.workers import get_listener_cutoff, get_worker_cutoff

_MAX_SWEPT_RUNS = 200
"""Runs that one transaction sweeps at most."""
_DELETED_WITH_RUN = ("ADD_PRUNED", "DELETE_TAGS", "DELETE_LINKS", "DELETE_ACCOUNT", "DELETE_RUN")
"""Statements of the transaction that decides: other transactions could find the run by these rows."""
_DELETED_BY_SWEEP = (
    "DELETE_ATTEMPTS", "DELETE_SIGNAL_KEYS", "DELETE_RESERVATIONS", "DELETE_LIVE_EVENTS", "DELETE_SIGNALS",
    "DELETE_APPROVALS", "DELETE_PRUNED",
)  # fmt: skip
"""Statements of a sweep, besides the records; the row that says what to sweep comes last."""


class SqlRetention(SqlCapability, Retention):
    """Deleting runs from a database."""

    async def prune(self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100) -> PruneResult:
        plan = await self._database.read_for_client(lambda db: _plan_prune(db, request, cursor, limit))
        if not plan.groups:
            return plan.result
        return await self._database.write(lambda db: _delete_planned(db, request, plan), limit, is_slow=True)

    async def sweep(self, limit: int = 2000) -> SweepResult:
        return await self._database.write(
            lambda db: _sweep_pruned(db, limit, self._database.now()), limit, is_slow=True
        )


class SqlRelationReader(RelationReader):
    """The relations between runs, as this transaction sees them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._sql = db.sql
        self._sessions: set[tuple[str, str]] = set()
        """Sessions that have been read: one run of a session finds all the others."""

    def read_members(self, keys: Collection[int]) -> Iterator[GroupMember | int]:
        self._db.prefetch({self._sql.GROUP_MEMBER: [(key,) for key in keys]})
        for key in keys:
            try:
                yield from (GroupMember(*row) for row in self._db.lookup(self._sql.GROUP_MEMBER, key))
            except InvalidText:
                yield key

    def read_neighbors(self, runs: Sequence[GroupMember]) -> Iterator[tuple[int, int]]:
        sql = self._sql
        lookups = [lookup for run in runs for lookup in self._iter_lookups(run)]
        by_statement: dict[str, list[tuple[Any, ...]]] = {}
        for statement, values, _ in lookups:
            by_statement.setdefault(statement, []).append(values)
        self._db.prefetch(by_statement)
        for statement, values, key in lookups:
            for (other,) in self._db.lookup(statement, *values):
                older, younger = (other, key) if statement == sql.RUN_KEY else (key, other)
                if statement == sql.SESSION_RUNS or rules.can_be_parent(older, younger):
                    yield key, other

    def _iter_lookups(self, run: GroupMember) -> Iterator[tuple[str, tuple[Any, ...], int]]:
        sql = self._sql
        yield sql.CHILDREN, (run.id,), run.key
        yield sql.CONTINUATIONS, (run.id,), run.key
        for other in {run.parent, run.previous_run} - {""}:
            yield sql.RUN_KEY, (other,), run.key
        session = (run.workflow, run.session)
        if run.session and session not in self._sessions:
            self._sessions.add(session)
            yield sql.SESSION_RUNS, session, run.key

    def find_awaited(self, keys: Collection[int]) -> set[int]:
        self._db.prefetch({self._sql.IS_AWAITED: [(key,) for key in keys]})
        return {key for key in keys if self._db.lookup(self._sql.IS_AWAITED, key)}

    def read_links(self, keys: Collection[int]) -> set[tuple[int, int]]:
        self._db.prefetch({self._sql.AWAITED_RUNS: [(key,) for key in keys]})
        return {(key, awaited) for key in keys for (awaited,) in self._db.lookup(self._sql.AWAITED_RUNS, key)}


class PrunePlan(NamedTuple):
    """The decisions about the next groups."""

    groups: list[PruneGroup]
    """The groups to delete."""
    result: PruneResult
    """What is certain already: the runs to keep, the numbers of a dry run, and where to continue."""
    matched_keys: Collection[int]
    """The keys of the runs that match the request."""
    min_kept_keys: Mapping[str, int]


def _plan_prune(db: Database, request: PruneRequest, cursor: PruneCursor, limit: int) -> PrunePlan:
    """Decide about the groups of the next ``limit`` runs that match. Nothing is locked or deleted."""
    progress = cursor.progress or PruneProgress()
    if request.run_ids is not None:
        found, next_cursor = _find_keys(db, dict.fromkeys(request.run_ids)), None
    else:
        found, next_cursor = _find_next(db, request, cursor, progress, limit)
    undecided, keep_reasons = progress.split_decided(found)
    if not undecided:
        return PrunePlan([], PruneResult(keep_reasons=keep_reasons, cursor=next_cursor), (), {})
    if progress.min_kept_keys is None:
        progress.min_kept_keys = _find_min_kept_keys(db, request)
    db.begin_snapshot()
    deleted, kept = decide_groups(SqlRelationReader(db), undecided, request, progress.min_kept_keys)
    records, size = _measure_groups(db, deleted) if request.dry_run else (0, 0)
    db.commit()
    matched = set(found)
    for group, reason in kept:
        progress.add_decision(group, reason)
    keep_reasons.update(get_keep_reasons(kept, matched))
    if not request.dry_run:
        result = PruneResult((), keep_reasons, cursor=next_cursor)
        return PrunePlan(deleted, result, matched, progress.min_kept_keys)
    for group in deleted:
        progress.add_decision(group, None)
    result = PruneResult(list_ids(deleted), keep_reasons, records, size, next_cursor)
    return PrunePlan([], result, matched, progress.min_kept_keys)


def _delete_planned(db: Database, request: PruneRequest, plan: PrunePlan) -> PruneResult:
    """Lock the groups of a plan, decide about them again, and delete them."""
    members = [member for group in plan.groups for member in group.members]
    keys = [member.key for member in members]
    db.begin()
    locked = {row[0] for row in db.query(db.sql.LOCK_ENDED, (db.to_list_parameter(sorted(keys)),))}
    sessions = {(member.workflow, member.session) for member in members if member.session}
    if sessions:
        db.lock_sessions(sessions)
    deleted, kept = decide_groups(SqlRelationReader(db), keys, request, plan.min_kept_keys)
    for group in [group for group in deleted if not locked.issuperset(group.keys)]:
        deleted.remove(group)
        kept.append((group, KeepReason.BUSY))
    rows = [(key,) for group in deleted for key in group.keys]
    if rows:
        for name in _DELETED_WITH_RUN:
            db.write(getattr(db.sql, name), rows)
    db.commit()
    return replace(
        plan.result,
        run_ids=list_ids(deleted),
        keep_reasons={**plan.result.keep_reasons, **get_keep_reasons(kept, plan.matched_keys)},
    )


def _find_keys(db: Database, run_ids: Collection[str]) -> list[int]:
    db.prefetch({db.sql.RUN_KEY: [(run_id,) for run_id in run_ids]})
    return [row[0] for run_id in run_ids for row in db.lookup(db.sql.RUN_KEY, run_id)]


def _find_next(
    db: Database, request: PruneRequest, cursor: PruneCursor, progress: PruneProgress, limit: int
) -> tuple[list[int], PruneCursor | None]:
    """The keys of the next runs that match, and where to continue."""
    if not progress.max_key:
        row = db.query_one(db.sql.NEWEST_CREATED, 0.0, request.finished_before)
        if row is None or row[0] is None:
            return [], None
        progress.max_key = row[0]
    if request.workflow is not None:
        workflows = [request.workflow]
    else:
        workflows = sorted(row[0] for row in db.query(db.sql.KNOWN_WORKFLOWS))
    found: list[int] = []
    for workflow in workflows:
        for state in sorted(request.states):
            if (workflow, state) < cursor[:2]:
                continue
            start = cursor.key if (workflow, state) == cursor[:2] else 0
            values = (workflow, state, start, progress.max_key, request.finished_before, limit - len(found))
            found += [row[0] for row in db.query(db.sql.LIST_ENDED, values)]
            if len(found) == limit:
                return found, PruneCursor(workflow, state, found[-1], progress)
    return found, None


def _find_min_kept_keys(db: Database, request: PruneRequest) -> dict[str, int]:
    """The lowest key of the newest runs that are kept, for each workflow."""
    if not request.keep_newest:
        return {}
    newest: dict[str, int] = {}
    statement = db.sql.LIST_BY_WORKFLOW_AND_STATE.replace("{filters}", "")
    for (workflow,) in db.query(db.sql.KNOWN_WORKFLOWS):
        keys = [
            row[0]
            for state in request.states
            for row in db.query(statement, (workflow, state, MAX_INT64, 0, request.keep_newest))
        ]
        if keys:
            newest[workflow] = sorted(keys, reverse=True)[: request.keep_newest][-1]
    return newest


def _measure_groups(db: Database, groups: Sequence[PruneGroup]) -> tuple[int, int]:
    """The number of records, and the size of values in bytes."""
    keys = [key for group in groups for key in group.keys]
    db.prefetch({db.sql.JOURNAL_SIZE: [(key,) for key in keys]})
    rows = [row for key in keys for row in db.lookup(db.sql.JOURNAL_SIZE, key)]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


# Sweeping


def _sweep_pruned(db: Database, limit: int, now: float) -> SweepResult:
    """Delete about ``limit`` records of deleted runs, and their other rows; unused queue keys; old workers."""
    db.begin()
    records = size = 0
    references: set[bytes] = set()
    swept: list[tuple[int]] = []
    max_runs = min(limit, _MAX_SWEPT_RUNS)
    pruned = db.query(db.sql.LOCK_NEXT_PRUNED, (max_runs,))
    for key, row_size, *values in pruned:
        deleted = db.query(db.sql.DELETE_RECORDS, (key, limit - records)) if records < limit else []
        records += len(deleted)
        size += sum(row[0] for row in deleted)
        references.update(row[1] for row in deleted if row[1] is not None)
        if records >= limit:
            break
        size += row_size
        swept.append((key,))
        references.update(value for value in values if value is not None)
    if swept:
        keys = [key for (key,) in swept]
        for statement in (db.sql.SIGNAL_REFERENCES, db.sql.APPROVAL_REFERENCES):
            references.update(row[0] for row in db.query(statement, (db.to_list_parameter(keys),)))
        for name in _DELETED_BY_SWEEP:
            db.write(getattr(db.sql, name), swept)
    blob_count, blob_size = delete_unused_blobs(db, references)
    delete_idle_keys(db, now, limit)
    db.write(db.sql.DELETE_OLD_LISTENERS, [(limit, get_listener_cutoff(None, now), now)])
    db.write(db.sql.DELETE_OLD_WORKERS, [(limit, get_worker_cutoff(None, now), now)])
    db.commit()
    return SweepResult(records, blob_count, size + blob_size, is_done=len(swept) == len(pruned) < max_runs)


def delete_unused_blobs(db: Database, references: Iterable[bytes]) -> tuple[int, int]:
    """Delete the large values that nothing refers to any more. Returns their number and their size."""
    hashes = {reference: reference[1:] for reference in sorted(references) if blobs.is_reference(reference)}
    db.prefetch({db.sql.LOCK_BLOB: [(hash,) for hash in hashes.values()]})
    sizes = {ref: row[0] for ref, hash in hashes.items() for row in db.lookup(db.sql.LOCK_BLOB, hash)}
    db.prefetch({db.sql.IS_BLOB_REFERENCED: [(reference,) for reference in sizes]})
    unused = [reference for reference in sizes if not db.lookup(db.sql.IS_BLOB_REFERENCED, reference)]
    if unused:
        db.write(db.sql.DELETE_BLOB, [(hashes[reference],) for reference in unused])
    return len(unused), sum(sizes[reference] for reference in unused)
