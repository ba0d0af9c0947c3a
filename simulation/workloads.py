"""What the simulated fleet executes: runs of one workflow that interprets a small program.

A program is JSON, so that one registered workflow covers every shape that a seed may draw: sequences, gathers, races,
timers, timeouts, signals, maps, retries, ``once`` steps, failures that are caught, children, approvals, compensations,
a step that kills its process, and mixes of them. The result of a step depends only on its run and its label (see
``expectations``).
"""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast
from holdfast import Handle, Workflow, current_run, current_step, map, step, wait_for_signal, workflow
from holdfast.authoring.ask import ask
from holdfast.core.execution import get_current_execution
from holdfast.errors import HoldfastError

Node = list[Any]
SIGNALS = ("red", "green")
RETRIES = {"work": 0, "stubborn": 3, "once": 0, "hurried": 1, "flaky": 0, "undoable": 1}
CHILD_MODES = ("call", "call", "call", "call", "start", "start", "alone", "cancel", "shared")
"""What a run does with a child: call it; start it and await its handle; start it and leave it; start it and cancel it;
or call it under an id that several runs share. (``joined`` is one that is also started from outside.)"""
CHANGING_PREFIX = "which"
"""The first word of a question, which a deploy changes."""


class SimulatedFailure(Exception):
    """Raised by a step that is meant to fail."""


class StepObserver:
    """Called by steps; implemented by the world of the running seed."""

    def on_attempt_started(self, run_id: str, label: str, key: str, attempt: int, progress: Any) -> None:
        """An attempt has begun: its idempotency key, its number, and the progress that it found."""

    def on_heartbeat(self, key: str, progress: Any) -> None:
        """An attempt of the step with this idempotency key has handed in progress."""

    def on_random_draw(self, run_id: str, value: str) -> None:
        """Workflow code has drawn something at random."""

    def count_try(self, run_id: str, label: str) -> int:
        """How often something was tried in the whole run, including this time."""
        return 1

    def kill_process(self) -> None:
        """A step kills the process that executes it."""


observer = StepObserver()
"""Replaced by the world while a seed runs."""


async def _perform_step(label: str, seconds: float, fails: int, beats: int) -> str:
    me = current_step()
    observer.on_attempt_started(me.run_id, label, me.idempotency_key, me.attempt, me.progress)
    for beat in range(beats):
        await asyncio.sleep(seconds / (beats + 1))
        me.heartbeat([label, beat])
        observer.on_heartbeat(me.idempotency_key, [label, beat])
    await asyncio.sleep(seconds / (beats + 1))
    if me.attempt <= fails:
        raise SimulatedFailure(f"{label} fails {fails} times")
    return f"{me.run_id}/{label}"


@step
async def work(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step that is never retried."""
    return await _perform_step(label, seconds, fails, beats)


@step(retries=3, backoff=0.1, max_backoff=0.5)
async def stubborn(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step that is retried."""
    return await _perform_step(label, seconds, fails, beats)


@step(effect="once")
async def once(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step that must not start twice."""
    return await _perform_step(label, seconds, fails, beats)


@step(timeout=0.5, retries=1, backoff=0.1)
async def hurried(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step with a timeout."""
    return await _perform_step(label, seconds, fails, beats)


@step
async def flaky(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step that fails as often in the whole life of its run: a person's retry lets it succeed."""
    me = current_step()
    tried = observer.count_try(me.run_id, label)
    value = await _perform_step(label, seconds, 0, beats)
    if tried <= fails:
        raise SimulatedFailure(f"{label} fails {fails} times in its life")
    return value


@step(retries=1, backoff=0.1, max_backoff=0.2)
async def undo(label: str, broken: int, output: str) -> str:
    """Compensates a step, after failing the first few times."""
    me = current_step()
    observer.on_attempt_started(me.run_id, f"undo {label}", me.idempotency_key, me.attempt, me.progress)
    tried = observer.count_try(me.run_id, f"undo {label}")
    await asyncio.sleep(0.02 * (broken % 3))
    if tried <= broken:
        raise SimulatedFailure(f"{label} cannot be undone for {broken} times")
    return f"{output} undone"


@step(retries=1, backoff=0.1, compensate=undo)
async def undoable(label: str, seconds: float, fails: int, beats: int, broken: int) -> str:
    """A step that is undone if its run fails or is cancelled."""
    return await _perform_step(label, seconds, fails, beats)


@step
async def kill(label: str, seconds: float) -> str:
    """A step that kills its process after a while, each time."""
    await asyncio.sleep(seconds)
    observer.kill_process()
    await asyncio.sleep(1e9)  # a dead process does not continue
    return label


STEPS = {"work": work, "stubborn": stubborn, "once": once, "hurried": hurried, "flaky": flaky}


@workflow(name="simulated")
async def simulated(program: list) -> Any:  # type: ignore[type-arg]
    """Interpret a program."""
    return await _run_node(program)


@workflow(name="other")
async def other(program: list) -> Any:  # type: ignore[type-arg]
    """The same under another name, for children, so that one of the two can be disabled without the other."""
    return await _run_node(program)


async def _run_node(node: Node) -> Any:
    match node:
        case ["step", kind, label, seconds, fails, beats]:
            return await STEPS[kind](label, seconds, fails, beats)
        case ["undoable", label, seconds, fails, broken]:
            return await undoable(label, seconds, fails, 0, broken)
        case ["kill", label, seconds]:
            return await kill(label, seconds)
        case ["child", label, program, how]:
            return await _run_child(label, program, how)
        case ["named", part]:
            return [current_run().id, await _run_node(part)]
        case ["swallow", part]:
            try:
                return await _run_node(part)
            except asyncio.CancelledError:
                return "swallowed"
        case ["seq", parts]:
            return [await _run_node(part) for part in parts]
        case ["gather", parts]:
            return list(await asyncio.gather(*[_run_node(part) for part in parts]))
        case ["sleep", seconds]:
            await asyncio.sleep(seconds)
            return "slept"
        case ["timeout", seconds, part]:
            try:
                async with asyncio.timeout(seconds):
                    return await _run_node(part)
            except TimeoutError:
                return "timed out"
        case ["signal", name, seconds]:
            try:
                return await wait_for_signal(name, timeout=seconds)
            except TimeoutError:
                return "no signal"
        case ["ask", label, seconds, remind_every]:
            return await _ask_person(label, seconds, remind_every)
        case ["race", parts]:
            return await _run_race(parts)
        case ["map", labels, concurrency]:
            return await map(_run_mapped, labels, max_concurrency=concurrency)
        case ["catch", part]:
            try:
                return await _run_node(part)
            except Exception as error:
                return ["caught", type(error).__name__]
        case ["finally", part, last]:
            try:
                return await _run_node(part)
            finally:
                await _run_node(last)
        case ["draw"]:
            me, drawn = current_run(), str(holdfast.uuid4())
            observer.on_random_draw(me.id, drawn)
            return [me.id, drawn, holdfast.random(), holdfast.now().timestamp()]
        case _:
            raise ValueError(f"no such node: {node!r}")


async def _ask_person(label: str, seconds: float | None, remind_every: float | None) -> str:
    if label.startswith(CHANGING_PREFIX):
        label = f"{label} {getattr(get_current_execution(), 'code_version', 0)}"
    if seconds is None:
        return await ask(label, form=str, remind_every=remind_every)
    return await ask(label, form=str, timeout=seconds, on_timeout="nobody", remind_every=remind_every, escalate_to="x")


async def _run_child(label: str, program: Node, mode: str) -> Any:
    child: Workflow[..., Any] = other if label.endswith("o") else simulated
    if mode == "call":
        return await child(program)
    if mode in ("shared", "joined"):
        return await child.options(id=f"shared-{label}" if mode == "shared" else label)(program)
    handle: Handle[Any] = await child.start(program)
    if mode == "alone":
        return [handle.run_id]
    if mode == "cancel":
        try:
            await handle.cancel()
        except HoldfastError:
            pass  # it has ended
    return await handle.result()


async def _run_mapped(label: str) -> str:
    return await work(label, 0.03, 0, 0)


async def _run_race(parts: list[Node]) -> Any:
    tasks = [asyncio.create_task(_run_node(part)) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    first = next(at for at, task in enumerate(tasks) if task in done)
    return [first, tasks[first].result()]
