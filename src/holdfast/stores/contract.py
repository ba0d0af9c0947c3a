"""What every store promises, and the values that go in and out of one.

The engine keeps nothing that matters in memory only: it gives *operations* to ``Store.commit`` and continues when they
are durable. One call is one transaction, whatever the number of operations in it (group commit).

**Capabilities.** ``Store`` itself is what every store has. What only some have are attributes of it, each with what it
promises in a module of its own: ``workers``, ``claims``, ``disabled_workflows``, ``queues``, ``schedules``,
``memories``, ``step_transactions``, ``documents``, ``audit_log``, ``daily_usage``, ``retention``, and ``archives``.

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

**Links.** A run that waits for another run has a link to it, made in the transaction that starts the other run or finds
it unfinished. Whatever ends a run (its holder, ``Workers.reap_dead``, a cancel before the first claim) puts a
``Signal`` with the link's position into the mailbox of every unfinished run that waits, wakes it if it is parked, and
marks the link as notified. So a link means that the end is in the mailbox, was there, or will be. A run that has ended
gets no such signal. If a retry lets it wait again, it is answered with the end, like a run that asks for the first time
after the other has ended.

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

**Large values.** Payloads over ``MAX_INLINE_BYTES`` are kept apart, compressed, and once for equal content. If one
cannot be read back, this stops the run that it belongs to, and no other, with an error that names the record. (The
values of memories are not kept apart: they are overwritten.)
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
    from holdfast.stores.memories import Memories
    from holdfast.stores.queues import Queues
    from holdfast.stores.retention import Retention
    from holdfast.stores.schedules import Schedules
    from holdfast.stores.step_transactions import StepTransactions

DEFAULT_NAMESPACE = "default"
"""The namespace of whoever does not choose one."""
MAX_INLINE_BYTES = 64 * 1024
"""Payloads above this size, in bytes, are kept apart."""


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

    def supports(self, capability: Capability[Any]) -> bool:
        """Whether this store has a capability, say ``Store.step_transactions``."""
        return capability.name in vars(self)

    def make_unsupported_error(self, name: str) -> UsageError:
        """What using the capability of this name raises, because the store lacks it."""
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
        """Disconnect without a loop: for a runtime whose event loop is already closed."""

    @abstractmethod
    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Carry out ``ops`` in order in one durable transaction, and answer each.

        Raises ``StoreUnavailable`` when nothing was committed, or when it is not known whether it was; the same call
        may then be made again.
        """

    # Reading

    @abstractmethod
    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        """The histories of these runs, in order.

        Raises ``StoreCorrupt`` when there is something in one of them that cannot be read, and says what.
        """

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

    # Workers and workflows

    @abstractmethod
    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        """All workers that are live, those that unfinished runs refer to, and those with an id in ``extra_ids``."""

    @abstractmethod
    async def publish_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        """Announce workflows; ``worker`` can execute them from now on, and the other versions that they serve.

        The last announcement of a workflow and version counts.
        """

    @abstractmethod
    async def get_workflow_specs(self) -> Mapping[str, WorkflowSpec]:
        """All workflows ever announced, in all versions, by their served names."""

    # Change

    @abstractmethod
    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Wait until somebody other than this store object may have written, or until ``timeout_s`` seconds passed.

        Only with ``follow_runs`` is the caller sure to be told that one has ended, or has made progress.
        """

    @abstractmethod
    def now(self) -> float:
        """The store's clock."""
