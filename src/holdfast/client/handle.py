"""A run that somebody follows: its state, its result, and ways to influence it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from holdfast.client.agent_result import AgentResult, plain_result
from holdfast.client.approvals import ApprovalInfo, ApprovalReach, approve, deny, list_approvals
from holdfast.client.control import cancel_run, pause_run, resume_run, send_signal, set_budget
from holdfast.client.events import Event, read_events
from holdfast.client.outcome import Ended, result_of
from holdfast.client.plans import Plan, read_plan
from holdfast.client.stalls import Surroundings, look_around, why_stalled
from holdfast.codec import describe_error, to_plain
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.core.usage import Budget, Usage
from holdfast.stores.contract import RunUsage
from holdfast.stores.news import Bell
from holdfast.stores.operations import Cancel, Run

R = TypeVar("R")


class Link(ApprovalReach, Protocol):
    """What a handle asks of the runtime or client that made it."""

    async def wait_for_end(self, run_id: str) -> Run | Ended:
        """The run, once it has ended."""
        ...

    def listen(self, run_id: str) -> AbstractContextManager[Bell]:
        """A bell that rings whenever something may be new of the run."""
        ...

    async def usage(self, run_id: str) -> RunUsage:
        """What the run has used so far."""
        ...

    async def last_record(self, run_id: str, name: str) -> Record | None:
        """The newest record of this name that is ``ok``."""
        ...


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What can be told of a run without its code."""

    id: str
    workflow: str
    state: RunState
    queue: str
    queue_key: str
    """Whose it is among the runs of its queue; empty if it has no key."""
    created_at: datetime
    finished_at: datetime | None
    inputs: Any
    output: Any
    error: str | None
    """Type and message of the exception that a failed or dead run ended with."""
    waits_for: str
    tags: tuple[str, ...]
    paused: bool
    """Somebody has paused it."""
    cancelling: bool
    """Somebody has asked for it to be cancelled, and it has not ended yet."""
    parent: str | None
    """The id of the run that started it."""
    forked_from: str | None
    """The id of the run whose beginning it shares."""
    version: str
    """The version of its workflow, whose code takes it up; empty if it has none."""
    stalled: str | None
    """Why it does not go on, in a sentence that says what to do about it: it is paused, its workflow is switched off,
    no live worker serves its workflow, its version or its queue, or the limits of its queue keep it waiting. ``None``
    if nothing keeps it from going on."""

    @classmethod
    def of(cls, run: Run, around: Surroundings | None) -> RunInfo:
        """From a run's row, and what is around it if it has not ended."""
        error = None
        if run.error is not None:
            fault = describe_error(run.error)
            error = f"{fault.type}: {fault.message}"
        return cls(
            id=run.id,
            workflow=run.workflow,
            state=run.state,
            queue=run.queue,
            queue_key=run.queue_key,
            created_at=datetime.fromtimestamp(run.created_at, UTC),
            finished_at=None if run.finished_at is None else datetime.fromtimestamp(run.finished_at, UTC),
            inputs=to_plain(run.inputs),
            output=None if run.output is None else _output(run.output),
            error=error,
            waits_for=run.waits_for if run.state is RunState.WAITING else "",
            tags=run.tags,
            paused=run.paused_at is not None,
            cancelling=run.cancel is not Cancel.NO and not run.state.is_terminal,
            parent=run.parent or None,
            forked_from=run.forked_from or None,
            version=run.version,
            stalled=None if around is None else why_stalled(run, around),
        )


async def info_of(reach: ApprovalReach, run_id: str) -> RunInfo:
    """What can be told of a run now."""
    run = await reach.read(run_id)
    return RunInfo.of(run, None if run.state.is_terminal else await look_around(await reach.store(), [run]))


def _output(payload: bytes) -> Any:
    """The output of a run as plain data: of an agent, its answer."""
    result = plain_result(payload)
    return result.output if isinstance(result, AgentResult) else result  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class Handle(Generic[R]):
    """A started run."""

    __slots__ = ("_decode", "_link", "_namespaces", "run_id")

    def __init__(
        self, link: Link, run_id: str, decode: Callable[[bytes], R], namespaces: Sequence[Mapping[str, object]] = ()
    ) -> None:
        self.run_id = run_id
        self._link = link
        self._decode = decode
        self._namespaces = namespaces

    async def result(self, timeout: float | None = None) -> R:
        """The run's result, once it has ended. Raises ``RunFailed``, ``RunCancelled`` or ``RunDead`` if it has none.

        With a ``timeout`` in seconds, ``TimeoutError`` if it has not ended by then; the run goes on all the same.
        """
        async with asyncio.timeout(timeout):
            run = await self._link.wait_for_end(self.run_id)
        return result_of(run, self._decode, self._namespaces)

    def events(self, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        """What happens in the run, from its beginning or behind the event with the offset ``after``, until its end.

        Tokens, tool calls, steps, plans and questions, whoever executes the run: see ``Event``. A reader that comes
        back with the offset of the last event that it had misses nothing, and sees nothing twice. Without ``follow``
        it ends with what has happened so far.
        """
        return read_events(self._link, self.run_id, after, follow=follow)

    async def info(self) -> RunInfo:
        """What can be told of the run now."""
        return await info_of(self._link, self.run_id)

    async def usage(self) -> Usage:
        """What its model calls have used so far, with those of the runs that it has started."""
        return (await self._link.usage(self.run_id)).used

    async def plan(self) -> Plan:
        """What an agent that plans means to do, and how far it is; empty as long as it has written no plan."""
        return await read_plan(self._link, self.run_id)

    async def set_budget(self, budget: Budget) -> None:
        """Give the run another budget in place of the one that it was started with; it goes on if that was used up."""
        await set_budget(self._link, self.run_id, budget)

    async def signal(self, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """Send a value into the run. With an ``id``, sending it again changes nothing (and returns false)."""
        return await send_signal(self._link, self.run_id, name, value, id)

    async def approvals(self, *, all: bool = False) -> list[ApprovalInfo]:
        """The questions of the run that wait for a person's answer; with ``all``, also those that are closed."""
        return await list_approvals(self._link, self.run_id, all=all)

    async def approve(
        self,
        id: str,
        value: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Say yes to a question of the run: see ``Client.approve``."""
        return await approve(self._link, id, value, arguments=arguments, by=by, reason=reason, of=self.run_id)

    async def deny(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """Say no to a question of the run: see ``Client.approve``."""
        return await deny(self._link, id, by=by, reason=reason, of=self.run_id)

    async def cancel(self) -> bool:
        """Ask for the run to be cancelled; false when that was asked before.

        What it is doing is interrupted: ``asyncio.CancelledError`` is raised in its code, and in the steps in flight.
        ``finally`` blocks run, and steps with a compensation are undone. ``RunEnded`` if there is nothing to cancel.
        """
        return await cancel_run(self._link, self.run_id)

    async def pause(self) -> bool:
        """Keep the run from going on; false when it was paused before. Steps in flight may end, and are recorded."""
        return await pause_run(self._link, self.run_id)

    async def resume(self) -> bool:
        """Let a paused run go on; false when it was not paused."""
        return await resume_run(self._link, self.run_id)

    def __repr__(self) -> str:
        return f"<Handle of run {self.run_id!r}>"
