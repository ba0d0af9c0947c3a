"""What has happened in the demo so far, as it can be seen from outside: in the effects' file, and from the kill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.admission.usage import Usage
from holdfast.cli.demo.effect_log import CallEvent
from holdfast.cli.demo.plan import Plan


@dataclass(slots=True)
class Turn:
    """One turn of the agent: a model call, and the tool calls that the answer asks for."""

    number: int
    model_starts: list[CallEvent] = field(default_factory=list[CallEvent])
    """Each time that the model was asked for it."""
    answer: CallEvent | None = None
    tool_starts: list[CallEvent] = field(default_factory=list[CallEvent])
    """The tool calls that have begun."""
    tool_ends: list[CallEvent] = field(default_factory=list[CallEvent])

    @property
    def tool_summary(self) -> str:
        """What the answer asks for: ``web_search ×3``."""
        if self.answer is None:
            return ""
        called = Counter(self.answer.requested_tools)
        return ", ".join(name if often == 1 else f"{name} ×{often}" for name, often in called.items()) or "the answer"

    @property
    def current_activity(self) -> str:
        """What it is doing; nothing, when it is over."""
        if self.answer is None:
            return "thinking"
        ended = {trace.call_id for trace in self.tool_ends}
        return next((trace.tool for trace in self.tool_starts if trace.call_id not in ended), "")


@dataclass(slots=True)
class Progress:
    """The demo's story; the screens only tell it."""

    plan: Plan
    events: Sequence[CallEvent] = ()
    pids: list[int] = field(default_factory=list[int])
    """The workers' processes; the first is A, the one that took the run first."""
    started_at: float = 0.0
    killed_at: float | None = None
    has_ended: bool = False

    def get_letter(self, pid: int) -> str:
        """What this worker is called on the screen."""
        return "AB"[self.pids.index(pid)]

    def list_turns(self) -> list[Turn]:
        """The turns that have begun. A tool call belongs to the answer before it."""
        turns: dict[int, Turn] = {}
        last: Turn | None = None
        for trace in self.events:
            if trace.turn:
                turn = turns.setdefault(trace.turn, Turn(trace.turn))
                if trace.status == "started":
                    turn.model_starts.append(trace)
                elif trace.status == "finished":
                    last = turn
                    turn.answer = trace
            elif last is not None:
                (last.tool_starts if trace.status == "started" else last.tool_ends).append(trace)
        return list(turns.values())

    @property
    def usage(self) -> Usage:
        """What all answers so far have used."""
        return sum((trace.usage for trace in self.events if trace.turn and trace.status == "finished"), Usage())

    @property
    def takeover_s(self) -> float | None:
        """Seconds from the kill to the moment when another worker went on: its first call after the kill."""
        if self.killed_at is None:
            return None
        return next((trace.at - self.killed_at for trace in self.events if trace.pid != self.pids[0]), None)

    def update(self, events: Sequence[CallEvent]) -> list[CallEvent]:
        """Take in what the file says now; returns what is new."""
        new = list(events[len(self.events) :])
        self.events = events
        return new
