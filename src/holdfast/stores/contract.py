"""What every store guarantees, and the values that go in and out of a store.

The engine keeps nothing that matters in memory only: it gives *operations* to ``Store.commit`` and continues when they
are durable. One call is one transaction, whatever the number of operations in it (group commit).

**Capabilities.** ``Store`` itself is what every store has. What only some stores have is an attribute of it, with a
contract in a module of its own: ``workers``, ``claims``, ``disabled_workflows``, ``queues``, ``schedules``,
``memories``, ``step_transactions``, ``documents``, ``audit_log``, ``daily_usage``, ``retention``, ``archives``, and
``erasure``.

**The fence.** A run row has an ``epoch`` that rises by one each time the run is claimed. Every operation on a held run
carries the epoch under which it was claimed, and takes effect only while the row still has that epoch and is in state
``running``. This check happens in the same transaction as the write. An operation that fails it is answered with
``OpStatus.FENCED`` and changes nothing; the other operations of the batch are not affected.

**Repeating a commit is harmless.** If the caller does not learn the outcome of a commit (a timeout, a cut connection),
it may submit the same commit again. These are answered as if they had just been carried out: an append of a ``seq``
that exists under the same epoch, a finish of a run that the same epoch has finished, a park of a run that the same
epoch has parked, a start or a fork with the same ``seed``, and a signal with the same ``dedup_key``. A link is made
once, and a reservation replaces the one before. A repeated request is answered with ``DUPLICATE``, a repeated retry
with ``ENDED``, and nothing changes. (A start that has joined an orphan is not recognized: a repeat of it starts a new
run.)

**Links.** A run that waits for another run has a link to it, made in the transaction that starts the other run or finds
it unfinished. Whatever ends a run (its holder, ``Workers.reap_dead``, a cancel before the first claim) puts a
``Signal`` with the link's position into the mailbox of every unfinished run that waits, wakes it if it is parked, and
marks the link as notified. So a pending or notified link means that the end is in the mailbox, was there, or will be; a
*late* link only remembers which run was awaited. A run that has ended gets no such signal. If a retry makes it wait
again, the await itself is answered with the end, as for a run that first asks after the other has ended.

**Usage and budgets.** The usage of a model call is added when its record is appended: to the run and to every run above
it (its ``parent``, that one's parent, and so on), in the same transaction, and once however often the append is
repeated. It is never taken back: a retry that removes records does not undo their cost. A fork starts with nothing
used. A run that was started with a budget has limits for its own usage. Every reservation checks all the budgets above
it, so parallel runs cannot exceed them together. A run's reservations are released when no worker holds it any more:
when it ends, is parked or released, or when its worker is dead. (Otherwise calls of other runs that wait for their
share could fill all workers, and none could claim that run.)

**Sessions.** A run that is created in a session knows the run before it in the same session and of the same workflow:
the newest one that exists in the transaction that creates it.

**Approvals.** See ``approvals``: an answer goes into the mailbox of the run that asks, under the position of the
command that waits, and wakes the run, in the transaction that accepts the answer. An approval is answered once, however
many people answer it at the same time.

**Live events.** See ``live_events``: what steps in flight are doing. They are fenced like everything that a holder
writes, and are deleted with the record of their step, or at the latest with the end of their run.

**Large values.** Payloads over ``MAX_INLINE_BYTES`` are stored as blobs: apart from their row, compressed, and once for
equal content. If a blob cannot be read back, its run stops, and no other, with an error that names the record. (The
values of memories are never blobs: they are overwritten.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.core.records import Attempt, Record, Signal
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.approvals import Approval, ApprovalFilter
from holdfast.stores.capabilities import Capability
from holdfast.stores.claims import ClaimedRun, ClaimNext
from holdfast.stores.journal_pages import JournalPage, make_journal_page
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.operations import MAX_DELIVERIES, Op, OpResult, Run
from holdfast.stores.workers import Worker, Workers

if TYPE_CHECKING:
    from holdfast.stores.archives import Archives
    from holdfast.stores.audit_log import AuditLog
    from holdfast.stores.claims import Claims
    from holdfast.stores.daily_usage import DailyUsageCounters
    from holdfast.stores.disabled_workflows import DisabledWorkflows
    from holdfast.stores.documents import Documents
    from holdfast.stores.erasure import Erasure
    from holdfast.stores.memories import Memories
    from holdfast.stores.queues import Queues
    from holdfast.stores.retention import Retention
    from holdfast.stores.schedules import Schedules
    from holdfast.stores.step_transactions import StepTransactions

DEFAULT_NAMESPACE = "default"
"""The namespace when none is chosen."""
MAX_INLINE_BYTES = 64 * 1024
"""Payloads above this size, in bytes, are stored as blobs."""


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """What workers announce about a workflow, so that a client can start it without its code."""

    name: str
    parameters: tuple[str, ...]
    id_template: str | None = None
    queue: str = "default"
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()
    budget: BudgetLimits | None = None
    """The budget of its runs unless they are started with another one."""
    is_agent: bool = False
    """Its steps are chosen by a model, and its result is an ``AgentResult``."""
    max_deliveries: int = MAX_DELIVERIES
    """See ``NewRun.max_deliveries``."""
    version: str = ""
    queue_key_template: str | None = None
    """A template for the queue key of its runs: see ``queues``."""
    is_address: bool = False
    """It is an address, without code, and its runs are by delivery: see ``services.addresses``."""
    inputs_schema: str = ""
    """A JSON schema of its inputs, as text; ``""``: none was announced, and only the names are checked."""
    serves: tuple[str, ...] = field(default=(), compare=False)
    """Other versions whose runs the same code executes; stored only in the worker's row."""
    announced_at: float = field(default=0.0, compare=False)
    """When this version was first announced; set by the store."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run and all the runs below it have used."""

    used: Usage = field(default_factory=Usage)
    budget: BudgetLimits | None = None
    """Its own budget."""


@dataclass(frozen=True, slots=True)
class History:
    """Everything that a worker needs to resume a run. Read by its claim, or after that is committed."""

    records: Sequence[Record]
    attempts: Mapping[int, Attempt]
    signals: Sequence[Signal]
    links: Mapping[int, tuple[str, bytes]] = field(default_factory=dict[int, tuple[str, bytes]])
    """Runs whose end is or will be in the mailbox: id and digest, by the position of the command that waits."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; every field that is set must match."""

    states: Collection[RunState] = field(default_factory=tuple[RunState, ...])
    workflow: str | None = None
    tag: str | None = None
    id_prefix: str | None = None
    created_after: float | None = None
    created_before: float | None = None
    text: str | None = None
    """A text in its id, its workflow's name, one of its tags, or the type and message of its error, ignoring case. An
    error that is stored as a blob is not searched."""
    parent: str | None = None
    """The id of its parent; ``""`` matches no run, not even runs without a parent."""
    owner: int | None = None
    """The worker that holds it."""


class RunSearchPage(NamedTuple):
    """The result of a search for runs."""

    runs: list[Run]
    cursor: int | None
    """The search has covered all runs with this key or a higher one; ``None``: all runs."""
    cursor_created_at: float | None = None
    """When the run with that key was created."""


class Store(ABC):
    """Where journals are kept."""

    url: str
    """The URL for display, without a password."""
    namespace: str = DEFAULT_NAMESPACE
    """The namespace of the data: nothing here reads or changes other namespaces of the same database."""
    is_encrypted: bool = False
    """Whether values of users' code are encrypted before they are written."""
    min_overlap_count: int | None = None
    """The smallest batch whose answers may overlap with the next commit. ``None``: this process has to do most of the
    work of a commit, so that nothing is gained."""

    workers: Capability[Workers] = Capability()
    claims: Capability[Claims] = Capability()
    disabled_workflows: Capability[DisabledWorkflows] = Capability()
    queues: Capability[Queues] = Capability()
    schedules: Capability[Schedules] = Capability()
    memories: Capability[Memories] = Capability()
    step_transactions: Capability[StepTransactions] = Capability()
    documents: Capability[Documents] = Capability()
    audit_log: Capability[AuditLog] = Capability()
    daily_usage: Capability[DailyUsageCounters] = Capability()
    retention: Capability[Retention] = Capability()
    archives: Capability[Archives] = Capability()
    erasure: Capability[Erasure] = Capability()

    def supports(self, capability: Capability[Any]) -> bool:
        """Whether this store has a capability, such as ``Store.step_transactions``."""
        return capability.name in vars(self)

    def make_unsupported_error(self, name: str) -> UsageError:
        """The error for using a capability that this store lacks."""
        return UsageError(
            f"{name.replace('_', ' ')}: not supported by {self.url}. Use a store that has it (sqlite:///… or "
            f"postgresql://…)."
        )

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
        """Disconnect without an event loop, for a runtime whose loop is already closed."""

    @abstractmethod
    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Apply ``ops`` in order in one durable transaction. Returns an answer for each.

        Raises ``StoreUnavailable`` when nothing was committed, or when that is unknown; the caller may then repeat the
        call.
        """

    async def commit_and_claim(self, items: Sequence[Op | ClaimNext]) -> list[OpResult | ClaimedRun | None]:
        """Commit the operations among these items as ``commit`` does, and claim runs in the same transaction.

        The answer to a ``ClaimNext`` is the run, or ``None`` if there is none, or if an ordinary claim must decide: a
        store may always answer ``None``.
        """
        answers = iter(await self.commit([item for item in items if not isinstance(item, ClaimNext)]))
        return [None if isinstance(item, ClaimNext) else next(answers) for item in items]

    # Reading

    @abstractmethod
    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        """The histories of these runs, in order.

        Raises ``StoreCorrupt`` when a part of one cannot be read, and says which part.
        """

    @abstractmethod
    async def get_run(self, run_id: str) -> Run | None:
        """A run's row."""

    @abstractmethod
    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        """The rows of these runs, as far as they exist, in any order.

        A run whose row cannot be read is left out with a logged warning; ``get_run`` raises for it.
        """

    async def get_ended_runs(self, run_ids: Sequence[str]) -> tuple[list[Run], Collection[str]]:
        """The rows of those of these runs that have ended, and the ids of those that do not exist or cannot be read."""
        found = await self.get_runs(run_ids)
        return [run for run in found if run.state.is_terminal], {*run_ids} - {run.id for run in found}

    @abstractmethod
    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        """Runs that match, newest first; ``before_key`` is the ``key`` of the last run of the previous page.

        Large inputs and outputs are not read: a JSON text with their size replaces those stored as blobs. A run whose
        row cannot be read is left out with a logged warning.
        """

    @abstractmethod
    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        """Like ``list_runs``, but scans only about ``max_scanned`` runs; continue with ``cursor`` as ``before_key``.

        So each call is short, whatever the filter, and however many runs there are.
        """

    @abstractmethod
    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        """What these runs have used, and their budgets. Runs that have neither are left out."""

    async def get_approximate_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        """The same for lists, where usage may lag a moment behind, and budgets may be left out."""
        return await self.get_usages(run_ids)

    @abstractmethod
    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        """The number of runs for each workflow and state, without those whose state cannot be read.

        With ``max_ended``, ended runs are counted only up to that number for each workflow and state; a count equal to
        it means "at least this many". So the cost depends only on the number of unfinished runs.
        """

    @abstractmethod
    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        """The number of unfinished runs for each workflow (or each of these) and version."""

    @abstractmethod
    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        """The newest ``ok`` record with this name in a run's journal."""

    @abstractmethod
    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        """What is new in a run: at most ``limit`` records and as many live events; ``None`` if the run does not exist.

        All of it is read at one moment: a record is there exactly if the live events of its step are gone. Until the
        run has ended, its large inputs are replaced by their size, as in ``list_runs``.

        Start with -1 and 0. After a ``REOPENED`` event, records after its ``seq`` differ from those that were there
        before.
        """

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        """A run with a page of its journal, and a summary of the whole; ``None`` if the run does not exist.

        The page starts after the record ``after_seq``, and has at most ``limit`` records; ``None``: all of them.
        Without ``include_large_payloads``, large payloads of records may be left out, and those of the row replaced by
        their size, as in ``list_runs``.
        """
        run = await self.get_run(run_id)
        if run is None:
            return None
        [history] = await self.get_histories([run.key])
        return make_journal_page(run, history, after_seq, limit)

    # Approvals

    @abstractmethod
    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        """Approvals that match, oldest first; with ``only_closed``, newest first."""

    # Workers and workflows

    @abstractmethod
    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        """All live workers, workers that unfinished runs refer to, and workers with an id in ``extra_ids``."""

    @abstractmethod
    async def announce_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        """Announce workflows. ``worker`` can execute them from now on, and the other versions that they serve.

        The last announcement of a workflow and version counts.
        """

    @abstractmethod
    async def get_workflow_specs(self, workflow: str | None = None) -> Mapping[str, WorkflowSpec]:
        """All workflows ever announced, or only this one, in all versions, by served name."""

    # Change

    @abstractmethod
    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Wait until another store object may have written, or ``timeout_s`` seconds have passed.

        Only with ``follow_runs`` does this reliably return when a run has ended or made progress.
        """

    @abstractmethod
    def now(self) -> float:
        """The store's clock."""
