"""Operations on a held run, in a transaction."""

from __future__ import annotations

from holdfast.core.records import Kind
from holdfast.core.states import RunState
from holdfast.stores import rules
from holdfast.stores.daily_usage import spent
from holdfast.stores.operations import (
    Answer,
    AppendRecord,
    Cancel,
    FinishRun,
    NoteAttempt,
    ParkRun,
    ReleaseRun,
    ReserveUsage,
    Verdict,
)
from holdfast.stores.sql.rows import attempt_row, record_row, rewind_text
from holdfast.stores.sql.server_data import spent_row
from holdfast.stores.sql.transaction import Fence, Transaction


class Holding(Transaction):
    """What the holder of a run can do to it."""

    _careful = False
    _recorded: set[int]
    """The runs whose count of deliveries this transaction has set back to 0."""

    def _append(self, op: AppendRecord) -> Verdict:
        held = self._held(op.key, op.record.epoch)
        if held is None or self._careful:
            present = self._record_epoch(op.key, op.record.seq)
            if present is not None:
                if held is not None and op.clear_attempt:  # the note of it was repeated as well
                    self._later("attempts", self._sql.CLEAR_ATTEMPT, op.key, (op.key, op.record.position))
                if held is not None and op.clear_notices:
                    self._later("notices", self._sql.CLEAR_NOTICES, op.key, (op.key, op.record.position))
                if held is not None and held.has_budget and rules.gives_back(op.record):  # so was its reservation
                    self._accounts.give_back(op.key, op.record.position)
                return Verdict.DONE if present == op.record.epoch else Verdict.FENCED
            if held is None:
                return Verdict.FENCED
        row = record_row(op.key, op.record, self._stored(op.record.payload))
        self._append_row(op.key, op.record.seq, op.record.epoch, row)
        if op.consume is not None:
            self._take_out(self._sql.CONSUME_SIGNAL, op.key, (op.consume, op.key))
        if op.clear_attempt:
            self._later("attempts", self._sql.CLEAR_ATTEMPT, op.key, (op.key, op.record.position))
        if op.reset_deliveries:
            self._later("runs", self._sql.RESET_DELIVERIES, op.key, (op.key,))
            self._recorded.add(op.key)
        if op.record.kind is Kind.CANCEL:
            self._later("runs", self._sql.CANCEL_RECORDED, op.key, (op.key,))
            held.cancel = Cancel.RECORDED
        if held.has_budget and rules.gives_back(op.record):
            self._accounts.give_back(op.key, op.record.position)
        if op.used is not None:
            self._accounts.use(op.key, op.used)
            self._spend(op)
            if held.limited and op.used.tokens:
                self._later("charges", self._sql.CHARGE, op.key, (op.used.tokens, self._now, op.key))
        if op.memory is not None:
            self._db.change_memory(op.memory)
        if op.clear_notices:
            self._later("notices", self._sql.CLEAR_NOTICES, op.key, (op.key, op.record.position))
        return Verdict.DONE

    def _spend(self, op: AppendRecord) -> None:
        new = spent(op.used, op.model, op.record.at)
        if new is not None:
            self._later("spending", self._sql.SPEND, op.key, spent_row(op.key, new))

    def _note_attempt(self, op: NoteAttempt) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        self._later("attempts", self._sql.NOTE_ATTEMPT, op.key, attempt_row(op))
        return Verdict.DONE

    def _reserve(self, op: ReserveUsage) -> Answer:
        fence = self._held(op.key, op.epoch)
        if fence is None:
            return Verdict.FENCED
        if not fence.has_budget:
            return Verdict.DONE
        return self._accounts.reserve(op.key, op.position, op.expected) or Verdict.DONE

    def _finish(self, op: FinishRun) -> Verdict:
        fence = self._by_key.get(op.key)
        if fence is None:
            return Verdict.FENCED
        if not rules.holds(fence.state, fence.epoch, op.epoch):
            return Verdict.TOLD if rules.is_finish_repeat(fence.state, fence.epoch, op) else Verdict.FENCED
        if fence.cancel != Cancel.NO and op.heed_cancel:
            return Verdict.REFUSED if fence.cancel == Cancel.ASKED else Verdict.FENCED
        output, error = self._stored(op.output), self._stored(op.error)
        row = (op.state, output, error, op.at, rewind_text(op.rewind), op.key)
        self._later("runs", self._sql.FINISH_RUN, op.key, row)
        fence.state = op.state
        fence.paused = False
        awaited = self.ended(op.key, op.state, rules.end_payload(output, error), op.at)
        return Verdict.TOLD if awaited else Verdict.DONE

    def _park(self, op: ParkRun) -> Verdict:
        fence = self._by_key.get(op.key)
        if fence is None:
            return Verdict.FENCED
        if not rules.holds(fence.state, fence.epoch, op.epoch):
            return Verdict.DONE if rules.is_park_repeat(fence.state, fence.epoch, op.epoch) else Verdict.FENCED
        if op.next_seq is not None and self._record_epoch(op.key, op.next_seq) is not None:
            return Verdict.FENCED
        if fence.cancel == Cancel.ASKED:
            return Verdict.REFUSED
        unread = [] if op.paused else self._mailbox(op.key)
        if not fence.paused if op.paused else any(rules.waits_for(op, *sent) for sent in unread):
            return Verdict.REFUSED
        ready = None if op.wake_at is None or fence.paused else 0
        by_holder = 1 if unread and not fence.by_delivery else 0
        self._later("runs", self._sql.PARK_RUN, op.key, (ready, op.wake_at, op.waits_for, by_holder, op.key))
        self.freed(fence.key)
        fence.state = RunState.WAITING
        fence.woken = False
        return Verdict.DONE

    def _release(self, op: ReleaseRun) -> Verdict:
        fence = self._held(op.key, op.epoch)
        if fence is None:
            return Verdict.FENCED
        wake_at = self._now if op.wake_at is None else op.wake_at
        counted = op.error is not None
        deliveries = suspicion = 0
        if op.error is not None:
            deliveries, most, suspicion = self._deliveries(op.key)
            if not rules.may_be_delivered_again(deliveries, most):
                return self._give_up(fence, deliveries + 1, op.error)
        if wake_at > self._now:
            self._later("runs", self._sql.RELEASE_LATER, op.key, (wake_at, 1 if counted else 0, op.key))
        elif counted:
            self._later("runs", self._sql.FREE_RUN, op.key, (wake_at, deliveries + 1, suspicion, op.key))
        else:
            self._later("runs", self._sql.RELEASE_RUN, op.key, (wake_at, op.key))
        self.freed(fence.key)
        fence.state = RunState.PENDING
        return Verdict.DONE

    def _deliveries(self, key: int) -> tuple[int, int, int]:
        """How often a run has failed with its holders in a row, how often it may, and its suspicion."""
        [(deliveries, most, suspicion)] = self._db.lookup(self._sql.DELIVERIES, key)
        return (0, most, 0) if key in self._recorded else (deliveries, most, suspicion)

    def _give_up(self, fence: Fence, deliveries: int, error: bytes) -> Verdict:
        """End a run that its holders have failed with too often. The error stays in its row, however large it is."""
        self._later("runs", self._sql.KILL_RUN, fence.key, (deliveries, error, self._now, fence.key))
        fence.state = RunState.DEAD
        fence.paused = False
        self.ended(fence.key, fence.state, rules.end_payload(None, error), self._now)
        return Verdict.DONE
