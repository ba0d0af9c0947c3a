"""Operations on a held run, in a transaction."""

from __future__ import annotations

from holdfast.core.records import Attempt, RecordKind
from holdfast.core.states import RunState
from holdfast.stores import rules, worker_deaths
from holdfast.stores.daily_usage import make_increment
from holdfast.stores.operations import AppendRecord, CancelState, FinishRun, OpStatus, ParkRun, ReleaseRun
from holdfast.stores.sql.ready_states import ReadyState
from holdfast.stores.sql.rows import attempt_to_row, finish_to_row
from holdfast.stores.sql.server_data import increment_to_row
from holdfast.stores.sql.transaction import FencedRun, Transaction


class ClaimedRunOperations(Transaction):
    """What the holder of a run can do to it."""

    _check_existing = False
    _delivery_resets: set[int]
    """The runs whose delivery count this transaction has reset to 0."""

    def _append(self, op: AppendRecord) -> OpStatus:
        held = self._get_claimed(op.key, op.record.epoch)
        if held is None or self._check_existing:
            epoch = self._get_record_epoch(op.key, op.record.seq)
            if epoch is not None:  # a repeat, and the operations before it may have been repeated as well
                if held is not None and not op.must_be_new:
                    self._clear_step(op, held)
                if epoch != op.record.epoch:
                    return OpStatus.FENCED
                return OpStatus.DUPLICATE if op.must_be_new else OpStatus.DONE
            if held is None:
                return OpStatus.FENCED
        if op.record.seq and self._db.must_check_claim(op.key):
            if not self._has_record(op.key, op.record.seq - 1):
                self._release_incomplete(held)
                return OpStatus.FENCED
            self._db.note_intact_journal(op.key)
        self._append_record(op.key, op.record)
        self._clear_step(op, held)
        if op.consumed_signal_id is not None:
            self._delete_signal(self._sql.CONSUME_SIGNAL, op.key, (op.consumed_signal_id, op.key))
        if op.reset_delivery_count:
            self._buffer_write("runs", self._sql.RESET_DELIVERY_COUNT, op.key, (op.key,))
            self._delivery_resets.add(op.key)
        if op.record.kind is RecordKind.CANCEL:
            self._buffer_write("runs", self._sql.SET_CANCEL_RECORDED, op.key, (op.key,))
            held.cancel_state = CancelState.RECORDED
        if op.used is not None:
            self._accounts.add_usage(op.key, op.used)
            self._add_daily_usage(op)
            if held.is_limited and op.used.tokens:
                self._buffer_write("charges", self._sql.ADD_CHARGE, op.key, (op.used.tokens, self._now, op.key))
        if op.memory is not None:
            self._db.change_memory(op.memory)
        return OpStatus.DONE

    def _release_incomplete(self, run: FencedRun) -> None:
        """The database may have lost something of this run: another claim continues from what is left."""
        self._buffer_write("runs", self._sql.RELEASE_RUN, run.key, (self._now, run.key))
        self.release_reservations(run.key)
        run.state = RunState.PENDING

    def _clear_step(self, op: AppendRecord, held: FencedRun) -> None:
        """Delete what was known about the step in flight: its attempt, its live events, and its reservation."""
        if op.clear_attempt:
            self._delete_attempt(op.key, op.record.position)
        if op.clear_live_events:
            self._buffer_write("live_events", self._sql.CLEAR_LIVE_EVENTS, op.key, (op.key, op.record.position))
        if held.has_budget and rules.should_release_reservation(op.record):
            self._accounts.release_reservation(op.key, op.record.position)

    def _add_daily_usage(self, op: AppendRecord) -> None:
        increment = make_increment(op.used, op.model, op.record.at)
        if increment is not None:
            self._buffer_write("spending", self._sql.ADD_DAILY_USAGE, op.key, increment_to_row(op.key, increment))

    def _put_attempt(self, key: int, attempt: Attempt) -> None:
        self._buffer_write("attempts", self._sql.SAVE_ATTEMPT, key, attempt_to_row(key, attempt))

    def _delete_attempt(self, key: int, position: int) -> None:
        self._buffer_write("attempts", self._sql.DELETE_ATTEMPT, key, (key, position))

    def _finish_run(self, run: FencedRun, op: FinishRun) -> bool:
        output = None if op.output is None else self._to_column(op.output)
        error = None if op.error is None else self._to_column(op.error)
        self._buffer_write("runs", self._sql.FINISH_RUN, op.key, finish_to_row(op, output, error))
        return self._end_run(run, op.state, rules.make_end_payload(output, error), op.at)

    def _has_record(self, key: int, seq: int) -> bool:
        return self._get_record_epoch(key, seq) is not None

    def _park_run(self, run: FencedRun, op: ParkRun, *, has_unread: bool) -> None:
        if not op.is_pause and self._db.must_replay(run.key):
            self._release_incomplete(run)
            return
        ready = None if op.wake_at is None or run.is_paused else int(ReadyState.TIMER)
        by_holder = 1 if has_unread and not run.is_delivery else 0
        self._buffer_write("runs", self._sql.PARK_RUN, op.key, (ready, op.wake_at, op.waits_for, by_holder, op.key))
        self.release_reservations(run.key)
        run.state = RunState.WAITING
        run.is_woken = False

    def _release(self, op: ReleaseRun) -> OpStatus:
        run = self._get_claimed(op.key, op.epoch)
        if run is None:
            return OpStatus.FENCED
        wake_at = self._now if op.wake_at is None else op.wake_at
        delivery_count = suspicion = 0
        if op.error is not None:
            delivery_count, max_deliveries, suspicion = self._get_delivery_counts(op.key)
            if not worker_deaths.can_redeliver(delivery_count, max_deliveries):  # even a large error stays in the row
                row = (delivery_count + 1, op.error, self._now, run.key)
                self._buffer_write("runs", self._sql.MARK_RUN_DEAD, run.key, row)
                self._end_run(run, RunState.DEAD, op.error, self._now)
                return OpStatus.DONE
        if wake_at > self._now:
            counted = 0 if op.error is None else 1
            self._buffer_write("runs", self._sql.RELEASE_LATER, op.key, (wake_at, counted, op.key))
        elif op.error is not None:
            self._buffer_write("runs", self._sql.REQUEUE_RUN, op.key, (wake_at, delivery_count + 1, suspicion, op.key))
        else:
            self._buffer_write("runs", self._sql.RELEASE_RUN, op.key, (wake_at, op.key))
        self.release_reservations(run.key)
        run.state = RunState.PENDING
        return OpStatus.DONE

    def _get_delivery_counts(self, key: int) -> tuple[int, int, int]:
        """A run's delivery count, the maximum, and its suspicion."""
        [(delivery_count, max_deliveries, suspicion)] = self._db.lookup(self._sql.DELIVERY_COUNTS, key)
        return (0, max_deliveries, 0) if key in self._delivery_resets else (delivery_count, max_deliveries, suspicion)
