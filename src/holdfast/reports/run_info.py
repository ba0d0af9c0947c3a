"""What can be told of a run without its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from holdfast.admission.usage import Usage
from holdfast.codec import ErrorInfo, describe_error, shown_if_sealed, shown_text, to_plain
from holdfast.core.states import RunState
from holdfast.errors import CodecError, UnreadableRecord
from holdfast.reports.agent_result import plain_output
from holdfast.services.stalls import Surroundings, is_cancelling, is_held, is_paused, look_around, stall_of
from holdfast.services.thread_offload import off_loop
from holdfast.services.timestamps import moment
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.operations import Run


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception, as it was recorded."""

    type: str
    """The name of its class, with the module."""
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What can be told of a run without its code. For what is sealed with a key that is not here, words stand, and for
    what cannot be read at all."""

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
    error: Failure | None
    """The exception that a failed or dead run ended with."""
    waits_for: str
    tags: tuple[str, ...]
    wake_at: datetime | None
    """When it goes on, or starts, if that is only a matter of time."""
    paused: bool
    """Somebody has paused it."""
    paused_at: datetime | None
    """Since when."""
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
    hindrance: str | None
    """The same in a few words, for a list."""
    begun: bool
    """Somebody has taken it up at least once."""
    held: bool
    """A live worker has it in its hands."""
    usage: Usage | None
    """What its model calls have used so far, with those of the runs that it has started; ``None``: there were none."""

    @classmethod
    def of(cls, run: Run, around: Surroundings | None, told: RunUsage | None = None) -> RunInfo:
        """From a run's row, what is around it if it has not ended, and what it has used."""
        stall = None if around is None else stall_of(run, around)
        return cls(
            id=run.id,
            workflow=run.workflow,
            state=run.state,
            queue=run.queue,
            queue_key=run.queue_key,
            created_at=moment(run.created_at),
            finished_at=moment(run.finished_at),
            inputs=_read(run.inputs, to_plain),
            output=None if run.output is None else _read(run.output, plain_output),
            error=None if run.error is None else _failure(run.error),
            waits_for=shown_text(run.waits_for) if run.state is RunState.WAITING else "",
            tags=run.tags,
            wake_at=moment(run.wake_at),
            paused=is_paused(run),
            paused_at=moment(run.paused_at) if is_paused(run) else None,
            cancelling=is_cancelling(run),
            parent=run.parent or None,
            forked_from=run.forked_from or None,
            version=run.version,
            stalled=None if stall is None else stall.advice,
            hindrance=None if stall is None else stall.short,
            begun=run.epoch > 0,
            held=around is not None and is_held(run, around),
            usage=told.used if told is not None and told.used.calls else None,
        )


class Readable(Protocol):
    """Who can read a run, and what is around it."""

    async def store(self) -> Store:
        """The store, open."""
        ...

    async def read(self, run_id: str) -> Run:
        """The run's row now; ``RunNotFound`` if there is none."""
        ...


async def info_of(reach: Readable, run_id: str) -> RunInfo:
    """What can be told of a run now."""
    run = await reach.read(run_id)
    [info] = await infos_of(await reach.store(), [run])
    return info


async def infos_of(store: Store, runs: Sequence[Run], *, listed: bool = False) -> list[RunInfo]:
    """What can be told of runs whose rows were read, in the same order.

    ``listed``: in a list, where what they have used may be a moment behind.
    """
    around = None if all(run.state.is_terminal for run in runs) else await look_around(store, runs)
    begun = [run.id for run in runs if run.epoch > 0 or run.state.is_terminal]
    usages: Mapping[str, RunUsage] = {}
    if begun:
        usages = await (store.listed_usages(begun) if listed else store.usages(begun))
    size = sum(map(size_of, runs))
    return await off_loop(size, lambda: [RunInfo.of(run, around, usages.get(run.id)) for run in runs])


def size_of(run: Run) -> int:
    """Bytes of the values in a run's row."""
    return len(run.inputs) + len(run.output or b"") + len(run.error or b"")


def _read(payload: bytes, read: Callable[[bytes], Any]) -> Any:
    """What is recorded; words, where it is sealed or cannot be read: that must not hide the run, or those beside it."""
    try:
        return shown_if_sealed(payload) or read(payload)
    except CodecError as error:
        return f"<{error}>"


def _failure(payload: bytes) -> Failure:
    told = _read(payload, describe_error)
    if isinstance(told, ErrorInfo):
        return Failure(told.type, told.message)
    return Failure(f"{UnreadableRecord.__module__}.{UnreadableRecord.__qualname__}", told)
