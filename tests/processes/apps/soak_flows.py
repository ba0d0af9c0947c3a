"""The workflows of the soak (``tests/soak``): one of every sort, many thousand times, under random strikes.

What a run has to return follows from its number alone (see ``soak_expectations`` there). Their steps are those of
``flows`` where these have what is needed, and a few that take long enough to be struck while they are in flight. A
run of ``letters`` is called ``letters-<number>``, and its workflow ``soak_letters``.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import ledger
from flows import call, call_plain, flaky, nap
from ledger import LedgerLine, effect

from holdfast import RunDead, StepOutcomeUnknown, current_step, map, step, wait_for_signal, workflow

LETTERS = int(os.environ["LETTERS"])
_descriptor = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def write_line_without_sync(phase: str, label: str = "") -> None:
    """Append a line about the current step, from where the death of this process cannot take it back.

    Processes die here and not machines, and what has been written is the kernel's then. So nothing is synced: thousands
    of lines a second would be a test of the disk.
    """
    step = current_step()
    line = LedgerLine(
        step.name, step.run_id, step.idempotency_key, phase, step.attempt, os.getpid(), time.time(), label
    )
    os.write(_descriptor, f"{json.dumps(line)}\n".encode())


ledger.write_line = write_line_without_sync


@step(retries=1, backoff=0.01)
async def broken(label: str) -> str:
    with effect(label):
        raise ConnectionError(f"{label} is broken")


@step(effect="once")
async def pay_once(label: str) -> str:
    with effect(label):
        await asyncio.sleep(0.05)
        return "paid"


@step
async def linger(label: str, seconds: float) -> str:
    with effect(label):
        await asyncio.sleep(seconds)
        return label


@step
def linger_plain(label: str, seconds: float) -> str:
    with effect(label):
        time.sleep(seconds)
        return label


@workflow(id="sequence-{n}")
async def soak_sequence(n: int) -> list[str]:
    return [await call(f"{n} a"), await call_plain(f"{n} b"), await nap(f"{n} c")]


@workflow(id="gather-{n}")
async def soak_gather(n: int) -> list[Any]:
    first = await call_plain(f"{n} first")
    middle = await asyncio.gather(*[nap(f"{n} {k}") for k in range(3)], call_plain(f"{n} plain"), flaky(1))
    return [first, *middle, await call(f"{n} last")]


@workflow(id="retry-{n}")
async def soak_retry(n: int) -> list[Any]:
    tries = await flaky(2)
    try:
        return [tries, await broken(f"{n}")]
    except ConnectionError as error:
        return [tries, str(error)]


@workflow(id="failing-{n}")
async def soak_failing(n: int) -> str:
    raise ValueError(await call(f"{n} is meant to fail"))


def pauses(n: int) -> tuple[float, float]:
    """One for which a run stays in memory, and one for which it is parked."""
    return 0.05 + n % 5 * 0.05, 1.2 + n % 4 * 0.3


@workflow(id="timers-{n}")
async def soak_timers(n: int) -> list[str]:
    short, long = pauses(n)
    seen = [await call(f"{n} a")]
    await asyncio.sleep(short)
    seen.append(await call_plain(f"{n} b"))
    await asyncio.sleep(long)
    return [*seen, await call(f"{n} c")]


@workflow(id="letters-{n}")
async def soak_letters(n: int) -> list[int]:
    seen: list[int] = []
    for _ in range(LETTERS):
        seen.append(await wait_for_signal("letter", type=int))
        await call(f"{n} read {seen[-1]}")
    return seen


@workflow(id="payment-{n}")
async def soak_payment(n: int) -> list[str]:
    try:
        paid = await pay_once(f"{n}")
    except StepOutcomeUnknown:
        paid = "unknown"
    return [paid, await call(f"{n} {paid}")]


@workflow(id="map-{n}")
async def soak_map(n: int) -> list[str]:
    return await map(nap, [f"{n} {k}" for k in range(8)], max_concurrency=3)


@workflow(id="child-{n}")
async def soak_child(n: int) -> str:
    return await nap(f"{n} child")


@workflow(id="family-{n}")
async def soak_family(n: int) -> list[str]:
    """Waits for another run; one that is dead is retried, but not for its parent."""
    before = await call(f"{n} a")
    try:
        of_child = await soak_child(n)
    except RunDead:
        of_child = "dead"
    return [before, of_child, await call_plain(f"{n} c")]


@workflow(id="slow-{n}")
async def soak_slow(n: int) -> list[str]:
    """Steps that are likely to be in flight when their process is struck."""
    seconds = 0.1 + n % 5 * 0.1
    return [await linger(f"{n} a", seconds), await linger_plain(f"{n} b", seconds)]
