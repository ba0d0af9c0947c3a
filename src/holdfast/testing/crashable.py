"""What dies with a simulated process: its hold on the store, and the steps that it has in flight.

A process that dies does not clean up. Cancelling its tasks would run their ``finally`` blocks, and closing its
coroutines would, too; so from the moment of death nothing of it is ever resumed. A step's coroutine is driven by hand
(``Mortal``), which stops handing it anything; a store call (``MortalStore``) does not return.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from holdfast.core.records import Kind
from holdfast.stores.approvals import AskApproval
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    Answer,
    AppendRecord,
    AwaitRun,
    FinishRun,
    NewRun,
    NoteAttempt,
    Op,
    Run,
    Started,
    StartRun,
    Verdict,
)
from holdfast.testing.crash_points import CARRIED_OUT, Event, Moment, What

graveyard: list[Coroutine[Any, Any, Any]] = []
"""Steps that were in flight when their process died. Kept for ever: collecting one would run its ``finally`` blocks."""


def bury(coro: Coroutine[Any, Any, Any]) -> None:
    """Keep the coroutine for ever."""
    graveyard.append(coro)
    try:
        from ctypes import py_object, pythonapi
    except ImportError:
        return
    # Python empties its modules when it ends, and the list with them: only a reference that nobody gives back lasts.
    pythonapi.Py_IncRef(py_object(coro))


class Life:
    """Whether a simulated process is alive."""

    def __init__(self) -> None:
        self.over = False

    async def end(self) -> NoReturn:
        """Die here."""
        self.over = True
        while True:
            await asyncio.get_running_loop().create_future()


class Mortal(Awaitable[Any]):
    """A coroutine that is not resumed any more once its process is dead."""

    def __init__(self, coro: Coroutine[Any, Any, Any], life: Life) -> None:
        self._coro = coro
        self._life = life

    def __await__(self) -> Generator[Any, Any, Any]:
        coro = self._coro
        resume: Callable[..., Any] = coro.send
        argument: Any = None
        while True:
            try:
                waits_for = resume(argument)
            except StopIteration as returned:
                return returned.value
            stop: BaseException | None = None
            try:
                argument = yield waits_for
                resume = coro.send
            except BaseException as thrown:
                stop = argument = thrown
                resume = coro.throw
            if self._life.over:
                bury(coro)
                if stop is not None:
                    raise stop
                yield from asyncio.get_running_loop().create_future()


class Witness(Protocol):
    """Who decides when a process dies, and hears what was written before."""

    def dies(self, moment: Moment, key: int, event: Event, new: NewRun | None = None) -> bool:
        """Whether the process is to die here; ``new`` is a run that is not there yet, and has no key."""
        ...

    def created(self, run: Run) -> bool:
        """There is a new run; false when that is known."""
        ...

    def happened(self, key: int, event: Event) -> Op | None:
        """The event is in the store; returns what somebody asks for because of that."""
        ...


class MortalStore:
    """One process's way to a store that outlives it."""

    url = MemoryStore.url

    def __init__(self, inner: MemoryStore, life: Life, witness: Witness) -> None:
        self._inner = inner
        self._life = life
        self._witness = witness
        self.watched = False
        """Whether the engine has looked for work once, and now waits for a change."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._life.over:
                await self._life.end()
            return await method(*args, **kwargs)

        return call

    async def changed(self, timeout: float, *, follows: bool = True) -> bool:
        """Nobody else writes here; whoever lets time pass nudges the engine."""
        self.watched = True
        return await asyncio.get_running_loop().create_future()

    async def claim(self, worker: int, **wanted: Any) -> list[Run]:
        """Processes die here because a test says so. No run is suspected of it, so none is isolated from others."""
        if self._life.over:
            await self._life.end()
        wanted["suspects_after"] = 0.0
        claimed = await self._inner.claim(worker, **wanted)
        return [replace(run, suspicion=0) for run in claimed]

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        """Carry out the operations, or those before the one at which the process dies."""
        if self._life.over:
            await self._life.end()
        for at, op in enumerate(ops):
            if self._dies_before(op):
                await self._carry_out(ops[:at])
                await self._life.end()
            if self._dies_after(op):
                await self._carry_out(ops[: at + 1])
                await self._life.end()
        return await self._carry_out(ops)

    def _dies_before(self, op: Op) -> bool:
        witness, event = self._witness, event_of(op)
        if isinstance(op, StartRun | AwaitRun) and op.link is not None:
            # Where a run that another one starts or waits for begins is a place in the life of that other one, too.
            name = op.run.workflow if isinstance(op, StartRun) else ""
            if witness.dies("before", op.link.parent, Event("child", op.link.position + 1, name)):
                return True
        if event is None:
            return False
        is_outcome = event.what in CARRIED_OUT
        return witness.dies("during" if is_outcome else "before", _key_of(op), event, _new_run_of(op))

    def _dies_after(self, op: Op) -> bool:
        event = event_of(op)
        return event is not None and self._witness.dies("after", _key_of(op), event, _new_run_of(op))

    async def _carry_out(self, ops: Sequence[Op]) -> list[Answer]:
        answers = await self._inner.commit(ops)
        asked: list[Op | None] = []
        for op, answer in zip(ops, answers, strict=True):
            event = event_of(op)
            if event is None:
                continue
            if isinstance(answer, Started):
                # Who starts a run again that it has started before is answered as it was the first time.
                if answer.created and self._witness.created(answer.run):
                    asked.append(self._witness.happened(answer.run.key, event))
            elif answer in (Verdict.DONE, Verdict.TOLD):
                asked.append(self._witness.happened(_key_of(op), event))
        if more := [op for op in asked if op is not None]:
            await self._inner.commit(more)
        return answers


_WHATS: dict[Kind, What] = {
    Kind.STEP: "step",
    Kind.COMPENSATION: "compensation",
    Kind.CHILD: "child",
    Kind.START: "child",
    Kind.TIMER: "timer",
    Kind.SIGNAL: "signal",
    Kind.APPROVAL: "approval",
    Kind.DEADLINE: "deadline",
    Kind.CANCEL: "cancel",
    Kind.PATCH: "patch",
}


def what_is(kind: Kind) -> What:
    """What the outcome of such a command is called in a run's life."""
    return _WHATS[kind]


def event_of(op: Op) -> Event | None:
    """What the operation writes about a run's life, if it does."""
    match op:
        case AppendRecord(record=record):
            if record.kind in (Kind.DEADLINE, Kind.CANCEL):
                return Event(what_is(record.kind))
            if record.kind is Kind.PATCH:
                return Event("patch", name=record.name)
            name = "" if record.kind is Kind.APPROVAL else record.name
            return Event(what_is(record.kind), record.position + 1, name)
        case NoteAttempt(attempt=attempt) if attempt.intent and attempt.progress is None:
            return Event("intent", attempt.position + 1, attempt.name)
        case AskApproval(position=position):
            return Event("question", position + 1)
        case StartRun():
            return Event("start")
        case FinishRun():
            return Event("end")
        case _:
            return None


def _key_of(op: Op) -> int:
    """The run that an operation is about; 0 for one that is not there yet."""
    return op.key if isinstance(op, AppendRecord | NoteAttempt | AskApproval | FinishRun) else 0


def _new_run_of(op: Op) -> NewRun | None:
    return op.run if isinstance(op, StartRun) else None
