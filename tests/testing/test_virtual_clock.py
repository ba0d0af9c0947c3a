"""Virtual time: it stands still until it is moved, and rings what is due."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import UsageError
from holdfast.testing import VirtualClock


@pytest.mark.asyncio
async def test_time_passes_only_when_it_is_moved() -> None:
    clock = VirtualClock()
    assert clock.datetime == datetime(2030, 1, 1, tzinfo=UTC)
    await asyncio.sleep(0.01)
    assert clock.datetime == datetime(2030, 1, 1, tzinfo=UTC)
    clock.advance(timedelta(days=1))
    clock.advance(1.5)
    assert clock.datetime == datetime(2030, 1, 2, 0, 0, 1, 500_000, tzinfo=UTC)


@pytest.mark.asyncio
async def test_time_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance(10)
    clock.advance_to(clock.now() - 5)
    assert clock.datetime.second == 10
    with pytest.raises(UsageError, match=r"is not a duration.*zero or longer"):
        clock.advance(-1)
    with pytest.raises(UsageError, match=r"is not a duration.*zero or longer"):
        clock.advance(timedelta(seconds=-1))


@pytest.mark.asyncio
async def test_alarms_ring_in_the_order_in_which_they_are_due() -> None:
    clock = VirtualClock(0)
    rang: list[str] = []
    clock.call_at(20, lambda: rang.append("second"))
    clock.call_at(10, lambda: rang.append("first"))
    clock.call_at(10, lambda: rang.append("as early, but later set"))
    off = clock.call_at(5, lambda: rang.append("never"))
    assert clock.get_next_due() == 5
    off.cancel()
    assert clock.get_next_due() == 10
    clock.advance(30)
    await asyncio.sleep(0)
    assert rang == ["first", "as early, but later set", "second"]
    assert clock.get_next_due() is None


@pytest.mark.asyncio
async def test_an_alarm_that_is_due_already_rings_at_once() -> None:
    clock = VirtualClock(100)
    rang: list[int] = []
    clock.call_at(50, lambda: rang.append(1))
    await asyncio.sleep(0)
    assert rang == [1]


@pytest.mark.asyncio
async def test_sleepers_are_counted_until_they_are_woken_or_cancelled() -> None:
    clock = VirtualClock()
    tasks = [asyncio.ensure_future(clock.sleep(seconds)) for seconds in (1, 1000)]
    await asyncio.sleep(0)
    assert clock.sleeper_count == 2
    clock.advance(1)
    await tasks[0]
    assert clock.sleeper_count == 1
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert clock.sleeper_count == 0


def test_an_alarm_of_a_loop_that_is_gone_rings_nowhere() -> None:
    clock = VirtualClock()
    rang: list[int] = []

    async def set_alarm() -> None:
        clock.call_at(clock.now() + 1, lambda: rang.append(1))

    asyncio.run(set_alarm())
    clock.advance(5)
    assert rang == []
