"""Whether what happened is what Holdfast promises: the effects' file against the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.admission.usage import Usage
from holdfast.cli.demo.effect_log import CallEvent
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.reports.recorded_reply import decode_reply
from holdfast.stores.contract import Store


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """What the journal says, of one worker or of both."""

    usage: Usage = field(default_factory=Usage)
    """By the recorded answers of the model."""
    tools: tuple[str, ...] = ()
    """The tools that did what they were called for, once for each recorded call."""

    def __add__(self, other: RecordedWork) -> RecordedWork:
        return RecordedWork(self.usage + other.usage, self.tools + other.tools)


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """What is recorded of the run."""

    state: RunState
    before_kill: RecordedWork
    """By the worker that was killed."""
    after_kill: RecordedWork
    """By the one that took over."""


async def read_journal_totals(store: Store, run_id: str) -> JournalTotals:
    """What is recorded of the run."""
    run = await store.get_run(run_id)
    assert run is not None
    [history] = await store.get_histories([run.key])
    before = sum((_work_from_record(record) for record in history.records if record.epoch == 1), RecordedWork())
    after = sum((_work_from_record(record) for record in history.records if record.epoch > 1), RecordedWork())
    return JournalTotals(run.state, before, after)


def _work_from_record(record: Record) -> RecordedWork:
    reply = decode_reply(record.payload) if record.ok and record.payload is not None else None
    if reply is not None:
        return RecordedWork(reply.usage)
    return RecordedWork(tools=(record.name,) if record.ok else ())


@dataclass(frozen=True, slots=True)
class EffectCounts:
    """What the effects' file says."""

    model_requests: Counter[int]
    """How often the model was asked for each turn, and did not fail."""
    model_answers: Counter[int]
    tool_starts: Counter[tuple[str, str]]
    """Tool calls by the tool and the model's own name for the call."""
    tool_ends: Counter[tuple[str, str]]
    tool_success_count: int
    """Tool calls that did not fail."""
    usage: Usage
    """By the answers."""


def count_events(events: Sequence[CallEvent]) -> EffectCounts:
    """How often everything happened, by the effects' file alone."""
    asked: Counter[int] = Counter()
    answered: Counter[int] = Counter()
    begun: Counter[tuple[str, str]] = Counter()
    ended: Counter[tuple[str, str]] = Counter()
    done = 0
    used = Usage()
    for trace in events:
        if trace.turn:
            asked[trace.turn] += {"started": 1, "finished": 0, "failed": -1}[trace.status]
            if trace.status == "finished":
                answered[trace.turn] += 1
                used += trace.usage
        else:
            (begun if trace.status == "started" else ended)[trace.tool, trace.call_id] += 1
            done += trace.status == "finished"
    return EffectCounts(asked, answered, begun, ended, done, used)


def find_problems(counts: EffectCounts, journal: JournalTotals, kill_turn: int) -> list[str]:
    """What is not as promised."""
    found: list[str] = []
    if journal.state is not RunState.COMPLETED:
        found.append(f"the run is {journal.state}, not completed")
    for turn, asked in sorted(counts.model_requests.items()):
        answered = counts.model_answers[turn]
        if (asked, answered) != (2 if turn == kill_turn else 1, 1):
            found.append(f"for turn {turn} the model was asked {asked} and answered {answered} times")
    for call, begun in counts.tool_starts.items():
        if (begun, counts.tool_ends[call]) != (1, 1):
            found.append(f"the tool call {' '.join(call)} began {begun} and ended {counts.tool_ends[call]} times")
    recorded = journal.before_kill + journal.after_kill
    if recorded.usage.calls != counts.model_answers.total() or recorded.usage.tokens != counts.usage.tokens:
        found.append(
            f"{recorded.usage.calls} answers with {recorded.usage.tokens:,} tokens are recorded, and "
            f"{counts.model_answers.total()} with {counts.usage.tokens:,} were given"
        )
    if len(recorded.tools) != counts.tool_success_count:
        found.append(f"{len(recorded.tools)} tool calls are recorded, and {counts.tool_success_count} were made")
    if journal.before_kill.usage.calls != kill_turn - 1:
        found.append(f"{journal.before_kill.usage.calls} answers were recorded before the kill, not {kill_turn - 1}")
    return found
