"""Operations on a held run, in memory."""

from __future__ import annotations

import bisect
from dataclasses import replace

from holdfast.admission.usage import Usage
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores import rules, worker_deaths
from holdfast.stores.daily_usage import make_increment
from holdfast.stores.memory.approval_operations import ApprovalOperations
from holdfast.stores.memory.queue_operations import QueueOperations
from holdfast.stores.operations import (
    AppendRecord,
    CancelState,
    FinishRun,
    OpResult,
    OpStatus,
    ParkRun,
    ReleaseRun,
    ReserveUsage,
    Run,
    SaveAttempt,
)


class ClaimedRunOperations(ApprovalOperations, QueueOperations):
    """What the holder of a run can do to it."""

    def _append(self, op: AppendRecord) -> OpStatus:
        held = self._get_claimed(op.key, op.record.epoch)
        journal = self._records.get(op.key, [])
        if journal and journal[-1].seq >= op.record.seq:  # not new, else it would be the last
            present = next((record for record in journal if record.seq == op.record.seq), None)
            if present is not None:
                if held is not None and op.clear_attempt:  # the note of it was repeated as well
                    self._attempts.get(op.key, {}).pop(op.record.position, None)
                if held is not None and op.clear_live_events:
                    self._clear_live_events(op.key, op.record.position)
                if held is not None and rules.should_release_reservation(op.record):  # so was its reservation
                    self._accounts.release_reservation(op.key, op.record.position)
                return OpStatus.DONE if present.epoch == op.record.epoch else OpStatus.FENCED
        if held is None:
            return OpStatus.FENCED
        bisect.insort(self._records.setdefault(op.key, []), op.record, key=lambda record: record.seq)
        if op.consumed_signal_id is not None:
            self._mailboxes.get(op.key, {}).pop(op.consumed_signal_id, None)
        if op.clear_attempt:
            self._attempts.get(op.key, {}).pop(op.record.position, None)
        if op.reset_delivery_count:
            held = replace(held, delivery_count=0, suspicion=0)
            self._save_run(held)
        if op.record.kind is RecordKind.CANCEL:
            self._save_run(replace(held, cancel_state=CancelState.RECORDED))
        if rules.should_release_reservation(op.record):
            self._accounts.release_reservation(op.key, op.record.position)
        if op.used is not None:
            self._accounts.add_usage(op.key, op.used)
            self._add_daily_usage(held, op)
            self._add_token_charge(held, op.used.tokens)
        if op.memory is not None:
            self._change_memory(op.memory)
        if op.clear_live_events:
            self._clear_live_events(op.key, op.record.position)
        return OpStatus.DONE

    def _add_daily_usage(self, run: Run, op: AppendRecord) -> None:
        new = make_increment(op.used, op.model, op.record.at)
        if new is not None:
            place = (new.day, run.workflow, new.model)
            self._daily_usage[place] = self._daily_usage.get(place, Usage()) + new.used

    def _save_attempt(self, op: SaveAttempt) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        attempts, position = self._attempts.setdefault(op.key, {}), op.attempt.position
        outcome = attempts[position].outcome if position in attempts else None
        attempts[position] = op.attempt._replace(outcome=outcome)
        return OpStatus.DONE

    def _reserve(self, op: ReserveUsage) -> OpResult:
        run = self._get_claimed(op.key, op.epoch)
        if run is None:
            return OpStatus.FENCED
        if not run.has_budget:
            return OpStatus.DONE
        return self._accounts.reserve(op.key, op.position, op.expected) or OpStatus.DONE

    def _finish(self, op: FinishRun) -> OpStatus:
        run = self._runs.get(op.key)
        if run is None:
            return OpStatus.FENCED
        if not rules.can_write(run.state, run.epoch, op.epoch):
            return OpStatus.DONE_NOTIFIED if rules.is_finish_repeat(run.state, run.epoch, op) else OpStatus.FENCED
        if run.cancel_state is not CancelState.NONE and op.respect_cancel:
            return OpStatus.REFUSED if run.cancel_state is CancelState.REQUESTED else OpStatus.FENCED
        is_awaited = bool(self._pending_links.get(run.key))
        self._end_run(
            replace(run, state=op.state, output=op.output, error=op.error, finished_at=op.at, rewind=op.rewind)
        )
        return OpStatus.DONE_NOTIFIED if is_awaited else OpStatus.DONE

    def _park(self, op: ParkRun) -> OpStatus:
        run = self._runs.get(op.key)
        if run is None:
            return OpStatus.FENCED
        if not rules.can_write(run.state, run.epoch, op.epoch):
            return OpStatus.DONE if rules.is_park_repeat(run.state, run.epoch, op.epoch) else OpStatus.FENCED
        journal = self._records.get(op.key)
        if op.next_seq is not None and journal and journal[-1].seq >= op.next_seq:
            return OpStatus.FENCED
        if run.cancel_state is CancelState.REQUESTED:
            return OpStatus.REFUSED
        unread = [] if op.is_pause else list(self._mailboxes.get(op.key, {}).values())
        if op.is_pause and run.paused_at is None:
            return OpStatus.REFUSED
        if any(rules.is_waiting_for(op, signal.name, signal.position) for signal in unread):
            return OpStatus.REFUSED
        self._parked_by.pop(run.key, None)
        if unread and not run.is_delivery and run.owner is not None:
            self._parked_by[run.key] = run.owner
        self._accounts.release_reservations(run.key)
        parked = replace(run, state=RunState.WAITING, owner=None, wake_at=op.wake_at, waits_for=op.waits_for)
        self._save_run(replace(parked, suspicion=0))
        return OpStatus.DONE

    def _release(self, op: ReleaseRun) -> OpStatus:
        run = self._get_claimed(op.key, op.epoch)
        if run is None:
            return OpStatus.FENCED
        if op.error is None:
            self._requeue_run(run)
        elif not worker_deaths.can_redeliver(run.delivery_count, run.max_deliveries):
            now = self._clock()
            dead = replace(
                run, state=RunState.DEAD, delivery_count=run.delivery_count + 1, error=op.error, finished_at=now
            )
            self._end_run(dead)
            return OpStatus.DONE
        else:
            self._requeue_run(replace(run, delivery_count=run.delivery_count + 1))
        if op.wake_at is not None:
            self._save_run(replace(self._runs[op.key], wake_at=op.wake_at))
        return OpStatus.DONE
