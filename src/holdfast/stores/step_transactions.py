"""Transactional steps: a step's changes in the store's own database are committed together with its outcome.

Only the run's driver can number the record of an outcome, and outcomes of other steps come in between, so the step's
transaction cannot write the record. Instead it writes the encoded outcome to the row of its attempt
(``Attempt.outcome``). The driver then appends the record, and deletes that row, in the usual way. A worker that claims
the run in between finds the outcome there, and records it instead of running the step again.

**The fence.** The outcome is written, and everything committed, only while the run is held under the epoch for which
the transaction was begun. No worker can claim the run between that check and the commit.

**A commit with an unknown outcome** (the connection was cut) may still be in progress in the database, so it is not
enough to check whether the outcome is there. If it is not, the check *bars* the attempt: it saves that this attempt is
over, and the database refuses the commit of an attempt that is not newer than the saved one. Only then may the step run
again, as the next attempt.
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
    """The connection for the step. It cannot end the transaction, and is closed when the transaction has ended."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the database itself has rolled it back, for example because it was restarted."""

    @abstractmethod
    async def commit(self, outcome: bytes) -> OpStatus:
        """Commit, with the encoded outcome.

        ``DONE``; or ``FENCED``: the run is no longer held, and nothing was committed; or ``REFUSED``: nothing was
        committed, nor will be, because of the database and not because of the step.

        Raises ``StoreUnavailable`` when it is unknown whether it was committed: call it again to find out, or roll it
        back. Raises ``UsageError``, or the database's own error, when the database refuses the step's changes (for
        example because of a constraint), and ``CodecError`` when the outcome can never be stored; then nothing was
        committed, and the transaction has ended.
        """

    @abstractmethod
    async def roll_back(self) -> None:
        """Roll back, unless it has ended. The step no longer uses the connection."""

    @abstractmethod
    async def abandon(self) -> None:
        """Roll back although the step may still use the connection, in a thread that cannot be stopped.

        Whatever that thread does from now on fails, and has no effect.
        """


class StepTransactions(ABC):
    """Transactional steps in the store's own database."""

    @abstractmethod
    async def begin(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> StepTransaction | None:
        """Begin the transaction of an attempt of a step (its position, number, and name) of a held run.

        ``is_sync``: the step is a plain function, which uses the connection in a thread. ``timeout_s``: seconds that
        the attempt may take. Returns ``None`` when the run is no longer held. Raises ``StoreUnavailable`` when the
        database cannot be reached.
        """


def make_end_refused_error(statement: str, hint: str = "") -> UsageError:
    """The error for a step that tries to end its transaction itself."""
    return UsageError(
        f"{statement} would end the transaction of this step, which also holds its outcome: Holdfast commits it when "
        f"the step returns, and rolls it back when the step raises.{f' {hint}' if hint else ''}"
    )


def make_ended_by_step_error(step: str) -> UsageError:
    """The error for a step that has ended its transaction itself."""
    return UsageError(
        f"step {step!r} has ended its transaction itself, so what it did before that was not committed together with "
        f"its outcome, and may be there although the step has failed. Remove COMMIT, ROLLBACK and the like from it."
    )
