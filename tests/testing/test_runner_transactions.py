"""Transactional steps in the testing kit, which has no database: mocked, they need none."""

from __future__ import annotations

import pytest

from holdfast import UsageError, step, workflow
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio


@step(transaction=True)
def book(cents: int) -> str:
    raise AssertionError("never called here")


@workflow
async def booking() -> str:
    return await book(500)


async def test_a_mock_needs_no_database() -> None:
    runner = Runner()
    runner.mock(book, return_value="booked")
    result = await runner.run(booking)
    assert (result.output, result.steps["book"][0].attempt_count) == ("booked", 1)


async def test_the_step_itself_says_what_to_do() -> None:
    result = await Runner().run(booking)
    assert result.status == "failed"
    assert isinstance(result.error, UsageError)
    assert "replace the step by a mock, or run the workflow on a SQLite file" in str(result.error)
