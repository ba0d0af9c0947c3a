"""The values that go into a store and come back: runs, operations on them, and the answers.

``contract`` describes what every store guarantees about them.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple

from holdfast.admission.usage import BudgetLimits, BudgetShortage, Usage
from holdfast.core.immutable import immutable
from holdfast.core.records import Attempt, Record, Rewind, RewindPoint
from holdfast.core.states import RunState
from holdfast.stores.approvals import AnswerApproval, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.memories import DeleteMemory, MemoryChange, PutMemory

MAX_DELIVERIES = 3
"""The default for workflows."""


class CancelState(StrEnum):
    """Whether a run is to be cancelled."""

    NONE = ""
    REQUESTED = "requested"
    RECORDED = "recorded"
    """The cancel is in the journal: the holder is carrying it out, or has done so."""


class OpStatus(Enum):
    """The answer to an operation."""

    DONE = "done"
    DONE_NOTIFIED = "done_notified"
    """Like ``DONE``, for a finish that put the run's end into the mailbox of a waiting run."""
    FENCED = "fenced"
    """Another worker holds the run now, or it has ended. Nothing was changed."""
    REFUSED = "refused"
    """The caller has to handle something else first. A park: what the run waits for has arrived, or (for a pause) the
    run was resumed. A park or a finish: a cancel was requested. A retry: it would run a ``once`` step again. A cancel:
    the run has another seed."""
    DUPLICATE = "duplicate"
    """A repeated request. Nothing was changed."""
    UNKNOWN_RUN = "unknown_run"
    UNKNOWN_APPROVAL = "unknown_approval"
    ENDED = "ended"
    """The run has ended, so it takes no signals and requests; or a retry found nothing to reopen."""
    COMPENSATED = "compensated"
    """A retry found that compensations have undone the run's steps."""
    ERASED = "erased"
    """A retry or a fork of a run that was erased: see ``erasure``."""
    WORKFLOW_DISABLED = "workflow_disabled"
    """The workflow is disabled, so its runs are not started."""


@immutable
class NewRun:
    """Everything needed to create a run."""

    id: str
    workflow: str
    inputs: bytes
    digest: bytes
    """Equal for equal inputs, whichever process encoded them."""
    seed: bytes
    """Random bytes from which the run's ``uuid4()``, ``random()``, and idempotency keys are derived."""
    created_at: float
    queue: str = "default"
    available_at: float = 0.0
    """When the run may first be claimed."""
    priority: int = 0
    """Higher goes first."""
    deadline: float | None = None
    max_deliveries: int = MAX_DELIVERIES
    """How many deaths of workers that held only this run, without a new record in between, make it ``dead``."""
    tags: tuple[str, ...] = ()
    has_generated_id: bool = False
    """The id was generated. Once its starter is no longer live, another start may join such a run."""
    starter: int | None = None
    """The worker that starts it, if any."""
    python_version: str = ""
    """Minor version of the Python that starts it, for the message about drift."""
    clock_started_at: float | None = None
    """When the run's own clock starts, if not at its creation: a fork continues the clock of its origin."""
    parent: str = ""
    """The id of the run that starts it, if any."""
    forked_from: str = ""
    """The id of the run with which it shares the beginning of its journal."""
    rewind_points: tuple[RewindPoint, ...] = ()
    """The rewind points of the run from which it is forked."""
    budget: BudgetLimits | None = None
    """What it and all the runs below it may use."""
    session: str = ""
    """The session that it belongs to: see ``Run.previous_run``."""
    previous_run: str = ""
    """The run that it continues, for a fork, which is not in a session itself."""
    version: str = ""
    """The version of the workflow's code that executes it; ``""``: code without a version."""
    queue_key: str = ""
    """Its key in its queue, such as a customer: see ``queues``."""
    dedup_key: str = ""
    """A start joins an unfinished run of the same queue with the same key: see ``queues``."""
    max_debounce_s: float | None = None
    """With ``dedup_key``: until the run has begun, a start that joins it replaces its inputs and delays it to its own
    start time, at most this many seconds after the run's creation."""
    is_delivery: bool = False
    """No engine executes it: see ``claims``."""
    trace_parent: str = ""
    """The W3C ``traceparent`` of what starts it: see ``trace_context``."""
    restored_from: str = ""
    """The backup from which the run that starts it was restored, as text: it may have been executed before. It gets an
    attempt at ``RESTORED_POSITION``, and is created as ``pending``, so that its first holder reads that."""


@immutable
class Run:
    """A run's row."""

    key: int
    id: str
    workflow: str
    queue: str
    state: RunState
    epoch: int
    owner: int | None
    starter: int | None
    delivery_count: int
    max_deliveries: int
    wake_at: float | None
    """When a pending or waiting run may be claimed; ``None``: only a signal makes it claimable."""
    waits_for: str
    """What a parked run waits for, as text."""
    priority: int
    deadline: float | None
    inputs: bytes
    digest: bytes
    seed: bytes
    output: bytes | None
    error: bytes | None
    """The encoded error of a failed or dead run."""
    tags: tuple[str, ...]
    python_version: str
    created_at: float
    finished_at: float | None
    clock_started_at: float
    """When the run's own clock starts."""
    cancel_state: CancelState = CancelState.NONE
    paused_at: float | None = None
    """When it was paused. A paused run that is still ``running`` is about to be parked."""
    rewind: Rewind | None = None
    """What a retry removes, once the run has ended."""
    parent: str = ""
    forked_from: str = ""
    rewind_points: tuple[RewindPoint, ...] = ()
    """To where retries went back, one for each: commands issued after that point differ from the earlier ones."""
    session: str = ""
    previous_run: str = ""
    """The id of the newest run of the same workflow and session when this one was created; ``""``: none."""
    has_budget: bool = False
    """The run, or one above it, was started with a budget, so its model calls must be reserved."""
    version: str = ""
    """Only workers that serve this version of its workflow claim it: see ``served_versions``."""
    queue_key: str = ""
    is_limited: bool = False
    """Its queue has limits, which decide when it may be claimed: see ``queues``."""
    is_delivery: bool = False
    suspicion: int = 0
    """Rises with every death of its worker, and is reset to 0 by its next record: see ``worker_deaths``."""
    trace_parent: str = ""

    @property
    def has_worker_deaths(self) -> bool:
        """Whether a worker that held it has died since its last record."""
        return self.delivery_count > 0 or self.suspicion > 0


class RunLink(NamedTuple):
    """The link from a held run to a run that it starts or waits for."""

    parent_key: int
    """The key of the held run."""
    epoch: int
    """The fence: a run that is no longer held under this epoch starts nothing, and waits for nothing."""
    position: int
    """The command that waits. Each has one link."""
    is_awaited: bool = True
    """False: only the fence matters, and no command waits for the end."""


class StartRun(NamedTuple):
    """Create a run, or find the one that already has this id."""

    run: NewRun
    claim_as: int | None = None
    """Create it as ``running`` under epoch 1, held by this worker, instead of ``pending``."""
    join_orphan: bool = False
    """First look for an *orphan*: a run with a generated id, of the same workflow, version, and digest, whose starter
    is no longer live, and that has not ended, or ended only after its starter was found dead (so that no caller
    received its result). If there is one, make ``run.starter`` its starter and answer with it, without claiming it."""
    link: RunLink | None = None
    """The run that starts this one. Answered with ``FENCED`` when it is no longer held."""
    claim_event: LiveEvent | None = None
    """Appended to a new run that is held by ``claim_as``."""


class AwaitRun(NamedTuple):
    """Link a held run to an existing run. Answered like ``StartRun``, or with ``UNKNOWN_RUN``."""

    run_id: str
    link: RunLink


class StartResult(NamedTuple):
    """The answer to ``StartRun``, ``AwaitRun``, and ``ForkRun``."""

    run: Run
    is_new: bool
    """False: it existed before (same id or ``dedup_key``), or it is an orphan that was joined."""
    is_linked: bool = False
    """The end of the run is or will be in the mailbox of the run that waits. False for a run that had ended before:
    then ``run`` says how it ended."""
    is_deduplicated: bool = False
    """It was joined because of its ``dedup_key``: its id, workflow, and inputs may differ from those requested."""


class AppendRecord(NamedTuple):
    """Add one record to a held run's journal (``record.epoch`` is the fence).

    A record of kind ``CANCEL`` makes the run's ``cancel_state`` ``RECORDED``.
    """

    key: int
    record: Record
    consumed_signal_id: int | None = None
    """The id of the signal that this record consumes. The signal is deleted in the same transaction."""
    clear_attempt: bool = False
    """Delete the attempt row of this position, if there is one."""
    reset_delivery_count: bool = False
    """The first record since the run was claimed: reset its delivery count and its suspicion to 0."""
    used: Usage | None = None
    """What the step has used. It is added to the usage of the run and of every run above it, and the reservation for
    this position is released."""
    memory: MemoryChange | None = None
    """The memory that the step changes, in the same transaction, and once however often this is repeated."""
    clear_live_events: bool = False
    """Delete the live events of this position, also those of an earlier holder, except lasting ones."""
    model: str = ""
    """The model that was used: see ``daily_usage``."""
    must_be_new: bool = False
    """Answer ``DUPLICATE`` if the same epoch has a record with this ``seq``, which another process may have written."""


class LiveEvent(NamedTuple):
    """Something that happened to a step in flight: see ``live_events``."""

    position: int
    """The position of the step's command; -1: the event belongs to the run."""
    stream: str
    """The attempt of the step, and the request within the attempt: see ``engine.live_events``. ``""`` is for events
    that stores write themselves."""
    number: int
    """Rises within the stream, so that a repeated commit writes each event once."""
    kind: str
    data: bytes
    """JSON."""
    at: float


class AppendLiveEvents(NamedTuple):
    """Write live events of a held run. Existing ones (same position, stream, and number) are skipped."""

    key: int
    epoch: int
    events: tuple[LiveEvent, ...]


class SaveAttempt(NamedTuple):
    """Save the state of a step in flight. There is one row for each position, and the last one wins.

    This does not write an ``outcome``, and an existing one stays: see ``step_transactions``.
    """

    key: int
    epoch: int
    attempt: Attempt


class ReserveUsage(NamedTuple):
    """Reserve the expected usage of a step of a held run before it begins.

    Answered with ``DONE`` when this exceeds no budget of the run or of a run above it. Then ``expected`` is reserved
    from each of them, replacing an earlier reservation for the same position, until the record of that position is
    appended or no worker holds the run any more. Otherwise answered with a ``BudgetShortage`` (one that is not
    ``is_temporary``, if there is one), and nothing is reserved for the position; if the shortage ``is_exhausted``, the
    run is *short* at this position from then on: see ``SetBudget``. A run without ``has_budget`` need not reserve, and
    is answered with ``DONE``.
    """

    key: int
    epoch: int
    position: int
    expected: Usage


class FinishRun(NamedTuple):
    """End a held run. Refused when a cancel is ``REQUESTED``, unless ``respect_cancel`` is false.

    Fenced when a cancel is ``RECORDED`` that the holder did not know of: this operation may reach the store late, after
    a repeat of it was refused for the cancel, and the cancel was recorded.

    Answered with ``DONE_NOTIFIED``, also for a repeat, if it may have woken another run: a store does not report a
    process's own writes to it.
    """

    key: int
    epoch: int
    state: RunState
    output: bytes | None
    error: bytes | None
    at: float
    rewind: Rewind | None = None
    """What a retry removes."""
    respect_cancel: bool = True
    """The holder knows of no cancel. False once a cancel is recorded, and for a run that cannot continue with this
    code, so this code cannot cancel it either."""


class ParkRun(NamedTuple):
    """Let a held run leave memory until ``wake_at`` or a signal.

    Refused when the mailbox has an unconsumed signal with one of the ``signal_names``, the end of a run for one of the
    ``awaited_positions``, or an answer to one of the ``approval_ids``, or when a cancel is ``REQUESTED``. Fenced when
    the run has continued since: a park may reach the store late, after a repeat of it was refused for a signal, and
    that signal was consumed. A run that parks has not killed its worker, so its suspicion is reset to 0.

    A run may park with something in its mailbox that its code does not wait for. Other code might wait for it, so the
    run becomes claimable once more when its holder retires or dies. (Not a run by delivery: its holders come and go.)
    """

    key: int
    epoch: int
    wake_at: float | None
    signal_names: tuple[str, ...] = ()
    waits_for: str = ""
    next_seq: int | None = None
    """The ``seq`` of the run's next record. If that record exists, the run has continued."""
    awaited_positions: tuple[int, ...] = ()
    """The positions of commands that wait for the end of a run."""
    is_pause: bool = False
    """The holder carries out a pause, whatever the run waits for. Refused when the run was resumed meanwhile."""
    approval_ids: tuple[str, ...] = ()
    """The approvals whose answers it waits for."""


class ReleaseRun(NamedTuple):
    """Release a held run. It is claimable at once, unless it is paused."""

    key: int
    epoch: int
    wake_at: float | None = None
    """When it becomes claimable, instead of at once."""
    error: bytes | None = None
    """The error with which its holder failed: the release counts as a delivery. If that was the last one allowed, the
    run is ``dead`` with this error."""


class SendSignal(NamedTuple):
    """Put a signal into a run's mailbox. A waiting run becomes claimable at once."""

    run_id: str
    name: str
    payload: bytes
    dedup_key: str | None
    at: float


class CancelRun(NamedTuple):
    """Request that a run be cancelled. This ends a pause, and a parked run becomes claimable at once.

    Answered with ``DUPLICATE`` for a repeat, also if the run has been cancelled since; but if the run was paused in
    between, the repeat ends the pause. A pending run that was never claimed (epoch 0) is cancelled at once, and so is a
    run by delivery, held or not.
    """

    run_id: str
    at: float
    seed: bytes | None = None
    """Only if the run has this seed: the caller cancels only what it started itself, not what it joined."""


class PauseRun(NamedTuple):
    """Pause a run: at once if no worker holds it, otherwise as soon as its holder reads the request."""

    run_id: str
    at: float


class ResumeRun(NamedTuple):
    """End a pause: the run is claimable at once. ``DUPLICATE`` when it was not paused.

    A pending run that was never claimed still waits for its start time.
    """

    run_id: str
    at: float


class SetBudget(NamedTuple):
    """Replace the budget of a run.

    Every unfinished run that is *short*, the run itself or one below it, gets ``BUDGET_SIGNAL`` in the same
    transaction, once for each position at which it is short, and is no longer short: it reserves again. (A run that has
    ended stays short, and gets the signal when it is reopened.) ``REFUSED`` when the run was started without a budget
    of its own.
    """

    run_id: str
    budget: BudgetLimits
    at: float


class Settlement(NamedTuple):
    """A person's decision about a step of unknown outcome, when its run is reopened."""

    epoch: int
    """The epoch of the run when that person looked: if it is the same now, what they saw is still true."""
    rewind: Rewind
    """What to remove, instead of what a retry would remove: not the records of other ``once`` steps."""
    record: Record | None
    """The step's outcome, with a ``seq`` that follows the records that stay; ``None``: it did not happen, and runs
    again."""
    attempt: Attempt | None = None
    """Of a step that did not happen, in a run that was restored from a backup: the step may start."""


class ReopenRun(NamedTuple):
    """Set a failed, cancelled, or dead run back to ``pending`` (a person's retry).

    This resets its deliveries to 0 and removes its error, its end, a pause, a deadline that has passed, and a cancel
    unless the cancel's record stays. The records in its ``rewind`` are removed, and the point to which it goes back is
    added to ``rewind_points``. A removed signal is put back into the mailbox. The attempts of steps that were begun
    because of removed records are deleted, with their progress and the outcomes of transactional steps: a step at such
    a position is another call. Only the intents of ``once`` steps stay, so that a retry runs none of them a second
    time. ``COMPENSATED`` when the ``rewind`` says so, ``ERASED`` when the run was erased. ``REFUSED`` when a ``once``
    step would run a second time (``once_seqs``), unless ``rerun_once_steps``. Without a ``rewind`` nothing is removed.

    Runs that it had started, and whose end is no longer or not yet in its journal, are handled by their state. A run
    that has failed, was cancelled (perhaps with this one), or is dead is reopened in the same way, and awaited again;
    if its end was removed and it cannot be reopened, the whole operation is refused. A run that has not ended is
    awaited again. For any other run whose end was removed, or that was awaited only because of removed records, the
    link is deleted, so that the next ``StartRun`` finds out how it ended. Runs in the ``abandoned_positions`` of the
    ``rewind`` stay as they are.

    Each of these runs that is short of a budget gets ``BUDGET_SIGNAL``, and reserves again. Removed answers of people
    are not put back: see ``approvals``. Each reopened run gets a ``REOPENED`` event.

    With ``rerun_once_steps``, it no longer counts as restored from a backup: its attempt at ``RESTORED_POSITION`` is
    deleted.

    With ``settlement``, its ``rewind`` replaces the run's own, and the step's outcome is appended after the records
    that stay. ``ENDED`` also when the run has another epoch by now. Runs that are reopened with it are handled as in
    any retry.
    """

    run_id: str
    at: float
    rerun_once_steps: bool = False
    version: str | None = None
    """Continue it with another version of its workflow's code. Runs that are reopened with it keep theirs."""
    settlement: Settlement | None = None


class ForkRun(NamedTuple):
    """Create a run that shares the beginning of another's journal.

    The records of ``source_run`` with a ``seq`` below ``before_seq`` are copied (large payloads are shared), then
    ``record``, if given, is appended. Live events, approvals, and signals are not copied. The new run is ``pending``.
    Repeating a fork is harmless: the run exists under its id. ``ERASED`` when the source was erased.
    """

    source_run: str
    run: NewRun
    before_seq: int
    record: Record | None = None


Op = (
    StartRun
    | AwaitRun
    | AppendRecord
    | SaveAttempt
    | ReserveUsage
    | FinishRun
    | ParkRun
    | ReleaseRun
    | SendSignal
    | CancelRun
    | PauseRun
    | ResumeRun
    | ReopenRun
    | SetBudget
    | ForkRun
    | AppendLiveEvents
    | RequestApproval
    | RemindApproval
    | WithdrawApproval
    | AnswerApproval
    | PutMemory
    | DeleteMemory
    | AuditEvent
)
OpResult = StartResult | OpStatus | BudgetShortage

ClientOp = SendSignal | CancelRun | PauseRun | ResumeRun | ReopenRun | SetBudget | AnswerApproval
"""Requests to a run from outside. Each is answered with an ``OpStatus``."""
