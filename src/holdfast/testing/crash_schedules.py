"""Crash schedules: which crashes ``crash_everywhere`` combines in one run of a workflow.

Every point is tried. If there are few, each is tried *alone*: one run, one crash, and the run continues to its end. The
cost of that grows with the square of the number of steps, so in a long run most points are tried in a *series*: one run
whose process crashes at many points, one after the other, each time to be taken over by a new process. A series of 50
crashes costs 50 replays, but executes the steps once instead of 50 times.

What a point shows alone, it also shows in a series, because every process of a run must do the same as the one before
it and end with the same result, with one exception: another crash of the same series may hide it, if it undoes in the
outside world what the first one did. Therefore:

- The number of crashes in a series is about the square root of the number of points. They are spread over the run: one
  at random from each section. The random numbers are always the same, so every check of a run tries the same schedules.
- A sample of the points is tried alone instead: for each kind of event, step name, and phase the first and the last,
  and then evenly.
- A crash in a ``once`` step leaves its outcome unknown, and the run may take another path. These points are always
  tried alone.

No point is left out as equivalent to another one. After the record of a step and before the next step begins, the store
has the same contents, but the process that dies has done something else, and may have left it in a global variable.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from math import isqrt
from typing import NamedTuple

from holdfast.core.states import Effect
from holdfast.testing.crash_points import EXECUTED_KINDS, CrashPoint, RunEvent
from holdfast.testing.simulated_process import RunTrace

Schedule = tuple[CrashPoint, ...]

MAX_POINTS_ALONE = 200
"""Up to this number of points, each is tried alone. A run of 50 steps has about 150."""
MIN_SAMPLE = 25
SAMPLE_EVENTS = 20_000
"""In a longer run, the points alone and the pairs are samples, each of about this many events in total."""


class LocatedPoint(NamedTuple):
    """A crash point, with what its schedule depends on."""

    point: CrashPoint
    place: tuple[str, ...]
    """The points of one place, such as before step ``charge`` of a workflow, are likely to show the same."""
    must_be_alone: bool


class CrashPlan(NamedTuple):
    """All schedules of a check except the pairs."""

    alone: list[Schedule]
    """One crash each, in the order of events."""
    series: list[Schedule]
    """Many crashes each."""


def list_crash_points(event_log: Iterable[tuple[RunTrace, RunEvent]]) -> list[LocatedPoint]:
    """Every point where the process of these runs could have crashed, in the order of events."""
    points: list[LocatedPoint] = []
    for trace, event in event_log:
        run_id = trace.run_id if trace.parent else ""
        if event.kind in EXECUTED_KINDS:
            # The beginning of a step is not an event of its own; its place in the order does not matter.
            phases = ("before", "during", "after")
        elif event.kind == "intent":
            phases = ("before",)
        elif event.kind == "start" and run_id:
            # The point before its start is already among the events of the run that starts it.
            phases = ("after",)
        else:
            phases = ("before", "after")
        step = trace.steps.get(event.number - 1) if event.kind in ("step", "compensation") else None
        is_once = step is not None and step.effect is Effect.ONCE
        for phase in phases:
            point = CrashPoint.from_event(phase, event, run_id)
            place = (trace.workflow, event.kind, event.name, phase)
            points.append(LocatedPoint(point, place, is_once and phase != "after"))
    return points


def make_crash_plan(points: Sequence[LocatedPoint]) -> CrashPlan:
    """Schedules that contain every point once."""
    if len(points) <= MAX_POINTS_ALONE:
        return CrashPlan([(located.point,) for located in points], [])
    chosen = _choose_alone(points)
    alone = [(located.point,) for at, located in enumerate(points) if at in chosen]
    return CrashPlan(alone, _make_series([located.point for at, located in enumerate(points) if at not in chosen]))


def get_sample_size(point_count: int) -> int:
    """How many schedules of a kind are tried if not all are."""
    return max(MIN_SAMPLE, SAMPLE_EVENTS // max(1, point_count))


def _choose_alone(points: Sequence[LocatedPoint]) -> set[int]:
    """The indexes of the points that are tried alone."""
    first: dict[tuple[str, ...], int] = {}
    last: dict[tuple[str, ...], int] = {}
    for at, located in enumerate(points):
        first.setdefault(located.place, at)
        last[located.place] = at
    size = get_sample_size(len(points))
    chosen = set(_sample_evenly(sorted({*first.values(), *last.values()}), size))
    chosen.update(_sample_evenly([at for at in range(len(points)) if at not in chosen], size - len(chosen)))
    return chosen | {at for at, located in enumerate(points) if located.must_be_alone}


def _sample_evenly(indexes: Sequence[int], size: int) -> Sequence[int]:
    if size <= 0 or len(indexes) <= size:
        return indexes[: max(0, size)]
    return [indexes[at * len(indexes) // size] for at in range(size)]


def _make_series(points: Sequence[CrashPoint]) -> list[Schedule]:
    """Divide the run into sections, and take one point of each for a series."""
    series_count = isqrt(max(0, len(points) - 1)) + 1
    sections = [list(points[at : at + series_count]) for at in range(0, len(points), series_count)]
    rng = random.Random(0)
    for section in sections:
        rng.shuffle(section)
    series = [tuple(section[at] for section in sections if at < len(section)) for at in range(series_count)]
    return [schedule for schedule in series if schedule]


def choose_pairs(points: Sequence[CrashPoint], max_pairs: int) -> list[Schedule]:
    """Pairs of crashes: first the same point twice and neighboring points, then an even sample of all others."""
    # A record is written once, so a process cannot crash twice after the same one.
    first = [(point, point) for point in points if point.phase != "after"] + list(pairwise(points))
    chosen = first[:: max(1, len(first) // max(1, max_pairs))][:max_pairs]
    missing_count = max_pairs - len(chosen)
    if missing_count > 0:
        others = ((point, points[at]) for i, point in enumerate(points) for at in range(i + 2, len(points)))
        others_count = (len(points) - 1) * (len(points) - 2) // 2
        step = max(1, others_count // missing_count)
        chosen += islice(others, 0, step * missing_count, step)
    return list(chosen)


def format_schedule(points: Iterable[CrashPoint]) -> str:
    """The schedule as ``crash_points.parse_schedule`` reads it."""
    return "; ".join(map(str, points))
