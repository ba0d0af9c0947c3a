"""A worker that starts while the store is locked, or cannot be reached, waits for it, as one that runs does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from engine_world import Replaced, VirtualClock, World

from holdfast import Runtime, workflow
from holdfast.authoring.registry import definitions
from holdfast.engine.journal_engine import JournalEngine
from holdfast.engine.store_readiness import LOCKED_TIMEOUT_S, UNREACHABLE_TIMEOUT_S, retry_until_store_ready
from holdfast.errors import StoreError, StoreFull, StoreLocked, StoreUnavailable

pytestmark = pytest.mark.asyncio


class Passing(VirtualClock):
    """Time of which all is virtual."""

    def monotonic(self) -> float:
        return self.now()


class Locked:
    """A store that is locked, or not to be reached, for the first calls of a method."""

    def __init__(self, inner: Any, method: str, times: int, error: StoreError) -> None:
        self.inner, self.method, self.times, self.error = inner, method, times, error

        if method in ("register", "reap_dead"):
            self.workers = Replaced(inner.workers, **{method: self._perhaps})

    def __getattr__(self, name: str) -> Any:
        return self._perhaps if name == self.method else getattr(self.inner, name)

    async def _perhaps(self, *args: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            raise self.error
        owner = self.inner.workers if hasattr(self.inner.workers, self.method) else self.inner
        return await getattr(owner, self.method)(*args, **options)


LOCKED, AWAY = StoreLocked("the store is locked by another process"), StoreUnavailable("connection refused")


@pytest.mark.parametrize("error", [LOCKED, AWAY], ids=["locked", "away"])
@pytest.mark.parametrize("method", ["open", "register", "announce_workflows", "reap_dead"])
async def test_a_worker_starts_when_the_store_can_be_used_again(world: World, method: str, error: StoreError):
    @workflow
    async def opened_late() -> int:
        return 1

    store = Locked(world.store(), method, 2, error)
    runtime = await world.open(store=store)
    assert store.times == 0
    assert await (await runtime.start(opened_late)).result() == 1


@pytest.mark.parametrize(("error", "patience"), [(LOCKED, LOCKED_TIMEOUT_S), (AWAY, UNREACHABLE_TIMEOUT_S)])
async def test_a_lasting_problem_is_logged_once_and_raised_in_the_end(
    error: StoreError, patience: float, caplog: pytest.LogCaptureFixture
):
    clock, tries = Passing(), []

    async def fail() -> None:
        tries.append(clock.now())
        clock.advance(2.0)
        raise error

    with pytest.raises(type(error), match=str(error)):
        await retry_until_store_ready(fail, clock)
    assert patience <= clock.now() - tries[0] <= patience + 3
    assert [record.getMessage() for record in caplog.records] == [f"waiting for the store: {error}"]


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreError("wrong password")])
async def test_a_problem_that_does_not_go_away_by_waiting_is_raised_at_once(error: StoreError):
    clock = Passing()

    async def fail() -> None:
        raise error

    with pytest.raises(StoreError, match=str(error)):
        await retry_until_store_ready(fail, clock)
    assert clock.slept == []


@pytest.mark.parametrize("method", ["open", "register", "reap_dead"])
async def test_closing_what_could_not_be_opened_does_not_hide_why(world: World, method: str):
    runtime = Runtime("memory://")
    store = Locked(world.store(), method, 1, StoreError("wrong password"))
    runtime._engine = JournalEngine(store, definitions, clock=world.clock)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="wrong password"):
        try:
            await runtime.open()
        finally:
            await runtime.close()
    assert runtime.is_closed


@pytest.mark.parametrize("url", ["sqlite:///{0}/runs.db", "postgresql://127.0.0.1:1/none", "temporal://127.0.0.1:1/x"])
async def test_what_was_never_opened_can_be_closed(url: str, tmp_path: Path):
    runtime = Runtime(url.format(tmp_path))
    await runtime.close()
    await runtime.close()
    assert runtime.is_closed


async def test_opening_again_keeps_what_another_library_has_put_around_logging(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    await world.open()
    seen: list[str] = []
    handle = logging.Logger.handle

    def watched(self: logging.Logger, record: logging.LogRecord) -> None:
        seen.append(record.getMessage())
        handle(self, record)

    monkeypatch.setattr(logging.Logger, "handle", watched)
    await world.open()
    logging.getLogger("app").warning("hello")
    assert seen == ["hello"]
    assert [record.getMessage() for record in caplog.records] == ["hello"]
