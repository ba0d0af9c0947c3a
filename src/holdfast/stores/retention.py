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
is kept under its key) is *swept* away afterwards, in pieces, by whoever comes next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.states import RunState

USUALLY = frozenset({RunState.COMPLETED, RunState.CANCELLED})
"""The states in which runs are deleted unless others are named: those that need nobody's attention."""


class Why(StrEnum):
    """Why a run that was to be deleted is kept, in words."""

    UNFINISHED = "a run of its family or conversation has not ended"
    RECENT = "a run of its family or conversation has ended since"
    AWAITED = "an unfinished run waits for it, or has been told of its end"
    UNCLAIMED = "nobody has had its result: the process that started it was killed before"
    ELSEWHERE = "it belongs to a run that is not to be deleted, by its state or workflow"
    NEWEST = "it is one of the newest of its workflow"
    BUSY = "somebody is changing it just now"
    UNREADABLE = "its row, or that of a relative, cannot be read"


@dataclass(slots=True)
class Findings:
    """What pruning has found out on its way, so that no piece of the work does it again."""

    last: int = 0
    """The highest key that matters, once that is known: all runs behind it are too young."""
    newest: Mapping[str, int] | None = None
    """The lowest key that is kept of each workflow, once that is known."""
    decided: dict[int, tuple[str, Why | None]] = field(default_factory=dict[int, "tuple[str, Why | None]"])
    """By their keys, the ids of relatives of runs in earlier pieces, and why they stay; ``None``: they would go.

    A family is the same whichever of its members leads to it, and a large one is met in many pieces.
    """

    def note(self, family: Family, why: Why | None) -> None:
        """Remember what was decided about a family."""
        if len(family.members) > 1:
            self.decided.update({member.key: (member.id, why) for member in family.members})

    def split(self, keys: Iterable[int]) -> tuple[list[int], dict[str, Why]]:
        """The runs about which nothing is decided yet; of the others, those that stay."""
        new = [key for key in keys if key not in self.decided]
        known = [self.decided[key] for key in keys if key in self.decided]
        return new, {run_id: why for run_id, why in known if why is not None}


class Place(NamedTuple):
    """How far one has come: through the workflows, the states of each, and the keys of each of those."""

    workflow: str = ""
    state: str = ""
    key: int = 0
    findings: Findings | None = None
    """Handed on from piece to piece."""


START = Place()


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which runs are to be deleted; every field that is given must match."""

    before: float
    """They have ended before this time."""
    states: frozenset[RunState] = USUALLY
    """Ended ones."""
    workflow: str | None = None
    keep: int = 0
    """Not the newest so many of each workflow that are in one of the states."""
    unclaimed: bool = False
    """Also those whose result nobody has had."""
    run_ids: tuple[str, ...] | None = None
    """Only these."""
    dry_run: bool = False
    """Delete nothing, only tell."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of a piece of the work."""

    runs: tuple[str, ...] = ()
    """The ids of those that are deleted, with their families."""
    kept: Mapping[str, Why] = field(default_factory=dict[str, Why])
    """Those that were to be deleted, by id, and are kept."""
    records: int = 0
    """In a dry run: how many records would be deleted."""
    size: int = 0
    """In a dry run: the bytes of their recorded values, without those that are kept apart."""
    place: Place | None = None
    """Where to go on; ``None``: there is nothing more."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What was swept away of runs that are deleted."""

    records: int = 0
    blobs: int = 0
    size: int = 0
    """The bytes of recorded values, as they were kept."""
    is_done: bool = True
    """Nothing is left."""


class Kin(NamedTuple):
    """What matters of a run."""

    key: int
    id: str
    workflow: str
    state: str
    finished_at: float | None
    parent: str
    session: str
    previous: str
    unclaimed: int
    """1: it has a made-up id, and nobody has had its result."""


class Kinship(ABC):
    """Who is related to whom in a store."""

    @abstractmethod
    def read(self, keys: Collection[int]) -> Iterable[Kin | int]:
        """What is known of these runs; the key of one that cannot be read. Those that are gone are left out."""

    @abstractmethod
    def relatives(self, runs: Sequence[Kin]) -> Iterable[tuple[int, int]]:
        """Pairs of keys: each of these runs, with the ones that are next to it in its family."""

    @abstractmethod
    def awaited(self, keys: Collection[int]) -> Collection[int]:
        """Those to which an unfinished run has a link."""

    @abstractmethod
    def waited_for(self, keys: Collection[int]) -> Collection[tuple[int, int]]:
        """Links from these runs: who waits, and for whom, by their keys."""


class Family(NamedTuple):
    """Runs that go together, or stay together."""

    members: tuple[Kin, ...]
    """In the order of their keys: so a run comes before those that it has started."""
    is_readable: bool = True

    @property
    def keys(self) -> list[int]:
        """Their keys."""
        return [member.key for member in self.members]


def families(kinship: Kinship, keys: Iterable[int]) -> list[Family]:
    """The families of these runs, each once."""
    known: dict[int, Kin | None] = {}
    roots: dict[int, int] = {}

    def root(key: int) -> int:
        while roots.setdefault(key, key) != key:
            roots[key] = roots[roots[key]]
            key = roots[key]
        return key

    new = set(keys)
    while new:
        found: list[Kin] = []
        for one in kinship.read(new):
            if isinstance(one, int):
                known[one] = None
            else:
                known[one.key] = one
                found.append(one)
        pairs = list(kinship.relatives(found))
        for one, other in pairs:
            roots[root(max(one, other))] = root(min(one, other))
        new = {key for pair in pairs for key in pair} - known.keys()
    together: dict[int, list[int]] = {}
    for key in sorted(known):
        together.setdefault(root(key), []).append(key)
    made: list[Family] = []
    for group in together.values():
        members = [known[key] for key in group]
        readable = tuple(member for member in members if member is not None)
        made.append(Family(readable, len(readable) == len(members)))
    return made


def why_kept(
    family: Family,
    what: Pruning,
    newest: Mapping[str, int],
    awaited: Collection[int],
    waited_for: Collection[tuple[int, int]],
) -> Why | None:
    """Why a family stays; ``None``: it goes. ``newest`` has the lowest key that is kept of each workflow."""
    if not family.is_readable:
        return Why.UNREADABLE
    by_id = {member.id: member for member in family.members}
    for member in family.members:
        if member.finished_at is None:
            return Why.UNFINISHED
        if member.finished_at >= what.before:
            return Why.RECENT
        if member.key in awaited:
            return Why.AWAITED
        if member.unclaimed == 1 and not what.unclaimed:
            return Why.UNCLAIMED
        above = by_id.get(member.parent) if member.parent else None
        if above is not None and above.key < member.key:
            if member.state in what.states or (above.key, member.key) in waited_for:
                continue
            return Why.ELSEWHERE
        if member.state not in what.states or what.workflow not in (None, member.workflow):
            return Why.ELSEWHERE
        if member.key >= newest.get(member.workflow, member.key + 1):
            return Why.NEWEST
    return None
