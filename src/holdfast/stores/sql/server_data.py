"""What servers keep, and what was used on which day, each a function of a db.

A document is changed by a single statement that has the condition in itself, so that of two who have read the same
version one is told that it came too late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.admission.usage import Usage
from holdfast.stores.audit_log import Audit, NewAudit
from holdfast.stores.daily_usage import DayRuns, DayUsage, Spent, day_of, days_between, span_of
from holdfast.stores.documents import Document
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.statements import NO_END
from holdfast.stores.utf8 import is_proper

# Documents


def put_document(
    db: Database, kind: str, name: str, data: bytes, if_version: int | None, now: float
) -> Document | None:
    """Keep a document; ``None``: it has another version."""
    if if_version:
        rows = db.ask(db.sql.CHANGE_DOCUMENT, (data, now, kind, name, if_version))
    else:
        statement = db.sql.PUT_DOCUMENT if if_version is None else db.sql.ADD_DOCUMENT
        rows = db.ask(statement, (kind, name, now, now, data))
    return Document(*rows[0]) if rows else None


def documents(db: Database, kind: str, names: Collection[str] | None, after: str, limit: int) -> list[Document]:
    """Documents of a kind, in order."""
    if not (is_proper(kind) and is_proper(after)):
        return []
    if names is None:
        rows = db.ask(db.sql.DOCUMENTS, (kind, after, limit))
    else:
        wanted = [name for name in names if is_proper(name)]
        rows = db.ask(db.sql.DOCUMENTS_NAMED, (kind, after, db.listed(wanted), limit)) if wanted else []
    return [Document(*row) for row in rows]


def delete_document(db: Database, kind: str, name: str) -> bool:
    """Forget a document."""
    return is_proper(kind) and is_proper(name) and db.change(db.sql.DELETE_DOCUMENT, (kind, name)) == 1


# The audit log


def note_audit(db: Database, entries: Sequence[NewAudit]) -> None:
    """Add entries, all of them or none."""
    db.begin()
    db.write(
        db.sql.NOTE_AUDIT,
        [(one.at, one.who, one.name, one.action, one.target, one.outcome, one.remote) for one in entries],
    )
    db.commit()


def audit(db: Database, before: int | None, limit: int) -> list[Audit]:
    """Entries, the newest first."""
    rows = db.ask(db.sql.AUDIT, (NO_END if before is None else before, limit))
    return [Audit(number, NewAudit(*what)) for number, *what in rows]


# Spending


def spent_row(run: int, new: Spent) -> Row:
    """The row of ``SPEND``."""
    used = new.used
    return (
        new.day, new.model, used.calls, used.input_tokens, used.output_tokens, used.cached_tokens, used.nano_usd,
        used.unpriced, run,
    )  # fmt: skip


def usage_by_day(db: Database, since: str, until: str, workflow: str | None) -> list[DayUsage]:
    """What was used on these days."""
    rows = db.ask(db.sql.SPENDING, (since, until, workflow))
    return [DayUsage(day, name, model, Usage(*used)) for day, name, model, *used in rows]


def runs_by_day(db: Database, since: str, until: str, workflow: str | None) -> list[DayRuns]:
    """How many runs were created on these days: each day is a stretch of the index of the times of creation."""
    db.begin_reading()
    [(first, last)] = db.ask(db.sql.FIRST_AND_LAST_CREATED)
    found: list[DayRuns] = []
    if first is not None:
        days = {day: span_of(day) for day in days_between(max(since, day_of(first)), min(until, day_of(last)))}
        db.foresee({db.sql.CREATED_ON: list(days.values())})
        for day, span in days.items():
            rows = db.lookup(db.sql.CREATED_ON, *span)
            found += [DayRuns(day, name, count) for name, count in sorted(rows) if workflow in (None, name)]
    db.commit()
    return found
