"""Deleting runs that have ended: which of them nobody needs any more.

A run is never deleted alone, but with its **family**: the run that started it and the runs that it started, all the way
up and down; and, of an agent, with its whole conversation (the runs of a session, and those that continue one of them).
A family goes as a whole or stays as a whole, because its members need each other: what a run has used is added to those
above it, a retry of a run goes on from the ends of those that it had started, and the next run of a session is told
all that was said in it. So a family stays as long as one of its members has not ended, or has ended too short a time
ago.

It also stays when somebody else needs one of them: an unfinished run that waits for its end or has been told of it, or
whoever starts a script again that was killed before it had the result (see ``StartRun.join_orphan``). A fork needs
nothing of its origin: the beginning of the journal is its own.

What is wanted of a family (its workflow, and the states in which runs are deleted) is asked of its *tops*, the members
that no other member has started; and of those below that nobody waited for. One that was waited for goes with the run
that did so: its end was taken note of there.

**Keys are never used again**, so that a worker that was declared dead long ago cannot write into another run. A run's
row, and all by which others could find it, is deleted in the transaction that decides; the rest (records and what else
is kept under its key) is *swept* away afterwards, in pieces, by whoever comes next. Requests for a deleted run are
answered as if it had never existed; a start under its id starts a new run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.states import RunState

DEFAULT_STATES = frozenset({RunState.COMPLETED, RunState.CANCELLED})
"""The states in which runs are deleted unless others are named: those that need nobody's attention."""


class KeepReason(StrEnum):
    """Why a run that was to be deleted is kept, in words."""

    UNFINISHED = "a run of its family or conversation has not ended"
    RECENT = "a run of its family or conversation has ended since"
    AWAITED = "an unfinished run waits for it, or has been told of its end"
    UNCLAIMED_RESULT = "nobody has had its result: the process that started it was killed before"
    NOT_SELECTED = "it belongs to a run that is not to be deleted, by its state or workflow"
    NEWEST = "it is one of the newest of its workflow"
    BUSY = "somebody is changing it just now"
    UNREADABLE = "its row, or that of a relative, cannot be read"


@dataclass(slots=True)
class PruneProgress:
    """What pruning has found out on its way, so that no piece of the work does it again."""

    max_key: int = 0
    """The highest key that matters, once that is known: all runs behind it are too young."""
    min_kept_keys: Mapping[str, int] | None = None
    """The lowest key that is kept of each workflow, once that is known."""
    decisions: dict[int, tuple[str, KeepReason | None]] = field(
        default_factory=dict[int, "tuple[str, KeepReason | None]"]
    )
    """By their keys, the ids of relatives of runs in earlier pieces, and why they stay; ``None``: they would go.

    A family is the same whichever of its members leads to it, and a large one is met in many pieces.
    """

    def add_decision(self, group: PruneGroup, reason: KeepReason | None) -> None:
        """Remember what was decided about a family."""
        if len(group.members) > 1:
            self.decisions.update({member.key: (member.id, reason) for member in group.members})

    def split_decided(self, keys: Iterable[int]) -> tuple[list[int], dict[str, KeepReason]]:
        """The runs about which nothing is decided yet; of the others, those that stay."""
        new = [key for key in keys if key not in self.decisions]
        known = [self.decisions[key] for key in keys if key in self.decisions]
        return new, {run_id: why for run_id, why in known if why is not None}


class PruneCursor(NamedTuple):
    """How far one has come: through the workflows, the states of each, and the keys of each of those."""

    workflow: str = ""
    state: str = ""
    key: int = 0
    progress: PruneProgress | None = None
    """Handed on from piece to piece."""


PRUNE_START = PruneCursor()


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """Which runs are to be deleted; every field that is given must match."""

    finished_before: float
    """They have ended before this time."""
    states: frozenset[RunState] = DEFAULT_STATES
    """Ended ones."""
    workflow: str | None = None
    keep_newest: int = 0
    """Not the newest so many of each workflow that are in one of the states."""
    include_unclaimed: bool = False
    """Also those whose result nobody has had."""
    run_ids: tuple[str, ...] | None = None
    """Only these."""
    dry_run: bool = False
    """Delete nothing, only tell."""


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What became of a piece of the work."""

    run_ids: tuple[str, ...] = ()
    """The ids of those that are deleted, with their families."""
    keep_reasons: Mapping[str, KeepReason] = field(default_factory=dict[str, KeepReason])
    """Those that were to be deleted, by id, and are kept."""
    record_count: int = 0
    """In a dry run: how many records would be deleted."""
    size_bytes: int = 0
    """In a dry run: the bytes of their recorded values, without those that are kept apart."""
    cursor: PruneCursor | None = None
    """Where to go on; ``None``: there is nothing more."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What was swept away of runs that are deleted."""

    record_count: int = 0
    blob_count: int = 0
    size_bytes: int = 0
    """The bytes of recorded values, as they were kept."""
    is_done: bool = True
    """Nothing is left."""


class GroupMember(NamedTuple):
    """What matters of a run."""

    key: int
    id: str
    workflow: str
    state: str
    finished_at: float | None
    parent: str
    session: str
    previous_run: str
    has_unclaimed_result: int
    """1: it has a made-up id, and nobody has had its result."""


class RelationReader(ABC):
    """Who is related to whom in a store."""

    @abstractmethod
    def read_members(self, keys: Collection[int]) -> Iterable[GroupMember | int]:
        """What is known of these runs; the key of one that cannot be read. Those that are gone are left out."""

    @abstractmethod
    def read_neighbors(self, runs: Sequence[GroupMember]) -> Iterable[tuple[int, int]]:
        """Pairs of keys: each of these runs, with the ones that are next to it in its family."""

    @abstractmethod
    def find_awaited(self, keys: Collection[int]) -> Collection[int]:
        """Those to which an unfinished run has a link."""

    @abstractmethod
    def read_links(self, keys: Collection[int]) -> Collection[tuple[int, int]]:
        """Links from these runs: who waits, and for whom, by their keys."""


class PruneGroup(NamedTuple):
    """Runs that go together, or stay together."""

    members: tuple[GroupMember, ...]
    """In the order of their keys: so a run comes before those that it has started."""
    is_readable: bool = True

    @property
    def keys(self) -> list[int]:
        """Their keys."""
        return [member.key for member in self.members]


def _find_groups(relations: RelationReader, keys: Iterable[int]) -> list[PruneGroup]:
    """The families of these runs, each once."""
    known: dict[int, GroupMember | None] = {}
    roots: dict[int, int] = {}

    def root(key: int) -> int:
        while roots.setdefault(key, key) != key:
            roots[key] = roots[roots[key]]
            key = roots[key]
        return key

    new = set(keys)
    while new:
        found: list[GroupMember] = []
        for one in relations.read_members(new):
            if isinstance(one, int):
                known[one] = None
            else:
                known[one.key] = one
                found.append(one)
        pairs = list(relations.read_neighbors(found))
        for one, other in pairs:
            roots[root(max(one, other))] = root(min(one, other))
        new = {key for pair in pairs for key in pair} - known.keys()
    together: dict[int, list[int]] = {}
    for key in sorted(known):
        together.setdefault(root(key), []).append(key)
    made: list[PruneGroup] = []
    for group in together.values():
        members = [known[key] for key in group]
        readable = tuple(member for member in members if member is not None)
        made.append(PruneGroup(readable, len(readable) == len(members)))
    return made


def _find_keep_reason(
    group: PruneGroup,
    request: PruneRequest,
    min_kept_keys: Mapping[str, int],
    awaited: Collection[int],
    links: Collection[tuple[int, int]],
) -> KeepReason | None:
    """Why a family stays; ``None``: it goes. ``min_kept_keys`` has the lowest key that is kept of each workflow."""
    if not group.is_readable:
        return KeepReason.UNREADABLE
    by_id = {member.id: member for member in group.members}
    for member in group.members:
        if member.finished_at is None:
            return KeepReason.UNFINISHED
        if member.finished_at >= request.finished_before:
            return KeepReason.RECENT
        if member.key in awaited:
            return KeepReason.AWAITED
        if member.has_unclaimed_result == 1 and not request.include_unclaimed:
            return KeepReason.UNCLAIMED_RESULT
        above = by_id.get(member.parent) if member.parent else None
        if above is not None and above.key < member.key:
            if member.state in request.states or (above.key, member.key) in links:
                continue
            return KeepReason.NOT_SELECTED
        if member.state not in request.states or request.workflow not in (None, member.workflow):
            return KeepReason.NOT_SELECTED
        if member.key >= min_kept_keys.get(member.workflow, member.key + 1):
            return KeepReason.NEWEST
    return None


def decide_groups(
    relations: RelationReader, keys: Sequence[int], request: PruneRequest, min_kept_keys: Mapping[str, int]
) -> tuple[list[PruneGroup], list[tuple[PruneGroup, KeepReason]]]:
    """The families of these runs: those that go, and why each of the others stays."""
    groups = _find_groups(relations, keys)
    members = [key for family in groups for key in family.keys]
    awaited, links = relations.find_awaited(members), relations.read_links(members)
    going: list[PruneGroup] = []
    kept: list[tuple[PruneGroup, KeepReason]] = []
    for family in groups:
        why = _find_keep_reason(family, request, min_kept_keys, awaited, links)
        if why is None:
            going.append(family)
        else:
            kept.append((family, why))
    return going, kept


def get_keep_reasons(
    kept: Sequence[tuple[PruneGroup, KeepReason]], matched_keys: Collection[int]
) -> dict[str, KeepReason]:
    """Why runs of these families stay that led to them, by their ids."""
    return {member.id: why for family, why in kept for member in family.members if member.key in matched_keys}


def list_ids(groups: Sequence[PruneGroup]) -> tuple[str, ...]:
    """The ids of all runs of these families."""
    return tuple(member.id for family in groups for member in family.members)


class Retention(ABC):
    """Deleting runs that have ended."""

    @abstractmethod
    async def prune(self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100) -> PruneResult:
        """Delete the next ``limit`` runs that match, with their families, or tell why they are kept: see ``retention``.

        A short piece of work, in a transaction of its own. Continue with the ``cursor`` of the result. ``sweep``
        deletes what they leave.
        """

    @abstractmethod
    async def sweep(self, limit: int = 2000) -> SweepResult:
        """Delete what runs that were deleted have left: about ``limit`` records, in a transaction of its own.

        Also the rows of workers that are not live any more and that no run can name, because they were gone before the
        oldest one was created; of workers by lease, the oldest run by delivery.
        """
