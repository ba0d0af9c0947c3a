"""A rolling deploy: workers with old and new code side by side, under load, until the old ones are gone."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from app_processes import TIMEOUT_S, App, World
from ledger import check_end

from holdfast import Client
from waits import wait_until_sync

T = TypeVar("T")

ON_POSTGRES = ("test_in_a_rolling_deploy_every_run_is_executed_by_its_own_version_and_none_is_forgotten",)
"""What always runs on PostgreSQL, too."""

EACH = 60


def deploy(world: World, code: str) -> App:
    return world.spawn("rolling_deploy_worker.py", CODE=code).wait_for_output("ready")


def ask(world: World, doing: Callable[[Client], Awaitable[T]]) -> T:
    """Do something with one connection for all of it."""

    async def do() -> T:
        async with Client(world.url) as client:
            return await doing(client)

    return asyncio.run(do())


def start(world: World, version: str, *names: str) -> list[str]:
    calls = [(name,) for name in names]
    return ask(world, lambda client: client.options(version=version).start_many("rolled", calls))


def send(world: World, runs: Sequence[str]) -> None:
    ask(world, lambda client: asyncio.gather(*[client.signal(run, "go") for run in runs]))


def ends(world: World, runs: Sequence[str]) -> set[tuple[str, ...]]:
    """How these runs end."""
    results = ask(world, lambda client: asyncio.gather(*[client.wait(run, TIMEOUT_S) for run in runs]))
    return {tuple(result) for result in results}


def stalls(world: World, runs: Sequence[str]) -> set[str | None]:
    return {info.stall_advice for info in ask(world, lambda client: asyncio.gather(*[client.get(run) for run in runs]))}


def test_in_a_rolling_deploy_every_run_is_executed_by_its_own_version_and_none_is_forgotten(world: World):
    old = [deploy(world, "1") for _ in range(2)]
    assert world.client.start_sync("rolled", "first") == "first"
    assert world.client.get_sync("first").version == "1", "there is no other yet"
    new = deploy(world, "2")
    assert world.client.start_sync("rolled", "second") == "second"
    assert world.client.get_sync("second").version == "2", "the newest one that is served"

    ones = ["first", *start(world, "1", *(f"one-{n}" for n in range(EACH)))]
    twos = ["second", *start(world, "2", *(f"two-{n}" for n in range(EACH)))]
    begun = len(ones) + len(twos)
    wait_until_sync(lambda: len(world.lines("call", "finish")) >= begun, f"{begun} runs begin", describe=world.workers)
    early, late = ones[: EACH // 2], ones[EACH // 2 :]
    send(world, [*early, *twos])
    assert ends(world, early) == {("old way", "old end")}
    assert ends(world, twos) == {("new way", "new end")}

    for app in old:  # the deploy goes on: the old workers leave
        app.send(signal.SIGTERM)
    for app in old:
        app.ends()
    left = start(world, "1", "never-begun")
    send(world, late)
    [told] = stalls(world, [*late, *left])
    assert (told or "").startswith("no live worker serves version '1' of workflow 'rolled' (served: '2'): start")
    pids = {line.run: line.pid for line in world.lines("call", "start")}
    assert {pids[run] for run in ones} <= {app.pid for app in old}
    assert {pids[run] for run in twos} == {new.pid}

    both = deploy(world, "both")
    assert ends(world, late) == {("old way", "new end")}
    assert stalls(world, left) == {None}
    send(world, left)
    assert ends(world, left) == {("new way", "new end")}, "it had not been at the place that was changed"
    assert {line.pid for line in world.lines("call") if line.run in late and line.label == "new end"} == {both.pid}

    check_end(world.snapshot())
    started = Counter((line.run, line.label) for line in world.lines("call", "start"))
    assert set(started.values()) == {1}, "no step ran twice"
    assert len(started) == 2 * (begun + len(left))
