"""Archived runs: everything that a store has of a run, to restore it in another store.

A run is restored in two steps. The first writes its row and everything under its key. If the run has not ended, it is
held back as if it were paused (``NOT_ACTIVATED``), so that no worker claims it before the runs that it waits for are
there. When all runs are there, the second step makes its links and releases it. After an interruption, the second step
is repeated.

A run that a worker held is restored as ``pending`` and continues from its journal. The next claim increments its epoch
as usual, so new records differ from those made before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from holdfast.core.records import Attempt, Record, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import Approval
from holdfast.stores.contract import RunUsage
from holdfast.stores.operations import LiveEvent, NewRun, Run
from holdfast.stores.rules import LinkState

NOT_ACTIVATED = 0.0
"""The ``paused_at`` of an unfinished run whose links are not restored yet."""


class ArchivedLink(NamedTuple):
    """A link: the run waits, or waited, for another one."""

    position: int
    child_id: str
    """The id of the other run."""
    is_late: bool = False
    """``LinkState.LATE``. Otherwise the state of the link follows from the state of the other run."""

    def get_link_state(self, state: RunState) -> LinkState:
        """The state of the link if the other run is in ``state``."""
        if self.is_late:
            return LinkState.LATE
        return LinkState.NOTIFIED if state.is_terminal else LinkState.PENDING


class RunExtras(NamedTuple):
    """Data of a run outside its row, history, usage, approvals, and live events."""

    has_generated_id: bool = False
    has_unclaimed_result: bool = False
    """Its id was generated, and no caller has received its result."""
    signal_dedup_keys: tuple[str, ...] = ()
    """The ``dedup_key`` of every signal ever sent to it."""
    links: tuple[ArchivedLink, ...] = ()
    short_positions: tuple[int, ...] = ()
    """The positions whose model calls wait for a higher budget."""


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A run with everything that belongs to it."""

    run: Run
    """Its ``key``, ``owner``, and ``starter`` have no meaning."""
    records: tuple[Record, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    signals: tuple[Signal, ...] = ()
    """Only the order of their ids has a meaning."""
    usage: RunUsage = field(default_factory=RunUsage)
    approvals: tuple[Approval, ...] = ()
    live_events: tuple[LiveEvent, ...] = ()
    """Events of ``live_events.LASTING_KINDS``."""
    extras: RunExtras = field(default_factory=RunExtras)


def to_new_run(archived: ArchivedRun) -> NewRun:
    """The start that would create this run."""
    names = {field.name for field in fields(Run)} & {field.name for field in fields(NewRun)}
    values: dict[str, Any] = {name: getattr(archived.run, name) for name in names}
    # Starter 0 is not a live worker, so the same script may join the run when it starts again.
    values["starter"] = 0 if archived.extras.has_generated_id else None
    values["has_generated_id"] = archived.extras.has_generated_id
    return NewRun(**values)


def to_restored_run(run: Run, key: int, now: float) -> Run:
    """The row of the restored run after its activation."""
    restored = replace(run, key=key, owner=None)
    if run.state is RunState.RUNNING:
        return replace(restored, state=RunState.PENDING, wake_at=now)
    return restored


def list_payloads(archived: ArchivedRun) -> list[bytes]:
    """All payloads that a store may keep as blobs."""
    run = archived.run
    found: list[bytes | None] = [run.inputs, run.output, run.error]
    found += [record.payload for record in archived.records]
    found += [signal.payload for signal in archived.signals]
    for approval in archived.approvals:
        found += [approval.request.form_schema, approval.request.arguments, approval.answer]
    return [payload for payload in found if payload is not None]


class Archives(ABC):
    """Exporting and restoring runs."""

    @abstractmethod
    async def get_extras(self, key: int) -> RunExtras:
        """The data of a run that other reads do not return."""

    @abstractmethod
    async def restore(self, archived: ArchivedRun) -> bool:
        """Write a run from another store into this one, in one transaction. False: its id exists already.

        An unfinished run is held back until ``activate``.
        """

    @abstractmethod
    async def mark_restored(self, source: str) -> int:
        """Mark the runs that have not completed as restored from a backup: see ``restoration``. Returns how many.

        No worker may hold a run. ``source`` is the backup, as text.
        """

    @abstractmethod
    async def activate(self, archived: ArchivedRun) -> None:
        """Make the links of a restored run to the runs that exist here, and stop holding it back."""
