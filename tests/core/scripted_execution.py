"""A run without an engine: a seeded driver hands outcomes to a bare ``Execution`` and keeps what it saw.

``Live`` plays the world: it finishes steps, lets timers pass and sends signals in an order drawn from a seed, also for
commands that the workflow has cancelled meanwhile. ``Replay`` is given a journal and nothing else.
"""

from __future__ import annotations

import gc
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.core.commands import Command, Outcome
from holdfast.core.execution import Execution
from holdfast.core.patches import PATCH_POSITION, Patches
from holdfast.core.records import Record, RecordKind

START = 1_000.0
LONGEST = 120
"""Records after which a workflow of these tests is taken not to end."""


class Failed(Exception):
    """What a step of a scripted run fails with."""


Flow = Callable[["World"], Awaitable[Any]]


class _Traced(Execution):
    """An execution that keeps every command that was ever issued, also those cancelled at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trace: list[tuple[str, int, str]] = []

    def issue(self, kind: RecordKind, name: str, call: Any) -> Any:
        if not self.loop.is_closing:
            self.trace.append((kind.label, self._issued_count, name))
        return super().issue(kind, name, call)


class World:
    """What workflow code of these tests is given: steps, signals, and a place for notes."""

    def __init__(self, flow: Flow, *, run_id: str = "run-7", journal: Sequence[Record] = ()) -> None:
        self.notes: list[Any] = []
        self.execution = _Traced(
            run_id,
            lambda: flow(self),
            workflow="flow",
            start_time=START,
            seed=b"seed of the run!",
            patches=Patches(journal),
        )
        self.marks: list[Any] = []
        """What could be seen from outside after each record."""
        self.upcoming: Sequence[Record] = ()
        """Records that are still to be delivered."""
        self.expected: set[int] = set()
        """Positions whose outcomes are on their way to the journal."""

    # For workflow code

    async def step(self, name: str) -> str:
        return _read(await self.execution.issue(RecordKind.STEP, name, None))

    async def signal(self, name: str) -> str:
        return _read(await self.execution.issue(RecordKind.SIGNAL, name, None))

    def patched(self, name: str) -> bool:
        return self.execution.is_patched(name)

    def note(self, *what: Any) -> None:
        self.notes.append((*what, round(self.execution.loop.time() - START, 6)))

    # For drivers

    def start(self) -> None:
        self.execution.start()
        self._settle()

    def deliver(self, record: Record) -> None:
        if self.execution.result is not None:
            self.execution.deliver_after_end(record)
        else:
            self.execution.deliver(record)
        self._settle()

    def _settle(self) -> None:
        execution = self.execution
        while not execution.turn():
            pass
        if execution.try_start_compensation(self.upcoming, expected_positions=self.expected):
            while not execution.turn():
                pass
        timers = tuple((position, timer.when()) for position, timer in execution.loop.timers.items())
        self.marks.append(
            (
                len(execution.trace),
                len(self.notes),
                tuple(execution.open_commands),
                timers,
                execution.loop.time(),
                self.ending,
            )
        )

    @property
    def ending(self) -> tuple[str, str] | None:
        """How the run ended, in words that can be compared."""
        execution = self.execution
        if execution.fatal_error is not None:
            return "fault", f"{type(execution.fatal_error).__name__}: {execution.fatal_error}"
        if execution.result is None:
            return None
        value, error, *_ = execution.result
        return ("value", repr(value)) if error is None else ("error", f"{type(error).__name__}: {error}")

    @property
    def story(self) -> tuple[Any, ...]:
        """All that a replay must reproduce."""
        return self.execution.trace, self.notes, self.marks, self.ending

    def leave(self) -> None:
        self.execution.unload()


class Replay(World):
    """A run brought back from its journal."""

    def __init__(self, flow: Flow, journal: Sequence[Record], *, collect: bool = False) -> None:
        super().__init__(flow, journal=journal)
        self.upcoming = journal
        self.start()
        for at, record in enumerate(journal, 1):
            if collect:
                gc.collect()
            self.upcoming = journal[at:]
            self.deliver(record)


class Live(World):
    """A run whose outcomes are drawn from a seed; with a ``prefix``, one that goes on from there."""

    def __init__(self, flow: Flow, seed: int | str, *, prefix: Sequence[Record] = ()) -> None:
        super().__init__(flow, journal=prefix)
        self.journal: list[Record] = list(prefix)
        self._draw = random.Random(seed)
        self._wall = START
        self._flying: dict[int, Command] = {}
        self._too_late: list[Command] = []
        """Steps that were cancelled when their outcome was already on its way to the journal."""
        self._sent: dict[str, deque[str]] = {}
        self._answered: set[int] = set()
        self._signal_names: Sequence[str] = getattr(flow, "signals", ())
        self._deadline = getattr(flow, "deadline", None)
        self._signals_sent = sum(record.kind is RecordKind.SIGNAL for record in prefix)
        self.start()
        for record in prefix:
            self._wall = max(self._wall, record.at)
            self._deadline = None if record.kind is RecordKind.DEADLINE else self._deadline
            self.deliver(record)
        self.execution.go_live()
        self._take_commands()
        self._record_patches()
        while self.ending is None:
            self._record_batch()

    def _record_batch(self) -> None:
        """Something between one and three things happen at once, and are recorded together."""
        batch: list[Record] = []
        for _ in range(self._draw.choice((1, 1, 1, 2, 3))):
            self._record_one(batch)
        for record in batch:
            assert len(self.journal) < LONGEST, "the workflow of this test does not end"
            self.journal.append(record)
            self.deliver(record)
            self._take_commands()
        self._record_patches()

    def _record_patches(self) -> None:
        """As the engine does it: behind what was on its way, and before anything is begun that was asked for later."""
        for name in self.execution.patches.take_newly_decided():
            record = Record(len(self.journal), RecordKind.PATCH, PATCH_POSITION, name, True, None, self._wall)
            self.journal.append(record)
            self.deliver(record)
        assert self.execution.patches.is_durable

    def _record_one(self, batch: list[Record]) -> None:
        self._wall += self._draw.random() * 0.4
        waits = [
            c
            for c in self.execution.open_commands.values()
            if c.kind is RecordKind.SIGNAL and c.position not in self._answered
        ]
        choices: list[str] = ["step"] * min(4, len(self._flying)) + ["late"] * bool(self._too_late)
        if self.execution.loop.get_next_timer() is not None:
            choices.append("timer")
        if self._signal_names and self._signals_sent < 25:
            choices.append("signal")
        if self._deadline is not None:
            choices.append("deadline")
        assert choices or waits or batch, "nothing can happen any more"
        match self._draw.choice(choices or [""]):
            case "step":
                command = self._flying.pop(self._draw.choice(list(self._flying)))
                self._add(batch, RecordKind.STEP, command.position, command.name)
            case "late":
                command = self._too_late.pop(self._draw.randrange(len(self._too_late)))
                self._add(batch, RecordKind.STEP, command.position, command.name)
            case "timer":
                first = self.execution.loop.get_next_timer()
                assert first is not None
                self._wall = max(self._wall, first.when())
                for timer in self.execution.loop.take_due_timers(self._wall):
                    self._add(batch, RecordKind.TIMER, timer.position, f"{timer.delay_s:g} s")
            case "signal":
                self._signals_sent += 1
                self._sent.setdefault(self._draw.choice(self._signal_names), deque()).append(f"s{self._signals_sent}")
            case "deadline":
                if self._draw.random() < 0.15:
                    self._deadline = None
                    self._add(batch, RecordKind.DEADLINE, 0, "deadline")
        self._answer(batch)

    def _answer(self, batch: list[Record]) -> None:
        """As the engine does it: each open wait, oldest first, gets the oldest signal of its name."""
        for command in list(self.execution.open_commands.values()):
            sent = self._sent.get(command.name)
            if command.kind is RecordKind.SIGNAL and command.position not in self._answered and sent:
                self._answered.add(command.position)
                self._add(batch, RecordKind.SIGNAL, command.position, command.name, sent.popleft())

    def _add(self, batch: list[Record], kind: RecordKind, position: int, name: str, value: str | None = None) -> None:
        ok = not name.startswith("fail")
        text = value if value is not None else f"{name}#{position}" if ok else f"{name} went wrong"
        payload = None if kind in (RecordKind.TIMER, RecordKind.DEADLINE) else json.dumps(text).encode()
        batch.append(Record(len(self.journal) + len(batch), kind, position, name, ok, payload, self._wall))

    def _take_commands(self) -> None:
        for command in self.execution.take_issued():
            if command.kind is RecordKind.STEP:
                self._flying[command.position] = command
        # In a fixed order: anyio cancels in the order of addresses, and the draws below must not depend on that.
        for command in sorted(self.execution.take_withdrawn(), key=lambda command: command.position):
            if self._flying.pop(command.position, None) is not None and self._draw.random() < 0.5:
                self._too_late.append(command)


def _read(outcome: Outcome) -> str:
    text = json.loads(outcome.record.payload or b"null")
    if not outcome.record.ok:
        raise Failed(text)
    return text
