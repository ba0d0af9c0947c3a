"""What the store in memory keeps, and the changes that several operations share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.admission.queue_limits import QueueLimits, RateNumbers
from holdfast.admission.usage import Usage
from holdfast.core.records import Attempt, Record, Signal
from holdfast.core.states import TERMINAL, UNFINISHED, RunState
from holdfast.stores import rules
from holdfast.stores.approvals import Approval, ApprovalState, is_answer
from holdfast.stores.audit_log import NewAudit
from holdfast.stores.contract import SwitchedOff, Worker, WorkflowSpec
from holdfast.stores.documents import Document
from holdfast.stores.live_events import STAYING
from holdfast.stores.memories import Memory
from holdfast.stores.memory.usage_accounts import MemoryAccounts
from holdfast.stores.operations import Notice, Run
from holdfast.stores.rules import Told
from holdfast.stores.schedules import Schedule


class Waits(NamedTuple):
    """A link, as it is kept: for which run, and whether its end has been told."""

    child: int
    told: Told


@dataclass(slots=True)
class QueueRow:
    """A limited queue, as it is kept."""

    declared: QueueLimits | None = None
    by_hand: QueueLimits | None = None
    paused_at: float | None = None
    begun: dict[int, int] = field(default_factory=dict[int, int])
    """The highest turn of a run that has begun, by priority."""
    turns: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """The last one that each key was given, for runs of each priority."""
    used: RateNumbers = field(default_factory=dict[str, tuple[float, ...]])
    used_by_key: dict[str, RateNumbers] = field(default_factory=dict[str, RateNumbers])

    @property
    def limits(self) -> QueueLimits:
        """Those that hold."""
        return self.by_hand or self.declared or QueueLimits()

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to be kept of it."""
        return self.declared is not None or self.by_hand is not None or self.paused_at is not None


class Tables:
    """Rows in dictionaries. Whoever reads or writes them holds ``_lock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._runs: dict[int, Run] = {}
        self._last_key = 0
        self._keys: dict[str, int] = {}
        self._unfinished: dict[int, None] = {}
        self._generated: set[int] = set()
        """Runs with a made-up id."""
        self._unclaimed: set[int] = set()
        """Those of them whose result nobody has had."""
        self._records: dict[int, list[Record]] = {}
        self._attempts: dict[int, dict[int, Attempt]] = {}
        self._mailboxes: dict[int, dict[int, Signal]] = {}
        self._signal_keys: set[tuple[int, str]] = set()
        self._last_signal = 0
        self._parked_by: dict[int, int] = {}
        """The workers that parked runs with unread mail, by the key of the run."""
        self._links: dict[tuple[int, int], Waits] = {}
        """By the key of the run that waits, and the position of its command."""
        self._places: dict[int, dict[int, None]] = {}
        """The positions of the links of a run."""
        self._awaited: dict[int, dict[tuple[int, int], None]] = {}
        """The links whose run has not been told, by the key of the run that they wait for."""
        self._accounts = MemoryAccounts(self._runs, self._keys)
        self._approvals: dict[str, Approval] = {}
        self._withdrawn_in: dict[str, int] = {}
        """The epochs under which runs have last withdrawn questions."""
        self._notices: dict[int, dict[int, Notice]] = {}
        """By run, and by id."""
        self._last_notice = 0
        self._memories: dict[tuple[str, str], Memory] = {}
        """By namespace and key."""
        self._words: dict[tuple[str, str], Counter[str]] = {}
        """How often each word occurs in a memory."""
        self._sessions: dict[tuple[str, str], str] = {}
        """The newest run of a workflow and session."""
        self._workers: dict[int, Worker] = {}
        self._last_worker = 0
        self._killed: set[int] = set()
        self._specs: dict[str, WorkflowSpec] = {}
        self._switches: dict[str, SwitchedOff] = {}
        self._queues: dict[str, QueueRow] = {}
        self._turns: dict[int, int] = {}
        """By run, of those that were put into a limited queue."""
        self._dedups: dict[tuple[str, str], int] = {}
        """The unfinished run that has a key, by queue and key."""
        self._dedup_of: dict[int, tuple[str, str]] = {}
        """The same by run."""
        self._debounced: set[int] = set()
        """Those of them that lose it when they begin."""
        self._documents: dict[tuple[str, str], Document] = {}
        """By kind and name."""
        self._audit: dict[int, NewAudit] = {}
        self._last_audit = 0
        self._spent: dict[tuple[str, str, str], Usage] = {}
        """By day, workflow and model."""
        self._schedules: dict[str, Schedule] = {}
        self._announcers: dict[str, set[int]] = {}
        """The workers that have announced a schedule."""

    def _by_id(self, run_id: str) -> Run | None:
        key = self._keys.get(run_id)
        return None if key is None else self._runs[key]

    def _held(self, key: int, epoch: int) -> Run | None:
        run = self._runs.get(key)
        return run if run is not None and rules.holds(run.state, run.epoch, epoch) else None

    def _is_live(self, worker: int) -> bool:
        known = self._workers.get(worker)
        return known is not None and known.state == "live"

    def _put(self, run: Run) -> None:
        self._runs[run.key] = run
        if run.state in UNFINISHED:
            self._unfinished[run.key] = None
        else:
            self._unfinished.pop(run.key, None)
            # Whoever started it is there to take its result when it ends, unless it was taken down before.
            starter = None if run.starter is None else self._workers.get(run.starter)
            if starter is None or starter.state != "dead":
                self._unclaimed.discard(run.key)

    def _free(self, run: Run) -> None:
        self._accounts.give_back_all(run.key)
        self._put(replace(run, state=RunState.PENDING, owner=None, wake_at=self._clock()))

    def _post(self, key: int, name: str, payload: bytes, at: float, position: int | None = None) -> None:
        self._last_signal += 1
        self._mailboxes.setdefault(key, {})[self._last_signal] = Signal(self._last_signal, name, payload, at, position)

    def _wake(self, run: Run) -> None:
        if run.state is RunState.WAITING and run.paused_at is None:
            self._put(replace(run, wake_at=self._clock()))

    def _wake_parked_by(self, worker: int) -> None:
        """A worker is gone: let others see whether their code waits for what is in the mailboxes of what it parked."""
        for key in [key for key, parked_by in self._parked_by.items() if parked_by == worker]:
            if (run := self._runs.get(key)) is not None:
                self._wake(run)

    # Ends

    def _end(self, run: Run) -> None:
        """Keep a run's end, give back what it has reserved, clean up behind it, and tell whoever waits for it."""
        self._put(replace(run, owner=None, wake_at=None, waits_for="", paused_at=None))
        self._forget_dedup(run.key)
        self._accounts.give_back_all(run.key)
        self._clear_notices(run.key)
        for approval in [*self._approvals.values()]:
            if approval.run_id == run.id and approval.state is ApprovalState.OPEN:
                self._approvals[approval.id] = replace(approval, state=ApprovalState.WITHDRAWN)
        payload = rules.end_payload(run.output, run.error)
        for place in sorted(self._awaited.get(run.key, ())):
            waiting = self._runs[place[0]]
            if waiting.state in TERMINAL:
                self._link(place, run.key, Told.LATE)
                continue
            self._link(place, run.key, Told.YES)
            self._post(waiting.key, run.state, payload, run.finished_at or 0.0, place[1])
            self._wake(waiting)

    def _forget_dedup(self, key: int) -> None:
        """The next start with the same key begins a new run."""
        place = self._dedup_of.pop(key, None)
        if place is not None:
            del self._dedups[place]
        self._debounced.discard(key)

    def _clear_notices(self, key: int, position: int | None = None) -> None:
        """Drop what was told of the steps in flight of a run, or of one of them."""
        told = self._notices.get(key, {})
        for number, notice in [*told.items()]:
            if notice.kind not in STAYING and position in (None, notice.position):
                del told[number]

    def _leave(self, key: int, position: int, at: float, kind: str, data: bytes) -> None:
        """Leave a notice that stays."""
        told = self._notices.get(key, {}).values()
        last = max((notice.number for notice in told if (notice.position, notice.part) == (position, "")), default=0)
        self._note(key, Notice(position, "", last + 1, kind, data, at))

    def _note(self, key: int, notice: Notice) -> None:
        self._last_notice += 1
        self._notices.setdefault(key, {})[self._last_notice] = notice

    def _drop_answers(self, key: int, is_for: Callable[[int], bool]) -> None:
        """Take answers out of the mailbox that nobody waits for any more, by their positions."""
        mailbox = self._mailboxes.get(key, {})
        for signal in [*mailbox.values()]:
            if signal.position is not None and is_answer(signal.name) and is_for(signal.position):
                del mailbox[signal.id]

    def _link(self, place: tuple[int, int], child: int, told: Told) -> None:
        self._unlink(place)
        self._links[place] = Waits(child, told)
        self._places.setdefault(place[0], {})[place[1]] = None
        if told is Told.NOT_YET:
            self._awaited.setdefault(child, {})[place] = None

    def _unlink(self, place: tuple[int, int]) -> None:
        known = self._links.pop(place, None)
        if known is not None:
            self._places[place[0]].pop(place[1], None)
            self._awaited.get(known.child, {}).pop(place, None)

    def _drop_end(self, place: tuple[int, int]) -> None:
        """Take an end out of the mailbox that nobody waits for any more."""
        mailbox = self._mailboxes.get(place[0], {})
        for signal in [*mailbox.values()]:
            if signal.position == place[1] and not is_answer(signal.name):
                del mailbox[signal.id]
