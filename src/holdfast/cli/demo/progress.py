"""What has happened in the demo so far, as it can be seen from outside: in the effects' file, and from the kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.admission.usage import Usage
from holdfast.cli.demo.effect_log import Trace
from holdfast.cli.demo.plan import Plan


@dataclass(slots=True)
class Turn:
    """One turn of the agent: a model call, and the tool calls that the answer asks for."""

    number: int
    starts: list[Trace] = field(default_factory=list[Trace])
    """Each time that the model was asked for it."""
    answer: Trace | None = None
    began: list[Trace] = field(default_factory=list[Trace])
    """The tool calls that have begun."""
    done: list[Trace] = field(default_factory=list[Trace])

    @property
    def wants(self) -> str:
        """What the answer asks for: ``web_search ×3``."""
        if self.answer is None:
            return ""
        called = Counter(self.answer.wants)
        return ", ".join(name if often == 1 else f"{name} ×{often}" for name, often in called.items()) or "the answer"

    @property
    def in_flight(self) -> str:
        """What it is doing; nothing, when it is over."""
        if self.answer is None:
            return "thinking"
        ended = {trace.call for trace in self.done}
        return next((trace.tool for trace in self.began if trace.call not in ended), "")


@dataclass(slots=True)
class Progress:
    """The demo's story; the screens only tell it."""

    plan: Plan
    traces: Sequence[Trace] = ()
    pids: list[int] = field(default_factory=list[int])
    """The workers' processes; the first is A, the one that took the run first."""
    began_at: float = 0.0
    killed_at: float | None = None
    ended: bool = False

    def letter(self, pid: int) -> str:
        """What this worker is called on the screen."""
        return "AB"[self.pids.index(pid)]

    def turns(self) -> list[Turn]:
        """The turns that have begun. A tool call belongs to the answer before it."""
        turns: dict[int, Turn] = {}
        last: Turn | None = None
        for trace in self.traces:
            if trace.turn:
                turn = turns.setdefault(trace.turn, Turn(trace.turn))
                if trace.what == "started":
                    turn.starts.append(trace)
                elif trace.what == "finished":
                    last = turn
                    turn.answer = trace
            elif last is not None:
                (last.began if trace.what == "started" else last.done).append(trace)
        return list(turns.values())

    @property
    def used(self) -> Usage:
        """What all answers so far have used."""
        return sum((trace.usage for trace in self.traces if trace.turn and trace.what == "finished"), Usage())

    @property
    def takeover(self) -> float | None:
        """Seconds from the kill to the moment when another worker went on: its first call after the kill."""
        if self.killed_at is None:
            return None
        return next((trace.at - self.killed_at for trace in self.traces if trace.pid != self.pids[0]), None)

    def note(self, traces: Sequence[Trace]) -> list[Trace]:
        """Take in what the file says now; returns what is new."""
        new = list(traces[len(self.traces) :])
        self.traces = traces
        return new
