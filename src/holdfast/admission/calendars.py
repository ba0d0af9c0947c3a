"""When a schedule fires. Pure: the time is an argument, and nothing here has state.

A ``Timing`` is a set of moments, its *ticks*: whole seconds since the epoch. The set follows from the timing alone: all
workers see the same ticks, wherever they begin, and however long they have been running. So a tick has a name
(``make_tick_id``), which is the id of the run that it starts. An id belongs to one run only, so a tick fires once,
however many workers see that it is due.

A ``Cron`` follows the wall clock of its time zone (default: UTC). It never uses the machine's own zone, because the
machines of a fleet may have different ones. The expressions are those of Debian's cron, as the library ``cronsim``
reads them, with ``L`` (last day), ``LW`` (last working day), ``5L`` (last Friday), ``MON#1`` (first Monday), and
seconds as an optional first field. As in cron, a day matches if *either* day field does, unless one of them begins with
a star: then both must.

When the wall clock changes for daylight saving time, a timing does what cron does:

- A timing at fixed times has no star at the beginning of its second, minute, and hour fields (``30 2 * * *``). If the
  clock skips an hour, the ticks of that hour fire together at the first moment after it (03:00). If an hour comes
  twice, they fire only the first time.
- A timing with a star there (``*/15 * * * *``, ``0 */2 * * *``) follows the clock: skipped times do not fire, and
  repeated times fire twice. So the ticks of ``*/15 * * * *`` are always a quarter of an hour apart.

This module gives ``cronsim`` only times without a zone, and derives the ticks from its answers. ``cronsim`` knows
zones, but on the day of a change it may skip ticks depending on where it begins (in Lord Howe, where clocks change by
half an hour), so two workers would disagree about a tick. It also treats every timing with seconds as following the
clock; here ``0 30 2 * * *`` is the same as ``30 2 * * *``.

An ``Interval`` counts elapsed time from its start (default: the epoch): ``every 15 min`` fires at the full quarters of
an hour, and a new worker does not shift it.

Governments decide what a zone's clock does, and the machine's time zone data reports it. Machines with data of
different ages may disagree about future ticks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Literal, NamedTuple, get_args

from holdfast.admission.durations import Duration, duration_to_seconds, format_duration
from holdfast.admission.time_zones import (
    DAY_S,
    EPOCH,
    SECOND,
    WALL_EPOCH,
    find_first_timestamp,
    find_first_transition,
    find_last_transition,
    get_time_zone,
    get_utc_offset_s,
)
from holdfast.errors import UsageError

CatchUp = Literal["skip", "last", "all"]
"""What happens to missed ticks: none of them fires, the newest one, or all."""

Overlap = Literal["allow", "skip"]
"""Whether a tick fires while the run of the last tick is unfinished."""

_MAX_TIMESTAMP = 221_845_392_000
"""The year 9000: no tick is later, so that a search stays within the years that ``datetime`` supports."""


class Timing(ABC):
    """A set of ticks: a ``Cron`` or an ``Interval``. ``str`` is its text, which ``parse`` reads back."""

    __slots__ = ()

    @staticmethod
    def parse(text: str) -> Timing:
        """Parse a timing.

        ``0 2 * * *``, ``@daily``, ``0 2 * * MON-FRI in Europe/Berlin``, ``every 15 min``,
        ``every day from 2026-01-01T06:00:00Z``.
        """
        words = text.split()
        if words and words[0].lower() == "every":
            duration, start = _split_at_word(words[1:], "from")
            if "in" in duration.lower().split():
                raise UsageError(
                    f"{text!r}: an interval counts elapsed time, in which a time zone has no part. For a time of day "
                    f"use a cron expression, as in '0 6 * * * in Europe/Berlin'"
                )
            return make_interval(duration, None if start is None else _parse_datetime(start))
        expression, zone = _split_at_word(words, "in")
        return Cron(expression, "UTC" if zone is None else zone)

    def list_ticks(self, after: float, until: float, limit: int | None = None) -> list[float]:
        """The ticks after ``after``, up to and including ``until``; at most the first ``limit``."""
        first, last = _floor_to_second(after), _floor_to_second(until)
        return [float(tick) for tick in islice(takewhile(lambda tick: tick <= last, self._iter_forward(first)), limit)]

    def iter_newest_first(self, after: float, until: float) -> Iterator[float]:
        """The same ticks as ``list_ticks``, from the last to the first."""
        first, last = _floor_to_second(after), _floor_to_second(until)
        return (float(tick) for tick in takewhile(lambda tick: tick > first, self._iter_backward(last)))

    def get_next_tick(self, after: float) -> float:
        """The first tick after ``after``; infinite if there is none before the year 9000."""
        ticks = self.list_ticks(after, math.inf, 1)
        return ticks[0] if ticks else math.inf

    @abstractmethod
    def describe(self) -> str:
        """A description for people."""

    @abstractmethod
    def _iter_forward(self, after: int) -> Iterator[int]:
        """All ticks after ``after``, in order."""

    @abstractmethod
    def _iter_backward(self, until: int) -> Iterator[int]:
        """All ticks up to and including ``until``, from the last to the first."""


@dataclass(frozen=True, slots=True)
class Interval(Timing):
    """A tick every ``seconds`` seconds, the first one at ``start``."""

    seconds: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise UsageError(f"an interval of {self.seconds} seconds: the shortest is one second, as in 'every 1 s'")
        if not 0 <= self.start <= _MAX_TIMESTAMP:
            raise UsageError("an interval must start after 1970 and before the year 9000")

    def __str__(self) -> str:
        text = f"every {format_duration(self.seconds)}"
        return f"{text} from {_format_timestamp(self.start)}" if self.start else text

    def describe(self) -> str:
        """Its text, with whole words."""
        return {"every s": "every second", "every min": "every minute"}.get(str(self), str(self))

    def _iter_forward(self, after: int) -> Iterator[int]:
        tick = self.start + max(0, (after - self.start) // self.seconds + 1) * self.seconds
        while True:
            yield tick
            tick += self.seconds

    def _iter_backward(self, until: int) -> Iterator[int]:
        tick = until - (until - self.start) % self.seconds
        while tick >= self.start:
            yield tick
            tick -= self.seconds


@dataclass(frozen=True, slots=True)
class Cron(Timing):
    """A cron expression of five fields, or six with seconds in front, and its time zone."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        object.__setattr__(self, "expression", _validate_expression(self.expression))
        get_time_zone(self.zone)
        if next(self._iter_wall_times(0), None) is None:
            raise UsageError(f"cron expression {self.expression!r}: there is no such day, so it would never fire")

    def __str__(self) -> str:
        return self.expression if self.zone == "UTC" else f"{self.expression} in {self.zone}"

    @property
    def is_fixed_time(self) -> bool:
        """Whether it has fixed times: it neither loses ticks nor fires twice when the clock changes."""
        return not any(field.startswith("*") for field in self._split_fields()[:-3])

    def describe(self) -> str:
        """``at 02:00 every day (Europe/Berlin)``."""
        from cronsim import CronSim

        text = CronSim(" ".join(self._split_fields()), WALL_EPOCH).explain()
        return f"{text[:1].lower()}{text[1:]} ({self.zone})"

    def _iter_forward(self, after: int) -> Iterator[int]:
        iterate = self._iter_fixed_forward if self.is_fixed_time else self._iter_wall_clock_forward
        return iterate(get_time_zone(self.zone), after)

    def _iter_backward(self, until: int) -> Iterator[int]:
        iterate = self._iter_fixed_backward if self.is_fixed_time else self._iter_wall_clock_backward
        return iterate(get_time_zone(self.zone), until)

    # For fixed times, every wall time has one moment, and a later wall time never has an earlier moment.

    def _iter_fixed_forward(self, zone: tzinfo, after: int) -> Iterator[int]:
        # When the clock has just been set back, the first wall times had their moments before `after`.
        for wall in self._iter_wall_times(after + get_utc_offset_s(zone, after) + 1):
            tick = find_first_timestamp(zone, wall)
            if tick > after:
                yield tick
                after = tick

    def _iter_fixed_backward(self, zone: tzinfo, until: int) -> Iterator[int]:
        # If the clock has been set back within the last day, it has shown later times than it shows now.
        offset = max(get_utc_offset_s(zone, until), get_utc_offset_s(zone, until - DAY_S))
        below = until + 1
        for wall in self._iter_wall_times_backward(until + offset):
            tick = find_first_timestamp(zone, wall)
            if tick < below:
                yield tick
                below = tick

    # Otherwise, a moment is a tick if its wall time matches. From one change of the offset to the next, the two differ
    # by a constant; `start` is the first moment (the last one, backward) that is not decided yet.

    def _iter_wall_clock_forward(self, zone: tzinfo, after: int) -> Iterator[int]:
        at: int | None = after + 1
        while at is not None:
            start, at = at, None
            offset = get_utc_offset_s(zone, start)
            for wall in self._iter_wall_times(start + offset):
                tick = wall - offset
                if (at := find_first_transition(zone, start, tick)) is not None:
                    break
                yield tick
                start = tick

    def _iter_wall_clock_backward(self, zone: tzinfo, until: int) -> Iterator[int]:
        at: int | None = until
        while at is not None:
            start, at = at, None
            offset = get_utc_offset_s(zone, start)
            for wall in self._iter_wall_times_backward(start + offset):
                tick = wall - offset
                if (change := find_last_transition(zone, tick, start)) is not None:
                    at = change - 1
                    break
                yield tick
                start = tick

    def _iter_wall_times(self, first: int) -> Iterator[int]:
        """The matching wall times from ``first`` on, as if the wall clock were in UTC."""
        return _iter_wall_times(self._split_fields(), first - 1, is_reverse=False)

    def _iter_wall_times_backward(self, last: int) -> Iterator[int]:
        return _iter_wall_times(self._split_fields(), last + 1, is_reverse=True)

    def _split_fields(self) -> list[str]:
        return _NICKNAMES.get(self.expression, self.expression).split()


def make_interval(duration: Duration, start: datetime | float | None = None) -> Interval:
    """A tick every ``duration``, counted from ``start`` (default: 1970-01-01T00:00:00Z), and none before it."""
    seconds = duration_to_seconds(duration, "every")
    if seconds != int(seconds):
        raise UsageError(f"every {duration}: an interval is a whole number of seconds; the shortest is 'every 1 s'")
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise UsageError(
                f"every {duration} from {start.isoformat()}: in which time zone? Say it, as in "
                f"'{start.isoformat(timespec='seconds')}Z' for UTC, or give the datetime a tzinfo"
            )
        start = (start - EPOCH) / SECOND
    first = 0.0 if start is None else float(start)
    if not math.isfinite(first) or first != int(first):
        raise UsageError(f"every {duration} from {start}: it must start at a whole second")
    return Interval(int(seconds), int(first))


# Due ticks


class DueTicks(NamedTuple):
    """The ticks of a schedule that are due."""

    ticks: tuple[float, ...]
    """The ticks to fire, oldest first."""
    fired_up_to: float
    """The newest tick that fires or was skipped. If it has not changed, nothing was due."""


def find_due_ticks(
    timing: Timing,
    fired_up_to: float,
    now: float,
    catch_up: CatchUp = "last",
    max_ticks: int = 100,
    *,
    grace_s: float = 60.0,
) -> DueTicks:
    """The ticks after ``fired_up_to`` to fire now.

    A tick that is at most ``grace_s`` seconds old is on time, and fires whatever the policy is. An older one was
    *missed*: no worker was running, or the schedule was paused. ``skip`` fires no missed tick. ``last`` fires the
    newest one, if no later tick fires anyway: a job that missed some nights runs once. ``all`` fires each. At most
    ``max_ticks`` fire at once: the newest ones. The others are skipped.

    Another call with the returned ``fired_up_to``, at the same time or earlier, fires nothing.
    """
    if catch_up not in get_args(CatchUp):
        raise UsageError(
            f"catch-up policy {catch_up!r} is not known. Missed ticks may be left out ('skip'), made up for once "
            f"('last'), or fire each ('all')"
        )
    if max_ticks < 1:
        raise UsageError(f"max_catch_up={max_ticks}: at least one tick must be allowed to fire at once")
    due = list(islice(timing.iter_newest_first(fired_up_to, now), max_ticks))
    if not due:
        return DueTicks((), fired_up_to)
    on_time = [tick for tick in due if now - tick <= grace_s]
    fired = {"all": due, "last": on_time or due[:1], "skip": on_time}[catch_up]
    return DueTicks(tuple(reversed(fired)), due[0])


def make_tick_id(schedule_name: str, tick: float) -> str:
    """The id of the run that a tick starts, as in ``nightly@2026-11-15T02:00:00Z``; ids sort as their ticks do."""
    if not schedule_name:
        raise UsageError("a schedule needs a name: the ids of its runs begin with it")
    if tick != int(tick):
        raise UsageError(f"schedule {schedule_name!r}: {tick!r} is no tick, as it is no whole second")
    return f"{schedule_name}@{_format_timestamp(int(tick))}"


# Expressions

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELD_HELP = (
    ("second", "0 to 59", "*/15"),
    ("minute", "0 to 59", "*/15"),
    ("hour", "0 to 23", "9-17"),
    ("day of the month", "1 to 31, L for the last day, or LW for the last from Monday to Friday", "1,15"),
    ("month", "1 to 12, or JAN to DEC", "JAN-MAR"),
    ("day of the week", "0 to 7 (0 and 7 are Sunday) or SUN to SAT, MON#1 for the first, 5L for the last", "MON-FRI"),
)


def _validate_expression(expression: str) -> str:
    """The normalized expression. Raises ``UsageError``."""
    fields = expression.upper().split()
    if len(fields) == 1 and expression.strip().startswith("@"):
        nickname = expression.strip().lower()
        if nickname not in _NICKNAMES:
            raise UsageError(f"cron expression {expression!r} is not known. There are: {', '.join(_NICKNAMES)}")
        return nickname
    if len(fields) not in (5, 6):
        raise UsageError(
            f"cron expression {expression!r} has {len(fields)} field{'' if len(fields) == 1 else 's'}. It needs five, "
            f"minute hour day month weekday, as in '30 2 * * MON-FRI', or six with seconds in front. For an interval "
            f"write 'every 15 min'; a time zone stands behind, as in '0 2 * * * in Europe/Berlin'"
        )
    names = _FIELD_HELP[-len(fields) :]
    for index, (field, (name, allowed, example)) in enumerate(zip(fields, names, strict=True)):
        # Check each field among stars, to find out which one is wrong.
        alone = ["*"] * len(fields)
        alone[index] = field
        if not _is_valid_cron(alone):
            zone = ". A time zone stands behind the word 'in', as in '0 2 * * * in Europe/Berlin'"
            raise UsageError(
                f"cron expression {expression!r}: the {name} is {field!r}. Allowed are {allowed}; and of these a range "
                f"from the lower to the higher (a-b), a list (a,b), a step (*/n, a-b/n), or * for all. An example: "
                f"{example}"
                f"{zone if field.partition('/')[2][:1].isalpha() or field == 'UTC' else ''}"
            )
    if not _is_valid_cron(fields):
        raise UsageError(
            f"cron expression {expression!r}: there is no such day in those months, so it would never fire"
        )
    return " ".join(fields)


def _is_valid_cron(fields: list[str]) -> bool:
    from cronsim import CronSim, CronSimError

    try:
        CronSim(" ".join(fields), WALL_EPOCH)
    except CronSimError:
        return False
    return True


def _iter_wall_times(fields: list[str], start: int, *, is_reverse: bool) -> Iterator[int]:
    """The matching times after or before ``start``; the search ends after fifty years without one."""
    from cronsim import CronSim

    for wall in CronSim(" ".join(fields), WALL_EPOCH + timedelta(seconds=start), reverse=is_reverse):
        yield (wall - WALL_EPOCH) // SECOND


# Timestamps


def _floor_to_second(timestamp: float) -> int:
    """The last whole second; there are no ticks between it and the timestamp."""
    if math.isnan(timestamp):
        raise UsageError("a moment is a number of seconds since the epoch, and not NaN")
    return math.floor(min(max(timestamp, -1), _MAX_TIMESTAMP))


def _parse_datetime(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"from {text}: write the start as a date and time, as in 2026-01-01T06:00:00Z") from None


def _format_timestamp(timestamp: int) -> str:
    return (EPOCH + timedelta(seconds=timestamp)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _split_at_word(words: list[str], separator: str) -> tuple[str, str | None]:
    """The words before and after the word ``separator``; ``None`` if it is missing."""
    for index, word in enumerate(words):
        if word.lower() == separator:
            return " ".join(words[:index]), " ".join(words[index + 1 :])
    return " ".join(words), None
