"""Finding the outcome of a step's transaction, in another transaction: see ``stores.step_transactions``."""

from __future__ import annotations

from holdfast.core.records import Attempt
from holdfast.stores import rules
from holdfast.stores.operations import OpStatus, Run, SaveAttempt
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import attempt_to_row


def resolve_attempt(db: Database, run: Run, attempt: Attempt, now: float) -> OpStatus:
    """Whether an attempt was committed (``DONE``). If not, it never will be (``REFUSED``).

    The run's row is locked first. This waits for a commit that has passed its fence; a later commit finds that its
    attempt is over.
    """
    db.begin()
    if not any(rules.can_write(row[3], row[2], run.epoch) for row in db.read_fences([run.key])):
        db.roll_back()
        return OpStatus.FENCED
    if db.query_one(db.sql.HAS_OUTCOME, run.key, attempt.position, attempt.name) is not None:
        db.roll_back()
        return OpStatus.DONE
    lost = attempt._replace(error="the connection was lost at its commit", at=now)
    db.write(db.sql.SAVE_ATTEMPT, [attempt_to_row(SaveAttempt(run.key, run.epoch, lost))])
    db.commit()
    return OpStatus.REFUSED
