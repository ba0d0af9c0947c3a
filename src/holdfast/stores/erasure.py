"""Erasing what ended runs have recorded, when a person's data must go and the runs must stay.

A run that is erased is still listed: with its id, its times, its steps, its usage, and who decided what. Its values are
replaced by ``codec.ERASED``: inputs, output, error, payloads of records, signals, and approvals, and the texts next to
them. The digest of its inputs goes as well, since it is the same for the same person. Nothing can be executed from such
a journal, so a retry or a fork is answered with ``OpStatus.ERASED``.

**What belongs to a run.** Its values are also in the runs that it started, in forks of it and of these, and in the
records with which other runs received its end. All of these are erased in the transaction that erases the run. Of runs
that only waited for it, nothing but those records is erased. A run stays as it is while one of them has not ended,
since it may need what would be erased.

**What stays readable**: ids, names (of workflows, steps, signals, sessions, people who answered), and tags, except the
tag by which runs were chosen.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from holdfast.codec import ERASED
from holdfast.stores.approvals import ApprovalRequest
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.operations import Run

AUDIT_ACTION = "erase_run"
"""The action in the audit log: an entry for each run."""
_ERASED_TEXT = "<erased>"
ERASED_REQUEST = ApprovalRequest(_ERASED_TEXT)
"""What is left of an approval's question."""
ERASED_RETURN = json.dumps({"reason": _ERASED_TEXT}).encode()
"""What is left of a live event that says why a listener has released a run."""


class EraseRefusal(StrEnum):
    """Why a run is not erased, as text for people."""

    UNFINISHED = "it, a run that it started, or a fork of it has not ended"
    AWAITED = "a run that waited for it has not ended"
    BUSY = "another process is changing it"


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """Which runs to erase."""

    run_ids: Sequence[str]
    tag: str = ""
    """A tag to remove from them."""
    actor: str = ""
    """Who asked for it, for the audit log."""
    dry_run: bool = False
    """Erase nothing, only report."""


@dataclass(frozen=True, slots=True)
class EraseResult:
    """What was erased, or would be."""

    run_ids: tuple[str, ...] = ()
    """With the runs that they started, and with forks; without those that had been erased before."""
    record_count: int = 0
    signal_count: int = 0
    approval_count: int = 0
    refusals: Mapping[str, EraseRefusal] = field(default_factory=dict[str, EraseRefusal])
    """Those that were asked for and are not erased, by id."""


class ErasedMember(NamedTuple):
    """A run that is to be erased, or that was started by one or forked from one."""

    key: int
    id: str
    is_unfinished: int
    is_erased: int
    """It was erased before."""
    source: str
    """The id of the run that it was started by or forked from; its own id: it was asked for."""


class EraseGroups:
    """The runs that are erased together with each run that was asked for."""

    def __init__(self, asked: Iterable[ErasedMember]) -> None:
        self.members: dict[str, ErasedMember] = {}
        """By id."""
        self._roots: dict[str, set[str]] = {}
        """For each of them, the runs that were asked for and to which it belongs."""
        self.new_ids = self.add(asked)
        """The runs that were added last, whose relations are not known yet."""

    def add(self, members: Iterable[ErasedMember]) -> list[str]:
        """Add runs that were asked for, or that belong to one that was added; returns the ids of those that are new."""
        changed: list[str] = []
        for member in members:
            roots = {member.id} if member.source == member.id else self._roots[member.source]
            known = self._roots.setdefault(member.id, set())
            if not roots <= known:
                known |= roots
                changed.append(member.id)
            self.members.setdefault(member.id, member)
        self.new_ids = list(dict.fromkeys(changed))
        return self.new_ids

    def choose(
        self, busy: Iterable[str], unfinished_waiters: Iterable[str]
    ) -> tuple[list[ErasedMember], dict[str, EraseRefusal]]:
        """The runs to erase, and why the others that were asked for are kept.

        ``busy`` and ``unfinished_waiters`` are ids of members that another process is changing, and of members for
        which an unfinished run waited.
        """
        refusals: dict[str, EraseRefusal] = {}
        unfinished = [member.id for member in self.members.values() if member.is_unfinished]
        for ids, refusal in (
            (busy, EraseRefusal.BUSY),
            (unfinished_waiters, EraseRefusal.AWAITED),
            (unfinished, EraseRefusal.UNFINISHED),
        ):
            for run_id in ids:
                refusals.update(dict.fromkeys(self._roots[run_id], refusal))
        chosen = [member for id, member in self.members.items() if self._roots[id] - refusals.keys()]
        return [member for member in chosen if not member.is_erased], refusals


def make_audit_events(run_ids: Iterable[str], actor: str, now: float) -> list[AuditEvent]:
    """The entries of the audit log for runs that were erased."""
    return [AuditEvent(now, "", actor, AUDIT_ACTION, run_id, "allowed", "") for run_id in run_ids]


def is_erased(run: Run) -> bool:
    """Whether a run was erased."""
    return run.inputs == ERASED


class Erasure(ABC):
    """Erasing what runs have recorded."""

    @abstractmethod
    async def erase(self, request: EraseRequest) -> EraseResult:
        """Erase runs, in one transaction, with an entry in the audit log for each.

        Runs that do not exist are left out.
        """

    @abstractmethod
    async def scrub(self) -> None:
        """Remove from the files what was erased, deleted, or replaced before, as far as this store can.

        Raises ``StoreUnavailable`` if a reader kept it from that for too long; it can be repeated.
        """
