"""Operations on a held run, in memory."""

from __future__ import annotations

import bisect
from dataclasses import replace

from holdfast.admission.usage import Usage
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.stores import rules, worker_deaths
from holdfast.stores.daily_usage import make_increment
from holdfast.stores.memory.approval_operations import ApprovalOperations
from holdfast.stores.memory.queue_operations import QueueOperations
from holdfast.stores.operations import (
    AppendRecord,
    CancelState,
    FinishRun,
    OpStatus,
    ParkRun,
    ReleaseRun,
    Run,
)


class ClaimedRunOperations(ApprovalOperations, QueueOperations):
    """What the holder of a run can do to it."""

    def _append(self, op: AppendRecord) -> OpStatus:
        held = self._get_claimed(op.key, op.record.epoch)
        present = self._find_record(op.key, op.record.seq)
        if present is not None:  # a repeat, and the operations before it may have been repeated as well
            if held is not None and not op.must_be_new:
                self._clear_step(op)
            if present.epoch != op.record.epoch:
                return OpStatus.FENCED
            return OpStatus.DUPLICATE if op.must_be_new else OpStatus.DONE
        if held is None:
            return OpStatus.FENCED
        self._append_record(op.key, op.record)
        self._clear_step(op)
        if op.consumed_signal_id is not None:
            self._mailboxes.get(op.key, {}).pop(op.consumed_signal_id, None)
        if op.reset_delivery_count:
            held = replace(held, delivery_count=0, suspicion=0)
            self._save_run(held)
        if op.record.kind is RecordKind.CANCEL:
            self._save_run(replace(held, cancel_state=CancelState.RECORDED))
        if op.used is not None:
            self._accounts.add_usage(op.key, op.used)
            self._add_daily_usage(held, op)
            self._add_token_charge(held, op.used.tokens)
        if op.memory is not None:
            self._change_memory(op.memory)
        return OpStatus.DONE

    def _find_record(self, key: int, seq: int) -> Record | None:
        journal = self._records.get(key, [])
        if not journal or journal[-1].seq < seq:  # as for nearly every record
            return None
        return next((record for record in journal if record.seq == seq), None)

    def _clear_step(self, op: AppendRecord) -> None:
        """Delete what was known about the step in flight: its attempt, its live events, and its reservation."""
        if op.clear_attempt:
            self._delete_attempt(op.key, op.record.position)
        if op.clear_live_events:
            self._clear_live_events(op.key, op.record.position)
        if rules.should_release_reservation(op.record):
            self._accounts.release_reservation(op.key, op.record.position)

    def _append_record(self, key: int, record: Record) -> None:
        bisect.insort(self._records.setdefault(key, []), record, key=lambda record: record.seq)

    def _add_daily_usage(self, run: Run, op: AppendRecord) -> None:
        increment = make_increment(op.used, op.model, op.record.at)
        if increment is not None:
            counter = (increment.day, run.workflow, increment.model)
            self._daily_usage[counter] = self._daily_usage.get(counter, Usage()) + increment.used

    def _finish_run(self, run: Run, op: FinishRun) -> bool:
        is_awaited = bool(self._pending_links.get(run.key))
        self._end_run(
            replace(run, state=op.state, output=op.output, error=op.error, finished_at=op.at, rewind=op.rewind)
        )
        return is_awaited

    def _has_record(self, key: int, seq: int) -> bool:
        return self._get_last_seq(key) >= seq

    def _list_mailbox(self, key: int) -> list[tuple[str, int | None]]:
        return [(signal.name, signal.position) for signal in self._mailboxes.get(key, {}).values()]

    def _park_run(self, run: Run, op: ParkRun, *, has_unread: bool) -> None:
        self._parked_by.pop(run.key, None)
        if has_unread and not run.is_delivery and run.owner is not None:
            self._parked_by[run.key] = run.owner
        self._accounts.release_reservations(run.key)
        parked = replace(run, state=RunState.WAITING, owner=None, wake_at=op.wake_at, waits_for=op.waits_for)
        self._save_run(replace(parked, suspicion=0))

    def _release(self, op: ReleaseRun) -> OpStatus:
        run = self._get_claimed(op.key, op.epoch)
        if run is None:
            return OpStatus.FENCED
        if op.error is not None:
            run = replace(run, delivery_count=run.delivery_count + 1)
            if not worker_deaths.can_redeliver(run.delivery_count - 1, run.max_deliveries):
                self._end_run(replace(run, state=RunState.DEAD, error=op.error, finished_at=self._clock()))
                return OpStatus.DONE
        self._requeue_run(run)
        if op.wake_at is not None:
            self._save_run(replace(self._runs[op.key], wake_at=op.wake_at))
        return OpStatus.DONE
