"""Starting runs by the thousand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Client, RunConflict, Runtime, UsageError, workflow
from holdfast.errors import InputError
from holdfast.services import bulk_start
from holdfast.stores.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio


@workflow(id="bulk-{number}")
async def bulky(number: int, extra: str = "") -> str:
    return f"{number}{extra}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations each commit had."""
    seen: list[int] = []
    commit = SqliteStore.commit

    async def counted(self: SqliteStore, ops: Sequence[Any]) -> list[Any]:
        seen.append(len(ops))
        return await commit(self, ops)

    monkeypatch.setattr(SqliteStore, "commit", counted)
    return seen


async def announce(url: str) -> None:
    """Let the store know the workflow, and nobody execute it."""
    async with Runtime(url):
        pass


async def test_a_thousand_runs_are_one_commit(url: str, sizes: list[int]):
    await announce(url)
    async with Client(url) as client:
        sizes.clear()
        ids = await client.start_many("bulky", ((number,) for number in range(2500)))
        assert ids == [f"bulk-{number}" for number in range(2500)]
        assert sizes == [1000, 1000, 500]
        assert await client.start_many("bulky", []) == []
    async with Runtime(url), Client(url) as client:
        assert await client.wait("bulk-2499", timeout=60) == "2499"


async def test_what_is_there_is_joined_and_options_and_names_are_heeded(url: str):
    await announce(url)
    async with Client(url) as client:
        await client.start("bulky", 1)
        calls: list[Any] = [(1,), {"number": 2, "extra": "!"}, [3]]
        assert await client.options(tags=["many"]).start_many("bulky", calls) == ["bulk-1", "bulk-2", "bulk-3"]
        assert {run.id for run in await client.list(tag="many")} == {"bulk-2", "bulk-3"}


async def test_a_call_that_cannot_be_started_stops_it_and_the_others_of_its_thousand_are_there(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bulk_start, "BATCH_SIZE", 2)
    await announce(url)
    async with Client(url) as client:
        await client.start("bulky", 3, extra="other")
        with pytest.raises(RunConflict, match="bulk-3"):
            await client.start_many("bulky", [(1,), (2,), (3,), (4,), (5,)])
        assert sorted(run.id for run in await client.list()) == ["bulk-1", "bulk-2", "bulk-3", "bulk-4"]


async def test_invalid_calls_are_errors_before_anything_is_started(url: str):
    await announce(url)
    async with Client(url) as client:
        with pytest.raises(UsageError, match="id template"):
            await client.options(id="one").start_many("bulky", [(1,)])
        with pytest.raises(UsageError, match=r"write \('a',\)"):
            await client.start_many("bulky", ["a"])
        with pytest.raises(InputError, match="bulky"):
            await client.start_many("bulky", [(1,), ()])
        assert await client.list() == []
