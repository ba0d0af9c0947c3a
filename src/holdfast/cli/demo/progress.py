"""What has happened in the demo so far, as it can be seen from outside: in the effects' file, and from the kill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.cli.demo.effects import Trace
from holdfast.cli.demo.job import STEPS


@dataclass(slots=True)
class Progress:
    """The demo's story; the screens only tell it."""

    victim: int
    """The number of the step in whose middle its worker is killed."""
    traces: Sequence[Trace] = ()
    pids: list[int] = field(default_factory=list[int])
    """The workers' processes; the first is A, the one that took the run first."""
    began_at: float = 0.0
    killed_at: float | None = None
    ended: bool = False

    def letter(self, pid: int) -> str:
        """What this worker is called on the screen."""
        return "AB"[self.pids.index(pid)]

    def starts(self, number: int) -> list[Trace]:
        """Each time this step's effect began."""
        return [trace for trace in self.traces if trace.number == number and trace.what == "started"]

    def ends(self, number: int) -> list[Trace]:
        """Each time this step's effect was completed."""
        return [trace for trace in self.traces if trace.number == number and trace.what == "finished"]

    @property
    def taken_over_at(self) -> float | None:
        """When another worker went on: its first effect after the kill."""
        if self.killed_at is None:
            return None
        return next((trace.at for trace in self.traces if trace.pid != self.pids[0]), None)

    @property
    def takeover(self) -> float | None:
        """Seconds from the kill to the moment when another worker went on."""
        if self.killed_at is None or self.taken_over_at is None:
            return None
        return self.taken_over_at - self.killed_at

    def note(self, traces: Sequence[Trace]) -> list[Trace]:
        """Take in what the file says now; returns what is new."""
        new = list(traces[len(self.traces) :])
        self.traces = traces
        return new


@dataclass(frozen=True, slots=True)
class Count:
    """How often a step ran."""

    number: int
    step: str
    started: int
    finished: int


def count(traces: Iterable[Trace]) -> list[Count]:
    """How often each step ran, by the effects' file alone."""
    seen = [(trace.number, trace.what) for trace in traces]
    return [
        Count(number, name, seen.count((number, "started")), seen.count((number, "finished")))
        for number, name in enumerate(STEPS, 1)
    ]
