"""The rows of the memory store, and the changes that several operations share.

The tables are private to this package: the store and its capabilities use them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.admission.queue_limits import QueueLimits, RateUsage
from holdfast.admission.usage import Usage
from holdfast.core.records import Attempt, Record, Signal
from holdfast.core.states import TERMINAL_STATES, UNFINISHED_STATES, RunState
from holdfast.stores import rules
from holdfast.stores.approvals import Approval, ApprovalState, is_answer
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.disabled_workflows import DisabledWorkflow
from holdfast.stores.documents import Document
from holdfast.stores.live_events import LASTING_KINDS
from holdfast.stores.memories import Memory
from holdfast.stores.memory.usage_accounts import MemoryUsageAccounts
from holdfast.stores.operations import LiveEvent, Run
from holdfast.stores.row_access import LinkKey
from holdfast.stores.rules import LinkState
from holdfast.stores.schedules import Schedule
from holdfast.stores.workers import Worker


class LinkRow(NamedTuple):
    """The stored form of a link."""

    child_key: int
    state: LinkState


@dataclass(slots=True)
class QueueRow:
    """The stored form of a limited queue."""

    declared_limits: QueueLimits | None = None
    override: QueueLimits | None = None
    paused_at: float | None = None
    last_started_turns: dict[int, int] = field(default_factory=dict[int, int])
    """The highest turn of a started run, by priority."""
    last_key_turns: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """The last turn of each key, by priority and key."""
    used: RateUsage = field(default_factory=dict[str, tuple[float, ...]])
    used_by_key: dict[str, RateUsage] = field(default_factory=dict[str, RateUsage])

    @property
    def limits(self) -> QueueLimits:
        """The limits in effect."""
        return self.override or self.declared_limits or QueueLimits()

    @property
    def is_needed(self) -> bool:
        """Whether anything is set, so that the queue needs its row."""
        return self.declared_limits is not None or self.override is not None or self.paused_at is not None


class Tables:
    """Rows in dictionaries. Every reader and writer holds ``_lock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._runs: dict[int, Run] = {}
        self._last_key = 0
        self._keys_by_id: dict[str, int] = {}
        self._unfinished: dict[int, None] = {}
        self._with_generated_id: set[int] = set()
        """Runs with a generated id."""
        self._with_unclaimed_result: set[int] = set()
        """Runs with a generated id whose result no caller has received."""
        self._records: dict[int, list[Record]] = {}
        self._attempts: dict[int, dict[int, Attempt]] = {}
        self._mailboxes: dict[int, dict[int, Signal]] = {}
        self._signal_dedup_keys: set[tuple[int, str]] = set()
        self._last_signal_id = 0
        self._parked_by: dict[int, int] = {}
        """The worker that parked a run with unread signals, by run."""
        self._links: dict[LinkKey, LinkRow] = {}
        self._link_positions: dict[int, dict[int, None]] = {}
        """The positions of the links of a waiting run."""
        self._pending_links: dict[int, dict[LinkKey, None]] = {}
        """The links in state ``PENDING``, by the awaited run."""
        self._accounts = MemoryUsageAccounts(self._runs, self._keys_by_id)
        self._approvals: dict[str, Approval] = {}
        self._withdrawn_epochs: dict[str, int] = {}
        """The epoch under which a run last withdrew an approval, by approval."""
        self._live_events: dict[int, dict[int, LiveEvent]] = {}
        """By run and id."""
        self._last_event_id = 0
        self._memories: dict[tuple[str, str], Memory] = {}
        """By namespace and key."""
        self._word_counts: dict[tuple[str, str], Counter[str]] = {}
        """How often each word occurs in a memory."""
        self._newest_by_session: dict[tuple[str, str], str] = {}
        """The newest run of a workflow and session."""
        self._workers: dict[int, Worker] = {}
        self._last_worker_id = 0
        self._killed_workers: set[int] = set()
        self._specs: dict[str, WorkflowSpec] = {}
        self._disabled_workflows: dict[str, DisabledWorkflow] = {}
        self._queues: dict[str, QueueRow] = {}
        self._turns: dict[int, int] = {}
        """The turns of runs in limited queues."""
        self._dedup_runs: dict[tuple[str, str], int] = {}
        """The unfinished run with a ``dedup_key``, by queue and key."""
        self._dedup_keys: dict[int, tuple[str, str]] = {}
        """Queue and ``dedup_key``, by run."""
        self._debounced: set[int] = set()
        """Runs that lose their ``dedup_key`` when they start."""
        self._documents: dict[tuple[str, str], Document] = {}
        """By kind and name."""
        self._audit_events: dict[int, AuditEvent] = {}
        self._last_audit_id = 0
        self._daily_usage: dict[tuple[str, str, str], Usage] = {}
        """By day, workflow, and model."""
        self._schedules: dict[str, Schedule] = {}
        self._announcers: dict[str, set[int]] = {}
        """The workers that have announced a schedule, by its name."""
        self._change_waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._last_write_at = float("-inf")

    def _notify_change(self) -> None:
        """End the waits for a change, after a write."""
        self._last_write_at = time.monotonic()
        for loop, event in tuple(self._change_waiters):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def _get_by_id(self, run_id: str) -> Run | None:
        key = self._keys_by_id.get(run_id)
        return None if key is None else self._runs[key]

    _read_run = _get_by_id

    def _get_by_key(self, key: int) -> Run | None:
        return self._runs.get(key)

    def _list_by_key(self, keys: Sequence[int]) -> list[Run]:
        return [self._runs[key] for key in keys]

    def _is_paused(self, run: Run) -> bool:
        return run.paused_at is not None

    def _get_claimed(self, key: int, epoch: int) -> Run | None:
        run = self._runs.get(key)
        return run if run is not None and rules.can_write(run.state, run.epoch, epoch) else None

    def _get_last_seq(self, key: int) -> int:
        journal = self._records.get(key)
        return journal[-1].seq if journal else -1

    def _is_live(self, worker: int) -> bool:
        known = self._workers.get(worker)
        return known is not None and known.state == "live"

    def _list_claimed_by(self, worker: int) -> list[Run]:
        runs = (self._runs[key] for key in sorted(self._unfinished))
        return [run for run in runs if run.owner == worker and run.state is RunState.RUNNING]

    def _save_run(self, run: Run) -> None:
        self._runs[run.key] = run
        if run.state in UNFINISHED_STATES:
            self._unfinished[run.key] = None
        else:
            self._unfinished.pop(run.key, None)
            # The starter gets the result when the run ends, unless the starter died before.
            starter = None if run.starter is None else self._workers.get(run.starter)
            if starter is None or starter.state != "dead":
                self._with_unclaimed_result.discard(run.key)

    def _requeue_run(self, run: Run) -> None:
        self._accounts.release_reservations(run.key)
        self._save_run(replace(run, state=RunState.PENDING, owner=None, wake_at=self._clock()))

    def _put_attempt(self, key: int, attempt: Attempt) -> None:
        attempts, position = self._attempts.setdefault(key, {}), attempt.position
        outcome = attempts[position].outcome if position in attempts else None
        attempts[position] = attempt._replace(outcome=outcome)

    def _delete_attempt(self, key: int, position: int) -> None:
        self._attempts.get(key, {}).pop(position, None)

    def _add_signal(self, key: int, name: str, at: float, payload: bytes, position: int | None = None) -> None:
        self._last_signal_id += 1
        self._mailboxes.setdefault(key, {})[self._last_signal_id] = Signal(
            self._last_signal_id, name, payload, at, position
        )

    def _wake(self, run: Run) -> None:
        if run.state is RunState.WAITING and run.paused_at is None:
            self._save_run(replace(run, wake_at=self._clock()))

    def _wake_parked_by(self, worker: int) -> None:
        """Wake the runs that a gone worker parked with unread signals: the code of another worker may wait for them."""
        for key in [key for key, parked_by in self._parked_by.items() if parked_by == worker]:
            if (run := self._runs.get(key)) is not None:
                self._wake(run)

    # Ends

    def _end_run(self, run: Run) -> None:
        """Write a run's end, release its reservations, clean up after it, and notify the runs that wait for it."""
        self._save_run(replace(run, owner=None, wake_at=None, waits_for="", paused_at=None))
        self._clear_dedup_key(run.key)
        self._accounts.release_reservations(run.key)
        self._clear_live_events(run.key)
        for approval in [*self._approvals.values()]:
            if approval.run_id == run.id and approval.state is ApprovalState.OPEN:
                self._approvals[approval.id] = replace(approval, state=ApprovalState.WITHDRAWN)
        payload = rules.make_end_payload(run.output, run.error)
        for link_key in sorted(self._pending_links.get(run.key, ())):
            waiting = self._runs[link_key[0]]
            if waiting.state in TERMINAL_STATES:
                self._put_link(link_key, run.key, LinkState.LATE)
                continue
            self._put_link(link_key, run.key, LinkState.NOTIFIED)
            self._add_signal(waiting.key, run.state, run.finished_at or 0.0, payload, link_key[1])
            self._wake(waiting)

    def _clear_dedup_key(self, key: int) -> None:
        """Free a run's ``dedup_key``: the next start with it creates a new run."""
        dedup_key = self._dedup_keys.pop(key, None)
        if dedup_key is not None:
            del self._dedup_runs[dedup_key]
        self._debounced.discard(key)

    def _clear_live_events(self, key: int, position: int | None = None) -> None:
        """Delete the live events of a run's steps in flight, or of one of them."""
        events = self._live_events.get(key, {})
        for event_id, event in [*events.items()]:
            if event.kind not in LASTING_KINDS and position in (None, event.position):
                del events[event_id]

    def _add_lasting_event(self, key: int, position: int, at: float, kind: str, data: bytes) -> None:
        events = self._live_events.get(key, {}).values()
        last = max((event.number for event in events if (event.position, event.stream) == (position, "")), default=0)
        self._add_live_event(key, LiveEvent(position, "", last + 1, kind, data, at))

    def _add_live_event(self, key: int, event: LiveEvent) -> None:
        self._last_event_id += 1
        self._live_events.setdefault(key, {})[self._last_event_id] = event

    def _delete_answer_signals(self, key: int, matches: Callable[[int], bool]) -> None:
        """Remove answers from a run's mailbox, by their positions."""
        mailbox = self._mailboxes.get(key, {})
        for signal in [*mailbox.values()]:
            if signal.position is not None and is_answer(signal.name) and matches(signal.position):
                del mailbox[signal.id]

    def _get_link(self, link_key: LinkKey) -> LinkRow | None:
        return self._links.get(link_key)

    def _put_link(self, link_key: LinkKey, awaited_key: int, state: LinkState) -> None:
        self._delete_link(link_key)
        self._links[link_key] = LinkRow(awaited_key, state)
        self._link_positions.setdefault(link_key[0], {})[link_key[1]] = None
        if state is LinkState.PENDING:
            self._pending_links.setdefault(awaited_key, {})[link_key] = None

    def _delete_link(self, link_key: LinkKey) -> None:
        known = self._links.pop(link_key, None)
        if known is not None:
            self._link_positions[link_key[0]].pop(link_key[1], None)
            self._pending_links.get(known.child_key, {}).pop(link_key, None)

    def _delete_end_signal(self, link_key: LinkKey) -> None:
        mailbox = self._mailboxes.get(link_key[0], {})
        for signal in [*mailbox.values()]:
            if signal.position == link_key[1] and not is_answer(signal.name):
                del mailbox[signal.id]
