"""What the store knows of one run, at one moment, and the same for programs.

A record that was written under an earlier lease than the run's last one was replayed by every later holder: the epoch
rises by one with each claim, so the difference says how often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.cli.approvals import approval_as_json
from holdfast.cli.liveness import Surroundings, is_alive, is_paused, is_short, look_around, why_stalled
from holdfast.cli.opening import find_run
from holdfast.cli.recorded import error_of, failure_of, value_of
from holdfast.cli.replies import answer_in, is_final, is_turn, refusal_of, reply_of
from holdfast.cli.retrying import Prospect, known_runs, prospect, taken_back
from holdfast.cli.runs import run_as_json
from holdfast.cli.spending import budget_as_json, budgets_over, left_as_json, usage_of
from holdfast.cli.wording import iso
from holdfast.client.approvals import ApprovalInfo, readable
from holdfast.client.recorded_reply import PlainReply
from holdfast.core.records import Attempt, Kind, Record, Signal
from holdfast.core.states import RunState
from holdfast.core.usage import BUDGET_SIGNAL
from holdfast.errors import BudgetExceeded
from holdfast.stores.approvals import ApprovalFilter, ApprovalState, is_answer
from holdfast.stores.contract import History, RunFilter, RunUsage, Store, Worker
from holdfast.stores.operations import Cancel, Run

_PAGE = 1000
MOST = 20_000
"""So many runs that a run has started are looked at."""
MANY = 12
"""So many runs that a run has started, or waited for, are told in a line each; more are told in one."""


@dataclass(frozen=True, slots=True)
class Story:
    """What the store knows of a run."""

    run: Run
    history: History
    around: Surroundings
    workers: Mapping[int, Worker]
    """Those that are there, and those that have recorded something."""
    family: Mapping[str, Run]
    """The runs that it has started or waited for, by id, oldest first."""
    usages: Mapping[str, RunUsage]
    """What the run has used, with those below it; and each of its family, unless there are many."""
    budgets: Mapping[str, RunUsage]
    """The budgets that it has to keep to: its own, and those of runs above it."""
    approvals: Sequence[ApprovalInfo]
    """What it has asked people, the longest open first."""

    @property
    def now(self) -> float:
        """When this was so."""
        return self.around.now

    def replays(self, record: Record) -> int:
        """How many later holders of the run have replayed this record."""
        return max(0, self.run.epoch - record.epoch)  # the row may be a moment older than the journal

    def is_alive(self, worker: int) -> bool:
        """Whether that worker is; one that is not known any more is not."""
        return worker in self.workers and is_alive(self.workers[worker], self.now)

    @property
    def stalled(self) -> str | None:
        """Why the run does not go on, if it does not."""
        return why_stalled(self.run, self.around)

    @property
    def retry(self) -> Prospect | None:
        """What a retry would do, if the run ended without a result."""
        return prospect(self.run, self.history.records, self.family)

    @property
    def in_flight(self) -> Sequence[Attempt]:
        """What is known of steps that have no outcome, unless the run went on without them."""
        if self.run.state is RunState.COMPLETED:
            return ()
        return sorted(self.history.attempts.values())

    @property
    def signals(self) -> Sequence[Signal]:
        """What was sent to the run, and nothing has taken yet."""
        return [signal for signal in self._sent if signal.name != BUDGET_SIGNAL]

    @property
    def _sent(self) -> Sequence[Signal]:
        return [signal for signal in self.history.signals if signal.position is None]

    @property
    def asks_again(self) -> float | None:
        """When the run, which waits for a higher budget, was told that it has another one, and did not hear it yet."""
        told = [signal.sent_at for signal in self._sent if signal.name == BUDGET_SIGNAL]
        return max(told, default=None) if self.run.state is RunState.WAITING else None

    @property
    def ends(self) -> Sequence[Signal]:
        """The ends of runs that it waits for, which are not recorded yet."""
        return [one for one in self.history.signals if one.position is not None and not is_answer(one.name)]

    @property
    def answers(self) -> Sequence[Signal]:
        """The answers of people, which are not recorded yet."""
        return [one for one in self.history.signals if one.position is not None and is_answer(one.name)]

    @property
    def questions(self) -> Sequence[ApprovalInfo]:
        """What it waits for people to answer."""
        return [one for one in self.approvals if one.state is ApprovalState.OPEN and not self.run.state.is_terminal]

    def asked(self, record: Record) -> ApprovalInfo | None:
        """The question that this record has the answer to; a fork shares its origin's answers, not the questions."""
        if record.kind is not Kind.APPROVAL:
            return None
        return next((one for one in self.approvals if one.id == record.preview), None)

    @property
    def usage(self) -> RunUsage:
        """What the run has used, with all the runs below it."""
        return self.usages[self.run.id]

    @property
    def refusal(self) -> BudgetExceeded | None:
        """Why its next model call was not made, while it waits for a higher budget."""
        if self.run.state.is_terminal or any(signal.name == BUDGET_SIGNAL for signal in self._sent):
            return None
        refusal: BudgetExceeded | None = None
        parked = is_short(self.run)  # then it waits, however often it was told before that it may ask again
        for record in self.history.records:
            if record.kind is Kind.SIGNAL and record.name == BUDGET_SIGNAL and not parked:
                refusal = None
            elif (refused := refusal_of(record)) is not None:
                refusal = refused
        return refusal

    @property
    def family_states(self) -> Counter[RunState]:
        """How many of the runs that it has started are in which state."""
        return Counter(run.state for run in self.family.values())


async def read_story(store: Store, run_id: str) -> Story:
    """All that is known of a run now."""
    run = await find_run(store, run_id)
    [history] = await store.histories([run.key])
    around = await look_around(store, [run])
    workers = await store.workers(also={record.worker for record in history.records})
    family = await _family(store, run, history.records)
    usages = await usage_of(store, [run.id, *(family if len(family) <= MANY else ())])
    budgets = dict(await budgets_over(store, run))
    rows = await store.approvals(ApprovalFilter(run.id, only_open=False))
    known = {worker.id: worker for worker in workers}
    return Story(run, history, around, known, family, usages, budgets, readable(rows))


async def _family(store: Store, run: Run, records: Sequence[Record]) -> dict[str, Run]:
    """The runs that it has started, also those of which nothing is recorded yet, and those that it has joined."""
    started: list[Run] = []
    while len(started) < MOST:
        before = started[-1].key if started else None
        page = await store.list_runs(RunFilter(parent=run.id), limit=_PAGE, before=before)
        started += page
        if len(page) < _PAGE:
            break
    found = {one.id: one for one in reversed(started)}
    missing = [record for record in records if record.preview not in found]
    return {**await known_runs(store, missing), **found}


# For programs


def story_as_json(story: Story) -> dict[str, Any]:
    """Everything, under stable names."""
    run = story.run
    error = error_of(run.error)
    return {
        **run_as_json(run, story.usage),
        "python": run.python,
        "deadline": iso(run.deadline),
        "epoch": run.epoch,
        "deliveries": run.deliveries,
        "max_deliveries": run.max_deliveries,
        "held_by": run.owner,
        "paused_at": iso(run.paused_at) if is_paused(run) else None,
        "cancel": None if run.cancel is Cancel.NO else run.cancel.value,
        "switched_off": run.workflow in story.around.off,
        "stalled": story.stalled,
        "inputs": value_of(run.inputs),
        "output": value_of(run.output),
        "error": None if error is None else asdict(error),
        "retry": _retry_as_json(story),
        "budget": budget_as_json(story.usage),
        "left": left_as_json(story.usage),
        "short_of": _shortage_as_json(story.refusal),
        "journal": [_record_as_json(story, record) for record in story.history.records],
        "in_flight": [
            {
                "number": attempt.position + 1,
                "name": attempt.name,
                "attempt": attempt.attempt,
                "once": attempt.intent,
                "error": attempt.error or None,
                "progress": value_of(attempt.progress),
                "at": iso(attempt.at),
            }
            for attempt in story.in_flight
        ],
        "children": [
            {"id": one.id, "workflow": one.workflow, "state": one.state.value, "parent": one.parent or None}
            for one in story.family.values()
        ],
        "signals": [
            {"id": signal.id, "name": signal.name, "value": value_of(signal.payload), "sent_at": iso(signal.sent_at)}
            for signal in story.signals
        ],
        "ends": [
            {"number": (signal.position or 0) + 1, "state": signal.name, "sent_at": iso(signal.sent_at)}
            for signal in story.ends
        ],
        "approvals": [approval_as_json(one) for one in story.approvals],
        "workers": [
            {
                "id": worker.id,
                "name": worker.name,
                "host": worker.host,
                "pid": None if worker.by_lease else worker.pid,
                "by_lease": worker.by_lease,
                "alive": story.is_alive(worker.id),
            }
            for worker in story.workers.values()
        ],
    }


def _retry_as_json(story: Story) -> dict[str, Any] | None:
    told = story.retry
    if told is None:
        return None
    return {
        "possible": told.is_possible,
        "needs_run_again": told.needs_run_again,
        "takes_back": [record.seq for record in taken_back(story.run, story.history.records)],
        "message": told.in_words,
    }


def _shortage_as_json(refusal: BudgetExceeded | None) -> dict[str, Any] | None:
    return None if refusal is None else {"run": refusal.run_id, "limit": refusal.limit, "message": str(refusal)}


def _record_as_json(story: Story, record: Record) -> dict[str, Any]:
    error, reply = failure_of(record), reply_of(record)
    has_run = record.kind in (Kind.CHILD, Kind.START)
    return {
        "seq": record.seq,
        "number": None if record.kind is Kind.PATCH else record.position + 1,
        "kind": record.kind.label,
        "name": record.name,
        "run": record.preview or None if has_run else None,
        "ok": record.ok,
        "attempts": record.attempts,
        "worker": record.worker,
        "epoch": record.epoch,
        "replays": story.replays(record),
        "started_at": iso(record.started_at),
        "at": iso(record.at),
        "seconds": round(record.at - record.started_at, 6) if record.kind in TIMED else None,
        "arguments": "" if has_run else record.preview,
        "output": _output_as_json(record, reply) if record.ok else None,
        "model_call": None if reply is None else reply.as_json(),
        "error": None if error is None else asdict(error),
    }


def _output_as_json(record: Record, reply: PlainReply | None) -> Any:
    """What workflow code was handed: an agent's loop the reply, whoever calls an ``@llm_step`` the answer in it."""
    if reply is None:
        return value_of(record.payload)
    return None if is_turn(record) or not is_final(reply) else answer_in(reply)


TIMED = (Kind.STEP, Kind.COMPENSATION)
"""Kinds of records that took the time of a worker."""
