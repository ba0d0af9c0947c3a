"""What a run leaves behind when it leaves memory: when to wake it, and for what."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.commands import Command
from holdfast.core.records import WAITS, Kind
from holdfast.stores.operations import ParkRun, Run


def park_of(
    run: Run,
    commands: Sequence[Command],
    timer_due: float | None,
    attempts: Sequence[tuple[float, str]],
    next_seq: int,
    *,
    paused: bool,
) -> ParkRun:
    """The park of a run whose open commands are these, with the times and steps of its next ``attempts``."""
    waits = [command for command in commands if command.kind in WAITS]
    due = [at for at, _ in attempts] + ([] if timer_due is None else [timer_due])
    return ParkRun(
        run.key,
        run.epoch,
        min(due, default=None),
        tuple(dict.fromkeys(command.name for command in waits if command.kind is Kind.SIGNAL)),
        _in_words(waits, timer_due, [name for _, name in attempts]),
        next_seq,
        tuple(command.position for command in waits if command.kind is Kind.CHILD),
        paused,
        tuple(command.call.id for command in waits if command.kind is Kind.APPROVAL),
    )


def _in_words(waits: Sequence[Command], timer_due: float | None, retried: Sequence[str]) -> str:
    signals = dict.fromkeys(one.call or f"signal {one.name!r}" for one in waits if one.kind is Kind.SIGNAL)
    words = list(signals)
    runs = [command.call.run_id for command in waits if command.kind is Kind.CHILD]
    if runs:
        words.append(f"run {runs[0]!r}" if len(runs) == 1 else f"{len(runs)} runs, such as {runs[0]!r}")
    words += [f"approval {command.call.id}" for command in waits if command.kind is Kind.APPROVAL][:3]
    if retried:
        steps = f"step {retried[0]!r}" if len(retried) == 1 else f"{len(retried)} steps, such as {retried[0]!r}"
        words.append(f"the next attempt of {steps}")
    if timer_due is not None:
        words.append("a timer")
    return " or ".join(words)
