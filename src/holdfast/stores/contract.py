"""What every store promises, and the values that go in and out of one.

The engine keeps nothing that matters in memory only: it hands *operations* to ``Store.commit`` and goes on when they
are durable. One call is one transaction, whatever the number of operations in it (group commit).

**The fence.** A run row has an ``epoch`` that rises by one each time the run is claimed. Every operation on a held run
carries the epoch under which it was claimed, and takes effect only while the row still has that epoch and is in state
``running``. This check happens inside the same transaction as the write. An operation that fails it is answered with
``Verdict.FENCED`` and changes nothing; the other operations of the batch are not affected.

**Repeating a commit is harmless.** A commit whose outcome the caller did not learn (a time-out, a cut connection) may
be handed in again as it is: an append of a ``seq`` that is already there under the same epoch, a finish of a run that
the same epoch already finished, a park of a run that the same epoch already parked, a start with the same ``seed`` and
a signal with the same ``dedup`` key are all answered as if they had just been carried out.

**Death.** A worker that starts registers itself. Its runs can be taken when the store knows that it is dead: at once
where the kernel can tell (a file lock that the process held is free), else when its lease has passed. ``reap`` then
puts its runs back to ``pending`` and counts one delivery for each; the count returns to 0 with the run's next record.
A worker that retires in good order gives its runs back without counting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from holdfast.core.records import Attempt, Record, Signal
from holdfast.core.states import RunState


class Verdict(Enum):
    """What became of one operation."""

    DONE = "done"
    FENCED = "fenced"
    """Another worker holds the run now (or it has ended); nothing was changed."""
    REFUSED = "refused"
    """A park was refused, because a signal that the run waits for is there already; or a retry, because it would run a
    ``once`` step again."""
    DUPLICATE = "duplicate"
    """A signal with this deduplication key had been sent before; nothing was changed."""
    UNKNOWN_RUN = "unknown_run"
    ENDED = "ended"
    """The run has ended, so it takes no signal; or a retry found nothing to reopen."""


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
    max_deliveries: int = 3
    tags: tuple[str, ...] = ()
    generated_id: bool = False
    """The id was made up, not chosen by the user: such a run may be joined once its starter is no longer live."""
    starter: int | None = None
    """The worker that starts it, if a worker does."""
    python: str = ""
    """Minor version of the Python that starts it, for the drift message."""


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
    deliveries: int
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
    python: str
    created_at: float
    finished_at: float | None


class StartRun(NamedTuple):
    """Create a run, or find the one that is already there under this id."""

    run: NewRun
    claim_as: int | None = None
    """Create it ``running`` under epoch 1, held by this worker, instead of ``pending``."""
    join_orphan: bool = False
    """First look for an *orphan*: a run with a generated id, of the same workflow and digest, whose starter is no
    longer live, and that has not ended, or has ended only after its starter was found dead (so that nobody had its
    result). If there is one, make ``run.starter`` its starter and answer with it (it is not claimed by this)."""


class Started(NamedTuple):
    """The answer to ``StartRun``."""

    run: Run
    created: bool
    """False: it was there before (same id), or it is an orphan that was joined."""


class AppendRecord(NamedTuple):
    """Add one record to a held run's journal (``record.epoch`` is the fence)."""

    key: int
    record: Record
    consume: int | None = None
    """The id of the signal that this record consumes, deleted in the same transaction."""
    clear_attempt: bool = False
    """There may be an attempt row for this position; delete it."""
    reset_deliveries: bool = False
    """The first record since the run was taken over: set its delivery count back to 0."""


class NoteAttempt(NamedTuple):
    """Keep what is known of a step in flight (one row per position, the last one wins)."""

    key: int
    epoch: int
    attempt: Attempt


class FinishRun(NamedTuple):
    """End a held run."""

    key: int
    epoch: int
    state: RunState
    output: bytes | None
    error: bytes | None
    at: float


class ParkRun(NamedTuple):
    """Let a held run leave memory until ``wake_at`` or a signal.

    Refused when an unconsumed signal with one of the names in ``signals`` is there. Fenced when the run has gone on
    since: a park may reach the store late, after it was repeated, refused for a signal, and that signal consumed.
    """

    key: int
    epoch: int
    wake_at: float | None
    signals: tuple[str, ...] = ()
    waits_for: str = ""
    next_seq: int | None = None
    """The number that the run's next record will have; if it is there already, the run has gone on."""


class ReleaseRun(NamedTuple):
    """Give a held run back, claimable at once; this never counts as a delivery."""

    key: int
    epoch: int


class SendSignal(NamedTuple):
    """Put a signal into a run's mailbox; a waiting run becomes claimable at once."""

    run_id: str
    name: str
    payload: bytes
    dedup: str | None
    at: float


class ReopenRun(NamedTuple):
    """Put a failed or dead run back to ``pending`` (a person's retry): deliveries 0, error and end forgotten.

    A deadline that has passed is lifted. If the journal's last record is that of the deadline or of a failed step, it
    is removed, so that the run goes on from there. If that step is a ``once`` whose outcome is unknown, it would run a
    second time: this is ``REFUSED`` unless ``run_again``.
    """

    run_id: str
    at: float
    run_again: bool = False


Op = StartRun | AppendRecord | NoteAttempt | FinishRun | ParkRun | ReleaseRun | SendSignal | ReopenRun
Answer = Started | Verdict


@dataclass(frozen=True, slots=True)
class NewWorker:
    """What a worker tells of itself when it registers."""

    name: str
    host: str
    pid: int
    workflows: tuple[str, ...] = ()
    """The workflows it can execute."""
    queues: tuple[str, ...] | None = None
    """The queues it serves; ``None``: all."""


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
    lease_until: float


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """What workers announce of a workflow, so that a client can start it without its code."""

    name: str
    parameters: tuple[str, ...]
    id_template: str | None = None
    queue: str = "default"
    timeout: float | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """All that a worker needs to bring a run back: read only after its claim is committed."""

    records: Sequence[Record]
    attempts: Mapping[int, Attempt]
    signals: Sequence[Signal]


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a ``reap`` found."""

    workers: tuple[int, ...] = ()
    released: int = 0
    """Runs that are claimable again."""
    dead: tuple[str, ...] = ()
    """Ids of runs that have used up their deliveries."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; every field that is given must match."""

    states: Collection[RunState] = field(default_factory=tuple[RunState, ...])
    workflow: str | None = None
    tag: str | None = None
    id_prefix: str | None = None
    created_after: float | None = None
    created_before: float | None = None


class Store(ABC):
    """A place where journals live. Methods are coroutines unless they say otherwise."""

    url: str

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
    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        """Carry out ``ops`` in order in one durable transaction, and answer each.

        Raises ``StoreUnavailable`` when nothing was committed, or when it is not known whether it was; the same call
        may then be made again.
        """

    # Workers

    @abstractmethod
    async def register_worker(self, worker: NewWorker, lease: float) -> int:
        """Announce a worker, live for ``lease`` seconds from now, and return its id."""

    @abstractmethod
    def renew_lease(self, worker: int, lease: float) -> bool:
        """Prolong the lease. Blocking, and called from the heartbeat's own thread.

        False: the worker has been declared dead, and holds nothing any more.
        """

    @abstractmethod
    async def retire_worker(self, worker: int) -> None:
        """The worker leaves in good order: whatever it still holds is released without counting a delivery."""

    @abstractmethod
    async def reap(self, me: int | None = None) -> Reaped:
        """Declare workers dead whose process is gone or whose lease has passed (never ``me``), and free their runs."""

    @abstractmethod
    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        """All workers that are live, those that unfinished runs refer to, and those with an id in ``also``."""

    # Claims

    @abstractmethod
    async def claim(
        self, worker: int, *, workflows: Collection[str], queues: Collection[str] | None, limit: int
    ) -> list[Run]:
        """Take up to ``limit`` runs that are due: highest priority first, then oldest first."""

    @abstractmethod
    async def next_wake(self, *, workflows: Collection[str], queues: Collection[str] | None) -> float | None:
        """When the next pending or waiting run becomes due (a time in the past: now), or ``None``."""

    @abstractmethod
    async def histories(self, keys: Sequence[int]) -> list[History]:
        """The histories of these runs, in order."""

    @abstractmethod
    async def new_signals(self, worker: int, after: int) -> list[tuple[int, Signal]]:
        """Unconsumed signals with an id above ``after`` for runs that this worker holds, as ``(run key, signal)``."""

    # Reading

    @abstractmethod
    async def get(self, run_id: str) -> Run | None:
        """One run's row."""

    @abstractmethod
    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        """The rows of those of these runs that exist, in any order."""

    @abstractmethod
    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        """Runs that match, newest first; ``before`` is the ``key`` of the last run of the previous page."""

    @abstractmethod
    async def count_runs(self) -> Mapping[tuple[str, RunState], int]:
        """How many runs there are for each workflow and state."""

    # Workflows

    @abstractmethod
    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        """Announce workflows (the last announcement of a name counts); ``worker`` can execute them from now on."""

    @abstractmethod
    async def specs(self) -> Mapping[str, WorkflowSpec]:
        """All workflows ever announced, by name."""

    # Change

    @abstractmethod
    async def changed(self, timeout: float) -> bool:
        """Wait until somebody other than this store object may have written, or until ``timeout`` seconds passed."""

    @abstractmethod
    def now(self) -> float:
        """The store's clock."""
