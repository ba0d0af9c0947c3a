"""Runs outside their store: all that there is of one, to be put into another store.

A run is restored in two steps. First its row and everything under its key; if it has not ended, it is held back as if
it had been paused (``NOT_ACTIVATED``), so that nobody takes it up before the runs that it waits for are there. Then,
when all are, its links are made, and it is as it was. Whoever was interrupted in between does the second step again.

What was being done with a run that was held by a worker goes on from its journal: it is ``pending``. The next claim
raises its epoch, as ever, so what is recorded from then on is told from what was recorded before.
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
"""``paused_at`` of an unfinished run whose links are not restored yet."""


class ArchivedLink(NamedTuple):
    """That a run waits for another one, or did so."""

    position: int
    child_id: str
    """The other one's id."""
    is_late: bool = False
    """``LinkState.LATE``; what else a link knows follows from the state of the other one."""

    def get_link_state(self, state: RunState) -> LinkState:
        """What the link knows of a run in this state."""
        if self.is_late:
            return LinkState.LATE
        return LinkState.NOTIFIED if state.is_terminal else LinkState.PENDING


class RunExtras(NamedTuple):
    """What belongs to a run, and is no part of its row, its history, its usage, its questions or its notices."""

    has_generated_id: bool = False
    """Its id was made up."""
    has_unclaimed_result: bool = False
    """And nobody has had its result."""
    signal_dedup_keys: tuple[str, ...] = ()
    """The deduplication keys of all signals that were ever sent to it."""
    links: tuple[ArchivedLink, ...] = ()
    short_positions: tuple[int, ...] = ()
    """The positions that wait for a higher budget."""


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A run, and all that belongs to it."""

    run: Run
    """``key``, ``owner`` and ``starter`` mean nothing."""
    records: tuple[Record, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    signals: tuple[Signal, ...] = ()
    """Their ids mean nothing but their order."""
    usage: RunUsage = field(default_factory=RunUsage)
    approvals: tuple[Approval, ...] = ()
    live_events: tuple[LiveEvent, ...] = ()
    """Those that stay."""
    extras: RunExtras = field(default_factory=RunExtras)


def to_new_run(archived: ArchivedRun) -> NewRun:
    """What the run was started with."""
    given = {one.name for one in fields(Run)}
    same: dict[str, Any] = {one.name: getattr(archived.run, one.name) for one in fields(NewRun) if one.name in given}
    # Starter 0 is no worker, and so not a live one: whoever starts the same script again may join the run.
    same["starter"] = 0 if archived.extras.has_generated_id else None
    same["has_generated_id"] = archived.extras.has_generated_id
    return NewRun(**same)


def to_restored_run(run: Run, key: int, now: float) -> Run:
    """The row as it is restored, once it is not held back any more."""
    restored = replace(run, key=key, owner=None)
    if run.state is RunState.RUNNING:
        return replace(restored, state=RunState.PENDING, wake_at=now)
    return restored


def list_payloads(archived: ArchivedRun) -> list[bytes]:
    """All that is kept apart if it is large."""
    run = archived.run
    found: list[bytes | None] = [run.inputs, run.output, run.error]
    found += [record.payload for record in archived.records]
    found += [signal.payload for signal in archived.signals]
    for approval in archived.approvals:
        found += [approval.request.form_schema, approval.request.arguments, approval.answer]
    return [payload for payload in found if payload is not None]


class Archives(ABC):
    """Moving runs out of a store and into it."""

    @abstractmethod
    async def get_extras(self, key: int) -> RunExtras:
        """What belongs to a run, beside what can be read of it in other ways."""

    @abstractmethod
    async def restore(self, archived: ArchivedRun) -> bool:
        """Put a run from elsewhere into this store, in one transaction; false: there is one under its id.

        One that has not ended is held back until ``activate``.
        """

    @abstractmethod
    async def activate(self, archived: ArchivedRun) -> None:
        """Make the links of a run that was restored, to those that are there, and hold it back no more."""
