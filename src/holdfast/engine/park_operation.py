"""The ``ParkRun`` of a run that leaves memory: when to wake it, and for what.

Parking is one write. The store refuses it if what the run waits for has already arrived. What arrives later makes the
run claimable in the transaction that stores it, so nothing is missed in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.commands import Command
from holdfast.core.records import WAIT_KINDS, RecordKind
from holdfast.stores.operations import ParkRun, Run


def make_park_run(
    run: Run,
    commands: Sequence[Command],
    timer_due_at: float | None,
    retries: Sequence[tuple[float, str]],
    next_seq: int,
    *,
    is_paused: bool,
) -> ParkRun:
    """The park of a run with these open commands; ``retries`` are the times and names of its waiting steps."""
    waits = [command for command in commands if command.kind in WAIT_KINDS]
    due = [at for at, _ in retries] + ([] if timer_due_at is None else [timer_due_at])
    return ParkRun(
        run.key,
        run.epoch,
        min(due, default=None),
        tuple(dict.fromkeys(command.name for command in waits if command.kind is RecordKind.SIGNAL)),
        _describe_waits(waits, timer_due_at, [name for _, name in retries]),
        next_seq,
        tuple(command.position for command in waits if command.kind is RecordKind.CHILD),
        is_paused,
        tuple(command.call.id for command in waits if command.kind is RecordKind.APPROVAL),
    )


def _describe_waits(waits: Sequence[Command], timer_due_at: float | None, retried_steps: Sequence[str]) -> str:
    signals = dict.fromkeys(one.call or f"signal {one.name!r}" for one in waits if one.kind is RecordKind.SIGNAL)
    words = list(signals)
    runs = [command.call.run_id for command in waits if command.kind is RecordKind.CHILD]
    if runs:
        words.append(f"run {runs[0]!r}" if len(runs) == 1 else f"{len(runs)} runs, such as {runs[0]!r}")
    words += [f"approval {command.call.id}" for command in waits if command.kind is RecordKind.APPROVAL][:3]
    if retried_steps:
        steps = (
            f"step {retried_steps[0]!r}"
            if len(retried_steps) == 1
            else f"{len(retried_steps)} steps, such as {retried_steps[0]!r}"
        )
        words.append(f"the next attempt of {steps}")
    if timer_due_at is not None:
        words.append("a timer")
    return " or ".join(words)
