"""The workflows of the apps. Their steps do nothing but write the ledger, and wait where a test wants them to."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ledger import effect

from holdfast import StepOutcomeUnknown, current_step, memory, patched, step, wait_for_signal, workflow


def is_open(gate: str) -> bool:
    """Whether steps may pass this gate; in a process with ``STUCK`` they never may."""
    return not os.environ.get("STUCK") and Path(os.environ["GATES"], f"gate-{gate}").exists()


async def pass_gate(gate: str) -> None:
    """Wait until the test opens the gate."""
    while not is_open(gate):  # noqa: ASYNC110 - the event is in another process
        await asyncio.sleep(0.005)


# One step of every sort


@step
async def call(label: str) -> str:
    with effect(label):
        return label


@step
def call_plain(label: str) -> str:
    """In a thread."""
    with effect(label):
        return label


@step
async def hold(gate: str) -> str:
    """In flight until the gate opens."""
    with effect(gate):
        await pass_gate(gate)
        return gate


@step(retries=3, backoff=0.01)
async def flaky(failures: int) -> int:
    with effect():
        if current_step().attempt <= failures:
            raise ConnectionError(f"attempt {current_step().attempt} fails")
        return current_step().attempt


@step(effect="once")
async def pay(label: str) -> str:
    with effect(label):
        return "paid"


@step(effect="once")
async def pay_at(gate: str) -> str:
    """In flight until the gate opens."""
    with effect(gate):
        await pass_gate(gate)
        return "paid"


@step(effect="once")
async def pay_cents(label: str) -> str:
    with effect(label):
        return "paid in cents"


@workflow
async def held_payment(gate: str) -> str:
    return await pay_at(gate)


@workflow
async def staged(stages: int) -> list[str]:
    """Each stage has a gate of its own."""
    return [await hold(f"stage {number}") for number in range(stages)]


# Runs that are killed at every commit


@workflow
async def sequential() -> list[str]:
    return [await call("a"), await call_plain("b"), await call("c")]


@workflow
async def gathered() -> list[str]:
    first = await call("first")
    middle = await asyncio.gather(*[call(f"m{n}") for n in range(3)], call_plain("plain"))
    return [first, *middle, await call("last")]


@workflow
async def timed() -> list[str]:
    before = await call("before")
    await asyncio.sleep(0.1)
    return [before, await call("after")]


@workflow(timeout=60)
async def on_time() -> list[str]:
    """Waits for time, for longer than it stays in memory, and for a signal that comes late; and has a deadline."""
    seen = [await call("before")]
    await asyncio.sleep(1.5)
    seen.append(await wait_for_signal("go", type=str, timeout=30))
    seen.append(await call("after"))
    return seen


@workflow
async def parked() -> list[str]:
    """Leaves memory in between (see ``kill_everywhere``)."""
    before = await call("before")
    await asyncio.sleep(0.2)
    return [before, await call("after")]


@workflow
async def signalled() -> list[str]:
    seen = [await call("before")]
    for number in range(2):
        seen.append(await wait_for_signal("go", type=str))
        seen.append(await call(f"after {number}"))
    return seen


@workflow
async def retried() -> list[Any]:
    return [await call("before"), await flaky(2), await call("after")]


@workflow
async def paying() -> list[str]:
    before = await call("before")
    try:
        paid = await pay("once")
    except StepOutcomeUnknown:
        paid = "unknown"
    return [before, paid, await call("after")]


@workflow
async def remembering() -> list[Any]:
    """Counts in memory: a put that was made without its record, or the other way round, would give another number."""
    counted = [await call("before")]
    for _ in range(2):
        await memory.put("counts", "n", await memory.get("counts", "n", 0) + 1)
    counted.append(await memory.get("counts", "n"))
    return [*counted, await call("after")]


@workflow
async def repriced() -> list[str]:
    """Changed by a deploy; with ``CODE=old``, this process has what was there before."""
    before = await call("before")
    try:
        if os.environ.get("CODE") != "old" and patched("in cents"):
            paid = await pay_cents(await call("to cents"))
        else:
            paid = await pay("euros")
    except StepOutcomeUnknown:
        paid = "unknown"
    return [before, paid, await call("after")]


@workflow(id="renamed-{name}")
async def renamed(name: str) -> list[str]:
    """A deploy has renamed the signal; with ``CODE=old``, this process has the name from before."""
    before = await call(f"{name} before")
    paid = await wait_for_signal("paid" if os.environ.get("CODE") == "old" else "payment")
    return [before, paid, await call(f"{name} after")]


# Runs for workers


@workflow(id="held-{name}")
async def held(name: str) -> list[str]:
    """A step before, one that a gate holds back, one after."""
    return [await call(f"{name} before"), await hold(name), await call(f"{name} after")]


@step
def hold_plain(gate: str) -> str:
    """The same in a thread, which can be stopped only where it calls ``heartbeat``."""
    with effect(gate):
        while not is_open(gate):
            current_step().heartbeat()
            time.sleep(0.005)
        return gate


@workflow(id="held-plain-{name}")
async def held_plain(name: str) -> list[str]:
    return [await call(f"{name} before"), await hold_plain(name), await call(f"{name} after")]


@workflow(id="relay-{name}")
async def relay(name: str) -> list[str]:
    """Two steps, each held back by a gate of its own."""
    return [await hold(f"{name}-1"), await hold(f"{name}-2"), await call(f"{name} after")]


@workflow(id="relay-plain-{name}")
async def relay_plain(name: str) -> list[str]:
    return [await hold_plain(f"{name}-1"), await hold_plain(f"{name}-2"), await call(f"{name} after")]


@workflow(id="shared-{name}")
async def shared(name: str) -> int:
    """Returns the process in which it was carried out, so that two who share it can compare."""
    await call(f"{name} 1")
    return int(await whoami(name))


@step
def whoami(label: str) -> int:
    with effect(label):
        return os.getpid()


# A script without ids


@workflow
async def quote(customer: str) -> str:
    return await hold(f"quote-{customer}")


@workflow
async def bill(customer: str) -> list[str]:
    return [await charge(customer), await hold(f"bill-{customer}"), await call("receipt")]


@step
async def charge(customer: str) -> str:
    with effect(customer):
        return f"{customer} charged"


# Steps that take their process down, or leave others behind


@workflow(id="deadly-{name}")
async def deadly(name: str, times: int) -> list[str]:
    """The step in the middle kills its process the first ``times`` times."""
    before, survived = await call(f"{name} before"), await die(name, times)
    return [before, survived, await hold(name), await call(f"{name} after")]


@step
async def die(name: str, times: int) -> str:
    """Its n-th death waits for the gate ``<name>-death-<n>``."""
    with effect(name):
        crash_log = Path(os.environ["GATES"], f"deaths-{name}")
        number = len(crash_log.read_text()) + 1 if crash_log.exists() else 1
        if number > times:
            return name
        await pass_gate(f"{name}-death-{number}")
        crash_log.write_text("x" * number)
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"


@workflow(id="busy-{name}")
async def busy(name: str, steps: int) -> int:
    """Many short steps, one after the other."""
    for number in range(steps):
        await nap(f"{name} {number}")
    return steps


@step
async def nap(label: str) -> str:
    with effect(label):
        await asyncio.sleep(0.02)
        return label


@workflow(id="mixed-{name}")
async def mixed(name: str) -> int:
    """Steps side by side and in a row, async and plain, failures and timers, over and over until the gate opens."""
    turns = 0
    while not await is_over(name):
        await asyncio.gather(*[nap(f"{turns} {n}") for n in range(2)], flaky(1))
        async with asyncio.timeout(60):
            await call_plain(f"{turns} plain")
        await asyncio.sleep(0.02)
        turns += 1
    return turns


@step
async def is_over(gate: str) -> bool:
    with effect(gate):
        return is_open(gate)


@workflow(id="children-{name}")
async def children(name: str) -> list[str]:
    return [await leave_children(name), await hold(name)]


@step
def leave_children(name: str) -> str:
    """A program, a forked process and one of ``multiprocessing``, all of which outlive the worker."""
    with effect(name):
        program = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        forked = os.fork()
        if not forked:
            time.sleep(600)
            os._exit(0)
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        process.start()
        return f"{program.pid} {forked} {process.pid}"


# Signals, timers and progress


@workflow(id="letters-{name}")
async def letters(name: str, count: int) -> list[str]:
    """A step that a gate holds back, then as many signals as it is told."""
    seen = [await hold(name)]
    for _ in range(count):
        seen.append(await wait_for_signal("letter", type=str))
        await call(f"read {seen[-1]}")
    return seen


@workflow(id="alarm-{name}")
async def alarm(name: str, seconds: float) -> list[str]:
    before = await call(f"{name} before")
    await asyncio.sleep(seconds)
    return [before, await call(f"{name} after")]


@workflow(id="slow-payment-{name}")
async def slow_payment(name: str) -> list[str]:
    try:
        return [await pay_slowly(name)]
    except StepOutcomeUnknown:
        return ["unknown", await call("look into it")]


@workflow(id="settled-payment-{name}")
async def settled_payment(name: str) -> list[str]:
    """Fails when the outcome of its payment is unknown."""
    return [await pay_slowly(name), await wait_for_signal("go")]


@step(effect="once")
async def pay_slowly(gate: str) -> str:
    """Tells of its progress while it is held back."""
    with effect(gate):
        current_step().heartbeat("half way")
        await pass_gate(gate)
        return "paid"


RECORDS = 100_000
CRASH_AT = 98_000


@step
def crunch(name: str) -> int:
    """Goes through its records, and tells how far it is. In a process with ``STUCK`` it comes to a stop at "
    "``CRASH_AT``."""
    done: int = current_step().progress or 0
    with effect(f"from {done}"):
        while done < RECORDS:
            done += 1
            if done % 100 == 0:
                current_step().heartbeat(done)
            if done == CRASH_AT and os.environ.get("STUCK"):
                while True:
                    time.sleep(0.01)
        return done


@workflow(id="crunched-{name}")
async def crunched(name: str) -> list[Any]:
    return [await call("before"), await crunch(name), await call("after")]


# Steps that block the event loop


@workflow(id="stalling-{name}")
async def stalling(name: str, how: str) -> list[str]:
    """The step in the middle blocks its process."""
    return [await call(f"{name} before"), await stall(name, how), await call(f"{name} after")]


@step
async def stall(gate: str, how: str) -> str:
    """Async, and never yields until the gate is open."""
    with effect(gate):
        while not is_open(gate):
            if how == "sleep":
                time.sleep(0.01)
            elif how == "native":  # returns to no bytecode, and lets other threads run
                _join_forever()
            elif how == "regex":  # keeps the interpreter's lock, so that no other thread runs
                re.match("(a+)+$", "a" * 40 + "b")
        return gate


def _join_forever() -> None:
    """Waits in native code that no signal interrupts."""
    import ctypes

    class Timespec(ctypes.Structure):
        _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]

    libc = ctypes.CDLL(None)
    rest = Timespec(3600, 0)
    while libc.nanosleep(ctypes.byref(rest), ctypes.byref(rest)) != 0:
        pass


@workflow(id="stalling-payment-{name}")
async def stalling_payment(name: str) -> list[str]:
    try:
        return [await pay_stalling(name)]
    except StepOutcomeUnknown:
        return ["unknown", await call("look into it")]


@step(effect="once")
async def pay_stalling(gate: str) -> str:
    """A payment that blocks its process."""
    with effect(gate):
        while not is_open(gate):
            time.sleep(0.01)
        return "paid"
