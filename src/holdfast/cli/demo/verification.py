"""Whether what happened is what Holdfast promises: the effects' file against the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.admission.usage import Usage
from holdfast.cli.demo.effect_log import Trace
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.reports.recorded_reply import plain_reply
from holdfast.stores.contract import Store


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the journal says, of one worker or of both."""

    used: Usage = field(default_factory=Usage)
    """By the recorded answers of the model."""
    tools: tuple[str, ...] = ()
    """The tools that did what they were called for, once for each recorded call."""

    def __add__(self, other: Recorded) -> Recorded:
        return Recorded(self.used + other.used, self.tools + other.tools)


@dataclass(frozen=True, slots=True)
class Journal:
    """What is recorded of the run."""

    state: RunState
    before: Recorded
    """By the worker that was killed."""
    after: Recorded
    """By the one that took over."""


async def read_journal(store: Store, run_id: str) -> Journal:
    """What is recorded of the run."""
    run = await store.get(run_id)
    assert run is not None
    [history] = await store.histories([run.key])
    before = sum((_recorded(record) for record in history.records if record.epoch == 1), Recorded())
    after = sum((_recorded(record) for record in history.records if record.epoch > 1), Recorded())
    return Journal(run.state, before, after)


def _recorded(record: Record) -> Recorded:
    reply = plain_reply(record.payload) if record.ok and record.payload is not None else None
    if reply is not None:
        return Recorded(reply.usage)
    return Recorded(tools=(record.name,) if record.ok else ())


@dataclass(frozen=True, slots=True)
class Counted:
    """What the effects' file says."""

    asked: Counter[int]
    """How often the model was asked for each turn, and did not fail."""
    answered: Counter[int]
    tools_begun: Counter[tuple[str, str]]
    """Tool calls by the tool and the model's own name for the call."""
    tools_ended: Counter[tuple[str, str]]
    tools_done: int
    """Tool calls that did not fail."""
    used: Usage
    """By the answers."""


def count(traces: Sequence[Trace]) -> Counted:
    """How often everything happened, by the effects' file alone."""
    asked: Counter[int] = Counter()
    answered: Counter[int] = Counter()
    begun: Counter[tuple[str, str]] = Counter()
    ended: Counter[tuple[str, str]] = Counter()
    done = 0
    used = Usage()
    for trace in traces:
        if trace.turn:
            asked[trace.turn] += {"started": 1, "finished": 0, "failed": -1}[trace.what]
            if trace.what == "finished":
                answered[trace.turn] += 1
                used += trace.usage
        else:
            (begun if trace.what == "started" else ended)[trace.tool, trace.call] += 1
            done += trace.what == "finished"
    return Counted(asked, answered, begun, ended, done, used)


def problems(counted: Counted, journal: Journal, victim: int) -> list[str]:
    """What is not as promised."""
    found: list[str] = []
    if journal.state is not RunState.COMPLETED:
        found.append(f"the run is {journal.state}, not completed")
    for turn, asked in sorted(counted.asked.items()):
        answered = counted.answered[turn]
        if (asked, answered) != (2 if turn == victim else 1, 1):
            found.append(f"for turn {turn} the model was asked {asked} and answered {answered} times")
    for call, begun in counted.tools_begun.items():
        if (begun, counted.tools_ended[call]) != (1, 1):
            found.append(f"the tool call {' '.join(call)} began {begun} and ended {counted.tools_ended[call]} times")
    recorded = journal.before + journal.after
    if recorded.used.calls != counted.answered.total() or recorded.used.tokens != counted.used.tokens:
        found.append(
            f"{recorded.used.calls} answers with {recorded.used.tokens:,} tokens are recorded, and "
            f"{counted.answered.total()} with {counted.used.tokens:,} were given"
        )
    if len(recorded.tools) != counted.tools_done:
        found.append(f"{len(recorded.tools)} tool calls are recorded, and {counted.tools_done} were made")
    if journal.before.used.calls != victim - 1:
        found.append(f"{journal.before.used.calls} answers were recorded before the kill, not {victim - 1}")
    return found
