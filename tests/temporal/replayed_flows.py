"""The workflows of the histories in ``histories``. **Never change one in a way that its recorded runs would notice.**

Runs on Temporal are under way for weeks, and every worker that takes one up replays its history. So histories of each
of these workflows are kept, and are replayed against this file and the Holdfast of today. A new case is a new workflow.
Steps are carried out only while recording (see ``record_histories``): what stands in their bodies does not matter to
replay; their names, parameters and types do.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import holdfast
from holdfast import (
    Agent,
    ApprovalTimedOut,
    Budget,
    RunFailed,
    StepOutcomeUnknown,
    Workflow,
    ask,
    current_run,
    parallel,
    patched,
    step,
    tool,
    wait_for_signal,
    workflow,
)
from holdfast.testing import ScriptedModel, call

hooks: dict[str, Callable[[str], Awaitable[None]]] = {}
"""What the recorder does to a run from inside one of its steps."""

VICTIM = "REPLAYED_VICTIM"


def hold_up() -> None:
    """Be busy, while recording."""
    if "busy" in hooks:
        time.sleep(1.0)


@step
async def add(left: int, right: int) -> int:
    return left + right


@step
def plainly(number: int) -> int:
    return -number


@step
async def slow(name: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return name


@step
async def tell(what: str) -> None:
    await hooks[what](current_run().id)


@step
async def note(mark: UUID, at: datetime, dice: float) -> None:
    pass


class Declined(Exception):
    """What goes wrong here."""


@step
async def decline(reason: str) -> None:
    raise Declined(reason)


@step(retries=2, backoff=0.01)
async def flaky(number: int) -> int:
    if holdfast.current_step().attempt < 2:
        raise ConnectionError("try again")
    return number


def _marking(name: str) -> Any:
    async def mark(number: int) -> int:
        return number

    return step(name=f"mark {name}")(mark)


marks = {name: _marking(name) for name in ("steps", "timer", "signal", "child", *(f"{n}" for n in range(8)))}
"""Steps by whose names it can be told in which order things went on: replayers compare no arguments."""


# Functions


@workflow
async def replayed_steps(upto: int) -> list[int]:
    """One after the other, with what a run knows of time and chance; one fails, one is retried."""
    seen: list[int] = []
    for number in range(upto):
        await note(holdfast.uuid4(), holdfast.now(), holdfast.random())
        seen.append(await plainly(await add(number, 1)))
    try:
        await decline("no funds")
    except Declined:
        seen.append(await flaky(7))
    return seen


@workflow
async def replayed_gather() -> list[object]:
    """At once: all of them, as they come, and a race whose losers are withdrawn."""

    async def twice(number: int) -> int:
        return await marks[str(number)](await add(number, number))

    gathered: list[object] = [*await asyncio.gather(*map(twice, range(8)))]
    completed = [await one for one in asyncio.as_completed([slow("f", 0.3), slow("e", 0.0)])]
    racers = [asyncio.create_task(slow(name, seconds)) for name, seconds in (("x", 9.0), ("y", 0.0), ("z", 9.0))]
    _, pending = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    return [gathered, completed, await add(1, len(pending))]


@workflow
async def replayed_timers() -> list[object]:
    """Several at once, set in another order than they ring; time-outs that strike, and that do not."""
    seen: list[object] = []

    async def after(seconds: float, number: int) -> None:
        await asyncio.sleep(seconds)
        seen.append(await marks[str(number)](number))

    await asyncio.gather(after(0.3, 1), after(0.05, 2), after(0.05, 3), after(0.15, 4))
    try:
        async with asyncio.timeout(0.1):
            await slow("never", 30.0)
    except TimeoutError:
        seen.append("timed out")
    seen.append(await asyncio.wait_for(slow("in time", 0.0), timeout=60))
    return seen


@workflow(timeout=0.6)
async def replayed_deadline() -> str:
    await add(1, 1)
    try:
        return await slow("never", 30.0)
    finally:
        await add(2, 2)


@workflow
async def replayed_signals() -> list[object]:
    """A signal before its wait, two that come together, one that comes late for a wait that was given up."""
    await tell("early")
    seen: list[object] = [await wait_for_signal("early", type=list[int])]
    try:
        await wait_for_signal("go", timeout=0.05)
    except TimeoutError:
        seen.append("nobody came")
    await tell("ready")
    seen.append(await asyncio.gather(wait_for_signal("go"), wait_for_signal("go"), wait_for_signal("when")))
    return [*seen, await add(1, 1)]


@workflow
async def replayed_waiting(days: int) -> str:
    """Recorded while it waits, with a timer, a signal and a step open: it never ends."""
    await add(days, 0)
    async with asyncio.timeout(days * 86_400):
        _, told = await asyncio.gather(tell("never"), wait_for_signal("approved", type=str))
        return told


@workflow
async def replayed_together() -> list[object]:
    """Things of all kinds come while the code is busy: one workflow task brings them all."""
    seen: list[object] = []

    async def then(name: str, first: Awaitable[object]) -> None:
        await first
        seen.append(await marks[name](len(seen)))

    others = asyncio.gather(
        then("child", replayed_child(9)),
        then("steps", asyncio.gather(slow("b", 0.25), slow("a", 0.2))),
        then("timer", asyncio.sleep(0.3)),
        then("3", asyncio.sleep(0.2)),
        then("signal", wait_for_signal("go")),
        then("1", slow("c", 0.3)),
        then("2", slow("d", 0.2)),
    )
    await tell("busy")
    hold_up()
    await others
    return seen


# Other runs


@workflow
async def replayed_child(number: int, fail: bool = False) -> int:
    await note(holdfast.uuid4(), holdfast.now(), holdfast.random())
    if fail:
        await decline(f"child {number}")
    return await add(number, 1)


@workflow
async def replayed_listener() -> str:
    return await wait_for_signal("word", type=str)


@workflow(id="replayed-named-{name}")
async def replayed_named(name: str) -> str:
    return await slow(name, 0.0)


@workflow
async def replayed_children() -> list[object]:
    """Awaited, started, at once, failing, joined, cancelled; and one whose id was taken."""
    seen: list[object] = [await replayed_child(1)]
    handle = await replayed_child.start(2)
    await tell("named")
    seen.append(await asyncio.gather(replayed_child(3), replayed_named("one"), add(1, 1)))
    try:
        await replayed_child(4, fail=True)
    except RunFailed as failed:
        seen.append(type(failed.__cause__).__name__)
    seen.append(await handle.result())
    other = await replayed_listener.start()
    await other.signal("word", "hush")
    seen.append(await other.result())
    try:
        async with asyncio.timeout(0.05):
            await replayed_listener()
    except TimeoutError:
        seen.append("timed out")
    return seen


@workflow
async def replayed_started() -> list[int]:
    """Recorded so that runs which are started and steps that have ended are told by one workflow task."""

    async def begun(number: int) -> int:
        await replayed_named.options(id=f"{current_run().id}-{number}").start("any")
        return await marks["child"](number)

    async def stepped(number: int) -> int:
        return await marks[str(number)](await add(number, 0))

    return await asyncio.gather(begun(1), stepped(2), begun(3), stepped(4), begun(5), stepped(6))


# Effects


@step(effect="once")
async def pay(cents: int) -> str:
    if os.environ.get(VICTIM):
        os._exit(9)
    return f"paid {cents}"


@workflow
async def replayed_once() -> list[object]:
    """A worker dies while it pays: the outcome is unknown."""
    try:
        return [await pay(500)]
    except StepOutcomeUnknown as error:
        return [error.step, await pay(700)]


@step
async def put_back(what: str, count: int) -> str:
    return f"{count} {what}"


@step(compensate=put_back)
async def take_out(what: str, count: int = 1) -> str:
    return what.upper()


@workflow
async def replayed_undone() -> None:
    await take_out("eggs", 12)
    await add(1, 1)
    await asyncio.gather(take_out("milk"), take_out("flour", count=2))
    await decline("cake")


@workflow
async def replayed_cancelled() -> str:
    """Cancelled while it waits: it cleans up, and is undone."""
    await take_out("eggs", 12)
    try:
        return await wait_for_signal("never")
    finally:
        await add(3, 3)


@step(compensate=put_back)
async def take_slowly(what: str, count: int = 1) -> str:
    try:
        await asyncio.sleep(0.4)
    except asyncio.CancelledError:
        await asyncio.sleep(0)  # it happens all the same
    return what


@workflow
async def replayed_withdrawn() -> list[object]:
    """A step that can be undone is withdrawn while it is in flight: what came of it is waited for, and undone."""
    seen: list[object] = []
    try:
        async with asyncio.timeout(0.1):
            await take_slowly("salt")
    except TimeoutError:
        seen.append("gave up")
    seen.append(await add(1, 1))
    await decline("after all")
    return seen


@step(compensate=put_back)
async def take_reluctantly(what: str, count: int = 1) -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await asyncio.sleep(0.3)
        raise
    return what


@workflow
async def replayed_late() -> str:
    """The code has ended before it is known that a step which it has withdrawn did not happen."""
    try:
        async with asyncio.timeout(0.1):
            await take_reluctantly("pepper")
    except TimeoutError:
        pass
    return "went on"


@workflow
async def replayed_paused() -> list[int]:
    seen = [await add(1, 1)]
    await tell("pause")
    seen.append(await add(2, 2))
    await asyncio.sleep(0.05)
    return [*seen, await add(3, 3)]


# People


@workflow
async def replayed_asks() -> list[object]:
    """Answered; reminded of, then answered; nobody answers; taken back because of something else."""
    seen: list[object] = [await ask("First?")]
    seen.append(await ask("Which?", choices=["red", "blue"], timeout=30, remind_every=0.3))
    try:
        await ask("Anybody?", timeout=0.3)
    except ApprovalTimedOut:
        seen.append("nobody")
    asking = asyncio.create_task(ask("Never mind?"))
    await tell("asked")
    asking.cancel()
    await asyncio.wait([asking])
    return [*seen, await add(1, 1)]


# Changes


@workflow
async def replayed_patched() -> list[object]:
    async def branch(name: str) -> list[object]:
        told: list[object] = [await slow(name, 0.0)]
        if patched("in both branches"):
            told.append(await slow(f"{name} new", 0.0))
        return [*told, patched(f"only in {name}")]

    first = await asyncio.gather(branch("b"), branch("a"))
    return [first, patched("in both branches"), patched("at the end")]


@workflow(name="replayed_class")
class ReplayedClass:
    """The class form: steps by number, one of them for each row."""

    @step(1)
    async def rows(self, count: int) -> list[int]:
        return list(range(count))

    @parallel(max_concurrency=2)
    @step(2, depends_on=1)
    async def weigh(self, row: int) -> int:
        return row * 10

    @step(3, depends_on=1)
    def largest(self, rows: list[int]) -> int:
        return max(rows)

    @step(4, depends_on=(2, 3), when=lambda largest: largest > 1)
    async def report(self, weigh: list[int], largest: int) -> str:
        return f"{weigh} {largest}"


# Long ones


@workflow
async def replayed_long(upto: int) -> list[object]:
    """Recorded in several executions: signals come meanwhile, a timer is pending, a change is decided early."""
    seen: list[object] = [patched("from the beginning")]
    alarm = asyncio.create_task(asyncio.sleep(2.0))
    for number in range(upto):
        if number % 5 == 0:
            await tell("more")
        if number % 5 == 4:
            seen.append(await wait_for_signal("more", type=int))
        await note(holdfast.uuid4(), holdfast.now(), holdfast.random())
    await alarm
    return [*seen, patched("from the beginning")]


@step
async def unsure() -> str:
    await hooks["unsure"](current_run().id)
    return "sure"


@workflow
async def replayed_retried(number: int) -> list[object]:
    """Fails the first time, and is retried."""
    seen: list[object] = [await add(number, 1), await unsure()]
    return [*seen, await add(number, 2)]


# Agents


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def _plan(*statuses: str) -> Any:
    return call("write_plan", items=[{"task": f"task {n}", "status": one} for n, one in enumerate(statuses)])


replayed_helper = Agent(
    ScriptedModel([call("look_up", word="kelp"), "Kelp holds fast."]), name="replayed_helper", tools=[look_up]
)

replayed_agent = Agent(
    ScriptedModel(
        [
            _plan("working", "open"),
            [call("look_up", word="one"), call("look_up", word="two")],
            call("replayed_helper", task="What is kelp?"),
            _plan("done", "done"),
            "All done.",
        ]
    ),
    name="replayed_agent",
    tools=[look_up],
    subagents=[replayed_helper],
    planning=True,
)

replayed_budgeted = Agent(
    ScriptedModel([call("look_up", word="kelp"), "Kelp holds fast."]),
    name="replayed_budgeted",
    tools=[look_up],
    budget=Budget(tokens=100_000, turns=5),
)


@step
def take_note(text: str, number: int) -> str:
    return f"{number} {text}"


@holdfast.program
async def replayed_program(upto: int) -> list[str]:
    """Steps of tasks at the same time, a signal, and a child."""

    async def take_notes(text: str) -> list[str]:
        return [await take_note(text, number) for number in range(upto)]

    notes = await asyncio.gather(take_notes("red"), take_notes("blue"))
    await tell("go")
    go = await wait_for_signal("go")
    child = await replayed_child(upto)
    return [*(one for some in notes for one in some), go, str(child)]


FLOWS: dict[str, Workflow[..., Any]] = {
    flow.name: flow
    for flow in list(globals().values())
    if isinstance(flow, Workflow) and flow.name.startswith("replayed_")
}
"""All of them, by name."""
