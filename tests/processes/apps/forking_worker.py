"""A worker whose steps fork, in every way that a child can go on from there."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
import time
from typing import Any

from flows import call, hold
from ledger import write_line

from holdfast import Runtime, current_step, step, workflow

LONGEST = 20.0
"""Seconds after which a child is taken not to end."""


def end_of(pid: int) -> int | None:
    """The exit code of a child, if it has ended."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


async def until_ended(pid: int) -> int | None:
    """The exit code of a child; ``None``: it does not end."""
    until = time.monotonic() + LONGEST
    while (code := end_of(pid)) is None and time.monotonic() < until:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.005)
    return code


@step
async def fork(how: str) -> int | None:
    pid = os.fork()
    if pid:
        return await until_ended(pid)
    match how:
        case "returns":
            return 0
        case "awaits":
            await asyncio.sleep(0)
        case "raises":
            raise ValueError("from the child")
        case "exits":
            sys.exit(7)
        case "works":
            time.sleep(600)
    os._exit(99)


@step
def fork_in_thread() -> int | None:
    pid = os.fork()
    return asyncio.run(until_ended(pid)) if pid else 0


@step(retries=2)
async def fork_in_task() -> int | None:
    """The child does not come back to the step, but to the loop."""

    async def child() -> int:
        return os.fork()

    pid = await asyncio.create_task(child())
    return await until_ended(pid) if pid else 0


def work(results: Any) -> None:
    async def main() -> str:
        async with Runtime(f"{os.environ['HOLDFAST_URL']}-child", workflows=["below"]):
            return await below()

    write_line("child", "works")
    results.send(asyncio.run(main()))


@step
async def multiprocess() -> list[Any]:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs,))
    process.start()
    code = await until_ended(process.pid or 0)
    return [mine.recv() if mine.poll() else None, code]


@step
async def in_child() -> str:
    return current_step().idempotency_key


@workflow
async def below() -> str:
    """A run in a database of the child's own."""
    return f"{len(await in_child())} characters"


@workflow(id="forks-{how}")
async def forks(how: str) -> Any:
    if how == "multiprocessing":
        ended: Any = await multiprocess()
    elif how == "in a thread":
        ended = await fork_in_thread()
    elif how == "in a task":
        ended = await fork_in_task()
    else:
        ended = await fork(how)
    await call(f"after {how}")
    return ended


@workflow(id="neighbor-{number}")
async def neighbor(number: int) -> str:
    return await hold("neighbors")


async def main() -> None:
    runtime = Runtime(workflows=["forks", "neighbor"])
    await runtime.open()
    print("ready", flush=True)
    await runtime.run_worker(grace=30)


logging.basicConfig(level=logging.INFO)
asyncio.run(main())
