"""A run that somebody follows: its state, its result, and a way to send it signals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from holdfast.client.outcome import result_of
from holdfast.codec import codec_for, describe_error, to_plain
from holdfast.core.states import RunState
from holdfast.errors import RunEnded, RunNotFound
from holdfast.stores.contract import Run, Verdict

R = TypeVar("R")

_values = codec_for(Any)


class Link(Protocol):
    """What a handle asks of the runtime or client that made it."""

    async def wait_for_end(self, run_id: str) -> Run:
        """The run's row, once it has ended."""
        ...

    async def read(self, run_id: str) -> Run:
        """The run's row now; ``RunNotFound`` if there is none."""
        ...

    async def deliver(self, run_id: str, name: str, payload: bytes, dedup: str | None) -> Verdict:
        """Put a signal into the run's mailbox."""
        ...


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What can be told of a run without its code."""

    id: str
    workflow: str
    state: RunState
    queue: str
    created_at: datetime
    finished_at: datetime | None
    inputs: Any
    output: Any
    error: str | None
    """Type and message of the exception that a failed or dead run ended with."""
    waits_for: str
    tags: tuple[str, ...]

    @classmethod
    def of(cls, run: Run) -> RunInfo:
        """From a run's row."""
        error = None
        if run.error is not None:
            fault = describe_error(run.error)
            error = f"{fault.type}: {fault.message}"
        return cls(
            id=run.id,
            workflow=run.workflow,
            state=run.state,
            queue=run.queue,
            created_at=datetime.fromtimestamp(run.created_at, UTC),
            finished_at=None if run.finished_at is None else datetime.fromtimestamp(run.finished_at, UTC),
            inputs=to_plain(run.inputs),
            output=None if run.output is None else to_plain(run.output),
            error=error,
            waits_for=run.waits_for if run.state is RunState.WAITING else "",
            tags=run.tags,
        )


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

    async def info(self) -> RunInfo:
        """What can be told of the run now."""
        return RunInfo.of(await self._link.read(self.run_id))

    async def signal(self, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """Send a value into the run. With an ``id``, sending it again changes nothing (and returns false)."""
        return await send_signal(self._link, self.run_id, name, value, id)

    def __repr__(self) -> str:
        return f"<Handle of run {self.run_id!r}>"


async def send_signal(link: Link, run_id: str, name: str, value: Any, dedup: str | None) -> bool:
    """Send a signal; false when one with this deduplication id was sent before."""
    payload = _values.encode(value, f"signal {name!r}")
    verdict = await link.deliver(run_id, name, payload, dedup)
    if verdict is Verdict.UNKNOWN_RUN:
        raise RunNotFound(f"signal {name!r} cannot be sent: there is no run {run_id!r}", run_id)
    if verdict is Verdict.ENDED:
        raise RunEnded(f"signal {name!r} cannot be sent: run {run_id!r} has ended", run_id)
    return verdict is not Verdict.DUPLICATE
