"""A run's story as data. The names of the fields are those of ``holdfast show --json``: programs rely on them.

Their JSON form is in ``services.json_form``. How it writes a ``UserValue`` depends on who asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from holdfast.admission.usage import NANO_PER_USD, BudgetLimits
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.reports.plans import PlanItem
from holdfast.reports.recorded_reply import (
    FailedModel,
    RecordedCompaction,
    RecordedReply,
    RecordedToolCall,
)
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.json_form import UsageWithCost, UserValue, UtcDatetime
from holdfast.stores.approvals import ApprovalState
from holdfast.stores.contract import RunUsage
from holdfast.stores.workers import format_worker_location


@dataclass(frozen=True, slots=True)
class RecordedError:
    """A recorded exception."""

    type: str
    message: str
    traceback: str = ""

    @property
    def summary(self) -> str:
        """``ValueError: no``, without the class's module."""
        name = self.type.rpartition(".")[2]
        return f"{name}: {self.message}" if self.message else name


# What was used


@dataclass(frozen=True, slots=True)
class BudgetUsage:
    """A budget, and what of it is used."""

    run_id: str
    """The id of the run that has it: the one in question, or one above it."""
    budget: dict[str, float]
    """Its limits: ``usd``, ``tokens``, ``turns``, ``seconds``."""
    used: UsageWithCost

    @property
    def run_usage(self) -> RunUsage:
        """As stores have it."""
        usd, tokens, turns = (self.budget.get(name) for name in ("usd", "tokens", "turns"))
        limits = BudgetLimits(
            None if usd is None else round(usd * NANO_PER_USD),
            None if tokens is None else int(tokens),
            None if turns is None else int(turns),
            self.budget.get("seconds"),
        )
        return RunUsage(self.used, limits)


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """Why the next model call was not made: a budget does not allow it."""

    run_id: str
    """The id of the run that has the budget."""
    limit: str
    message: str


# The journal


@dataclass(frozen=True, slots=True)
class ToolCallReport:
    """A call that a model asked for."""

    id: str
    name: str
    arguments: UserValue

    @property
    def raw_arguments(self) -> str | dict[str, Any]:
        """As a model could have sent them."""
        given: Any = self.arguments
        return cast("dict[str, Any]", given) if isinstance(given, dict) else json.dumps(given)


@dataclass(frozen=True, slots=True)
class ModelCallReport:
    """The recorded answer of a model."""

    model: str
    text: str
    thinking: str
    tool_calls: tuple[ToolCallReport, ...]
    feedback: str | None
    failed_models: tuple[FailedModel, ...]
    usage: UsageWithCost
    compaction: RecordedCompaction | None
    finish_reason: str | None = None
    """Why the model stopped, as the provider says it."""
    refusal: str = ""
    """The words in which the model refuses to answer, or to go on."""
    is_continued: bool = False
    """It was cut off, and the next answer goes on with it."""

    @classmethod
    def from_reply(cls, reply: RecordedReply) -> ModelCallReport:
        """As it is told."""
        return cls(
            reply.model,
            reply.text,
            reply.thinking,
            tuple(ToolCallReport(call.id, call.name, call.arguments) for call in reply.tool_calls),
            reply.feedback,
            reply.failed_models,
            reply.usage,
            reply.compaction,
            reply.finish_reason,
            reply.refusal,
            reply.is_continued,
        )

    @property
    def reply(self) -> RecordedReply:
        """As whoever reads the record has it."""
        calls = tuple(RecordedToolCall(call.name, call.raw_arguments, call.id) for call in self.tool_calls)
        return RecordedReply(
            self.model,
            self.text,
            self.thinking,
            calls,
            self.usage,
            self.failed_models,
            self.feedback,
            self.compaction,
            self.finish_reason,
            self.refusal,
            self.is_continued,
        )


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record of the journal."""

    seq: int
    number: int | None
    """Its number among the steps of its run: the one in ``holdfast show``."""
    kind: str
    name: str
    related_run_id: str | None
    """The run that it started, or whose end it is."""
    ok: bool
    attempt_count: int
    """How many it took; 0 for what a person has settled."""
    worker_id: int
    epoch: int
    replay_count: int
    """How often a worker replayed it after taking the run over from one that had died."""
    started_at: UtcDatetime
    recorded_at: UtcDatetime
    duration_s: float | None
    arguments: str
    output: UserValue
    """What it returned; the beginning of it, as text, if ``is_truncated``."""
    model_call: ModelCallReport | None
    error: RecordedError | None
    size: int
    """Of the recorded value, in bytes."""
    is_truncated: bool
    """The value is too large to be told with many others: it is told alone."""
    has_unknown_outcome: bool
    """It is a ``once`` step of which nobody knows whether it happened."""
    outcome: str
    """``ok``, ``failed`` or ``unknown``; ``refused`` (a budget does not allow the call),
    ``context_full``, ``needs_approval`` (the call waits for a person) or ``cleared`` (it needs no approval, and
    comes next)."""
    reason: str | None
    """Why, of one that was refused, or needs an approval, or whose conversation is too long."""
    is_internal: bool = False
    """Whether Holdfast recorded it for an approval or a session, and not for a call in the workflow's code."""

    @property
    def is_settled(self) -> bool:
        """Whether a person has said what came of it, and no attempt."""
        return self.attempt_count == 0


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step of a class workflow that its run did not run."""

    step_number: int
    """Its number in the class."""
    name: str
    next_number: int
    """The number of the next command."""


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """What is known of a step that has no outcome."""

    number: int
    name: str
    attempt: int
    is_once: bool
    error: str | None
    progress: UserValue
    updated_at: UtcDatetime
    retry_at: UtcDatetime | None = None
    """When its next attempt is made, while it waits for that."""


# Who and what is around


@dataclass(frozen=True, slots=True)
class RelatedRun:
    """A run that the run has started or waited for."""

    id: str
    workflow: str
    state: RunState
    parent: str | None
    usage: UsageWithCost | None = None
    """What it has used, with those below it; ``None`` also where many runs are told."""
    is_waiting_for_budget: bool = False
    """It waits for a higher budget."""


@dataclass(frozen=True, slots=True)
class PendingSignal:
    """A signal that nothing has taken yet."""

    id: int
    name: str
    value: UserValue
    sent_at: UtcDatetime


@dataclass(frozen=True, slots=True)
class UnrecordedResult:
    """The end of a run, or a person's answer, that the run waits for, and that is not recorded yet."""

    number: int
    state: str
    """In which the other run ended; ``answered``."""
    sent_at: UtcDatetime


@dataclass(frozen=True, slots=True)
class RunWorker:
    """A worker that is there, or that has recorded something of the run."""

    id: int
    name: str
    host: str
    pid: int | None
    is_listener: bool
    is_alive: bool
    state: str
    """``live``, ``retired`` (left in good order) or ``dead``; ``unknown`` of one that the store has
    forgotten."""
    record_count: int = 0
    """How many of the run's records it has recorded."""

    @property
    def location(self) -> str:
        """``host:pid``, after the worker's name if it has another one."""
        return format_worker_location(self.name, self.host, self.pid or 0, is_listener=self.is_listener)

    @property
    def kind(self) -> str:
        """What to call it: a worker by lease is a process elsewhere, that listens to a server."""
        return "listener" if self.is_listener else "worker"


@dataclass(frozen=True, slots=True)
class RetryReport:
    """What a retry would do, or why it is refused."""

    is_possible: bool
    needs_run_again: bool
    """A ``once`` step would run a second time: somebody has to say that it may."""
    rewound_seqs: tuple[int, ...]
    """The ``seq`` of the records that it takes back."""
    message: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do now."""

    text: str
    action: str | None
    """``retry``, ``run_again``, ``settle``, ``resume``, ``approve``, ``budget``, ``enable``, ``worker`` or ``fork``;
    ``None``: something that is done elsewhere."""


# The whole


@dataclass(frozen=True, slots=True)
class RunReport:
    """All that is known of a run, at one moment, with a page of its journal."""

    id: str
    workflow: str
    version: str | None
    state: RunState
    queue: str
    queue_key: str | None
    tags: tuple[str, ...]
    created_at: UtcDatetime
    finished_at: UtcDatetime | None
    duration_s: float | None
    waits_for: str | None
    wake_at: UtcDatetime | None
    is_paused: bool
    is_cancelling: bool
    parent: str | None
    forked_from: str | None
    usage: UsageWithCost | None
    error: RecordedError | None
    python_version: str
    deadline: UtcDatetime | None
    epoch: int
    delivery_count: int
    max_deliveries: int
    claimed_by: int | None
    paused_at: UtcDatetime | None
    cancel_state: str | None
    is_disabled: bool
    stall_reason: str | None
    inputs: UserValue
    output: UserValue
    retry: RetryReport | None
    budget: dict[str, float] | None
    budget_remaining: dict[str, float] | None
    budget_refusal: BudgetRefusal | None
    journal: tuple[JournalEntry, ...]
    in_flight: tuple[InFlightStep, ...]
    related_runs: tuple[RelatedRun, ...]
    pending_signals: tuple[PendingSignal, ...]
    unrecorded_ends: tuple[UnrecordedResult, ...]
    unrecorded_answers: tuple[UnrecordedResult, ...]
    approvals: tuple[ApprovalInfo, ...]
    workers: tuple[RunWorker, ...]
    plan: tuple[PlanItem, ...]
    reported_at: UtcDatetime
    """When this was so."""
    clock_started_at: UtcDatetime
    """Where the run's own clock begins: a fork shares the older one."""
    record_count: int
    """How many the whole journal has."""
    has_more: bool
    """There are records behind those in ``journal``."""
    has_more_related_runs: bool
    """It has started more runs than are told."""
    is_agent: bool
    session: str | None
    """The session that it is in, of an agent's run."""
    previous_run: str | None
    """The run that came before it in its session."""
    is_delivery_run: bool
    reopened_at: tuple[UtcDatetime, ...]
    """When somebody let it go on after it had ended: by a retry, or by settling a step."""
    budget_changed_at: UtcDatetime | None
    """When the run, which waits for a higher budget, was told that it has another one, and did not hear it yet."""
    budgets: tuple[BudgetUsage, ...]
    """All that it has to keep to: its own, and those of runs above it."""
    output_size: int | None
    event_offset: str
    """Behind all that is recorded by now: events that are read from here on tell what is new, and what is in flight."""
    summary: str
    """What it did, how long that took and what it cost, in a sentence or two."""
    advice: tuple[Advice, ...]
    """What to do now, the most urgent first."""
    skipped_steps: tuple[SkippedStep, ...] = ()
    """Known once the run has ended."""
    takeover_epochs: tuple[int, ...] = ()
    """The epochs in which a worker took the run over from one that had died."""

    @property
    def is_claimed(self) -> bool:
        """Whether a live worker has the run in its hands."""
        hand = self.find_worker(self.claimed_by)
        return self.state is RunState.RUNNING and hand is not None and hand.is_alive

    def find_worker(self, worker_id: int | None) -> RunWorker | None:
        """The worker with this id."""
        return next((one for one in self.workers if one.id == worker_id), None)

    @property
    def open_approvals(self) -> list[ApprovalInfo]:
        """What it waits for people to answer."""
        return [one for one in self.approvals if one.state is ApprovalState.OPEN and not self.state.is_terminal]

    def find_approval(self, entry: JournalEntry) -> ApprovalInfo | None:
        """The question that this record has the answer to; a fork shares its origin's answers, not the questions."""
        if entry.kind != RecordKind.APPROVAL.label:
            return None
        return next((one for one in self.approvals if one.id == entry.arguments), None)

    @property
    def related_runs_by_id(self) -> Mapping[str, RelatedRun]:
        """The runs that it has started or waited for, by id."""
        return {one.id: one for one in self.related_runs}
