"""Tasks in the background: one that fails is logged and begins again."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast import background_tasks
from holdfast.background_tasks import keep_running
from holdfast.errors import UsageError

pytestmark = pytest.mark.asyncio

log = logging.getLogger("holdfast.test")


class Work:
    """Fails as often as it is told to."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.begun = 0
        self.slept: list[float] = []

    async def __call__(self) -> None:
        self.begun += 1
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def run(self, **options: Any) -> None:
        await keep_running(self, "watching", log, sleep=self.sleep, **options)


async def test_work_that_fails_is_logged_and_begins_again(caplog: pytest.LogCaptureFixture):
    work = Work(KeyError("a"), ValueError("b"))
    await work.run()
    assert work.begun == 3
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["watching failed"] * 2
    assert all(record.exc_info for record in caplog.records)


async def test_the_pauses_grow_up_to_a_bound():
    work = Work(*[KeyError("a") for _ in range(9)])
    await work.run()
    assert work.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


async def test_after_a_while_without_a_failure_the_pauses_are_short_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background_tasks, "PAUSE_RESET_AFTER_S", -1.0)
    work = Work(KeyError("a"), KeyError("b"))
    await work.run()
    assert work.slept == [0.5, 0.5]


async def test_it_ends_when_what_it_needs_was_closed(caplog: pytest.LogCaptureFixture):
    work = Work(UsageError("the client was closed"))
    await work.run(stop_on=UsageError)
    assert work.begun == 1
    assert not caplog.records


async def test_it_can_be_cancelled():
    work = Work(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await work.run()
    assert work.begun == 1
