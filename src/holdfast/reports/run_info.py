"""The state of a run, read without its code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.codec import ErrorInfo, decode_plain, describe_if_encrypted, mask_encrypted_text, read_error_info
from holdfast.core.immutable import immutable
from holdfast.core.states import TERMINAL_STATES, RunState
from holdfast.errors import CodecError, UnreadableRecord
from holdfast.reports.agent_result import decode_plain_output
from holdfast.services import stalls
from holdfast.services.json_form import UsageWithCost, UserValue, UtcDatetime
from holdfast.services.stalls import RunEnvironment, find_stall, is_claimed
from holdfast.services.store_provider import StoreProvider
from holdfast.services.thread_offload import run_off_loop
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.operations import CancelState, Run


@dataclass(frozen=True, slots=True)
class RunErrorInfo:
    """A recorded exception."""

    type: str
    """The name of its class, with the module."""
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@immutable
class RunInfo:
    """The state of a run, read without its code. A value that is encrypted with an unknown key, or that cannot be
    decoded, is replaced by a text that says so."""

    id: str
    workflow: str
    state: RunState
    queue: str
    queue_key: str
    """Its key in the queue; empty if it has none."""
    created_at: UtcDatetime
    finished_at: UtcDatetime | None
    inputs: UserValue
    output: UserValue
    error: RunErrorInfo | None
    """The exception that a failed or dead run ended with."""
    waits_for: str
    tags: tuple[str, ...]
    wake_at: UtcDatetime | None
    """When it continues, or starts, if it waits only for a time."""
    is_paused: bool
    paused_at: UtcDatetime | None
    is_cancelling: bool
    """A cancel was requested, and the run has not ended yet."""
    parent: str | None
    """The id of the run that started it."""
    forked_from: str | None
    """The id of the run whose beginning it shares."""
    version: str
    """The version of its workflow; empty if it has none."""
    stall_advice: str | None
    """Why it does not continue, and what to do about it: it is paused, its workflow is disabled, no live worker serves
    its workflow, its version, or its queue, or the limits of its queue keep it waiting. ``None`` if nothing does."""
    stall_summary: str | None
    """The same in a few words, for a list."""
    has_started: bool
    """A worker has claimed it at least once."""
    is_claimed: bool
    """A live worker has it in its hands."""
    usage: UsageWithCost | None
    """What its model calls used so far, with those of the runs that it started; ``None``: there were none."""

    @classmethod
    def from_row(cls, run: Run, environment: RunEnvironment | None, usage: RunUsage | None = None) -> RunInfo:
        """From a run's row, the environment of an unfinished run, and its usage."""
        state = run.state
        is_unfinished = state not in TERMINAL_STATES
        stall = find_stall(run, environment) if is_unfinished and environment is not None else None
        is_paused = run.paused_at is not None and is_unfinished
        # By position, in the order of the fields: by name, it takes three times as long.
        return cls(
            run.id,
            run.workflow,
            state,
            run.queue,
            run.queue_key,
            to_datetime(run.created_at),
            None if run.finished_at is None else to_datetime(run.finished_at),
            _decode_for_display(run.inputs, decode_plain),
            None if run.output is None else _decode_for_display(run.output, decode_plain_output),
            None if run.error is None else _error_from_payload(run.error),
            mask_encrypted_text(run.waits_for) if state is RunState.WAITING else "",
            run.tags,
            None if run.wake_at is None else to_datetime(run.wake_at),
            is_paused,
            to_datetime(run.paused_at) if is_paused else None,
            run.cancel_state is not CancelState.NONE and is_unfinished,
            run.parent or None,
            run.forked_from or None,
            run.version,
            None if stall is None else stall.advice,
            None if stall is None else stall.summary,
            run.epoch > 0,
            state is RunState.RUNNING and environment is not None and is_claimed(run, environment),
            usage.used if usage is not None and usage.used.calls else None,
        )


async def read_run_info(provider: StoreProvider, run_id: str) -> RunInfo:
    """The current state of a run."""
    run = await provider.read(run_id)
    [info] = await read_run_infos(await provider.store(), [run])
    return info


EnvironmentReader = Callable[[Sequence[Run]], Awaitable[RunEnvironment]]
"""Reads the environment of runs."""


async def read_run_infos(
    store: Store,
    runs: Sequence[Run],
    *,
    allow_stale_usage: bool = False,
    read_environment: EnvironmentReader | None = None,
) -> list[RunInfo]:
    """The states of runs, from their rows, in the same order.

    ``allow_stale_usage``: the usage may be slightly out of date, as in a list. ``read_environment``: default: from the
    store.
    """
    environment: RunEnvironment | None = None
    if not all(run.state in TERMINAL_STATES for run in runs):
        environment = await (
            stalls.read_environment(store, runs) if read_environment is None else read_environment(runs)
        )
    started = [run.id for run in runs if run.epoch > 0 or run.state in TERMINAL_STATES]
    usages: Mapping[str, RunUsage] = {}
    if started:
        usages = await (store.get_approximate_usages(started) if allow_stale_usage else store.get_usages(started))
    size = sum(map(get_values_size, runs))
    return await run_off_loop(size, lambda: [RunInfo.from_row(run, environment, usages.get(run.id)) for run in runs])


def get_values_size(run: Run) -> int:
    """Bytes of the values in a run's row."""
    return len(run.inputs) + len(run.output or b"") + len(run.error or b"")


def _decode_for_display(payload: bytes, decode: Callable[[bytes], Any]) -> Any:
    """The recorded value; a text if it is encrypted or cannot be decoded, so that the run can still be listed."""
    try:
        return describe_if_encrypted(payload) or decode(payload)
    except CodecError as error:
        return f"<{error}>"


def _error_from_payload(payload: bytes) -> RunErrorInfo:
    error = _decode_for_display(payload, read_error_info)
    if isinstance(error, ErrorInfo):
        return RunErrorInfo(error.type, error.message)
    return RunErrorInfo(f"{UnreadableRecord.__module__}.{UnreadableRecord.__qualname__}", error)
