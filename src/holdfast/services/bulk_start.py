"""Starting many runs with one commit per thousand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from holdfast.errors import UsageError
from holdfast.services.input_validation import bind_inputs
from holdfast.services.run_start import StartOptions, build_new_run, resolve_start
from holdfast.services.thread_offload import OffLoopRunner, run_off_loop
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.operations import NewRun, StartRun

BATCH_SIZE = 1000

CallArguments = Sequence[Any] | Mapping[str, Any]
"""The arguments of one run: by position, or by name."""


async def start_many(
    store: Store, spec: WorkflowSpec, calls: Iterable[CallArguments], options: StartOptions, max_value: int
) -> list[str]:
    """Start a run for each call, and return their ids in order.

    A call that cannot be started raises what ``start`` would raise. If its arguments are invalid, no run of its batch
    is started; if it cannot join an existing run, the rest of its batch is. Earlier batches stay started.
    """
    check_bulk_options(spec.name, options)
    return await start_batches(
        store, spec, ((bind_inputs(spec, *split_call(call)), options) for call in calls), max_value
    )


def check_bulk_options(workflow: str, options: StartOptions) -> None:
    """Refuse options that only one run can have. Raises ``UsageError``."""
    if options.id is not None:
        raise UsageError(
            f"start_many starts many runs, and id={options.id!r} can only be the id of one: give the workflow an id "
            f"template, as in @workflow(id='{workflow}-{{customer}}')"
        )
    if options.dedup is not None:
        raise UsageError(
            f"start_many starts many runs, and with dedup={options.dedup!r} all of them would be one: start that one "
            f"with `start`"
        )


async def start_batches(
    store: Store,
    spec: WorkflowSpec,
    runs: Iterable[tuple[bytes, StartOptions]],
    max_value: int,
    *,
    join_unsuccessful: bool = False,
    runner: OffLoopRunner = run_off_loop,
) -> list[str]:
    """Start a run for each of these inputs, each with its own options: see ``resolve_start``."""
    ids: list[str] = []
    left = iter(runs)
    while batch := list(islice(left, BATCH_SIZE)):
        size = sum(len(inputs) for inputs, _ in batch)
        new_runs = await runner(size, partial(_build_runs, store, spec, batch, max_value))
        results = await store.commit([StartRun(new) for new in new_runs])
        ids += [
            resolve_start(result, new, join_unsuccessful=join_unsuccessful).id
            for result, new in zip(results, new_runs, strict=True)
        ]
    return ids


def _build_runs(
    store: Store, spec: WorkflowSpec, batch: Sequence[tuple[bytes, StartOptions]], max_value: int
) -> list[NewRun]:
    return [build_new_run(spec, inputs, options, now=store.now(), max_value=max_value) for inputs, options in batch]


def split_call(call: CallArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, by position and by name. Raises ``UsageError``."""
    if isinstance(call, Mapping):
        return (), dict(call)
    if isinstance(call, str | bytes):
        raise UsageError(
            f"start_many takes a tuple or a mapping of arguments for each run, not {call!r:.60}: write ({call!r:.60},)"
        )
    return tuple(call), {}
