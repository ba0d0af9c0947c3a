"""Time zones: the moments of wall times, and the changes of the clock.

Timestamps are whole seconds since the epoch. Wall times are counted in the same way, as if the wall clock were in UTC.
"""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo

from holdfast.errors import UsageError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WALL_EPOCH = datetime(1970, 1, 1)
SECOND = timedelta(seconds=1)
DAY_S = 86400

_MACHINE_SPECIFIC_PREFIXES = ("localtime", "posixrules", "posix/", "right/")
"""Names of zones that differ between machines, or that count leap seconds."""


def get_time_zone(name: str) -> tzinfo:
    """The zone of this name. Raises ``UsageError`` for one that not every machine knows."""
    if name == "UTC":
        return UTC  # which needs no time zone data
    try:
        if name.startswith(_MACHINE_SPECIFIC_PREFIXES):
            raise zoneinfo.ZoneInfoNotFoundError(name)
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = zoneinfo.available_timezones()
    if not known:
        raise UsageError(
            f"time zone {name!r}: this machine has no time zone data. Install them with: pip install tzdata "
            f"(or the system's package tzdata), on every machine that runs workers. UTC works without"
        )
    by_lower = {zone.lower(): zone for zone in known}
    city = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known, reverse=True)}
    wanted = name.lower().replace(" ", "_")
    close = difflib.get_close_matches(wanted, by_lower, 1) or difflib.get_close_matches(wanted, city, 1)
    suggestion = f" Did you mean {by_lower.get(close[0]) or city[close[0]]!r}?" if close else ""
    raise UsageError(f"time zone {name!r} is not known.{suggestion} Names are like 'Europe/Berlin', or 'UTC'")


def get_utc_offset_s(zone: tzinfo, timestamp: int) -> int:
    """How far the wall clock is ahead of UTC."""
    if zone is UTC:
        return 0
    return _read_utc_offset_s((EPOCH + timedelta(seconds=timestamp)).astimezone(zone))


def _read_utc_offset_s(local: datetime) -> int:
    offset = local.utcoffset()
    return 0 if offset is None else offset // SECOND


def find_first_timestamp(zone: tzinfo, wall_time: int) -> int:
    """When the wall clock first shows this time, or has just skipped it."""
    if zone is UTC:
        return wall_time
    local = (WALL_EPOCH + timedelta(seconds=wall_time)).replace(tzinfo=zone)
    first, second = wall_time - _read_utc_offset_s(local), wall_time - _read_utc_offset_s(local.replace(fold=1))
    # Python applies the offset before the change to a skipped time, and with `fold` the offset after it. Only then is
    # the first timestamp the later one, and the change is between the two.
    return first if first <= second else _find_transition(zone, second, first)


_PROBE_STEP_S = 3 * DAY_S
"""No clock changes twice in this time. (The shortest known interval is four days, in Gaza.)"""


def find_first_transition(zone: tzinfo, low: int, high: int) -> int | None:
    """The first moment after ``low``, up to ``high``, at which the offset changes; ``None`` if there is none."""
    offset = get_utc_offset_s(zone, low)
    while zone is not UTC and low < high:
        probe = min(low + _PROBE_STEP_S, high)
        if get_utc_offset_s(zone, probe) != offset:
            return _find_transition(zone, low, probe)
        low = probe
    return None


def find_last_transition(zone: tzinfo, low: int, high: int) -> int | None:
    """The last moment after ``low``, up to ``high``, at which the offset changes; ``None`` if there is none."""
    offset = get_utc_offset_s(zone, high)
    while zone is not UTC and low < high:
        probe = max(high - _PROBE_STEP_S, low)
        if get_utc_offset_s(zone, probe) != offset:
            return _find_transition(zone, probe, high)
        high = probe
    return None


def _find_transition(zone: tzinfo, low: int, high: int) -> int:
    """The moment of the only change between the two."""
    after = get_utc_offset_s(zone, high)
    while high - low > 1:
        middle = (low + high) // 2
        if get_utc_offset_s(zone, middle) == after:
            high = middle
        else:
            low = middle
    return high
