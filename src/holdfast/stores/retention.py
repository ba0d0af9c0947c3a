"""Deleting runs that have ended, when they are no longer needed.

A run is never deleted alone, but with its **group**: its run tree, all the way up and down; and, for an agent, its
whole conversation (the runs of a session, and runs that continue one of them). A group is deleted or stays as a whole,
because its members need each other: the usage of a run is added to the runs above it, a retry of a run continues from
the ends of its children, and the next run of a session sees the whole conversation. So a group stays as long as one of
its members has not ended, or ended too recently.

It also stays when something else needs one of its members: an unfinished run that waits for its end or has received it,
or a script that was killed before it had the result and may start again (see ``StartRun.join_orphan``). A fork needs
nothing of its origin: it has its own copy of the beginning of the journal.

The filters of a request (workflow, states, and ``keep_newest``) apply to the *tops* of a group: the members that no
other member started. A member below a top must only be in one of the requested states, unless its parent awaited it.

**Keys are never used again**, so that a worker that was declared dead long ago cannot write into another run. A run's
row, and everything by which others could find it, is deleted in the transaction that decides. The rest (records and
other data under its key) is *swept* afterwards, in pieces, by any later sweep. Requests for a deleted run are answered
as if it had never existed; a start under its id starts a new run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.states import RunState

DEFAULT_STATES = frozenset({RunState.COMPLETED, RunState.CANCELLED})
"""The states in which runs are deleted by default: those that need no attention."""


class KeepReason(StrEnum):
    """Why a run that matches is kept, as text for people."""

    UNFINISHED = "a related run, or one of its session, has not ended"
    RECENT = "a related run, or one of its session, ended too recently"
    AWAITED = "an unfinished run waits for its result, or has just received it"
    UNCLAIMED_RESULT = "its result was never read: the process that started it was killed"
    NOT_SELECTED = "it is related to a run that is kept because of its state or workflow"
    NEWEST = "it is among the newest runs of its workflow"
    BUSY = "another process is changing it"
    UNREADABLE = "its row, or the row of a related run, cannot be read"


@dataclass(slots=True)
class PruneProgress:
    """What pruning has found out so far, so that no later call repeats the work."""

    max_key: int = 0
    """The highest key to consider, once known: all runs with higher keys are too young."""
    min_kept_keys: Mapping[str, int] | None = None
    """The lowest key to keep of each workflow, once known."""
    decisions: dict[int, tuple[str, KeepReason | None]] = field(
        default_factory=dict[int, "tuple[str, KeepReason | None]"]
    )
    """The ids of members of groups in earlier calls, by key, and why they stay; ``None``: they would be deleted.

    A group is the same whichever of its members leads to it, and many calls meet a large one.
    """

    def add_decision(self, group: PruneGroup, reason: KeepReason | None) -> None:
        """Remember the decision about a group."""
        if len(group.members) > 1:
            self.decisions.update({member.key: (member.id, reason) for member in group.members})

    def split_decided(self, keys: Collection[int]) -> tuple[list[int], dict[str, KeepReason]]:
        """The runs without a decision; and of the others, those that stay."""
        undecided = [key for key in keys if key not in self.decisions]
        known = [self.decisions[key] for key in keys if key in self.decisions]
        return undecided, {run_id: reason for run_id, reason in known if reason is not None}


class PruneCursor(NamedTuple):
    """A position in the runs to prune: by workflow, then state, then key."""

    workflow: str = ""
    state: str = ""
    key: int = 0
    progress: PruneProgress | None = None
    """Passed on from call to call."""


PRUNE_START = PruneCursor()


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """Which runs to delete; every field that is set must match."""

    finished_before: float
    """They ended before this time."""
    states: frozenset[RunState] = DEFAULT_STATES
    """Final states."""
    workflow: str | None = None
    keep_newest: int = 0
    """How many of the newest runs in these states to keep for each workflow."""
    include_unclaimed: bool = False
    """Also runs whose result no caller has received."""
    run_ids: tuple[str, ...] | None = None
    """Only these runs."""
    dry_run: bool = False
    """Delete nothing, only report."""


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The result of one call."""

    run_ids: tuple[str, ...] = ()
    """The ids of deleted runs, with the rest of their groups."""
    keep_reasons: Mapping[str, KeepReason] = field(default_factory=dict[str, KeepReason])
    """The runs that match and are kept, by id."""
    record_count: int = 0
    """In a dry run: the number of records that would be deleted."""
    size_bytes: int = 0
    """In a dry run: the bytes of their recorded values, without blobs."""
    cursor: PruneCursor | None = None
    """Where to continue; ``None``: done."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep deleted."""

    record_count: int = 0
    blob_count: int = 0
    size_bytes: int = 0
    """The stored bytes of recorded values."""
    is_done: bool = True
    """Nothing is left."""


class GroupMember(NamedTuple):
    """The fields of a run that matter for pruning."""

    key: int
    id: str
    workflow: str
    state: str
    finished_at: float | None
    parent: str
    session: str
    previous_run: str
    has_unclaimed_result: int
    """1: its id was generated, and no caller has received its result."""


class RelationReader(ABC):
    """Reads the relations between a store's runs."""

    @abstractmethod
    def read_members(self, keys: Collection[int]) -> Iterable[GroupMember | int]:
        """These runs; only the key of a run that cannot be read. Runs that no longer exist are left out."""

    @abstractmethod
    def read_neighbors(self, runs: Sequence[GroupMember]) -> Iterable[tuple[int, int]]:
        """Pairs of keys: each of these runs, with its direct neighbors in its group."""

    @abstractmethod
    def find_awaited(self, keys: Collection[int]) -> Collection[int]:
        """The keys of runs to which an unfinished run has a link."""

    @abstractmethod
    def read_links(self, keys: Collection[int]) -> Collection[tuple[int, int]]:
        """Links from these runs: the keys of the waiting and of the awaited run."""


class PruneGroup(NamedTuple):
    """Runs that are deleted or stay together."""

    members: tuple[GroupMember, ...]
    """Ordered by key, so a run comes before its children."""
    is_readable: bool = True

    @property
    def keys(self) -> list[int]:
        """Their keys."""
        return [member.key for member in self.members]


def _find_groups(relations: RelationReader, keys: Iterable[int]) -> list[PruneGroup]:
    """The groups of these runs, each once."""
    known: dict[int, GroupMember | None] = {}
    roots: dict[int, int] = {}

    def find_root(key: int) -> int:
        while roots.setdefault(key, key) != key:
            roots[key] = roots[roots[key]]
            key = roots[key]
        return key

    new = set(keys)
    while new:
        members = list(relations.read_members(new))
        readable = [member for member in members if not isinstance(member, int)]
        known.update({member: None for member in members if isinstance(member, int)})
        known.update({member.key: member for member in readable})
        pairs = list(relations.read_neighbors(readable))
        for key, other in pairs:
            roots[find_root(max(key, other))] = find_root(min(key, other))
        new = {key for pair in pairs for key in pair} - known.keys()
    by_root: dict[int, list[GroupMember | None]] = {}
    for key in sorted(known):
        by_root.setdefault(find_root(key), []).append(known[key])
    return [
        PruneGroup(tuple(member for member in members if member is not None), None not in members)
        for members in by_root.values()
    ]


def _find_keep_reason(
    group: PruneGroup,
    request: PruneRequest,
    min_kept_keys: Mapping[str, int],
    awaited: Collection[int],
    links: Collection[tuple[int, int]],
) -> KeepReason | None:
    """Why a group stays; ``None``: it is deleted. ``min_kept_keys`` has the lowest key to keep of each workflow."""
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
        parent = by_id.get(member.parent) if member.parent else None
        if parent is not None and parent.key < member.key:
            if member.state in request.states or (parent.key, member.key) in links:
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
    """The groups of these runs: those to delete, and those that stay, with the reason."""
    groups = _find_groups(relations, keys)
    members = [key for group in groups for key in group.keys]
    awaited, links = relations.find_awaited(members), relations.read_links(members)
    deleted: list[PruneGroup] = []
    kept: list[tuple[PruneGroup, KeepReason]] = []
    for group in groups:
        reason = _find_keep_reason(group, request, min_kept_keys, awaited, links)
        if reason is None:
            deleted.append(group)
        else:
            kept.append((group, reason))
    return deleted, kept


def get_keep_reasons(
    kept: Sequence[tuple[PruneGroup, KeepReason]], matched_keys: Collection[int]
) -> dict[str, KeepReason]:
    """Why the matched runs of these groups stay, by id."""
    return {member.id: reason for group, reason in kept for member in group.members if member.key in matched_keys}


def list_ids(groups: Sequence[PruneGroup]) -> tuple[str, ...]:
    """The ids of all runs of these groups."""
    return tuple(member.id for group in groups for member in group.members)


class Retention(ABC):
    """Deleting runs that have ended."""

    @abstractmethod
    async def prune(self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100) -> PruneResult:
        """Delete the next ``limit`` runs that match, with their groups, or report why they are kept.

        Each call is short, in a transaction of its own. Continue with the ``cursor`` of the result. ``sweep`` deletes
        the data that they leave.
        """

    @abstractmethod
    async def sweep(self, limit: int = 2000) -> SweepResult:
        """Delete the data that deleted runs have left: about ``limit`` records, in a transaction of its own.

        Also deletes rows of workers that are no longer live, have started no unfinished run, and whose lease ended
        before the oldest run (for listeners: the oldest run by delivery) was created, so no run refers to them.
        """
