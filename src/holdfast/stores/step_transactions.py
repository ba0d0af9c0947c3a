"""Transactional steps: what a step does to the store's own database is committed together with its outcome.

The record of an outcome has a number that only the run's driver can give, and outcomes of other steps come in between:
so the step's transaction cannot write the record. It keeps the encoded outcome in the row of its attempt instead
(``Attempt.outcome``). The driver then appends the record, and removes that row, in the usual way. Whoever takes the run
up in between finds the outcome there, and records it instead of running the step again.

**The fence.** The outcome is kept, and all of it committed, only while the run is held under the epoch for which the
transaction was begun; nobody can claim the run between that look and the commit.

**A commit of which nobody knows the outcome** (the connection was cut) may still be under way in the database. So it is
not enough to look whether the outcome is there. Asking again *bars* the attempt, if it is not: its number is noted as
one that is over, and a commit of an attempt that is not newer than what is noted is refused. Only then may the step be
run again, as the next attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from holdfast.core.records import Attempt
from holdfast.errors import UsageError
from holdfast.stores.operations import OpStatus, Run


class StepTransaction(ABC):
    """The transaction of one attempt of a step, open until one of the last three methods is called."""

    connection: Any
    """What the step is handed. It cannot end the transaction, and is closed for the step when that has ended."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the database has ended it by itself, say because it was restarted: nothing of it stays."""

    @abstractmethod
    async def commit(self, outcome: bytes) -> OpStatus:
        """Commit, with the encoded outcome.

        ``DONE``; or ``FENCED``: the run is not held any more, and nothing was committed; or ``REFUSED``: nothing was
        committed, nor will it ever be, because of the database and not because of what the step did.

        Raises ``StoreUnavailable`` when it is not known whether it was committed: call it again to find out, or roll
        it back. Raises ``UsageError``, or the database's own error, when the database does not commit what the step did
        (say, because of a constraint), and ``CodecError`` when the outcome can never be kept; then nothing was
        committed, and the transaction is over.
        """

    @abstractmethod
    async def roll_back(self) -> None:
        """Undo all of it, unless it is over. Nobody uses the connection any more."""

    @abstractmethod
    async def abandon(self) -> None:
        """Undo all of it, although the step may still be using the connection, in a thread that cannot be stopped.

        Whatever that does from now on fails, and has no effect.
        """


class StepTransactions(ABC):
    """The store's own database, for steps that change it."""

    @abstractmethod
    async def begin(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> StepTransaction | None:
        """Begin the transaction of an attempt of a step (its position, number and name) of a held run.

        ``is_sync``: the step is a plain function, which uses the connection in a thread. ``timeout_s``: seconds that
        the attempt may take. ``None``: the run is not held any more. Raises ``StoreUnavailable`` when the database
        cannot be had at the moment.
        """


def make_end_refused_error(statement: str, hint: str = "") -> UsageError:
    """What a step gets that wants to end its transaction itself."""
    return UsageError(
        f"{statement} would end the transaction of this step, which also holds its outcome: Holdfast commits it when "
        "the "
        f"step returns, and rolls it back when the step raises.{f' {hint}' if hint else ''}"
    )


def make_ended_by_step_error(step: str) -> UsageError:
    """What becomes of a step that has found a way to do so."""
    return UsageError(
        f"step {step!r} has ended its transaction itself, so what it did before that was not committed together with "
        f"its outcome, and may be there although the step has failed. Remove COMMIT, ROLLBACK and the like from it."
    )
