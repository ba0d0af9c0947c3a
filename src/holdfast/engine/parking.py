"""What a run leaves behind when it leaves memory: when to wake it, and for what."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.commands import Command
from holdfast.core.records import WAITS, Kind
from holdfast.stores.operations import ParkRun, Run


def park_of(run: Run, commands: Sequence[Command], wake_at: float | None, next_seq: int, *, paused: bool) -> ParkRun:
    """The park of a run whose open commands are these, and whose next timer is due at this time."""
    waits = [command for command in commands if command.kind in WAITS]
    return ParkRun(
        run.key,
        run.epoch,
        wake_at,
        tuple(dict.fromkeys(command.name for command in waits if command.kind is Kind.SIGNAL)),
        _in_words(waits, wake_at),
        next_seq,
        tuple(command.position for command in waits if command.kind is Kind.CHILD),
        paused,
        tuple(command.call.id for command in waits if command.kind is Kind.APPROVAL),
    )


def _in_words(waits: Sequence[Command], wake_at: float | None) -> str:
    signals = dict.fromkeys(one.call or f"signal {one.name!r}" for one in waits if one.kind is Kind.SIGNAL)
    words = list(signals)
    runs = [command.call.run_id for command in waits if command.kind is Kind.CHILD]
    if runs:
        words.append(f"run {runs[0]!r}" if len(runs) == 1 else f"{len(runs)} runs, such as {runs[0]!r}")
    words += [f"approval {command.call.id}" for command in waits if command.kind is Kind.APPROVAL][:3]
    if wake_at is not None:
        words.append("a timer")
    return " or ".join(words)
