"""What the death of a worker does to the runs it held.

When a worker dies that held several runs, it is unknown which of them killed it, so the death counts against none of
them. It raises the *suspicion* of each run that has recorded nothing since. After the first death the runs are claimed
at once and together, as if nothing had happened: most deaths are deploys and failing machines. After the next death
they are *isolated*: a claim takes only a group of the most suspicious runs, then a smaller group, and finally one run
alone (``get_group_size``). A death counts only if the worker held a single run, and ``max_deliveries`` of these make
the run ``dead``. The store knows from its rows how many runs a worker held, whatever the worker intended. A record, a
park, or a retry resets the suspicion to 0. So the harmless runs leave the groups one by one, and the run that kills
its workers remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

MIN_ISOLATED_SUSPICION = 2
"""A run with this suspicion or more is isolated."""
MIN_SOLO_SUSPICION = 4
"""A run with this suspicion or more is claimed alone."""
_GROUP_SIZES = {2: 50, 3: 10}
ISOLATED_WAIT_LEASES = 3
"""Leases for which a worker that holds other runs leaves isolated runs to workers that hold none."""
_MIN_ISOLATION_LEASES = 6
_MAX_DOUBLINGS = 6
"""With a lease of 10 seconds, this limits isolation to about an hour."""


class WorkerDeathEffect(NamedTuple):
    """The state of a run after the death of its worker."""

    delivery_count: int
    suspicion: int
    is_dead: bool = False


class _Suspect(Protocol):
    @property
    def key(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def suspicion(self) -> int: ...


SuspectT = TypeVar("SuspectT", bound=_Suspect)


def can_redeliver(delivery_count: int, max_deliveries: int) -> bool:
    """Whether a run may be claimed again after one more failed delivery."""
    return delivery_count + 1 < max_deliveries


def is_isolated(suspicion: int) -> bool:
    """Whether a run is claimed apart from runs that are not suspected."""
    return suspicion >= MIN_ISOLATED_SUSPICION


def get_group_size(suspicion: int) -> int:
    """How many isolated runs a worker may claim together."""
    return _GROUP_SIZES.get(suspicion, 1)


def get_isolation_leases(suspicion: int) -> int:
    """Leases for which a worker claims nothing else while an isolated run has recorded nothing."""
    return _MIN_ISOLATION_LEASES * 2 ** min(_MAX_DOUBLINGS, max(0, suspicion - MIN_SOLO_SUSPICION))


def raise_suspicion(suspicion: int, claimed_count: int) -> int:
    """The new suspicion of a run whose worker died while it held ``claimed_count`` runs, including this one.

    A group that is not much smaller than what the worker held would narrow nothing down, so it is skipped.
    """
    raised = suspicion + 1
    while is_isolated(raised) and get_group_size(raised) > 1 and 2 * get_group_size(raised) > claimed_count:
        raised += 1
    return raised


def get_worker_death_effect(
    delivery_count: int, max_deliveries: int, suspicion: int, claimed_count: int
) -> WorkerDeathEffect:
    """The effect on one run of the death of its worker, which held ``claimed_count`` runs."""
    raised = raise_suspicion(suspicion, claimed_count)
    if claimed_count > 1:
        return WorkerDeathEffect(delivery_count, raised)
    return WorkerDeathEffect(delivery_count + 1, raised, not can_redeliver(delivery_count, max_deliveries))


def _get_suspect_sort_key(run: _Suspect) -> tuple[int, int, int]:
    order = (-run.priority, run.key)
    return (-run.suspicion, *order) if run.suspicion % 2 == 0 else (-run.suspicion, -order[0], -order[1])


def choose_suspects(due: Iterable[SuspectT], limit: int, take_slot: Callable[[SuspectT], bool]) -> list[SuspectT]:
    """The isolated runs that a claim takes: a group with the highest suspicion among the due runs.

    ``take_slot`` takes a slot for a run in its queue, if there is one. Every other level of suspicion reverses the
    order. Of runs that a worker tried one after another until it died, the last one most likely killed it. If it came
    last again, after a run in a very long step, it would never be tried alone.
    """
    chosen: list[SuspectT] = []
    for run in sorted(due, key=_get_suspect_sort_key):
        first = chosen[0].suspicion if chosen else run.suspicion
        if run.suspicion != first or len(chosen) == min(limit, get_group_size(first)):
            break
        if take_slot(run):
            chosen.append(run)
    return chosen
