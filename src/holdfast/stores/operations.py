"""What goes into a store and comes back: runs, operations on them, and the answers.

``contract`` tells what every store promises about these.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

from holdfast.admission.usage import BudgetLimits, BudgetShortage, Usage
from holdfast.core.records import Attempt, Record, Rewind, RewindPoint
from holdfast.core.states import RunState
from holdfast.stores.approvals import AnswerApproval, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.memories import DeleteMemory, MemoryChange, PutMemory

MAX_DELIVERIES = 3
"""Unless a workflow says otherwise."""


class CancelState(StrEnum):
    """Whether somebody has asked for a run to be cancelled."""

    NONE = ""
    REQUESTED = "requested"
    RECORDED = "recorded"
    """It is in the journal: the holder is carrying it out, or has done so."""


class OpStatus(Enum):
    """What became of one operation."""

    DONE = "done"
    DONE_NOTIFIED = "told"
    """As ``DONE``, for a finish: and a run that waited for the end has it in its mailbox now."""
    FENCED = "fenced"
    """Another worker holds the run now (or it has ended); nothing was changed."""
    REFUSED = "refused"
    """There is something that the caller has to see to first: for a park, what the run waits for is there already, or
    (of a paused run) it was resumed; for a park or a finish, a cancel has been asked for; a retry would run a ``once``
    step again; a cancel was meant for a run with another seed."""
    DUPLICATE = "duplicate"
    """It was asked for before; nothing was changed."""
    UNKNOWN_RUN = "unknown_run"
    UNKNOWN_APPROVAL = "unknown_approval"
    ENDED = "ended"
    """The run has ended, so it takes no signal and no request; or a retry found nothing to reopen."""
    COMPENSATED = "compensated"
    """A retry found that compensations have undone what the run had done."""
    WORKFLOW_DISABLED = "workflow_disabled"
    """The workflow is disabled: no new run of it is started."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """All that is needed to create a run."""

    id: str
    workflow: str
    inputs: bytes
    digest: bytes
    """Equal for equal inputs, whoever encoded them."""
    seed: bytes
    """Random bytes from which the run's ``uuid4()``, ``random()`` and idempotency keys are drawn."""
    created_at: float
    queue: str = "default"
    available_at: float = 0.0
    """Not to be claimed before this time."""
    priority: int = 0
    """Higher goes first."""
    deadline: float | None = None
    max_deliveries: int = MAX_DELIVERIES
    """Deaths of workers that held nothing but this run, without a new record in between, that make it ``dead``."""
    tags: tuple[str, ...] = ()
    has_generated_id: bool = False
    """The id was made up, not chosen by the user: such a run may be joined once its starter is no longer live."""
    starter: int | None = None
    """The worker that starts it, if a worker does."""
    python_version: str = ""
    """Minor version of the Python that starts it, for the drift message."""
    clock_started_at: float | None = None
    """Where the run's own clock begins, if not at its creation: a fork goes on with the clock of its origin."""
    parent: str = ""
    """The id of the run that starts it, if a run does."""
    forked_from: str = ""
    """The id of the run whose journal it shares the beginning of."""
    rewind_points: tuple[RewindPoint, ...] = ()
    """As that of the run that it is forked from."""
    budget: BudgetLimits | None = None
    """What it may use, with all the runs below it."""
    session: str = ""
    """The conversation that it continues: see ``Run.previous_run``."""
    previous_run: str = ""
    """The run that it continues, for a fork, which is in no session itself."""
    version: str = ""
    """The version of the workflow's code that is to execute it; ``""``: of code without one."""
    queue_key: str = ""
    """Whose it is among the runs of its queue, such as a customer: see ``queues``."""
    dedup_key: str = ""
    """While an unfinished run of the same queue has the same, a start joins that one: see ``queues``."""
    max_debounce_s: float | None = None
    """With ``dedup_key``: until it has begun, a start that joins it replaces its inputs, and puts it off to its own
    time, but to no more than so many seconds after its creation."""
    is_delivery: bool = False
    """No engine executes it: see the contract."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run's row, as it is read from the store."""

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
    """What a parked run waits for, in words."""
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
    """Where the run's own clock begins."""
    cancel_state: CancelState = CancelState.NONE
    paused_at: float | None = None
    """Since when it has been paused. A paused run that is still ``running`` is on its way to be parked."""
    rewind: Rewind | None = None
    """What a retry takes back, once the run has ended."""
    parent: str = ""
    forked_from: str = ""
    rewind_points: tuple[RewindPoint, ...] = ()
    """Where retries have gone back to, one for each: commands issued after it are other ones than those before."""
    session: str = ""
    previous_run: str = ""
    """The id of the newest run of the same workflow and session when this one was created; ``""``: there was none."""
    has_budget: bool = False
    """It, or a run above it, was started with a budget: its model calls must be reserved."""
    version: str = ""
    """Only workers that serve this version of its workflow take it up: see ``served_versions``."""
    queue_key: str = ""
    is_limited: bool = False
    """Its queue has limits, and lets it be taken or not: see ``queues``."""
    is_delivery: bool = False
    suspicion: int = 0
    """Rises with every death of its worker and is 0 again with its next record: see ``worker_deaths``."""

    @property
    def has_worker_deaths(self) -> bool:
        """Whether a worker that held it has died since its last record."""
        return self.delivery_count > 0 or self.suspicion > 0


class RunLink(NamedTuple):
    """A held run that waits for another one, or has started it."""

    parent_key: int
    """Its key."""
    epoch: int
    """The fence: a run that is no longer held under this epoch starts nothing and waits for nothing."""
    position: int
    """The command that waits. One link for each."""
    is_awaited: bool = True
    """False: only the fence matters, nobody waits for the end."""


class StartRun(NamedTuple):
    """Create a run, or find the one that is already there under this id."""

    run: NewRun
    claim_as: int | None = None
    """Create it ``running`` under epoch 1, held by this worker, instead of ``pending``."""
    join_orphan: bool = False
    """First look for an *orphan*: a run with a generated id, of the same workflow, version and digest, whose starter is
    no longer live, and that has not ended, or has ended only after its starter was found dead (so that nobody had its
    result). If there is one, make ``run.starter`` its starter and answer with it (it is not claimed by this)."""
    link: RunLink | None = None
    """The run that starts this one. Answered with ``FENCED`` when it is not held any more."""


class AwaitRun(NamedTuple):
    """Link a held run to one that was started before. Answered like ``StartRun``, or with ``UNKNOWN_RUN``."""

    run_id: str
    link: RunLink


class StartResult(NamedTuple):
    """The answer to ``StartRun``, ``AwaitRun`` and ``ForkRun``."""

    run: Run
    is_new: bool
    """False: it was there before (same id, or same ``dedup_key``), or it is an orphan that was joined."""
    is_linked: bool = False
    """The end of the run will be, or is already, in the mailbox of the run that waits. False for a run that had ended
    before there was anybody to tell: then ``run`` tells how it ended."""
    is_deduplicated: bool = False
    """It was joined because of its ``dedup_key``: its id, its workflow and its inputs may be other ones."""


class AppendRecord(NamedTuple):
    """Add one record to a held run's journal (``record.epoch`` is the fence).

    A record of kind ``CANCEL`` makes the run's ``cancel_state`` ``RECORDED``.
    """

    key: int
    record: Record
    consumed_signal_id: int | None = None
    """The id of the signal that this record consumes, deleted in the same transaction."""
    clear_attempt: bool = False
    """There may be an attempt row for this position; delete it."""
    reset_delivery_count: bool = False
    """The first record since the run was taken over: set its delivery count and its suspicion back to 0."""
    used: Usage | None = None
    """What the step has used. It is added to the usage of the run and of every run above it, and whatever was reserved
    for this position is given back."""
    memory: MemoryChange | None = None
    """What the step changes of what outlives runs, in the same transaction: once, however often this is repeated."""
    clear_live_events: bool = False
    """There may be notices of this position, also of an earlier holder; delete those that do not stay."""
    model: str = ""
    """The model that ``used`` is of: see ``daily_usage``."""


class LiveEvent(NamedTuple):
    """Something that happened to a step in flight: see ``live_events``."""

    position: int
    """The step's command; -1: it belongs to the run."""
    stream: str
    """Which attempt of the step it belongs to, and which request of that: see ``engine.live_events``. The part ``""``
    is for what stores tell themselves."""
    number: int
    """Rises within the part: a repeated commit keeps each once."""
    kind: str
    data: bytes
    """JSON."""
    at: float


class AppendLiveEvents(NamedTuple):
    """Keep notices of steps of a held run. Those that are there already (position, part, number) are passed over."""

    key: int
    epoch: int
    events: tuple[LiveEvent, ...]


class SaveAttempt(NamedTuple):
    """Keep what is known of a step in flight (one row per position, the last one wins).

    An ``outcome`` is not written by this, and one that is there stays: see ``step_transactions``.
    """

    key: int
    epoch: int
    attempt: Attempt


class ReserveUsage(NamedTuple):
    """Ask whether a step of a held run may use so much, before it begins.

    Answered with ``DONE`` when no budget of the run, or of a run above it, would be passed; then ``expected`` is
    reserved with each of them, in place of what was reserved for the same position before, until the record of that
    position is appended or nobody holds the run any more. Else answered with a ``BudgetShortage`` (one that is not
    ``passing``, if there is one), and nothing is reserved for the position; if that ``is_exhausted``, the run is
    *short* at this position from then on: see ``SetBudget``. A run without ``has_budget`` need not ask, and is answered
    with ``DONE``.
    """

    key: int
    epoch: int
    position: int
    expected: Usage


class FinishRun(NamedTuple):
    """End a held run. Refused when a cancel is ``REQUESTED``, unless ``respect_cancel`` is false.

    Fenced when a cancel is ``RECORDED`` that the holder did not know of: the request may reach the store late, after it
    was repeated, refused for the cancel, and that was recorded.

    Answered with ``DONE_NOTIFIED``, also when it is repeated, if that may have woken another run: nobody hears from the
    store what they wrote themselves.
    """

    key: int
    epoch: int
    state: RunState
    output: bytes | None
    error: bytes | None
    at: float
    rewind: Rewind | None = None
    """What a retry of it takes back."""
    respect_cancel: bool = True
    """The holder knows of no cancel. False once one is recorded, and for a run that cannot go on with the code at hand,
    and so cannot be cancelled by it either."""


class ParkRun(NamedTuple):
    """Let a held run leave memory until ``wake_at`` or a signal.

    Refused when an unconsumed signal with one of the names in ``signal_names``, the end of a run for one of the
    positions in ``awaited``, or an answer to one of the questions in ``approval_ids``, is there, or when a cancel is
    ``REQUESTED``. Fenced when the run has gone on since: a park may reach the store late, after it was repeated,
    refused for a signal, and that signal consumed. A run that parks has not killed its worker, so its suspicion is 0
    again.

    A run may park with something in its mailbox that its code does not wait for. Other code might, so it becomes
    claimable once more when its holder is gone: retired or dead. (Not a run by delivery: its holders come and go.)
    """

    key: int
    epoch: int
    wake_at: float | None
    signal_names: tuple[str, ...] = ()
    waits_for: str = ""
    next_seq: int | None = None
    """The number that the run's next record will have; if it is there already, the run has gone on."""
    awaited_positions: tuple[int, ...] = ()
    """The commands that wait for the end of a run."""
    is_pause: bool = False
    """The holder carries out a pause: what the run waits for does not matter. Refused when it was resumed meanwhile."""
    approval_ids: tuple[str, ...] = ()
    """The ids of the questions whose answer it waits for."""


class ReleaseRun(NamedTuple):
    """Give a held run back, claimable at once (unless it is paused); this counts as a delivery only if it says so."""

    key: int
    epoch: int
    wake_at: float | None = None
    """Claimable from then on, not at once."""
    error: bytes | None = None
    """It counts as a delivery, since its holder has failed with this error; if that was the last one that the run may
    have, it is ``dead`` with this error."""


class SendSignal(NamedTuple):
    """Put a signal into a run's mailbox; a waiting run becomes claimable at once."""

    run_id: str
    name: str
    payload: bytes
    dedup_key: str | None
    at: float


class CancelRun(NamedTuple):
    """Ask for a run to be cancelled. A pause is lifted by it, and a parked run becomes claimable at once.

    Answered with ``DUPLICATE`` when that was asked before, also if the run has been cancelled since; but if it was
    paused after that, asking again lifts the pause. A pending run that nobody has ever claimed (epoch 0) is cancelled
    at once, and so is a run by delivery, held or not.
    """

    run_id: str
    at: float
    seed: bytes | None = None
    """Only if the run has this seed: the caller wants to cancel what it has started itself, not what it has joined."""


class PauseRun(NamedTuple):
    """Keep a run from going on: at once if nobody holds it, else as soon as its holder has heard of it."""

    run_id: str
    at: float


class ResumeRun(NamedTuple):
    """Lift a pause: the run is claimable at once. ``DUPLICATE`` when it was not paused.

    A pending run that nobody has ever claimed still waits for the time that it was started for.
    """

    run_id: str
    at: float


class SetBudget(NamedTuple):
    """Give a run another budget, in place of the one that it has.

    Every unfinished run that is *short*, the run itself or below it, is sent ``BUDGET_SIGNAL`` in the same transaction,
    once for each position that it is short at, and is no longer short: it asks again. (One that has ended stays short;
    it is sent the signal when it is reopened.) ``REFUSED`` when the run was started without a budget of its own.
    """

    run_id: str
    budget: BudgetLimits
    at: float


class Settlement(NamedTuple):
    """What a person says of a step of unknown outcome, when its run is reopened."""

    epoch: int
    """The run's when that person looked: what they saw is still so if it has the same one."""
    rewind: Rewind
    """What is taken back, in place of what a retry would take: not what is of other ``once`` steps."""
    record: Record | None
    """The step's outcome, whose ``seq`` follows from what is kept; ``None``: it did not happen, and runs again."""


class ReopenRun(NamedTuple):
    """Put a failed, cancelled or dead run back to ``pending`` (a person's retry).

    Its deliveries are 0 again; its error, its end and a pause are forgotten, and so is a cancel unless its record
    stays; a deadline that has passed is lifted. The records that its ``rewind`` takes are removed, and where
    that was is added to ``rewind_points``. A removed signal is put back into the mailbox. The attempts of
    steps that were begun because of what is removed are forgotten, with their progress and the outcomes of
    transactional ones: a step that comes to such a position is another call. Only the intents of ``once`` steps stay,
    so that a retry runs none of them a second time. ``COMPENSATED`` when the ``rewind`` says so. ``REFUSED`` when its
    ``once`` says that a ``once`` step would run a second time, unless ``rerun_once_steps``. Without a ``rewind``
    nothing is removed.

    The runs that it had started (their ``parent_key`` is this one), and whose end is in its journal no more or not yet:
    one that has failed, was cancelled (perhaps with this one) or is dead is reopened in the same way, and awaited
    again; if its end was removed, and it cannot be reopened, all of it is refused. One that has not ended is awaited
    again. For any other whose end was removed, or that was awaited only because of what is removed, the link goes, so
    that the next ``StartRun`` finds out how it ended. Those in the ``abandoned_positions`` of the ``rewind`` stay as
    they are.

    Whoever of them is short of a budget is sent ``BUDGET_SIGNAL``, and asks again. Answers of people that are taken
    back are not put back: see ``approvals``. Each run that is reopened has a ``REOPENED`` notice.

    With ``settlement``, the run's own ``rewind`` is not looked at but the one that is given, and the step's outcome
    is appended behind what is kept. ``ENDED`` also when the run has another epoch by now. The runs that are reopened
    with it are so as by any retry.
    """

    run_id: str
    at: float
    rerun_once_steps: bool = False
    version: str | None = None
    """Let another version of its workflow's code go on with it; the runs that are reopened with it keep theirs."""
    settlement: Settlement | None = None


class ForkRun(NamedTuple):
    """Create a run that shares the beginning of another's journal.

    The records of ``source_run`` with a ``seq`` below ``before_seq`` are copied (large payloads are shared), then
    ``record``, if given, is appended. Nothing else is: no notices, no questions, no signals. The new run is
    ``pending``. A fork is repeated harmlessly: the run is there under its id.
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
)
OpResult = StartResult | OpStatus | BudgetShortage

ClientOp = SendSignal | CancelRun | PauseRun | ResumeRun | ReopenRun | SetBudget | AnswerApproval
"""What somebody may ask of a run from outside; each is answered with a ``OpStatus``."""
