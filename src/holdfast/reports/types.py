"""The report of a run as data. The names of the fields are those of ``holdfast show --json``: programs rely on them.

``services.json_form`` defines their JSON form. The form of a ``UserValue`` depends on the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.admission.usage import NANO_PER_USD, BudgetLimits
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.reports.plans import PlanItem
from holdfast.reports.recorded_reply import ModelCallReport
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


# Usage


@dataclass(frozen=True, slots=True)
class BudgetUsage:
    """A budget, and how much of it is used."""

    run_id: str
    """The run that has the budget: the reported one, or one above it."""
    budget: dict[str, float]
    """Its limits: ``usd``, ``tokens``, ``turns``, ``seconds``."""
    used: UsageWithCost

    @property
    def run_usage(self) -> RunUsage:
        """The form of the stores."""
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
    """The run that has the budget."""
    limit: str
    message: str


# The journal


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record of the journal."""

    seq: int
    number: int | None
    """The number of the step in ``holdfast show``."""
    kind: str
    name: str
    related_run_id: str | None
    """The run that it started, or waited for."""
    ok: bool
    attempt_count: int
    """Number of attempts; 0 if a person settled it."""
    worker_id: int
    epoch: int
    replay_count: int
    """How often a worker replayed it after taking over the run of a dead worker."""
    started_at: UtcDatetime
    recorded_at: UtcDatetime
    duration_s: float | None
    arguments: str
    output: UserValue
    """What it returned; if ``is_truncated``, the beginning as text."""
    model_call: ModelCallReport | None
    error: RecordedError | None
    size: int
    """Size of the recorded value, in bytes."""
    is_truncated: bool
    """The value is too large for a list of records: read this record alone to get all of it."""
    has_unknown_outcome: bool
    """It is a ``once`` step that may or may not have happened."""
    outcome: str
    """``ok``, ``failed``, or ``unknown``; ``refused`` (a budget does not allow the call), ``context_full``,
    ``needs_approval`` (the call waits for a person), or ``cleared`` (the call needs no approval, and comes next)."""
    reason: str | None
    """Why the call was refused, needs an approval, or did not fit into the context."""
    is_internal: bool = False
    """Whether Holdfast recorded it for an approval or a session, and not for a call in the workflow's code."""

    @property
    def is_settled(self) -> bool:
        """Whether a person decided its outcome."""
        return self.attempt_count == 0


@dataclass(frozen=True, slots=True)
class SkippedStep:
    """A step of a class workflow that the run skipped."""

    step_number: int
    """Its number in the class."""
    name: str
    next_number: int
    """The number of the next command."""


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A step without an outcome."""

    number: int
    name: str
    attempt: int
    is_once: bool
    error: str | None
    progress: UserValue
    updated_at: UtcDatetime
    retry_at: UtcDatetime | None = None
    """The time of its next attempt, while it waits for that."""


# Related runs, signals, and workers


@dataclass(frozen=True, slots=True)
class RelatedRun:
    """A run that the run started or waited for."""

    id: str
    workflow: str
    state: RunState
    parent: str | None
    usage: UsageWithCost | None = None
    """What it used, with the runs below it; ``None`` also in a long list of runs."""
    is_waiting_for_budget: bool = False
    """It waits for a higher budget."""


@dataclass(frozen=True, slots=True)
class PendingSignal:
    """A signal that the run has not consumed yet."""

    id: int
    name: str
    value: UserValue
    sent_at: UtcDatetime


@dataclass(frozen=True, slots=True)
class UnrecordedResult:
    """The end of a run, or a person's answer, that the run waits for and has not recorded yet."""

    number: int
    state: str
    """The final state of the other run; or ``answered``."""
    sent_at: UtcDatetime


@dataclass(frozen=True, slots=True)
class RunWorker:
    """A live worker, or one that wrote records of the run."""

    id: int
    name: str
    host: str
    pid: int | None
    is_listener: bool
    is_alive: bool
    state: str
    """``live``, ``retired`` (it stopped cleanly), or ``dead``; ``unknown`` if the store has deleted it."""
    record_count: int = 0
    """Number of the run's records that it wrote."""

    @property
    def location(self) -> str:
        """``host:pid``, after the worker's name if it has one of its own."""
        return format_worker_location(self.name, self.host, self.pid or 0, is_listener=self.is_listener)

    @property
    def kind(self) -> str:
        """``worker``, or ``listener`` for a process that takes deliveries from a server."""
        return "listener" if self.is_listener else "worker"


@dataclass(frozen=True, slots=True)
class RetryReport:
    """What a retry would do, or why it is refused."""

    is_possible: bool
    needs_run_again: bool
    """A ``once`` step would run a second time: the caller has to allow it."""
    rewound_seqs: tuple[int, ...]
    """The ``seq`` of the records that it removes."""
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
    """Everything known about a run at one moment, with a page of its journal."""

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
    restored_from: str | None
    """The backup from which the run was restored, as text: a ``once`` step that is not in the journal is not executed,
    because it may have been after that backup was made."""
    related_runs: tuple[RelatedRun, ...]
    pending_signals: tuple[PendingSignal, ...]
    unrecorded_ends: tuple[UnrecordedResult, ...]
    unrecorded_answers: tuple[UnrecordedResult, ...]
    approvals: tuple[ApprovalInfo, ...]
    workers: tuple[RunWorker, ...]
    plan: tuple[PlanItem, ...]
    reported_at: UtcDatetime
    """The time of the report."""
    clock_started_at: UtcDatetime
    """The start of the run's own clock; a fork has that of its origin."""
    record_count: int
    """Number of records in the whole journal."""
    has_more: bool
    """There are records after those in ``journal``."""
    has_more_related_runs: bool
    """It started more runs than are listed."""
    is_agent: bool
    session: str | None
    """The session of an agent's run."""
    previous_run: str | None
    """The run that came before it in its session."""
    is_delivery_run: bool
    reopened_at: tuple[UtcDatetime, ...]
    """When a person reopened it after it had ended: with a retry, or by settling a step."""
    budget_changed_at: UtcDatetime | None
    """When the budget of a run that waits for a higher one was changed, and the run has not noticed yet."""
    budgets: tuple[BudgetUsage, ...]
    """The budgets that limit it: its own, and those of runs above it."""
    output_size: int | None
    event_offset: str
    """The position after all records so far: events from here on are new, or still in flight."""
    summary: str
    """What it did, how long that took, and what it cost, in a sentence or two."""
    advice: tuple[Advice, ...]
    """What to do now, the most urgent first."""
    skipped_steps: tuple[SkippedStep, ...] = ()
    """Known once the run has ended."""
    takeover_epochs: tuple[int, ...] = ()
    """The epochs in which a worker took the run over from one that had died."""

    @property
    def is_claimed(self) -> bool:
        """Whether a live worker holds the run."""
        worker = self.find_worker(self.claimed_by)
        return self.state is RunState.RUNNING and worker is not None and worker.is_alive

    def find_worker(self, worker_id: int | None) -> RunWorker | None:
        """The worker with this id."""
        return next((worker for worker in self.workers if worker.id == worker_id), None)

    @property
    def open_approvals(self) -> list[ApprovalInfo]:
        """The approvals that wait for an answer; none if the run has ended."""
        if self.state.is_terminal:
            return []
        return [approval for approval in self.approvals if approval.state is ApprovalState.OPEN]

    def find_approval(self, entry: JournalEntry) -> ApprovalInfo | None:
        """The approval that this record answers. A fork shares its origin's answers, but not the approvals."""
        if entry.kind != RecordKind.APPROVAL.label:
            return None
        return next((approval for approval in self.approvals if approval.id == entry.arguments), None)

    @property
    def related_runs_by_id(self) -> Mapping[str, RelatedRun]:
        """The runs that it started or waited for, by id."""
        return {run.id: run for run in self.related_runs}
