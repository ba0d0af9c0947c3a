"""Deleting runs that have ended: a few families in a transaction, and sweeping what they leave, in pieces.

A family is first examined without a lock (``_plan_prune``), once, however many of its runs lead to it. Only a family
that is to be deleted is examined again with its rows and its sessions locked (``_delete_planned``). So no run of it can
be retried, awaited, or continued at the same moment.

A large value is deleted when nothing refers to it any more. Partial indexes on the columns that may refer to one answer
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
"""Of so many runs, at most, what is left is swept away in one transaction."""
_DELETED_WITH_RUN = ("ADD_PRUNED", "DELETE_TAGS", "DELETE_LINKS", "DELETE_ACCOUNT", "DELETE_RUN")
"""What goes with the decision: by all of this, others could find the run."""
_DELETED_BY_SWEEP = (
    "DELETE_ATTEMPTS", "DELETE_SIGNAL_KEYS", "DELETE_RESERVATIONS", "DELETE_LIVE_EVENTS", "DELETE_SIGNALS",
    "DELETE_APPROVALS", "DELETE_PRUNED",
)  # fmt: skip
"""What a run leaves beside its records, and last of all the note of that."""


class SqlRetention(SqlCapability, Retention):
    """How runs are deleted from a database."""

    async def prune(self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100) -> PruneResult:
        planned = await self._database.read_for_client(lambda db: _plan_prune(db, request, cursor, limit))
        if not planned.groups:
            return planned.result
        return await self._database.write(lambda db: _delete_planned(db, request, planned), limit, is_slow=True)

    async def sweep(self, limit: int = 2000) -> SweepResult:
        return await self._database.write(
            lambda db: _sweep_pruned(db, limit, self._database.now()), limit, is_slow=True
        )


class SqlRelationReader(RelationReader):
    """Who is related to whom, as far as this transaction can see."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._sql = db.sql
        self._sessions: set[tuple[str, str]] = set()
        """Those whose runs are known: the first one that is met stands for all of them."""

    def read_members(self, keys: Collection[int]) -> Iterator[GroupMember | int]:
        self._db.prefetch({self._sql.GROUP_MEMBER: [(key,) for key in keys]})
        for key in keys:
            try:
                yield from (GroupMember(*row) for row in self._db.lookup(self._sql.GROUP_MEMBER, key))
            except InvalidText:
                yield key

    def read_neighbors(self, runs: Sequence[GroupMember]) -> Iterator[tuple[int, int]]:
        sql = self._sql
        asked = [question for run in runs for question in self._iter_lookups(run)]
        foreseen: dict[str, list[tuple[Any, ...]]] = {}
        for statement, question, _ in asked:
            foreseen.setdefault(statement, []).append(question)
        self._db.prefetch(foreseen)
        for statement, question, key in asked:
            for (other,) in self._db.lookup(statement, *question):
                older, younger = (other, key) if statement in (sql.RUN_KEY,) else (key, other)
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
        return {(key, child) for key in keys for (child,) in self._db.lookup(self._sql.AWAITED_RUNS, key)}


class PrunePlan(NamedTuple):
    """What is to become of a piece of the work."""

    groups: list[PruneGroup]
    result: PruneResult
    """What is certain already: those that stay, what a dry run tells, and where to go on."""
    matched_keys: Collection[int]
    """The keys of the runs that led to these families."""
    min_kept_keys: Mapping[str, int]


def _plan_prune(db: Database, request: PruneRequest, cursor: PruneCursor, limit: int) -> PrunePlan:
    """Decide about the families of the next ``limit`` runs that match. Nothing is locked, and nothing deleted."""
    findings = cursor.progress or PruneProgress()
    if request.run_ids is not None:
        found, place = _find_keys(db, dict.fromkeys(request.run_ids)), None
    else:
        found, place = _find_next(db, request, cursor, findings, limit)
    new, stay = findings.split_decided(found)
    if not new:
        return PrunePlan([], PruneResult(keep_reasons=stay, cursor=place), (), {})
    if findings.min_kept_keys is None:
        findings.min_kept_keys = _find_min_kept_keys(db, request)
    db.begin_snapshot()
    going, kept = decide_groups(SqlRelationReader(db), new, request, findings.min_kept_keys)
    records, size = _measure_groups(db, going) if request.dry_run else (0, 0)
    db.commit()
    wanted = set(found)
    for family, why in kept:
        findings.add_decision(family, why)
    stay.update(get_keep_reasons(kept, wanted))
    if not request.dry_run:
        return PrunePlan(going, PruneResult((), stay, cursor=place), wanted, findings.min_kept_keys)
    for family in going:
        findings.add_decision(family, None)
    return PrunePlan([], PruneResult(list_ids(going), stay, records, size, place), wanted, findings.min_kept_keys)


def _delete_planned(db: Database, request: PruneRequest, plan: PrunePlan) -> PruneResult:
    """Delete the families of a plan, unless something has changed: with their rows locked, all is looked at again."""
    members = [member for family in plan.groups for member in family.members]
    db.begin()
    held = {
        row[0] for row in db.query(db.sql.LOCK_ENDED, (db.to_list_parameter(sorted(member.key for member in members)),))
    }
    sessions = {(member.workflow, member.session) for member in members if member.session}
    if sessions:
        db.lock_sessions(sessions)
    going, kept = decide_groups(SqlRelationReader(db), [member.key for member in members], request, plan.min_kept_keys)
    for family in [family for family in going if not held.issuperset(family.keys)]:
        going.remove(family)
        kept.append((family, KeepReason.BUSY))
    gone = [(key,) for family in going for key in family.keys]
    if gone:
        for name in _DELETED_WITH_RUN:
            db.write(getattr(db.sql, name), gone)
    db.commit()
    return replace(
        plan.result,
        run_ids=list_ids(going),
        keep_reasons={**plan.result.keep_reasons, **get_keep_reasons(kept, plan.matched_keys)},
    )


def _find_keys(db: Database, run_ids: Collection[str]) -> list[int]:
    db.prefetch({db.sql.RUN_KEY: [(run_id,) for run_id in run_ids]})
    return [row[0] for run_id in run_ids for row in db.lookup(db.sql.RUN_KEY, run_id)]


def _find_next(
    db: Database, request: PruneRequest, cursor: PruneCursor, progress: PruneProgress, limit: int
) -> tuple[list[int], PruneCursor | None]:
    """The keys of the next runs that match, and where to go on behind them."""
    if not progress.max_key:
        row = db.query_one(db.sql.NEWEST_CREATED, 0.0, request.finished_before)
        if row is None or row[0] is None:
            return [], None
        progress.max_key = row[0]
    names = (
        [request.workflow]
        if request.workflow is not None
        else sorted(row[0] for row in db.query(db.sql.KNOWN_WORKFLOWS))
    )
    found: list[int] = []
    for workflow in names:
        for state in sorted(request.states):
            place = PruneCursor(workflow, state, progress=progress)
            if place[:2] < cursor[:2]:
                continue
            start = cursor.key if place[:2] == cursor[:2] else 0
            values = (workflow, state, start, progress.max_key, request.finished_before, limit - len(found))
            found += [row[0] for row in db.query(db.sql.LIST_ENDED, values)]
            if len(found) == limit:
                return found, place._replace(key=found[-1])
    return found, None


def _find_min_kept_keys(db: Database, request: PruneRequest) -> dict[str, int]:
    """The lowest key that is kept, of each workflow that has any to keep."""
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
    keys = [key for family in groups for key in family.keys]
    db.prefetch({db.sql.JOURNAL_SIZE: [(key,) for key in keys]})
    told = [row for key in keys for row in db.lookup(db.sql.JOURNAL_SIZE, key)]
    return sum(row[0] for row in told), sum(row[1] for row in told)


# Sweeping


def _sweep_pruned(db: Database, limit: int, now: float) -> SweepResult:
    """Delete about ``limit`` records, and what else is left, of runs that are deleted; keys of queues; workers."""
    db.begin()
    records = size = 0
    references: set[bytes] = set()
    swept: list[tuple[int]] = []
    most = min(limit, _MAX_SWEPT_RUNS)
    noted = db.query(db.sql.LOCK_NEXT_PRUNED, (most,))
    for key, of_row, *values in noted:
        gone = db.query(db.sql.DELETE_RECORDS, (key, limit - records)) if records < limit else []
        records += len(gone)
        size += sum(row[0] for row in gone)
        references.update(row[1] for row in gone if row[1] is not None)
        if records >= limit:
            break
        size += of_row
        swept.append((key,))
        references.update(value for value in values if value is not None)
    if swept:
        keys = [key for (key,) in swept]
        for statement in (db.sql.SIGNAL_REFERENCES, db.sql.APPROVAL_REFERENCES):
            references.update(row[0] for row in db.query(statement, (db.to_list_parameter(keys),)))
        for name in _DELETED_BY_SWEEP:
            db.write(getattr(db.sql, name), swept)
    count, freed = _delete_unused_blobs(db, references)
    delete_idle_keys(db, now, limit)
    db.write(db.sql.DELETE_OLD_LISTENERS, [(limit, get_listener_cutoff(None, now), now)])
    db.write(db.sql.DELETE_OLD_WORKERS, [(limit, get_worker_cutoff(None, now), now)])
    db.commit()
    return SweepResult(records, count, size + freed, is_done=len(swept) == len(noted) < most)


def _delete_unused_blobs(db: Database, references: Iterable[bytes]) -> tuple[int, int]:
    """Delete those of these large values that nothing refers to any more: how many, and how large they were."""
    places = [(reference[1:],) for reference in sorted(references) if blobs.is_reference(reference)]
    db.prefetch({db.sql.LOCK_BLOB: places})
    sizes = {place: row[0] for place in places for row in db.lookup(db.sql.LOCK_BLOB, *place)}
    db.prefetch({db.sql.IS_BLOB_REFERENCED: [(b"\x00" + name,) for (name,) in sizes]})
    unused = [place for place in sizes if not db.lookup(db.sql.IS_BLOB_REFERENCED, b"\x00" + place[0])]
    if unused:
        db.write(db.sql.DELETE_BLOB, unused)
    return len(unused), sum(sizes[place] for place in unused)
