"""A process that starts or joins a run of a program, for ``test_conform_programs``: it is killed, and started again.

What the steps do is in a file outside the store: one line when a step starts, and one when it has ended. A step that
starts for the first time, and has the name that ``STOP_AT`` says, waits to be killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast import StepOutcomeUnknown, program, step
from holdfast.integrations import record_tool_call


def note(line: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


def act(name: str) -> str:
    is_first = f"start {name}" not in Path(os.environ["LEDGER"]).read_text()
    note(f"start {name}")
    if is_first and os.environ["STOP_AT"] == name:
        time.sleep(60)
    note(f"end {name}")
    return name


@step
def pa_look(name: str) -> str:
    return act(name)


@step(effect="once")
def pa_pay(name: str) -> str:
    return act(name)


async def use_tool() -> str:
    inner = await pa_look("inner")
    return inner + await asyncio.to_thread(act, "tool")


@program(id="{name}")
async def pa_agent(name: str) -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        looked = list(await asyncio.to_thread(lambda: [*pool.map(pa_look, ["left", "right"])]))
    used = await record_tool_call("pa_tool", {}, use_tool)
    try:
        paid = await asyncio.to_thread(pa_pay, "pay")
    except StepOutcomeUnknown:
        paid = "unknown"
    return [*looked, used, paid, await asyncio.to_thread(pa_look, "last")]


@program(id="{name}")
async def pa_left(name: str) -> None:
    note("waits")
    await asyncio.sleep(60)


async def leave() -> None:
    """The process ends while its program is running."""
    await pa_left.start(sys.argv[1])
    while "waits" not in Path(os.environ["LEDGER"]).read_text():  # noqa: ASYNC110  # another thread writes it
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    print("RESULT:", asyncio.run(leave() if os.environ["STOP_AT"] == "leave" else pa_agent(sys.argv[1])))
