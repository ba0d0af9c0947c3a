"""Kills a run at every commit it makes, each time in a process and a folder of its own.

``kill_everywhere.py kill <flow>`` starts the flow again and again, killed one commit later each time, until it gets
through to its end. ``kill_everywhere.py recover <flow> <folder> <how>...`` goes on in folders where it was killed:
``again`` starts the same program again, ``peer`` is another worker that finds the run, and anything else is a peer
that is killed at this point in its turn.

The processes are forked from this one, before it has opened anything, because starting an interpreter for each of a
hundred kill points would take a minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import flows
import kill_points

from holdfast import Client, Runtime
from holdfast.engine import held_run, idle_runs
from holdfast.stores.sqlite import connection_worker

RUN = "the-run"
AT_ONCE = 4
"""How many of the processes live at the same time; each has a database of its own."""


def park_soon(flow: str) -> None:
    """Let ``parked`` leave memory after a moment, so that parking can be struck without waiting a second each time."""
    if flow != "parked":
        return
    for module, name, seconds in (
        (idle_runs, "PARK_AFTER_S", 0.02),
        (held_run, "PARK_AFTER_S", 0.02),
        (idle_runs, "SWEEP_INTERVAL_S", 0.01),
    ):
        assert hasattr(module, name), f"{name} is no longer in {module.__name__}"
        setattr(module, name, seconds)


def commit_in_threads() -> None:
    """Let no commit be made on the event loop itself, as if the disk were slow."""
    if os.environ.get("THREADS"):
        assert hasattr(connection_worker, "MAX_INLINE_COMMIT_S"), (
            f"MAX_INLINE_COMMIT_S is no longer in {connection_worker.__name__}"
        )
        connection_worker.MAX_INLINE_COMMIT_S = -1.0


async def program(flow: str) -> Any:
    """What a user's program does: start it under its id, tell it what it needs to know, wait for its result."""
    park_soon(flow)
    handle = await getattr(flows, flow).options(id=RUN).start()
    if flow == "signalled":
        for number in range(2):
            await handle.signal("go", f"signal {number}", id=f"go-{number}")
    return await handle.result(timeout=20)


async def peer(flow: str) -> Any:
    """What a worker does: nothing but be there. (The signals come from whoever sent them, if they had not before.)"""
    park_soon(flow)
    async with Runtime(), Client() as client:
        if flow == "signalled":
            for number in range(2):
                await client.signal(RUN, "go", f"signal {number}", id=f"go-{number}")
        return await client.wait(RUN, timeout=20)


def fork(folder: Path, main: Callable[[], Coroutine[Any, Any, Any]], kill: str) -> int:
    """Run ``main`` in a process and a folder of its own; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ["HOLDFAST_URL"] = f"sqlite:///{folder / 'runs.db'}"
        os.environ["LEDGER"] = str(folder / "ledger")
        os.environ["HOLDFAST_TEST_KILL"] = kill
        commit_in_threads()
        kill_points.arm()
        (folder / f"result-{os.getpid()}").write_text(json.dumps(asyncio.run(main())))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait_for_one(children: dict[int, tuple[Path, str]]) -> tuple[str, int]:
    """Wait until a child has ended, and report it; returns its point and its exit code."""
    pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    folder, point = children.pop(pid)
    result = json.loads((folder / f"result-{pid}").read_text()) if code == 0 else None
    print(json.dumps({"point": point, "folder": str(folder), "pid": pid, "status": code, "result": result}), flush=True)
    return point, code


def kill_at_every_commit(flow: str) -> None:
    children: dict[int, tuple[Path, str]] = {}

    def strike(point: str) -> None:
        folder = Path(os.environ["GATES"], point.replace(":", "-"))
        folder.mkdir()
        children[fork(folder, lambda: program(flow), point)] = (folder, point)

    strike("before-commit:1")
    strike("after-commit:1")
    while children:
        point, code = wait_for_one(children)
        if code < 0:
            moment, _, count = point.partition(":")
            strike(f"{moment}:{int(count) + 1}")


def recover(flow: str, folders: list[str]) -> None:
    children: dict[int, tuple[Path, str]] = {}
    for name, how in zip(folders[::2], folders[1::2], strict=True):
        main = program if how == "again" else peer
        kill = "" if how in ("again", "peer") else how
        children[fork(Path(name), lambda main=main: main(flow), kill)] = (Path(name), how)
        if len(children) == AT_ONCE:
            wait_for_one(children)
    while children:
        wait_for_one(children)


if sys.argv[1] == "kill":
    kill_at_every_commit(sys.argv[2])
else:
    recover(sys.argv[2], sys.argv[3:])
