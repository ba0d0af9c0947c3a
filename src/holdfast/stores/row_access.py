"""What a store does with its rows, so that ``SharedOperations`` can carry out operations.

Each method is one step: it reads a row, changes one, or writes a signal. The decisions between the steps are in
``shared_operations``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from holdfast.core.records import Attempt, Record, Rewind
from holdfast.stores import operations as ops
from holdfast.stores.approvals import AnswerApproval, ApprovalState, RemindApproval, RequestApproval
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import NewRun, OpStatus, Run
from holdfast.stores.rules import LinkState
from holdfast.stores.usage_accounts import UsageAccounts

LinkKey = tuple[int, int]
"""A link: the key of the run that waits, and the position of its command."""


class _RunRow(Protocol):
    """What operations need to know about a run."""

    @property
    def key(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def cancel_state(self) -> str: ...
    @property
    def has_budget(self) -> bool: ...
    @property
    def is_delivery(self) -> bool: ...


class ApprovalRow(NamedTuple):
    """What operations need to know about an existing approval."""

    run_key: int
    position: int
    state: ApprovalState
    reminder_count: int
    withdrawn_epoch: int


class ReopenedRun(NamedTuple):
    """A run to reopen."""

    key: int
    id: str
    state: str
    rewind: Rewind | None

    @property
    def active_rewind(self) -> Rewind | None:
        """The rewind, if it removes any records."""
        return self.rewind if self.rewind is not None and self.rewind.failed_seqs else None


class AwaitedRunRow(NamedTuple):
    """An awaited run whose end is not in the journal, or will not be after the rewind."""

    position: int
    key: int
    state: str
    parent_id: str
    is_end_rewound: bool
    """The end was recorded, and the retry removes that record."""
    is_after_rewind: bool
    """The command that waits was issued because of what the retry removes."""


RowT = TypeVar("RowT", bound=_RunRow)
AccountsT = TypeVar("AccountsT", bound=UsageAccounts)


class RowAccess(ABC, Generic[RowT, AccountsT]):
    """The rows of a store, or of one of its transactions."""

    _accounts: AccountsT

    # Operations that each store implements as a whole

    @abstractmethod
    def _append(self, op: ops.AppendRecord) -> OpStatus: ...
    @abstractmethod
    def _release(self, op: ops.ReleaseRun) -> OpStatus: ...
    @abstractmethod
    def _append_live_events(self, op: ops.AppendLiveEvents) -> OpStatus: ...
    @abstractmethod
    def _change_memory(self, op: MemoryChange) -> OpStatus: ...
    @abstractmethod
    def _log_request(self, op: AuditEvent) -> OpStatus: ...

    # Held runs

    @abstractmethod
    def _get_by_key(self, key: int) -> RowT | None: ...
    @abstractmethod
    def _get_claimed(self, key: int, epoch: int) -> RowT | None:
        """The run, if an operation under ``epoch`` may change it."""

    @abstractmethod
    def _is_paused(self, run: RowT) -> bool: ...
    @abstractmethod
    def _finish_run(self, run: RowT, op: ops.FinishRun) -> bool:
        """Write the end of a run. Returns whether another run waited for it."""

    @abstractmethod
    def _has_record(self, key: int, seq: int) -> bool: ...
    @abstractmethod
    def _list_mailbox(self, key: int) -> Sequence[tuple[str, int | None]]:
        """Name and position of each signal in a run's mailbox."""

    @abstractmethod
    def _park_run(self, run: RowT, op: ops.ParkRun, *, has_unread: bool) -> None: ...
    @abstractmethod
    def _append_record(self, key: int, record: Record) -> None: ...
    @abstractmethod
    def _put_attempt(self, key: int, attempt: Attempt) -> None:
        """Write an attempt, except its ``outcome``."""

    @abstractmethod
    def _delete_attempt(self, key: int, position: int) -> None: ...

    # Starting, awaiting, and forking

    @abstractmethod
    def _get_by_id(self, run_id: str) -> RowT | None: ...
    @abstractmethod
    def _read_run(self, run_id: str) -> Run | None: ...
    @abstractmethod
    def _is_erased(self, key: int) -> bool: ...
    @abstractmethod
    def _is_disabled(self, workflow: str) -> bool: ...
    @abstractmethod
    def _create(self, new: NewRun, claim_as: int | None, inherits_budget: bool) -> Run:
        """Write a new run. ``inherits_budget``: the run that starts it has a budget to respect."""

    @abstractmethod
    def _join_dedup_owner(self, new: NewRun) -> Run | None:
        """The unfinished run with the same ``dedup_key``, after a debouncing start has changed it."""

    @abstractmethod
    def _join_orphan(self, new: NewRun) -> Run | None: ...
    @abstractmethod
    def _copy_journal(self, source_key: int, key: int, before_seq: int) -> None: ...
    @abstractmethod
    def _get_link(self, link_key: LinkKey) -> tuple[int, LinkState] | None:
        """The key of the awaited run, and what the link knows of its end."""

    @abstractmethod
    def _put_link(self, link_key: LinkKey, awaited_key: int, state: LinkState) -> None: ...
    @abstractmethod
    def _delete_link(self, link_key: LinkKey) -> None: ...
    @abstractmethod
    def _delete_end_signal(self, link_key: LinkKey) -> None:
        """Remove from the mailbox the end of a run that no command awaits any more."""

    # Requests from outside

    def _to_column(self, payload: bytes) -> bytes:
        """The stored form of a payload: a reference, in a store that keeps large payloads apart."""
        return payload

    @abstractmethod
    def _has_signal_key(self, key: int, dedup_key: str) -> bool: ...
    @abstractmethod
    def _add_signal_key(self, key: int, dedup_key: str) -> None: ...
    @abstractmethod
    def _add_signal(self, key: int, name: str, at: float, payload: bytes, position: int | None = None) -> None:
        """Put a signal into a run's mailbox. ``payload`` is in its stored form."""

    @abstractmethod
    def _wake(self, run: RowT) -> None:
        """Make a parked run claimable, unless it is paused."""

    @abstractmethod
    def _get_seed(self, run: RowT) -> bytes: ...
    @abstractmethod
    def _cancel_run(self, run: RowT, at: float, *, is_immediate: bool) -> None:
        """Request a cancel, and lift a pause; ``is_immediate``: end the run as cancelled."""

    @abstractmethod
    def _pause_run(self, run: RowT, at: float) -> None: ...
    @abstractmethod
    def _resume_run(self, run: RowT) -> None: ...
    @abstractmethod
    def _list_by_key(self, keys: Sequence[int]) -> list[RowT]:
        """Existing runs, in order. No other process changes them before the commit."""

    # A person's retry

    @abstractmethod
    def _read_reopened(self, key: int) -> ReopenedRun: ...
    @abstractmethod
    def _list_awaited_runs(self, run: ReopenedRun) -> list[AwaitedRunRow]: ...
    @abstractmethod
    def _rewind_journal(self, run: ReopenedRun) -> None:
        """Remove what the retry takes back (records, answers, attempts, approvals), and reopen the run's row."""

    @abstractmethod
    def _get_last_seq(self, key: int) -> int:
        """The ``seq`` of a run's last record; -1: it has none."""

    @abstractmethod
    def _set_version(self, key: int, version: str) -> None: ...
    @abstractmethod
    def _add_lasting_event(self, key: int, position: int, at: float, kind: str, data: bytes) -> None:
        """Write a live event that outlives its step."""

    # Approvals

    @abstractmethod
    def _get_approval(self, approval_id: str) -> ApprovalRow | None: ...
    @abstractmethod
    def _put_approval(self, op: RequestApproval) -> None: ...
    @abstractmethod
    def _list_other_approvals(self, op: RequestApproval) -> list[str]:
        """The ids of other approvals of the same run and position that are not withdrawn."""

    @abstractmethod
    def _set_withdrawn(self, approval_id: str, epoch: int) -> None: ...
    @abstractmethod
    def _save_reminder(self, op: RemindApproval) -> None: ...
    @abstractmethod
    def _save_answer(self, op: AnswerApproval, payload: bytes) -> None:
        """Mark an approval as answered. ``payload`` is the answer in its stored form."""

    @abstractmethod
    def _delete_answers_at(self, key: int, position: int) -> None:
        """Remove answers to the command at a position from a run's mailbox."""
