"""Operations on a held run, in a transaction."""

from __future__ import annotations

from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores import rules, worker_deaths
from holdfast.stores.daily_usage import make_increment
from holdfast.stores.operations import (
    AppendRecord,
    CancelState,
    FinishRun,
    OpResult,
    OpStatus,
    ParkRun,
    ReleaseRun,
    ReserveUsage,
    SaveAttempt,
)
from holdfast.stores.sql.rows import attempt_to_row, record_to_row, rewind_to_json
from holdfast.stores.sql.server_data import increment_to_row
from holdfast.stores.sql.transaction import Fence, Transaction


class ClaimedRunOperations(Transaction):
    """What the holder of a run can do to it."""

    _check_existing = False
    _delivery_resets: set[int]
    """The runs whose count of deliveries this transaction has set back to 0."""

    def _append(self, op: AppendRecord) -> OpStatus:
        held = self._get_claimed(op.key, op.record.epoch)
        if held is None or self._check_existing:
            present = self._record_epoch(op.key, op.record.seq)
            if present is not None:
                if held is not None and op.clear_attempt:  # the note of it was repeated as well
                    self._buffer_write("attempts", self._sql.DELETE_ATTEMPT, op.key, (op.key, op.record.position))
                if held is not None and op.clear_live_events:
                    self._buffer_write("live_events", self._sql.CLEAR_LIVE_EVENTS, op.key, (op.key, op.record.position))
                if (
                    held is not None and held.has_budget and rules.should_release_reservation(op.record)
                ):  # so was its reservation
                    self._accounts.release_reservation(op.key, op.record.position)
                return OpStatus.DONE if present == op.record.epoch else OpStatus.FENCED
            if held is None:
                return OpStatus.FENCED
        row = record_to_row(op.key, op.record, self._to_column(op.record.payload))
        self._append_row(op.key, op.record.seq, op.record.epoch, row)
        if op.consumed_signal_id is not None:
            self._delete_signal(self._sql.CONSUME_SIGNAL, op.key, (op.consumed_signal_id, op.key))
        if op.clear_attempt:
            self._buffer_write("attempts", self._sql.DELETE_ATTEMPT, op.key, (op.key, op.record.position))
        if op.reset_delivery_count:
            self._buffer_write("runs", self._sql.RESET_DELIVERY_COUNT, op.key, (op.key,))
            self._delivery_resets.add(op.key)
        if op.record.kind is RecordKind.CANCEL:
            self._buffer_write("runs", self._sql.SET_CANCEL_RECORDED, op.key, (op.key,))
            held.cancel_state = CancelState.RECORDED
        if held.has_budget and rules.should_release_reservation(op.record):
            self._accounts.release_reservation(op.key, op.record.position)
        if op.used is not None:
            self._accounts.add_usage(op.key, op.used)
            self._add_daily_usage(op)
            if held.is_limited and op.used.tokens:
                self._buffer_write("charges", self._sql.ADD_CHARGE, op.key, (op.used.tokens, self._now, op.key))
        if op.memory is not None:
            self._db.change_memory(op.memory)
        if op.clear_live_events:
            self._buffer_write("live_events", self._sql.CLEAR_LIVE_EVENTS, op.key, (op.key, op.record.position))
        return OpStatus.DONE

    def _add_daily_usage(self, op: AppendRecord) -> None:
        new = make_increment(op.used, op.model, op.record.at)
        if new is not None:
            self._buffer_write("spending", self._sql.ADD_DAILY_USAGE, op.key, increment_to_row(op.key, new))

    def _save_attempt(self, op: SaveAttempt) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        self._buffer_write("attempts", self._sql.SAVE_ATTEMPT, op.key, attempt_to_row(op))
        return OpStatus.DONE

    def _reserve(self, op: ReserveUsage) -> OpResult:
        fence = self._get_claimed(op.key, op.epoch)
        if fence is None:
            return OpStatus.FENCED
        if not fence.has_budget:
            return OpStatus.DONE
        return self._accounts.reserve(op.key, op.position, op.expected) or OpStatus.DONE

    def _finish(self, op: FinishRun) -> OpStatus:
        fence = self._fences_by_key.get(op.key)
        if fence is None:
            return OpStatus.FENCED
        if not rules.can_write(fence.state, fence.epoch, op.epoch):
            return OpStatus.DONE_NOTIFIED if rules.is_finish_repeat(fence.state, fence.epoch, op) else OpStatus.FENCED
        if fence.cancel_state != CancelState.NONE and op.respect_cancel:
            return OpStatus.REFUSED if fence.cancel_state == CancelState.REQUESTED else OpStatus.FENCED
        output, error = self._to_column(op.output), self._to_column(op.error)
        row = (op.state, output, error, op.at, rewind_to_json(op.rewind), op.key)
        self._buffer_write("runs", self._sql.FINISH_RUN, op.key, row)
        fence.state = op.state
        fence.is_paused = False
        awaited = self.handle_run_end(op.key, op.state, rules.make_end_payload(output, error), op.at)
        return OpStatus.DONE_NOTIFIED if awaited else OpStatus.DONE

    def _park(self, op: ParkRun) -> OpStatus:
        fence = self._fences_by_key.get(op.key)
        if fence is None:
            return OpStatus.FENCED
        if not rules.can_write(fence.state, fence.epoch, op.epoch):
            return OpStatus.DONE if rules.is_park_repeat(fence.state, fence.epoch, op.epoch) else OpStatus.FENCED
        if op.next_seq is not None and self._record_epoch(op.key, op.next_seq) is not None:
            return OpStatus.FENCED
        if fence.cancel_state == CancelState.REQUESTED:
            return OpStatus.REFUSED
        unread = [] if op.is_pause else self._read_mailbox(op.key)
        if not fence.is_paused if op.is_pause else any(rules.is_waiting_for(op, *sent) for sent in unread):
            return OpStatus.REFUSED
        ready = None if op.wake_at is None or fence.is_paused else 0
        by_holder = 1 if unread and not fence.is_delivery else 0
        self._buffer_write("runs", self._sql.PARK_RUN, op.key, (ready, op.wake_at, op.waits_for, by_holder, op.key))
        self.release_reservations(fence.key)
        fence.state = RunState.WAITING
        fence.is_woken = False
        return OpStatus.DONE

    def _release(self, op: ReleaseRun) -> OpStatus:
        fence = self._get_claimed(op.key, op.epoch)
        if fence is None:
            return OpStatus.FENCED
        wake_at = self._now if op.wake_at is None else op.wake_at
        counted = op.error is not None
        deliveries = suspicion = 0
        if op.error is not None:
            deliveries, most, suspicion = self._get_delivery_counts(op.key)
            if not worker_deaths.can_redeliver(deliveries, most):
                return self._end_as_dead(fence, deliveries + 1, op.error)
        if wake_at > self._now:
            self._buffer_write("runs", self._sql.RELEASE_LATER, op.key, (wake_at, 1 if counted else 0, op.key))
        elif counted:
            self._buffer_write("runs", self._sql.REQUEUE_RUN, op.key, (wake_at, deliveries + 1, suspicion, op.key))
        else:
            self._buffer_write("runs", self._sql.RELEASE_RUN, op.key, (wake_at, op.key))
        self.release_reservations(fence.key)
        fence.state = RunState.PENDING
        return OpStatus.DONE

    def _get_delivery_counts(self, key: int) -> tuple[int, int, int]:
        """How often a run has failed with its holders in a row, how often it may, and its suspicion."""
        [(deliveries, most, suspicion)] = self._db.lookup(self._sql.DELIVERY_COUNTS, key)
        return (0, most, 0) if key in self._delivery_resets else (deliveries, most, suspicion)

    def _end_as_dead(self, fence: Fence, delivery_count: int, error: bytes) -> OpStatus:
        """End a run that its holders have failed with too often. The error stays in its row, however large it is."""
        self._buffer_write("runs", self._sql.MARK_RUN_DEAD, fence.key, (delivery_count, error, self._now, fence.key))
        fence.state = RunState.DEAD
        fence.is_paused = False
        self.handle_run_end(fence.key, fence.state, rules.make_end_payload(None, error), self._now)
        return OpStatus.DONE
