"""What transactional steps on all SQL stores share: see ``stores.step_transactions``."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import ClassVar, NoReturn

from holdfast.core.records import Attempt
from holdfast.stores import rules
from holdfast.stores.operations import OpStatus, Run
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.database_access import DatabaseAccess
from holdfast.stores.sql.rows import attempt_to_row
from holdfast.stores.step_transactions import StepTransaction, make_end_refused_error


class GuardedConnection:
    """Refuses the methods of a step's connection that would end its transaction."""

    nested_hint: ClassVar[str]
    """How a step undoes only a part of its work."""

    def commit(self) -> NoReturn:
        raise make_end_refused_error("connection.commit()")

    def rollback(self) -> NoReturn:
        raise make_end_refused_error("connection.rollback()", self.nested_hint)

    def close(self) -> NoReturn:
        raise make_end_refused_error("connection.close()")

    def __enter__(self) -> NoReturn:
        raise make_end_refused_error("`with connection:`", self.nested_hint)


class SqlStepTransaction(StepTransaction):
    """The transaction of one attempt of a step."""

    def __init__(self, store: DatabaseAccess, run: Run, attempt: Attempt) -> None:
        self._store = store
        self._run = run
        self._attempt = attempt

    def _resolve_attempt(self) -> Awaitable[OpStatus]:
        """Find out, in a transaction of the store's own, what became of this one."""
        return self._store.write(lambda db: resolve_attempt(db, self._run, self._attempt, self._store.now()))


def resolve_attempt(db: Database, run: Run, attempt: Attempt, now: float) -> OpStatus:
    """Whether an attempt was committed (``DONE``); if not, make sure that it never will be (``REFUSED``).

    This locks the run's row first. So it waits for a commit that has reached its fence; a later commit finds that the
    number of its attempt is over.
    """
    db.begin()
    if not any(rules.can_write(row[3], row[2], run.epoch) for row in db.read_fences([run.key])):
        db.roll_back()
        return OpStatus.FENCED
    if db.query_one(db.sql.HAS_OUTCOME, run.key, attempt.position, attempt.name) is not None:
        db.roll_back()
        return OpStatus.DONE
    lost = attempt._replace(error="the connection was lost at its commit", at=now)
    db.write(db.sql.SAVE_ATTEMPT, [attempt_to_row(run.key, lost)])
    db.commit()
    return OpStatus.REFUSED
