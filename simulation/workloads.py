"""What the simulated fleet works on: runs of one workflow that interprets a small program.

A program is JSON, so that one registered workflow covers every shape that a seed may draw: sequences, gathers, races,
timers, time-outs, signals, maps, retries, ``once`` steps, failures that are caught, and mixes of them. What a step
returns is a function of its run and its label alone; ``fits`` therefore knows what a run's result must look like, and
leaves open only what a race or a crash may decide (the replay of the journal decides that, see ``invariants``).
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import holdfast
from holdfast import current_run, current_step, map, step, wait_for_signal, workflow

Node = list[Any]
SIGNALS = ("red", "green")
RETRIES = {"work": 0, "stubborn": 3, "once": 0, "hurried": 1}


class Refused(Exception):
    """What a step raises that is told to fail."""


class Watch:
    """What steps tell whoever looks on (the world of the seed that is running)."""

    def progress(self, run_id: str, label: str, key: str, found: Any) -> None:
        """An attempt has begun: its idempotency key, and the progress that it found."""

    def beat(self, run_id: str, label: str, progress: Any) -> None:
        """An attempt has handed in progress."""


watch = Watch()
"""Replaced by the world while a seed runs."""


async def _carry_out(label: str, seconds: float, fails: int, beats: int) -> str:
    me = current_step()
    watch.progress(me.run_id, label, me.idempotency_key, me.progress)
    for beat in range(beats):
        await asyncio.sleep(seconds / (beats + 1))
        me.heartbeat([label, beat])
        watch.beat(me.run_id, label, [label, beat])
    await asyncio.sleep(seconds / (beats + 1))
    if me.attempt <= fails:
        raise Refused(f"{label} fails {fails} times")
    return f"{me.run_id}/{label}"


@step
async def work(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step that is never retried."""
    return await _carry_out(label, seconds, fails, beats)


@step(retries=3, backoff=0.1, max_backoff=0.5)
async def stubborn(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step that is retried."""
    return await _carry_out(label, seconds, fails, beats)


@step(effect="once")
async def once(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step that nobody may begin twice."""
    return await _carry_out(label, seconds, fails, beats)


@step(timeout=0.5, retries=1, backoff=0.1)
async def hurried(label: str, seconds: float, fails: int, beats: int) -> str:
    """A step with a time-out."""
    return await _carry_out(label, seconds, fails, beats)


STEPS = {"work": work, "stubborn": stubborn, "once": once, "hurried": hurried}


@workflow(name="simulated")
async def simulated(program: list) -> Any:  # type: ignore[type-arg]
    """Interpret a program."""
    return await _run(program)


async def _run(node: Node) -> Any:
    match node:
        case ["step", kind, label, seconds, fails, beats]:
            return await STEPS[kind](label, seconds, fails, beats)
        case ["seq", parts]:
            return [await _run(part) for part in parts]
        case ["gather", parts]:
            return list(await asyncio.gather(*[_run(part) for part in parts]))
        case ["sleep", seconds]:
            await asyncio.sleep(seconds)
            return "slept"
        case ["timeout", seconds, part]:
            try:
                async with asyncio.timeout(seconds):
                    return await _run(part)
            except TimeoutError:
                return "timed out"
        case ["signal", name, seconds]:
            try:
                return await wait_for_signal(name, timeout=seconds)
            except TimeoutError:
                return "no signal"
        case ["race", parts]:
            return await _race(parts)
        case ["map", labels, concurrency]:
            return await map(_mapped, labels, concurrency=concurrency)
        case ["catch", part]:
            try:
                return await _run(part)
            except Exception as error:
                return ["caught", type(error).__name__]
        case ["finally", part, last]:
            try:
                return await _run(part)
            finally:
                await _run(last)
        case ["draw"]:
            me = current_run()
            return [me.id, str(holdfast.uuid4()), holdfast.random(), holdfast.now().timestamp()]
        case _:
            raise ValueError(f"no such node: {node!r}")


async def _mapped(label: str) -> str:
    return await work(label, 0.03, 0, 0)


async def _race(parts: list[Node]) -> Any:
    tasks = [asyncio.create_task(_run(part)) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    first = next(at for at, task in enumerate(tasks) if task in done)
    return [first, tasks[first].result()]


# Drawing programs


class Author:
    """Writes the programs of a seed."""

    def __init__(self, chance: random.Random, lease: float) -> None:
        self._chance = chance
        self._lease = lease
        self._labels = 0

    def program(self) -> Node:
        """A program of a few nodes; it is a sequence, so that there is a before and an after."""
        parts = [self._node(3) for _ in range(self._chance.randint(1, 4))]
        if self._chance.random() < 0.15:
            parts.append(self._step(may_fail=True))  # the run itself may fail
        return ["seq", parts]

    def _node(self, depth: int) -> Node:
        chance = self._chance
        if depth <= 0 or chance.random() < 0.35:
            return self._leaf()
        match chance.randrange(9):
            case 0 | 1:
                return ["gather", self._nodes(depth)]
            case 2 | 3:
                return ["race", self._nodes(depth)]
            case 4:
                return ["timeout", self._seconds(), self._node(depth - 1)]
            case 5:
                return ["catch", ["seq", [*self._nodes(depth), self._step(may_fail=True)]]]
            case 6:
                return ["finally", self._node(depth - 1), self._leaf()]
            case 7:
                return ["map", [self._label() for _ in range(chance.randint(1, 5))], chance.randint(1, 3)]
            case _:
                return ["seq", self._nodes(depth)]

    def _nodes(self, depth: int) -> list[Node]:
        return [self._node(depth - 1) for _ in range(self._chance.randint(1, 3))]

    def _leaf(self) -> Node:
        match self._chance.randrange(12):
            case 0 | 1 | 2 | 3:
                return self._step(may_fail=False)
            case 4 | 5:
                return ["catch", self._step(may_fail=True)]
            case 6:
                return ["sleep", self._seconds()]
            case 7 | 8 | 9:
                return ["signal", self._chance.choice(SIGNALS), self._chance.choice([None, None, 0.3, 2.0, 4.0])]
            case 10:
                return ["catch", self._step(may_fail=True)]
            case _:
                return ["draw"]

    def _step(self, *, may_fail: bool) -> Node:
        chance = self._chance
        kind = chance.choice(["work", "work", "stubborn", "once", "hurried"] if may_fail else ["work", "stubborn"])
        fails = chance.choice([0, 0, 1, 2, 9]) if may_fail else chance.choice([0, 0, 1, 2])
        if not may_fail and kind == "work":
            fails = 0
        seconds = chance.choice([0.0, 0.0, 0.01, 0.05, 0.3, 0.3, 1.0])
        if chance.random() < 0.06:
            seconds = self._lease * 1.5  # longer than the lease that its worker must renew meanwhile
        beats = chance.choice([0, 0, 0, 1, 3])
        return ["step", kind, self._label(), seconds, fails, beats]

    def _seconds(self) -> float:
        return self._chance.choice([0.0, 0.01, 0.1, 0.5, 0.9, 1.5, 2.5, 4.0])

    def _label(self) -> str:
        self._labels += 1
        return f"s{self._labels}"


# Knowing what must come out


def waits(node: Node) -> dict[str, int]:
    """How many waits for each signal a program may come to."""
    found = dict.fromkeys(SIGNALS, 0)
    for one in _walk(node):
        if one[0] == "signal":
            found[one[1]] += 1
    return found


def longest(node: Node) -> float:
    """More virtual seconds than the program can take when nothing disturbs it."""
    total = 1.0
    for one in _walk(node):
        if one[0] == "step":
            total += (one[3] + 1.0) * (RETRIES[one[1]] + 1)
        elif one[0] in ("sleep", "timeout"):
            total += one[1] + 1.0
        elif one[0] == "signal":
            total += one[2] or 1.0
    return total


def _walk(node: Node) -> list[Node]:
    children: list[Node] = []
    match node:
        case ["seq" | "gather" | "race", parts]:
            children = parts
        case ["catch", part] | ["timeout", _, part]:
            children = [part]
        case ["finally", part, last]:
            children = [part, last]
    return [node, *(one for child in children for one in _walk(child))]


def must_fail(node: Node) -> bool:
    """Whether the program cannot return."""
    match node:
        case ["step", kind, _, _, fails, _]:
            return fails > RETRIES[kind]
        case ["seq" | "gather", parts]:
            return any(must_fail(part) for part in parts)
        case ["finally", part, last]:
            return must_fail(part) or must_fail(last)
    return False


def can_fail(node: Node) -> bool:
    """Whether the program may raise: a step that fails to the end, a ``once`` step whose worker died, a time-out."""
    match node:
        case ["step", kind, _, _, fails, _]:
            return fails > RETRIES[kind] or kind in ("once", "hurried")
        case ["seq" | "gather" | "race", parts]:
            return any(can_fail(part) for part in parts)
        case ["timeout", _, part]:
            return can_fail(part)
        case ["finally", part, last]:
            return can_fail(part) or can_fail(last)
    return False


def fits(node: Node, value: Any, run_id: str) -> bool:
    """Whether a program of this run may have returned this."""
    match node:
        case ["step", kind, label, _, fails, _]:
            return fails <= RETRIES[kind] and value == f"{run_id}/{label}"
        case ["seq" | "gather", parts]:
            return len(value) == len(parts) and all(
                fits(part, one, run_id) for part, one in zip(parts, value, strict=True)
            )
        case ["sleep", _]:
            return value == "slept"
        case ["timeout", _, part]:
            return value == "timed out" or (value is not None and fits(part, value, run_id))
        case ["signal", name, seconds]:
            sent = isinstance(value, str) and value.startswith(f"{run_id}:{name}:")
            return sent or (value == "no signal" and seconds is not None)
        case ["race", parts]:
            return fits(parts[value[0]], value[1], run_id)
        case ["map", labels, _]:
            return value == [f"{run_id}/{label}" for label in labels]
        case ["catch", part]:
            if isinstance(value, list) and value[:1] == ["caught"]:
                return can_fail(part)
            return fits(part, value, run_id)
        case ["finally", part, _]:
            return fits(part, value, run_id)
        case ["draw"]:
            return value[0] == run_id
    return False
