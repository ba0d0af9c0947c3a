"""What can be told of a run without its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.codec import ErrorInfo, decode_plain, describe_if_encrypted, mask_encrypted_text, read_error_info
from holdfast.core.states import RunState
from holdfast.errors import CodecError, UnreadableRecord
from holdfast.reports.agent_result import decode_plain_output
from holdfast.services.json_form import UsageWithCost, UserValue, UtcDatetime
from holdfast.services.stalls import RunEnvironment, find_stall, is_cancelling, is_claimed, is_paused, read_environment
from holdfast.services.store_provider import StoreProvider
from holdfast.services.thread_offload import run_off_loop
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.operations import Run


@dataclass(frozen=True, slots=True)
class RunErrorInfo:
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
    created_at: UtcDatetime
    finished_at: UtcDatetime | None
    inputs: UserValue
    output: UserValue
    error: RunErrorInfo | None
    """The exception that a failed or dead run ended with."""
    waits_for: str
    tags: tuple[str, ...]
    wake_at: UtcDatetime | None
    """When it goes on, or starts, if that is only a matter of time."""
    is_paused: bool
    """Somebody has paused it."""
    paused_at: UtcDatetime | None
    """Since when."""
    is_cancelling: bool
    """Somebody has asked for it to be cancelled, and it has not ended yet."""
    parent: str | None
    """The id of the run that started it."""
    forked_from: str | None
    """The id of the run whose beginning it shares."""
    version: str
    """The version of its workflow, whose code takes it up; empty if it has none."""
    stall_advice: str | None
    """Why it does not go on, in a sentence that says what to do about it: it is paused, its workflow is disabled,
    no live worker serves its workflow, its version or its queue, or the limits of its queue keep it waiting. ``None``
    if nothing keeps it from going on."""
    stall_summary: str | None
    """The same in a few words, for a list."""
    has_started: bool
    """Somebody has taken it up at least once."""
    is_claimed: bool
    """A live worker has it in its hands."""
    usage: UsageWithCost | None
    """What its model calls have used so far, with those of the runs that it has started; ``None``: there were none."""

    @classmethod
    def from_row(cls, run: Run, environment: RunEnvironment | None, usage: RunUsage | None = None) -> RunInfo:
        """From a run's row, what is around it if it has not ended, and what it has used."""
        stall = None if environment is None else find_stall(run, environment)
        return cls(
            id=run.id,
            workflow=run.workflow,
            state=run.state,
            queue=run.queue,
            queue_key=run.queue_key,
            created_at=to_datetime(run.created_at),
            finished_at=to_datetime(run.finished_at),
            inputs=_decode_for_display(run.inputs, decode_plain),
            output=None if run.output is None else _decode_for_display(run.output, decode_plain_output),
            error=None if run.error is None else _error_from_payload(run.error),
            waits_for=mask_encrypted_text(run.waits_for) if run.state is RunState.WAITING else "",
            tags=run.tags,
            wake_at=to_datetime(run.wake_at),
            is_paused=is_paused(run),
            paused_at=to_datetime(run.paused_at) if is_paused(run) else None,
            is_cancelling=is_cancelling(run),
            parent=run.parent or None,
            forked_from=run.forked_from or None,
            version=run.version,
            stall_advice=None if stall is None else stall.advice,
            stall_summary=None if stall is None else stall.summary,
            has_started=run.epoch > 0,
            is_claimed=environment is not None and is_claimed(run, environment),
            usage=usage.used if usage is not None and usage.used.calls else None,
        )


async def read_run_info(provider: StoreProvider, run_id: str) -> RunInfo:
    """What can be told of a run now."""
    run = await provider.read(run_id)
    [info] = await read_run_infos(await provider.store(), [run])
    return info


async def read_run_infos(store: Store, runs: Sequence[Run], *, allow_stale_usage: bool = False) -> list[RunInfo]:
    """What can be told of runs whose rows were read, in the same order.

    ``allow_stale_usage``: what they have used may be a moment behind, as in a list.
    """
    around = None if all(run.state.is_terminal for run in runs) else await read_environment(store, runs)
    begun = [run.id for run in runs if run.epoch > 0 or run.state.is_terminal]
    usages: Mapping[str, RunUsage] = {}
    if begun:
        usages = await (store.get_approximate_usages(begun) if allow_stale_usage else store.get_usages(begun))
    size = sum(map(get_values_size, runs))
    return await run_off_loop(size, lambda: [RunInfo.from_row(run, around, usages.get(run.id)) for run in runs])


def get_values_size(run: Run) -> int:
    """Bytes of the values in a run's row."""
    return len(run.inputs) + len(run.output or b"") + len(run.error or b"")


def _decode_for_display(payload: bytes, decode: Callable[[bytes], Any]) -> Any:
    """What is recorded; words, where it is sealed or cannot be read: that must not hide the run, or those beside it."""
    try:
        return describe_if_encrypted(payload) or decode(payload)
    except CodecError as error:
        return f"<{error}>"


def _error_from_payload(payload: bytes) -> RunErrorInfo:
    told = _decode_for_display(payload, read_error_info)
    if isinstance(told, ErrorInfo):
        return RunErrorInfo(told.type, told.message)
    return RunErrorInfo(f"{UnreadableRecord.__module__}.{UnreadableRecord.__qualname__}", told)
