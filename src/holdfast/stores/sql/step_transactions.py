"""Finding out what became of a step's transaction, in a transaction of our own: see ``stores.step_transactions``."""

from __future__ import annotations

from holdfast.core.records import Attempt
from holdfast.stores import rules
from holdfast.stores.operations import NoteAttempt, Run, Verdict
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import attempt_row


def find_out(db: Database, run: Run, attempt: Attempt, now: float) -> Verdict:
    """Whether an attempt was committed (``DONE``); if not, see to it that it never will be (``REFUSED``).

    The run's row is locked first. A commit that has come as far as its fence is waited for by this; one that comes
    later finds the number of its attempt among those that are over.
    """
    db.begin()
    held = any(rules.holds(row[3], row[2], run.epoch) for row in db.fences([run.key]))
    if not held:
        db.roll_back()
        return Verdict.FENCED
    if db.one(db.sql.OUTCOME, run.key, attempt.position, attempt.name) is not None:
        db.roll_back()
        return Verdict.DONE
    lost = attempt._replace(error="the connection was lost at its commit", at=now)
    db.write(db.sql.NOTE_ATTEMPT, [attempt_row(NoteAttempt(run.key, run.epoch, lost))])
    db.commit()
    return Verdict.REFUSED
