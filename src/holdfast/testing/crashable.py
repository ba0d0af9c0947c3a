"""What dies with a simulated process: its store calls, and its steps in flight.

A process that dies does not clean up. Cancelling its tasks or closing its coroutines would run their ``finally``
blocks, so from the crash on nothing of it is ever resumed: ``CrashableAwaitable`` drives a step's coroutine by hand and
stops, and calls to a ``CrashableStore`` do not return.
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
"""Steps that were in flight when their process died. Collecting one would run its ``finally`` blocks."""


def leak_coroutine(coro: Coroutine[Any, Any, Any]) -> None:
    """Make sure that the coroutine is never collected."""
    leaked_coroutines.append(coro)
    try:
        from ctypes import py_object, pythonapi
    except ImportError:
        return
    # Python clears its modules at exit, and the list with them: only an extra reference keeps the coroutine alive.
    pythonapi.Py_IncRef(py_object(coro))


class ProcessState:
    """Whether a simulated process is alive."""

    def __init__(self) -> None:
        self.is_dead = False

    async def die(self) -> NoReturn:
        """Mark the process as dead, and never return."""
        self.is_dead = True
        while True:
            await asyncio.get_running_loop().create_future()


class CrashableAwaitable(Awaitable[Any]):
    """A coroutine that is never resumed once its process is dead."""

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
    """A store, or a part of one, that outlives this process: its coroutines do not return once the process is dead."""

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

        setattr(self, name, call)  # for the next time
        return call


class CrashableClaims(_CrashableObject):
    """The claims of such a store, without isolation: processes die because a test says so, not because of a run."""

    async def claim(self, worker: int, **filters: Any) -> list[Run]:
        """Claim runs, and clear any suspicion against them."""
        if self._process_state.is_dead:
            await self._process_state.die()
        filters["suspect_delay_s"] = 0.0
        claimed = await self._inner.claim(worker, **filters)
        return [replace(run, suspicion=0) for run in claimed]


class CrashableStore(_CrashableObject):
    """One process's view of a store that outlives it."""

    url = MemoryStore.url

    def __init__(self, inner: MemoryStore, process_state: ProcessState, observer: SimulatedProcess) -> None:
        super().__init__(inner, process_state)
        self._observer = observer
        self.has_polled = False
        """Whether the engine has looked for work, and now waits for a change."""
        for name, attribute in vars(Store).items():
            if isinstance(attribute, Capability) and inner.supports(cast("Capability[Any]", attribute)):
                setattr(self, name, _CrashableObject(getattr(inner, name), process_state))
        self.claims = CrashableClaims(inner.claims, process_state)

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Wait forever: there are no other writers, and the process wakes the engine when time passes."""
        self.has_polled = True
        return await asyncio.get_running_loop().create_future()

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Commit the operations, or only those up to the one where the process crashes."""
        if self._process_state.is_dead:
            await self._process_state.die()
        events = [get_event(op) for op in ops]
        if self._observer.world.crash_points:
            for at, (op, event) in enumerate(zip(ops, events, strict=True)):
                if self._should_crash_before(op, event):
                    await self._commit(ops[:at], events[:at])
                    await self._process_state.die()
                if self._should_crash_after(op, event):
                    await self._commit(ops[: at + 1], events[: at + 1])
                    await self._process_state.die()
        return await self._commit(ops, events)

    def _should_crash_before(self, op: Op, event: RunEvent | None) -> bool:
        if isinstance(op, StartRun | AwaitRun) and op.link is not None:
            # Starting a child, or beginning to wait for it, is also a point of the parent.
            name = op.run.workflow if isinstance(op, StartRun) else ""
            child_event = RunEvent("child", op.link.position + 1, name)
            if self._observer.should_crash("before", op.link.parent_key, child_event):
                return True
        if event is None:
            return False
        phase = "during" if event.kind in EXECUTED_KINDS else "before"
        return self._observer.should_crash(phase, _get_run_key(op), event, _get_new_run(op))

    def _should_crash_after(self, op: Op, event: RunEvent | None) -> bool:
        return event is not None and self._observer.should_crash("after", _get_run_key(op), event, _get_new_run(op))

    async def _commit(self, ops: Sequence[Op], events: Sequence[RunEvent | None]) -> list[OpResult]:
        answers = await self._inner.commit(ops)
        reactions: list[Op | None] = []
        for op, event, answer in zip(ops, events, answers, strict=True):
            if event is None:
                continue
            if isinstance(answer, StartResult):
                # A start that is repeated gets the same answer as the first time, so the run may be known already.
                if answer.is_new and self._observer.world.add_run(answer.run):
                    reactions.append(self._observer.on_event(answer.run.key, event))
            elif answer in (OpStatus.DONE, OpStatus.DONE_NOTIFIED):
                reactions.append(self._observer.on_event(_get_run_key(op), event))
        if reaction_ops := [op for op in reactions if op is not None]:
            await self._inner.commit(reaction_ops)
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
    """The kind of the event that records the outcome of such a command."""
    return _EVENT_KINDS[kind]


def get_event(op: Op) -> RunEvent | None:
    """The event that the operation writes, if it writes one."""
    match op:
        case AppendRecord(record=record) if record.kind is not RecordKind.CALL:
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
    """The key of the operation's run; 0 for a run that is not stored yet."""
    return op.key if isinstance(op, AppendRecord | SaveAttempt | RequestApproval | FinishRun) else 0


def _get_new_run(op: Op) -> NewRun | None:
    return op.run if isinstance(op, StartRun) else None
