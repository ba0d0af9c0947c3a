"""The effect log: a file outside the database with a line for each start and each end of a call, and its verification.

Lines are only appended, and each is on disk before the call continues. So after a crash the file says what really
happened, whatever the journal says.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.admission.usage import Usage
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.reports.recorded_reply import decode_reply
from holdfast.stores.contract import Store

FOLDER_VARIABLE = "HOLDFAST_DEMO_FOLDER"
"""The environment variable that tells a worker of the demo where the file is."""
FILE_NAME = "effects.log"


class CallEvent(NamedTuple):
    """A line of the effect log."""

    at: float
    pid: int
    status: str
    """``started``, ``finished``, or ``failed``."""
    turn: int = 0
    """Which turn of the conversation a model call is for; 0 for a tool call."""
    tool: str = ""
    call_id: str = ""
    """The model's id of a tool call."""
    input_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = -1
    """What the answer costs, in billionths of a dollar; -1 if that is not known."""

    @property
    def usage(self) -> Usage:
        """What an answer used."""
        return Usage(1, self.input_tokens, self.output_tokens, 0, max(0, self.nano_usd), int(self.nano_usd < 0))


def append_event(status: str, **fields: Any) -> None:
    """Append a line, and make sure that it is on disk."""
    line = json.dumps({"at": time.time(), "pid": os.getpid(), "status": status, **fields}) + "\n"
    descriptor = os.open(Path(os.environ[FOLDER_VARIABLE]) / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_events(folder: Path) -> list[CallEvent]:
    """Everything that happened so far."""
    try:
        text = (folder / FILE_NAME).read_text()
    except FileNotFoundError:
        return []
    return [CallEvent(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]


# Verification


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """What the journal has of one worker, or of both."""

    usage: Usage = field(default_factory=Usage)
    """Of the recorded answers of the model."""
    tools: tuple[str, ...] = ()
    """The names of successful tool calls."""

    def __add__(self, other: RecordedWork) -> RecordedWork:
        return RecordedWork(self.usage + other.usage, self.tools + other.tools)


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """What is recorded of the run."""

    state: RunState
    before_kill: RecordedWork
    after_kill: RecordedWork


async def read_journal_totals(store: Store, run_id: str) -> JournalTotals:
    """What is recorded of the run. The worker that takes over has a higher epoch."""
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


def count_model_calls(events: Sequence[CallEvent]) -> Counter[int]:
    """How often the model was called for each turn, without the calls that failed."""
    calls = Counter[int]()
    for event in events:
        if event.turn:
            calls[event.turn] += {"started": 1, "finished": 0, "failed": -1}[event.status]
    return calls


def find_problems(events: Sequence[CallEvent], journal: JournalTotals, kill_turn: int) -> list[str]:
    """What is not as Holdfast promises, by the effect log and the journal."""
    answers = [event for event in events if event.turn and event.status == "finished"]
    answered = Counter(event.turn for event in answers)
    used = sum((event.usage for event in answers), Usage())
    tool_events = [event for event in events if not event.turn]
    started = Counter((event.tool, event.call_id) for event in tool_events if event.status == "started")
    ended = Counter((event.tool, event.call_id) for event in tool_events if event.status != "started")
    success_count = sum(event.status == "finished" for event in tool_events)
    recorded = journal.before_kill + journal.after_kill
    problems: list[str] = []
    if journal.state is not RunState.COMPLETED:
        problems.append(f"the run is {journal.state}, not completed")
    for turn, call_count in sorted(count_model_calls(events).items()):
        if (call_count, answered[turn]) != (2 if turn == kill_turn else 1, 1):
            problems.append(f"for turn {turn} the model was asked {call_count} and answered {answered[turn]} times")
    for call, count in started.items():
        if (count, ended[call]) != (1, 1):
            problems.append(f"the tool call {' '.join(call)} began {count} and ended {ended[call]} times")
    if recorded.usage.calls != len(answers) or recorded.usage.tokens != used.tokens:
        problems.append(
            f"{recorded.usage.calls} answers with {recorded.usage.tokens:,} tokens are recorded, and {len(answers)} "
            f"with {used.tokens:,} were given"
        )
    if len(recorded.tools) != success_count:
        problems.append(f"{len(recorded.tools)} tool calls are recorded, and {success_count} were made")
    if journal.before_kill.usage.calls != kill_turn - 1:
        problems.append(f"{journal.before_kill.usage.calls} answers were recorded before the kill, not {kill_turn - 1}")
    return problems
