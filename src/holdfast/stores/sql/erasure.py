"""Erasing what runs have recorded in a database: see ``stores.erasure``."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.stores.erasure import (
    ERASED_REQUEST,
    ERASED_RETURN,
    ErasedMember,
    EraseGroups,
    EraseRequest,
    EraseResult,
    Erasure,
    make_audit_events,
)
from holdfast.stores.sql.approval_operations import request_to_json
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.database_access import SqlCapability
from holdfast.stores.sql.retention import delete_unused_blobs
from holdfast.stores.sql.rows import names_to_json
from holdfast.stores.sql.server_data import audit_to_row

_ERASED_BY_RUN = ("ERASE_RECORDS", "ERASE_ATTEMPTS", "ERASE_SIGNALS")
"""Statements that erase what belongs to a list of runs."""


class SqlErasure(SqlCapability, Erasure):
    """Erasing runs of a database."""

    async def erase(self, request: EraseRequest) -> EraseResult:
        if request.dry_run:
            return await self._database.read_for_client(lambda db: _plan(db, request))
        now = self._database.now()
        return await self._database.write(lambda db: _erase(db, request, now), len(request.run_ids), is_slow=True)

    @abstractmethod
    async def scrub(self) -> None: ...


class _Waiter(NamedTuple):
    """A command of a run that waited for the end of another one."""

    awaited_key: int
    key: int
    position: int
    is_unfinished: int


def _plan(db: Database, request: EraseRequest) -> EraseResult:
    db.begin_snapshot()
    groups, waiters = _read_groups(db, request.run_ids)
    result = _make_result(db, groups, waiters, ())[1]
    db.commit()
    return result


def _erase(db: Database, request: EraseRequest, now: float) -> EraseResult:
    db.begin()
    groups, waiters = _read_groups(db, request.run_ids)
    keys = sorted({member.key for member in groups.members.values()} | {waiter.key for waiter in waiters})
    tags = dict(db.query(db.sql.LOCK_TAGS, (db.to_list_parameter(keys),)))
    known = set(groups.members)
    groups, waiters = _read_groups(db, request.run_ids)  # now that none of them can change
    busy = {
        member.id
        for member in groups.members.values()
        if (member.key not in tags and not member.is_unfinished) or member.id not in known
    }
    busy |= {
        run_id for run_id, waiter in _by_awaited(groups, waiters) if waiter.key not in tags and not waiter.is_unfinished
    }
    members, result = _make_result(db, groups, waiters, busy)
    if members:
        _erase_members(db, members, waiters, tags, request.tag)
        db.write(db.sql.APPEND_AUDIT, [audit_to_row(e) for e in make_audit_events(result.run_ids, request.actor, now)])
    db.commit()
    return result


def _read_groups(db: Database, run_ids: Sequence[str]) -> tuple[EraseGroups, list[_Waiter]]:
    """The runs to erase, and the commands that waited for one of them."""
    ids = db.to_list_parameter(run_ids)
    groups = EraseGroups(ErasedMember(*row) for row in db.query(db.sql.ERASED_MEMBERS, (ids,)))
    while groups.new_ids:
        ids = db.to_list_parameter(groups.new_ids)
        related = [*db.query(db.sql.ERASED_CHILDREN, (ids,)), *db.query(db.sql.ERASED_FORKS, (ids,))]
        groups.add(ErasedMember(*row) for row in related)
    keys = db.to_list_parameter([member.key for member in groups.members.values()])
    return groups, [_Waiter(*row) for row in db.query(db.sql.WAITING_RUNS, (keys,))]


def _by_awaited(groups: EraseGroups, waiters: Sequence[_Waiter]) -> list[tuple[str, _Waiter]]:
    """The commands that waited, each with the id of the run for which it did."""
    ids = {member.key: member.id for member in groups.members.values()}
    return [(ids[waiter.awaited_key], waiter) for waiter in waiters]


def _make_result(
    db: Database, groups: EraseGroups, waiters: Sequence[_Waiter], busy: Collection[str]
) -> tuple[list[ErasedMember], EraseResult]:
    awaited = [run_id for run_id, waiter in _by_awaited(groups, waiters) if waiter.is_unfinished]
    members, refusals = groups.choose(busy, awaited)
    runs = (db.to_list_parameter([member.key for member in members]),)
    [[records]], [[signals]], [[approvals]] = (
        db.query(statement, runs)
        for statement in (db.sql.COUNT_ERASED_RECORDS, db.sql.COUNT_ERASED_SIGNALS, db.sql.COUNT_ERASED_APPROVALS)
    )
    ids = tuple(member.id for member in members)
    return members, EraseResult(ids, records, signals, approvals, refusals)


def _erase_members(
    db: Database, members: Sequence[ErasedMember], waiters: Sequence[_Waiter], tags: dict[int, str], tag: str
) -> None:
    sql, keys = db.sql, [member.key for member in members]
    runs = (db.to_list_parameter(keys),)
    ends = [(waiter.key, waiter.position) for waiter in waiters if waiter.awaited_key in set(keys)]
    references = {value for row in db.query(sql.RUN_REFERENCES, runs) for value in row}
    references |= {row[0] for row in db.query(sql.RECORD_REFERENCES, runs)}
    for statement in (sql.SIGNAL_REFERENCES, sql.APPROVAL_REFERENCES):
        references |= {row[0] for row in db.query(statement, runs)}
    references |= {row[0] for end in ends for row in db.query(sql.END_REFERENCES, end)}
    for name in _ERASED_BY_RUN:
        db.execute(getattr(sql, name), runs)
    db.execute(sql.ERASE_RETURNS, (ERASED_RETURN, *runs))
    db.execute(sql.ERASE_APPROVALS, (request_to_json(ERASED_REQUEST), *runs))
    for end in ends:
        db.execute(sql.ERASE_END, end)
        db.execute(sql.ERASE_END_SIGNAL, end)
    db.write(sql.DELETE_SIGNAL_KEYS, [(key,) for key in keys])
    if tag:
        db.write(sql.DELETE_TAG, [(tag, key) for key in keys])
    db.write(sql.ERASE_RUN, [(_without_tag(tags[key], tag), key) for key in keys])
    delete_unused_blobs(db, references - {None})


def _without_tag(tags: str, tag: str) -> str:
    """The stored form of a run's tags, without one of them."""
    try:
        return names_to_json([each for each in json.loads(tags) if each != tag])
    except ValueError:  # a damaged row
        return "[]"
