"""What dies with a simulated process: its hold on the store, and the steps that it has in flight.

A process that dies does not clean up. Cancelling its tasks would run their ``finally`` blocks, and closing its
coroutines would, too; so from the moment of death nothing of it is ever resumed. A step's coroutine is driven by hand
(``CrashableAwaitable``), which stops handing it anything; a store call (``CrashableStore``) does not return.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from holdfast.core.records import RecordKind
from holdfast.stores.approvals import RequestApproval
from holdfast.stores.capabilities import Capability
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    FinishRun,
    NewRun,
    Op,
    OpResult,
    OpStatus,
    Run,
    SaveAttempt,
    StartResult,
    StartRun,
)
from holdfast.testing.crash_points import EXECUTED_KINDS, EventKind, RunEvent

if TYPE_CHECKING:
    from holdfast.testing.simulated_process import SimulatedProcess

leaked_coroutines: list[Coroutine[Any, Any, Any]] = []
"""Steps that were in flight when their process died. Kept for ever: collecting one would run its ``finally`` blocks."""


def leak_coroutine(coro: Coroutine[Any, Any, Any]) -> None:
    """Keep the coroutine for ever."""
    leaked_coroutines.append(coro)
    try:
        from ctypes import py_object, pythonapi
    except ImportError:
        return
    # Python empties its modules when it ends, and the list with them: only a reference that nobody gives back lasts.
    pythonapi.Py_IncRef(py_object(coro))


class ProcessState:
    """Whether a simulated process is alive."""

    def __init__(self) -> None:
        self.is_dead = False

    async def die(self) -> NoReturn:
        """Die here."""
        self.is_dead = True
        while True:
            await asyncio.get_running_loop().create_future()


class CrashableAwaitable(Awaitable[Any]):
    """A coroutine that is not resumed any more once its process is dead."""

    def __init__(self, coro: Coroutine[Any, Any, Any], process_state: ProcessState) -> None:
        self._coro = coro
        self._process_state = process_state

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
            if self._process_state.is_dead:
                leak_coroutine(coro)
                if stop is not None:
                    raise stop
                yield from asyncio.get_running_loop().create_future()


class _CrashableObject:
    """An object of a store that outlives this process: no coroutine of it returns once the process is dead."""

    def __init__(self, inner: Any, process_state: ProcessState) -> None:
        self._inner = inner
        self._process_state = process_state

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._process_state.is_dead:
                await self._process_state.die()
            return await method(*args, **kwargs)

        return call


class CrashableClaims(_CrashableObject):
    """The runs that a process takes from such a store."""

    async def claim(self, worker: int, **wanted: Any) -> list[Run]:
        """Processes die here because a test says so. No run is suspected of it, so none is isolated from others."""
        if self._process_state.is_dead:
            await self._process_state.die()
        wanted["suspect_delay_s"] = 0.0
        claimed = await self._inner.claim(worker, **wanted)
        return [replace(run, suspicion=0) for run in claimed]


class CrashableStore(_CrashableObject):
    """One process's way to a store that outlives it."""

    url = MemoryStore.url

    def __init__(self, inner: MemoryStore, process_state: ProcessState, observer: SimulatedProcess) -> None:
        super().__init__(inner, process_state)
        self._observer = observer
        self.has_polled = False
        """Whether the engine has looked for work once, and now waits for a change."""
        for name, attribute in vars(Store).items():
            if isinstance(attribute, Capability) and inner.supports(cast("Capability[Any]", attribute)):
                setattr(self, name, _CrashableObject(getattr(inner, name), process_state))
        self.claims = CrashableClaims(inner.claims, process_state)

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Nobody else writes here; whoever lets time pass nudges the engine."""
        self.has_polled = True
        return await asyncio.get_running_loop().create_future()

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Carry out the operations, or those before the one at which the process dies."""
        if self._process_state.is_dead:
            await self._process_state.die()
        for at, op in enumerate(ops):
            if self._should_crash_before(op):
                await self._commit(ops[:at])
                await self._process_state.die()
            if self._should_crash_after(op):
                await self._commit(ops[: at + 1])
                await self._process_state.die()
        return await self._commit(ops)

    def _should_crash_before(self, op: Op) -> bool:
        witness, event = self._observer, get_event(op)
        if isinstance(op, StartRun | AwaitRun) and op.link is not None:
            # Where a run that another one starts or waits for begins is a place in the life of that other one, too.
            name = op.run.workflow if isinstance(op, StartRun) else ""
            if witness.should_crash("before", op.link.parent_key, RunEvent("child", op.link.position + 1, name)):
                return True
        if event is None:
            return False
        is_outcome = event.kind in EXECUTED_KINDS
        return witness.should_crash("during" if is_outcome else "before", _get_run_key(op), event, _get_new_run(op))

    def _should_crash_after(self, op: Op) -> bool:
        event = get_event(op)
        return event is not None and self._observer.should_crash("after", _get_run_key(op), event, _get_new_run(op))

    async def _commit(self, ops: Sequence[Op]) -> list[OpResult]:
        answers = await self._inner.commit(ops)
        asked: list[Op | None] = []
        for op, answer in zip(ops, answers, strict=True):
            event = get_event(op)
            if event is None:
                continue
            if isinstance(answer, StartResult):
                # Who starts a run again that it has started before is answered as it was the first time.
                if answer.is_new and self._observer.add_run(answer.run):
                    asked.append(self._observer.on_event(answer.run.key, event))
            elif answer in (OpStatus.DONE, OpStatus.DONE_NOTIFIED):
                asked.append(self._observer.on_event(_get_run_key(op), event))
        if more := [op for op in asked if op is not None]:
            await self._inner.commit(more)
        return answers


_EVENT_KINDS: dict[RecordKind, EventKind] = {
    RecordKind.STEP: "step",
    RecordKind.COMPENSATION: "compensation",
    RecordKind.CHILD: "child",
    RecordKind.START: "child",
    RecordKind.TIMER: "timer",
    RecordKind.SIGNAL: "signal",
    RecordKind.APPROVAL: "approval",
    RecordKind.DEADLINE: "deadline",
    RecordKind.CANCEL: "cancel",
    RecordKind.PATCH: "patch",
}


def get_event_kind(kind: RecordKind) -> EventKind:
    """What the outcome of such a command is called in a run's life."""
    return _EVENT_KINDS[kind]


def get_event(op: Op) -> RunEvent | None:
    """What the operation writes about a run's life, if it does."""
    match op:
        case AppendRecord(record=record):
            if record.kind in (RecordKind.DEADLINE, RecordKind.CANCEL):
                return RunEvent(get_event_kind(record.kind))
            if record.kind is RecordKind.PATCH:
                return RunEvent("patch", name=record.name)
            name = "" if record.kind is RecordKind.APPROVAL else record.name
            return RunEvent(get_event_kind(record.kind), record.position + 1, name)
        case SaveAttempt(attempt=attempt) if attempt.intent and attempt.progress is None:
            return RunEvent("intent", attempt.position + 1, attempt.name)
        case RequestApproval(position=position):
            return RunEvent("question", position + 1)
        case StartRun():
            return RunEvent("start")
        case FinishRun():
            return RunEvent("end")
        case _:
            return None


def _get_run_key(op: Op) -> int:
    """The run that an operation is about; 0 for one that is not there yet."""
    return op.key if isinstance(op, AppendRecord | SaveAttempt | RequestApproval | FinishRun) else 0


def _get_new_run(op: Op) -> NewRun | None:
    return op.run if isinstance(op, StartRun) else None
