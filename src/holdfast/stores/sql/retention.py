"""Deleting runs that have ended: a few families in a transaction, and sweeping away what they leave, in pieces.

Whoever decides holds the rows of a whole family, and its sessions: then it looks once more. So nobody can retry a run,
wait for it or continue its conversation at the same moment. Large values are deleted when nothing refers to them any
more; whoever is about to refer to one locks it (``KEEP_BLOB``), and so does whoever looks whether it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.stores import rules
from holdfast.stores.retention import (
    Family,
    Findings,
    Kin,
    Kinship,
    Place,
    Pruned,
    Pruning,
    Swept,
    Why,
    families,
    why_kept,
)
from holdfast.stores.sql import blobs
from holdfast.stores.sql.database import Database, NotText
from holdfast.stores.sql.queue_settings import forget_keys
from holdfast.stores.sql.statements import NO_END

_AT_A_TIME = 200
"""Of so many runs, at most, what is left is swept away in one transaction."""
_AT_ONCE = ("NOTE_PRUNED", "FORGET_TAGS", "FORGET_LINKS", "FORGET_ACCOUNT", "FORGET_RUN")
"""What goes with the decision: by all of this, others could find the run."""
_OF_RUNS = (
    "FORGET_ATTEMPTS", "FORGET_SIGNAL_KEYS", "FORGET_RESERVATIONS", "FORGET_NOTICES", "FORGET_SIGNALS",
    "FORGET_APPROVALS", "FORGET_PRUNED",
)  # fmt: skip
"""What a run leaves beside its records, and last of all the note of that."""


class SqlKinship(Kinship):
    """Who is related to whom, as far as this transaction can see."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._sql = db.sql
        self._sessions: set[tuple[str, str]] = set()
        """Those whose runs are known: the first one that is met stands for all of them."""

    def read(self, keys: Collection[int]) -> Iterator[Kin | int]:
        """What is known of these runs."""
        self._db.foresee({self._sql.KIN: [(key,) for key in keys]})
        for key in keys:
            try:
                yield from (Kin(*row) for row in self._db.lookup(self._sql.KIN, key))
            except NotText:
                yield key

    def relatives(self, runs: Sequence[Kin]) -> Iterator[tuple[int, int]]:
        """Those next to each in its family."""
        sql = self._sql
        asked = [question for run in runs for question in self._questions(run)]
        foreseen: dict[str, list[tuple[Any, ...]]] = {}
        for statement, question, _ in asked:
            foreseen.setdefault(statement, []).append(question)
        self._db.foresee(foreseen)
        for statement, question, key in asked:
            for (other,) in self._db.lookup(statement, *question):
                older, younger = (other, key) if statement in (sql.KEY_OF,) else (key, other)
                if statement == sql.SESSION_RUNS or rules.is_above(older, younger):
                    yield key, other

    def _questions(self, run: Kin) -> Iterator[tuple[str, tuple[Any, ...], int]]:
        sql = self._sql
        yield sql.CHILDREN, (run.id,), run.key
        yield sql.CONTINUED, (run.id,), run.key
        for other in {run.parent, run.previous} - {""}:
            yield sql.KEY_OF, (other,), run.key
        session = (run.workflow, run.session)
        if run.session and session not in self._sessions:
            self._sessions.add(session)
            yield sql.SESSION_RUNS, session, run.key

    def awaited(self, keys: Collection[int]) -> set[int]:
        """Those to which an unfinished run has a link."""
        self._db.foresee({self._sql.IS_AWAITED: [(key,) for key in keys]})
        return {key for key in keys if self._db.lookup(self._sql.IS_AWAITED, key)}

    def waited_for(self, keys: Collection[int]) -> set[tuple[int, int]]:
        """Links from these runs."""
        self._db.foresee({self._sql.AWAITED_RUNS: [(key,) for key in keys]})
        return {(key, child) for key in keys for (child,) in self._db.lookup(self._sql.AWAITED_RUNS, key)}


class Plan(NamedTuple):
    """What is to become of a piece of the work."""

    going: list[Family]
    pruned: Pruned
    """What is certain already: those that stay, what a dry run tells, and where to go on."""
    wanted: Collection[int]
    """The keys of the runs that led to these families."""
    newest: Mapping[str, int]


def plan(db: Database, what: Pruning, after: Place, limit: int) -> Plan:
    """Decide about the families of the next ``limit`` runs that match. Nothing is locked, and nothing deleted."""
    findings = after.findings or Findings()
    if what.run_ids is not None:
        found, place = _named(db, dict.fromkeys(what.run_ids)), None
    else:
        found, place = _next(db, what, after, findings, limit)
    new, stay = findings.split(found)
    if not new:
        return Plan([], Pruned(kept=stay, place=place), (), {})
    if findings.newest is None:
        findings.newest = _newest(db, what)
    kinship = SqlKinship(db)
    db.begin_reading()
    going, kept = _decided(kinship, families(kinship, new), what, findings.newest)
    records, size = _sizes(db, going) if what.dry_run else (0, 0)
    db.commit()
    wanted = set(found)
    for family, why in kept:
        findings.note(family, why)
    stay.update(_stay(kept, wanted))
    if not what.dry_run:
        return Plan(going, Pruned((), stay, place=place), wanted, findings.newest)
    for family in going:
        findings.note(family, None)
    return Plan([], Pruned(_ids(going), stay, records, size, place), wanted, findings.newest)


def delete(db: Database, what: Pruning, planned: Plan) -> Pruned:
    """Delete the families of a plan, unless something has changed: with their rows locked, all is looked at again."""
    members = [member for family in planned.going for member in family.members]
    db.begin()
    held = {row[0] for row in db.ask(db.sql.LOCK_ENDED, (db.listed(sorted(member.key for member in members)),))}
    sessions = {(member.workflow, member.session) for member in members if member.session}
    if sessions:
        db.lock_sessions(sessions)
    kinship = SqlKinship(db)
    going, kept = _decided(kinship, families(kinship, [member.key for member in members]), what, planned.newest)
    for family in [family for family in going if not held.issuperset(family.keys)]:
        going.remove(family)
        kept.append((family, Why.BUSY))
    gone = [(key,) for family in going for key in family.keys]
    if gone:
        for name in _AT_ONCE:
            db.write(getattr(db.sql, name), gone)
    db.commit()
    return replace(planned.pruned, runs=_ids(going), kept={**planned.pruned.kept, **_stay(kept, planned.wanted)})


def _stay(kept: Sequence[tuple[Family, Why]], wanted: Collection[int]) -> dict[str, Why]:
    return {member.id: why for family, why in kept for member in family.members if member.key in wanted}


def _ids(going: Sequence[Family]) -> tuple[str, ...]:
    return tuple(member.id for family in going for member in family.members)


def _decided(
    kinship: SqlKinship, seen: Sequence[Family], what: Pruning, newest: Mapping[str, int]
) -> tuple[list[Family], list[tuple[Family, Why]]]:
    """Those that go, and why each of the others stays."""
    keys = [key for family in seen for key in family.keys]
    awaited, waited_for = kinship.awaited(keys), kinship.waited_for(keys)
    going: list[Family] = []
    kept: list[tuple[Family, Why]] = []
    for family in seen:
        why = why_kept(family, what, newest, awaited, waited_for)
        if why is None:
            going.append(family)
        else:
            kept.append((family, why))
    return going, kept


def _named(db: Database, run_ids: Collection[str]) -> list[int]:
    db.foresee({db.sql.KEY_OF: [(run_id,) for run_id in run_ids]})
    return [row[0] for run_id in run_ids for row in db.lookup(db.sql.KEY_OF, run_id)]


def _next(db: Database, what: Pruning, after: Place, findings: Findings, limit: int) -> tuple[list[int], Place | None]:
    """The keys of the next runs that match, and where to go on behind them."""
    if not findings.last:
        row = db.one(db.sql.NEWEST_CREATED, 0.0, what.before)
        if row is None or row[0] is None:
            return [], None
        findings.last = row[0]
    names = [what.workflow] if what.workflow is not None else sorted(row[0] for row in db.ask(db.sql.KNOWN_WORKFLOWS))
    found: list[int] = []
    for workflow in names:
        for state in sorted(what.states):
            place = Place(workflow, state, findings=findings)
            if place[:2] < after[:2]:
                continue
            start = after.key if place[:2] == after[:2] else 0
            values = (workflow, state, start, findings.last, what.before, limit - len(found))
            found += [row[0] for row in db.ask(db.sql.ENDED_STRETCH, values)]
            if len(found) == limit:
                return found, place._replace(key=found[-1])
    return found, None


def _newest(db: Database, what: Pruning) -> dict[str, int]:
    """The lowest key that is kept, of each workflow that has any to keep."""
    if not what.keep:
        return {}
    newest: dict[str, int] = {}
    statement = db.sql.LIST_STRETCH.replace("{filters}", "")
    for (workflow,) in db.ask(db.sql.KNOWN_WORKFLOWS):
        keys = [row[0] for state in what.states for row in db.ask(statement, (workflow, state, NO_END, 0, what.keep))]
        if keys:
            newest[workflow] = sorted(keys, reverse=True)[: what.keep][-1]
    return newest


def _sizes(db: Database, going: Sequence[Family]) -> tuple[int, int]:
    keys = [key for family in going for key in family.keys]
    db.foresee({db.sql.JOURNAL_SIZE: [(key,) for key in keys]})
    told = [row for key in keys for row in db.lookup(db.sql.JOURNAL_SIZE, key)]
    return sum(row[0] for row in told), sum(row[1] for row in told)


# Sweeping


def sweep(db: Database, limit: int, now: float) -> Swept:
    """Delete about ``limit`` records, and what else is left, of runs that are deleted; keys of queues; workers."""
    db.begin()
    records = size = 0
    references: set[bytes] = set()
    swept: list[tuple[int]] = []
    most = min(limit, _AT_A_TIME)
    noted = db.ask(db.sql.NEXT_PRUNED, (most,))
    for key, of_row, *values in noted:
        gone = db.ask(db.sql.FORGET_RECORDS, (key, limit - records)) if records < limit else []
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
        for statement in (db.sql.LARGE_SIGNALS, db.sql.LARGE_APPROVALS):
            references.update(row[0] for row in db.ask(statement, (db.listed(keys),)))
        for name in _OF_RUNS:
            db.write(getattr(db.sql, name), swept)
    count, freed = _collect(db, references)
    forget_keys(db, now, limit)
    db.write(db.sql.FORGET_LISTENERS, [(limit, rules.listeners_kept_from(None, now), now)])
    db.write(db.sql.FORGET_WORKERS, [(limit, rules.workers_kept_from(None, now), now)])
    db.commit()
    return Swept(records, count, size + freed, is_done=len(swept) == len(noted) < most)


def _collect(db: Database, references: Iterable[bytes]) -> tuple[int, int]:
    """Delete those of these large values that nothing refers to any more: how many, and how large they were."""
    places = [(reference[1:],) for reference in sorted(references) if blobs.is_reference(reference)]
    db.foresee({db.sql.LOCK_BLOB: places})
    sizes = {place: row[0] for place in places for row in db.lookup(db.sql.LOCK_BLOB, *place)}
    db.foresee({db.sql.IS_REFERRED_TO: [(b"\x00" + name,) for (name,) in sizes]})
    unused = [place for place in sizes if not db.lookup(db.sql.IS_REFERRED_TO, b"\x00" + place[0])]
    if unused:
        db.write(db.sql.FORGET_BLOB, unused)
    return len(unused), sum(sizes[place] for place in unused)
