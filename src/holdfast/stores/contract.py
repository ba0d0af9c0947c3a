"""What every store promises, and the values that go in and out of one.

The engine keeps nothing that matters in memory only: it gives *operations* to ``Store.commit`` and continues when they
are durable. One call is one transaction, whatever the number of operations in it (group commit).

**The fence.** A run row has an ``epoch`` that rises by one each time the run is claimed. Every operation on a held run
carries the epoch under which it was claimed, and takes effect only while the row still has that epoch and is in state
``running``. This check happens in the same transaction as the write. An operation that fails it is answered with
``OpStatus.FENCED`` and changes nothing; the other operations of the batch are not affected.

**Repeating a commit is harmless.** If the caller does not learn the outcome of a commit (a timeout, a cut connection),
it may submit the same commit again. These are answered as if they had just been carried out: an append of a ``seq``
that exists under the same epoch, a finish of a run that the same epoch has finished, a park of a run that the same
epoch has parked, a start or a fork with the same ``seed``, and a signal with the same ``dedup_key``. A link is made
once, and a reservation replaces the one before. A repeated request is answered with ``DUPLICATE``, a repeated retry
with ``ENDED``, and nothing changes. (A start that has joined an orphan is not recognized: repeated, it starts a run of
its own.)

**Worker death.** A worker registers when it starts. Its runs can be taken when the store knows that it is dead: at once
where the kernel or the database can tell (a lock that the process held is free), else when its lease has passed.
``reap_dead_workers`` then puts its runs back to ``pending``. If it held a single run, that counts as a delivery of the
run. If it held several, it is unknown which of them killed it, and all are suspected: see ``rules``. The run's next
record sets both back to 0. A worker that stops cleanly releases its runs without counting. A lease counts only in the
time in which the caller of ``reap_dead_workers`` knows that it could have been renewed: see ``leases``.

**Listeners** are processes elsewhere that take work from a server over HTTP. A listener is a worker *by lease*: only
its lease shows whether it lives. Servers renew the lease when they hear from the process (``renew_listener_lease``),
and only servers declare a listener dead, by the same rule: while all servers were down, no lease could be renewed.

**Runs by delivery.** No engine executes such a run. Its holder, a listener, gets what is recorded and decides what to
record next. No code could carry out a cancel or notice a deadline. So a cancel ends the run at once, and
``expire_runs`` ends it when its deadline has passed; from then on its holder is fenced.

**Links.** A run that waits for another run has a link to it, made in the transaction that starts the other run or finds
it unfinished. Whatever ends a run (its holder, ``reap_dead_workers``, a cancel before the first claim) puts a
``Signal`` with the link's position into the mailbox of every unfinished run that waits, wakes it if it is parked, and
marks the link as notified. So a link means that the end is in the mailbox, was there, or will be. A run that has ended
gets no such signal. If a retry lets it wait again, it is answered with the end, like a run that asks for the first time
after the other has ended.

**Requests.** Cancel and pause are requests in the run's row. A run that no worker holds is paused at once; a holder
asks ``get_run_requests``. A holder carries out a cancel by recording it (``RecordKind.CANCEL``). A run that was never
claimed is cancelled at once. A paused run is not claimable, whatever else happens to it, until it is resumed or
cancelled. While a cancel is requested and not recorded, the run can neither park nor finish, so a cancel that was
accepted always takes effect.

**Disabled workflows.** Runs of a disabled workflow are neither started nor claimed. ``engine.driver`` says what a
worker does with those that it holds.

**Versions.** See ``served_versions``: a run has the version of the code that it was started with, and only workers that
serve this version claim it. Long backlogs of other versions do not slow a claim.

**Queues.** See ``queues``: which runs a queue with limits lets through, and which starts join an existing run by a key.

**Usage and budgets.** What the model calls of a run have used is added when their records are appended: to the run and
to every run above it (its ``parent``, that one's parent, and so on), in the same transaction, and once however often
the append is repeated. It is never taken back: a retry that removes records does not make them unpaid. A fork begins
with nothing used. A run that was started with a budget has limits for its own usage. Every reservation asks all the
budgets above it, so parallel runs cannot exceed them together. A run's reservations are released when no worker holds
it any more: when it ends, is parked or released, or when its worker is dead. (If they were kept, calls of other runs
that wait for their share could fill all workers, and none could claim that run.)

**Sessions.** A run that is created in a session knows the run before it in the same session and of the same workflow:
the newest one that exists in the transaction that creates it.

**Approvals.** See ``approvals``: an answer goes into the mailbox of the run that asks, under the position of the
command that waits, and wakes the run, in the transaction that accepts the answer. An approval is answered once, however
many people answer it at the same time.

**Live events.** See ``live_events``: what is known about steps in flight. They are fenced like everything that a holder
writes, and are deleted with the record of their step, or at the latest with the end of their run.

**Documents, the audit log, daily usage.** See ``documents``, ``audit_log``, and ``daily_usage``: what servers keep.

**Memories.** See ``memories``: they belong to no run. A memory that a step changes is changed with the step's record.

**Transactional steps.** See ``step_transactions``: what a step does in the store's own database is committed together
with its outcome. The outcome is kept with the step's attempt until its record is appended.

**Schedules.** See ``schedules``: what they start and when, and how far they have come. The store starts no runs itself.

**Retention.** See ``retention``: ended runs are deleted with everything that belongs to them, and their keys are never
used again. Requests for a deleted run are answered as if it had never existed; a start under its id starts a new run.

**Large values.** Payloads over ``MAX_INLINE_BYTES`` are kept apart, compressed, and once for equal content. If one
cannot be read back, this stops the run that it belongs to, and no other, with an error that names the record. (The
values of memories are not kept apart: they are overwritten.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from holdfast.admission.queue_limits import QueueLimits
from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.core.records import Attempt, Record, Signal
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.audit_log import AuditEvent, AuditRow
from holdfast.stores.daily_usage import DailyRunCount, DailyUsage
from holdfast.stores.documents import Document
from holdfast.stores.journal_pages import JournalPage, make_journal_page
from holdfast.stores.leases import LeaseWindow
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memories import Memory
from holdfast.stores.operations import MAX_DELIVERIES, Op, OpResult, Run
from holdfast.stores.queues import NewQueue, QueueStatus
from holdfast.stores.retention import PRUNE_START, PruneCursor, PruneRequest, PruneResult, SweepResult
from holdfast.stores.schedules import Schedule, ScheduleDefinition
from holdfast.stores.step_transactions import StepTransaction

DEFAULT_NAMESPACE = "default"
"""The namespace of whoever does not choose one."""
if TYPE_CHECKING:
    from holdfast.stores.archives import ArchivedRun, RunExtras

MAX_INLINE_BYTES = 64 * 1024
"""Payloads above this size, in bytes, are kept apart."""


@dataclass(frozen=True, slots=True)
class NewWorker:
    """What a worker tells of itself when it registers."""

    name: str
    host: str
    pid: int
    workflows: tuple[str, ...] = ()
    """The workflows it can execute, and which versions of them: as ``served_versions.make_served_name`` has them."""
    queues: tuple[str, ...] | None = None
    """The queues it serves; ``None``: all."""
    is_listener: bool = False
    """It is a process elsewhere, that a server speaks for: nobody here can tell whether it lives but by its lease."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's row."""

    id: int
    name: str
    host: str
    pid: int
    state: str
    """``live``, ``retired`` (left in good order) or ``dead``."""
    workflows: tuple[str, ...]
    queues: tuple[str, ...] | None
    started_at: float
    lease_expires_at: float
    heartbeat_at: float = 0.0
    """When it last renewed its lease, or registered."""
    is_listener: bool = False


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """What workers announce of a workflow, so that a client can start it without its code."""

    name: str
    parameters: tuple[str, ...]
    id_template: str | None = None
    queue: str = "default"
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()
    budget: BudgetLimits | None = None
    """What its runs may use unless they are started with another budget."""
    is_agent: bool = False
    """Its steps are chosen by a model, and its result is an ``AgentResult``."""
    max_deliveries: int = MAX_DELIVERIES
    """Deaths that make a run of it ``dead``: see ``NewRun.max_deliveries``."""
    version: str = ""
    queue_key_template: str | None = None
    """A template for the key that its runs have in its queue: see ``queues``."""
    is_address: bool = False
    """It has no code, and its runs are by delivery: it is an address (see ``services.addresses``)."""
    inputs_schema: str = ""
    """A JSON schema of its inputs, as text; ``""``: none was announced, and the names are all that is checked."""
    serves: tuple[str, ...] = field(default=(), compare=False)
    """Other versions whose runs the same code executes; they are kept with the worker only."""
    announced_at: float = field(default=0.0, compare=False)
    """When this version was announced for the first time; stores tell that."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run has used, with all the runs below it."""

    used: Usage = field(default_factory=Usage)
    budget: BudgetLimits | None = None
    """Its own budget."""


@dataclass(frozen=True, slots=True)
class History:
    """All that a worker needs to bring a run back: read only after its claim is committed."""

    records: Sequence[Record]
    attempts: Mapping[int, Attempt]
    signals: Sequence[Signal]
    links: Mapping[int, tuple[str, bytes]] = field(default_factory=dict[int, tuple[str, bytes]])
    """The runs whose end is in the mailbox or will be: id and digest, by the position of the command that waits."""


@dataclass(frozen=True, slots=True)
class ReapResult:
    """What a ``reap_dead_workers`` found."""

    worker_ids: tuple[int, ...] = ()
    released_count: int = 0
    """Runs that are claimable again."""
    dead_run_ids: tuple[str, ...] = ()
    """Ids of runs that have used up their deliveries."""


class NewSignals(NamedTuple):
    """What was sent to held runs."""

    signals: Sequence[tuple[int, Signal]]
    """With the keys of their runs; those of one run in the order of their ids."""
    cursor: int
    """Where to go on the next time. It is no id: databases number signals in the order in which they are written, and
    show them in the order in which they are committed."""


class RunRequests(NamedTuple):
    """What has been asked of a held run and not been carried out yet."""

    key: int
    is_cancel_requested: bool
    """A cancel is ``REQUESTED``."""
    is_pause_requested: bool


class DisabledWorkflow(NamedTuple):
    """Since when a workflow is disabled, who did that, and why."""

    disabled_at: float
    actor: str
    reason: str
    is_temporary: bool


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; every field that is given must match."""

    states: Collection[RunState] = field(default_factory=tuple[RunState, ...])
    workflow: str | None = None
    tag: str | None = None
    id_prefix: str | None = None
    created_after: float | None = None
    created_before: float | None = None
    text: str | None = None
    """Somewhere in its id, its workflow's name, one of its tags or the type and message of its error, in upper or lower
    case. An error that is kept apart is not searched."""
    parent: str | None = None
    """The id of the run that started it; the empty text matches none."""
    owner: int | None = None
    """The worker that holds it."""


class RunSearchPage(NamedTuple):
    """What a search for runs has come to."""

    runs: list[Run]
    cursor: int | None
    """It has looked at all runs whose keys are this or higher; ``None``: at all that there are."""
    cursor_created_at: float | None = None
    """When the run with that key was created."""


class Store(ABC):
    """A place where journals live. Methods are coroutines unless they say otherwise."""

    url: str
    """As people may see it: without a password."""
    namespace: str = DEFAULT_NAMESPACE
    """Whose data this is: nothing that is said here reaches what other namespaces of the same database hold."""
    is_encrypted: bool = False
    """Whether what users' code hands in is encrypted before it is written."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and bring the schema up to date.

        Raises ``StoreReadOnly``, ``StoreSchemaError``, ``StoreCorrupt`` or ``StoreUnavailable``.
        """

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. Closing twice is harmless."""

    @abstractmethod
    def abandon(self) -> None:
        """Disconnect without a loop: for a runtime whose event loop is already closed."""

    @abstractmethod
    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Carry out ``ops`` in order in one durable transaction, and answer each.

        Raises ``StoreUnavailable`` when nothing was committed, or when it is not known whether it was; the same call
        may then be made again.
        """

    async def begin_step_transaction(
        self, run: Run, attempt: Attempt, *, is_sync: bool, timeout_s: float | None = None
    ) -> StepTransaction | None:
        """Begin the transaction of an attempt of a step (its position, number and name) of a held run.

        ``is_sync``: the step is a plain function, which uses the connection in a thread. ``timeout_s``: seconds that
        the attempt may take. ``None``: the run is not held any more. Raises ``StoreUnavailable`` when the database
        cannot be had at the moment, and ``UsageError`` when there is none.
        """
        raise UsageError(
            f"step {attempt.name!r} has transaction=True, and {self.url} has no database that could commit what it "
            f"does together with its outcome. Use a store that has one (sqlite:///… or postgresql://…). In a test, "
            f"replace the step by a mock, or run the workflow on a SQLite file of the test's own."
        )

    # Workers

    @abstractmethod
    async def register_worker(self, worker: NewWorker, lease_s: float) -> int:
        """Announce a worker, live for ``lease_s`` seconds from now, and return its id."""

    @abstractmethod
    def renew_lease(self, worker: int, lease_s: float) -> bool:
        """Prolong the lease. Blocking, and called from the heartbeat's own thread.

        False: the worker has been declared dead, and holds nothing any more.
        """

    @abstractmethod
    async def retire_worker(self, worker: int) -> None:
        """The worker leaves in good order: whatever it still holds is released without counting a delivery."""

    @abstractmethod
    async def renew_listener_lease(self, worker: int, lease_s: float) -> bool:
        """Prolong the lease of a worker by lease, from any process, however long it is over.

        A shorter lease than it has makes it end earlier. False: it has retired or been declared dead, and holds nothing
        any more; or it is no worker by lease.
        """

    @abstractmethod
    async def reap_dead_workers(
        self, except_worker: int | None = None, window: LeaseWindow | None = None, *, include_listeners: bool = False
    ) -> ReapResult:
        """Declare workers dead whose process is gone or lease has passed (never ``except_worker``); free their runs.

        ``window`` is the time in which leases count (default: all of the time up to now). Workers by lease are left
        alone unless ``include_listeners`` is true.
        """

    @abstractmethod
    async def expire_runs(self, limit: int = 100) -> list[str]:
        """End runs by delivery whose deadline has passed, held or not, as ``failed``; tells their ids.

        At most ``limit``, those that are overdue for the longest time first.
        """

    @abstractmethod
    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        """All workers that are live, those that unfinished runs refer to, and those with an id in ``extra_ids``."""

    # Claims

    @abstractmethod
    async def claim_runs(
        self,
        worker: int,
        *,
        workflows: Collection[str],
        queues: Collection[str] | None,
        limit: int,
        suspect_delay_s: float | None = 0.0,
    ) -> list[Run]:
        """Take up to ``limit`` runs that are due: highest priority first, then oldest first.

        ``workflows`` are served names: only runs of the versions that they name are taken (see ``served_versions``).
        Isolated runs (see ``rules``) come first if they have been due for ``suspect_delay_s`` seconds: if there is one,
        the claim takes a group of them and nothing else. Otherwise, or with ``None``, it takes none of them. Runs that
        are paused, and runs of disabled workflows, are not due. Limited queues have an order of their own
        (see ``queues``). A run whose row cannot be read is ended as ``failed``, and the others are taken.
        """

    @abstractmethod
    async def get_next_wake_at(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        """When the next pending or waiting run becomes due (a time in the past: now), or ``None``."""

    @abstractmethod
    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        """The histories of these runs, in order.

        Raises ``StoreCorrupt`` when there is something in one of them that cannot be read, and says what.
        """

    @abstractmethod
    async def get_new_signals(self, worker: int, after: int) -> NewSignals:
        """Unconsumed signals behind the cursor ``after`` (0: all) for runs that this worker holds.

        None is left out, but some that were told before may be told again. One whose large payload cannot be read is
        left out, and named in a warning of the log; ``get_histories`` raises.
        """

    @abstractmethod
    async def get_run_requests(self, worker: int) -> list[RunRequests]:
        """What has been asked of runs that this worker holds."""

    # The switch

    @abstractmethod
    async def disable_workflow(
        self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False
    ) -> bool:
        """Start and claim no more runs of this workflow. False: it was off already.

        A temporary switch is one that a policy turns on again by itself. A lasting one takes its place (true), and is
        not replaced by a temporary one: what a person has disabled stays disabled.
        """

    @abstractmethod
    async def enable_workflow(self, workflow: str, *, only_temporary: bool = False) -> bool:
        """Start and claim runs of this workflow again. False: it was on already, or is off for good and
        ``only_temporary`` was asked for."""

    @abstractmethod
    async def get_disabled_workflows(self) -> Mapping[str, DisabledWorkflow]:
        """The disabled workflows."""

    # Reading

    @abstractmethod
    async def get_run(self, run_id: str) -> Run | None:
        """One run's row."""

    @abstractmethod
    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        """The rows of those of these runs that exist, in any order.

        One whose row cannot be read is left out, and named in a warning of the log; ``get_run`` raises.
        """

    @abstractmethod
    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        """Runs that match, newest first; ``before_key`` is the ``key`` of the last run of the previous page.

        Large inputs and outputs are not read: where they are kept apart, a JSON text that tells their size stands for
        them. A run whose row cannot be read is left out, and named in a warning of the log.
        """

    @abstractmethod
    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        """As ``list_runs``, but looks at about ``max_scanned`` runs only; continue with ``cursor`` as ``before_key``.

        So each piece is a short one, whatever is looked for, and however many runs there are.
        """

    @abstractmethod
    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        """What these runs have used, and their budgets; those that have neither are left out."""

    async def get_approximate_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        """The same for runs of a list, where it may be a moment behind; budgets may be left out."""
        return await self.get_usages(run_ids)

    @abstractmethod
    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        """How many runs there are for each workflow and state, without those whose state cannot be read.

        With ``max_ended``, those that have ended are counted up to there and no further, for each workflow and state:
        what is told as that many may be more. So it does not matter how many there are, but only how many are
        unfinished.
        """

    @abstractmethod
    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        """How many runs that have not ended there are for each workflow, or each of these, and version."""

    @abstractmethod
    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        """The newest record of this name in a run's journal that is ``ok``."""

    @abstractmethod
    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        """What is new of a run: at most ``limit`` records and as many notices; ``None`` if there is no such run.

        All of it is of one moment: a record is there exactly if the notices that go with it are gone. Until the run has
        ended, its large inputs are told by their size, as in ``list_runs``.

        Begin with -1 and 0. If a ``REOPENED`` notice is among the new ones, or was seen since, records behind its
        ``seq`` are other ones than those that were there before.
        """

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        """A run with a page of its journal, and what the rest amounts to; ``None`` if there is no such run.

        The page begins behind the record ``after_seq``, and has at most ``limit`` records; ``None``: all of them.
        Without ``include_large_payloads``, large payloads may be left out, and those of the row told by their size, as
        in ``list_runs``.
        """
        run = await self.get_run(run_id)
        if run is None:
            return None
        [history] = await self.get_histories([run.key])
        return make_journal_page(run, history, after_seq, limit)

    # Approvals

    @abstractmethod
    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        """Approvals that match, the one that was asked first comes first; of closed ones alone, the last one."""

    # Memories

    @abstractmethod
    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        """One memory."""

    @abstractmethod
    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        """The memories of a namespace in the order of their keys, those behind the key ``after``."""

    @abstractmethod
    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        """Memories of a namespace that have at least one of these words in their key or text, the best match first.

        Words are those of the module ``text_search``: they are compared without regard to case and accents, as a whole,
        and of a long text only the first ``text_search.MAX_QUERY_WORDS`` different ones are looked for. Whatever stands
        in ``words`` is text to be found, no query language; without a word in it, nothing is found. The best match is
        the one with more of the words, the rarer ones, more often, in a shorter text (BM25); of equal ones, the smaller
        key comes first.
        """

    # Workflows

    @abstractmethod
    async def publish_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        """Announce workflows; ``worker`` can execute them from now on, and the other versions that they serve.

        The last announcement of a workflow and version counts.
        """

    @abstractmethod
    async def get_workflow_specs(self) -> Mapping[str, WorkflowSpec]:
        """All workflows ever announced, in all versions, by their served names."""

    # Queues

    @abstractmethod
    async def declare_queues(self, queues: Sequence[NewQueue]) -> None:
        """Announce queues. One whose limits were set by hand keeps those."""

    @abstractmethod
    async def set_queue_limits(self, name: str, limits: QueueLimits | None) -> bool:
        """Set the limits of a queue, whatever code says of it; ``None``: as code says, or none if it says nothing.

        False: nothing has changed.
        """

    @abstractmethod
    async def pause_queue(self, name: str) -> bool:
        """Let no run of this queue be taken until it is resumed. False: it was paused already."""

    @abstractmethod
    async def resume_queue(self, name: str) -> bool:
        """Let its runs be taken again. False: it was not paused."""

    @abstractmethod
    async def list_queues(self, names: Collection[str] | None = None) -> list[QueueStatus]:
        """All limited queues, or those of these names, in the order of their names."""

    # Schedules

    @abstractmethod
    async def put_schedules(
        self, schedules: Sequence[ScheduleDefinition], *, worker: int | None = None, replace: bool = True
    ) -> list[Schedule]:
        """Keep schedules under their names, and tell them, in order, as they are then.

        One that is there takes what is new; its pause and what it has settled stay, unless its timing is another one:
        then everything up to now is settled. If ``replace`` is false, it stays as it is. ``worker`` announces them.
        """

    @abstractmethod
    async def list_schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """All schedules, or those of these names, in the order of their names.

        One that cannot be read is left out, and named in a warning of the log.
        """

    @abstractmethod
    async def advance_schedule(
        self,
        name: str,
        expected_fired_up_to: float,
        fired_up_to: float,
        *,
        run_id: str = "",
        skipped_at: float | None = None,
    ) -> bool:
        """Note how far a schedule has come: at least as far as it was; the run it started, and a tick that was skipped.

        False: it is not there any more, or ``fired_up_to`` is not ``expected_fired_up_to``; nothing has changed.
        """

    @abstractmethod
    async def pause_schedule(self, name: str) -> bool:
        """Keep a schedule from firing. False: it is not there, or was paused already."""

    @abstractmethod
    async def resume_schedule(self, name: str) -> bool:
        """Let it fire again. False: it is not there, or was not paused."""

    @abstractmethod
    async def delete_schedule(self, name: str) -> bool:
        """Forget a schedule. False: it is not there."""

    # Documents

    @abstractmethod
    async def put_document(
        self, kind: str, name: str, data: bytes, *, if_version: int | None = None
    ) -> Document | None:
        """Keep a document, in place of the one that is there, and tell it as it is then.

        ``if_version``: only if that is its version now (0: only if there is none); ``None`` if it is not.
        """

    @abstractmethod
    async def list_documents(
        self, kind: str, names: Collection[str] | None = None, *, after: str = "", limit: int = 1000
    ) -> list[Document]:
        """Documents of a kind, or those of these names, in the order of their names, those behind ``after``."""

    @abstractmethod
    async def delete_document(self, kind: str, name: str) -> bool:
        """Forget a document. False: it is not there."""

    # The audit log

    @abstractmethod
    async def append_audit(self, events: Sequence[AuditEvent]) -> None:
        """Add entries to the audit log, durably."""

    @abstractmethod
    async def list_audit(self, *, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        """Entries of the audit log, the newest first; those with an id below ``before_id``."""

    @abstractmethod
    async def trim_audit(self, before: float, limit: int = 10_000) -> int:
        """Delete entries that are older than this time, at most ``limit``, and tell how many."""

    # Spending

    @abstractmethod
    async def get_daily_usage(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyUsage]:
        """What was used on the days from ``since`` to ``until``, both included: by day, workflow and model."""

    @abstractmethod
    async def get_daily_run_counts(self, since: str, until: str, *, workflow: str | None = None) -> list[DailyRunCount]:
        """How many runs were created on the days from ``since`` to ``until``, both included.

        By day and workflow.
        """

    # Pruning

    @abstractmethod
    async def prune_runs(
        self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100
    ) -> PruneResult:
        """Delete the next ``limit`` runs that match, with their families, or tell why they are kept: see ``retention``.

        A short piece of work, in a transaction of its own. Continue with the ``cursor`` of the result. ``sweep_pruned``
        deletes what they leave.
        """

    @abstractmethod
    async def sweep_pruned(self, limit: int = 2000) -> SweepResult:
        """Delete what runs that were deleted have left: about ``limit`` records, in a transaction of its own.

        Also the rows of workers that are not live any more and that no run can name, because they were gone before the
        oldest one was created; of workers by lease, the oldest run by delivery.
        """

    # Archives

    @abstractmethod
    async def get_run_extras(self, key: int) -> RunExtras:
        """What belongs to a run, beside what can be read of it in other ways."""

    @abstractmethod
    async def restore_run(self, archived: ArchivedRun) -> bool:
        """Put a run from elsewhere into this store, in one transaction; false: there is one under its id.

        One that has not ended is held back until ``activate_run``: see ``archives``.
        """

    @abstractmethod
    async def activate_run(self, archived: ArchivedRun) -> None:
        """Make the links of a run that was restored, to those that are there, and hold it back no more."""

    # Change

    @abstractmethod
    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Wait until somebody other than this store object may have written, or until ``timeout_s`` seconds passed.

        Only with ``follow_runs`` is the caller sure to be told that one has ended, or has made progress.
        """

    @abstractmethod
    def now(self) -> float:
        """The store's clock."""
