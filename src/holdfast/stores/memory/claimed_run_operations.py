"""Operations on a held run, in memory."""

from __future__ import annotations

import bisect
from dataclasses import replace

from holdfast.admission.usage import Usage
from holdfast.core.records import Kind
from holdfast.core.states import RunState
from holdfast.stores import rules
from holdfast.stores.daily_usage import spent
from holdfast.stores.memory.approval_operations import Asking
from holdfast.stores.memory.queue_operations import Queueing
from holdfast.stores.operations import (
    Answer,
    AppendRecord,
    Cancel,
    FinishRun,
    NoteAttempt,
    ParkRun,
    ReleaseRun,
    ReserveUsage,
    Run,
    Verdict,
)


class Holding(Asking, Queueing):
    """What the holder of a run can do to it."""

    def _append(self, op: AppendRecord) -> Verdict:
        held = self._held(op.key, op.record.epoch)
        journal = self._records.get(op.key, [])
        if journal and journal[-1].seq >= op.record.seq:  # not new, else it would be the last
            present = next((record for record in journal if record.seq == op.record.seq), None)
            if present is not None:
                if held is not None and op.clear_attempt:  # the note of it was repeated as well
                    self._attempts.get(op.key, {}).pop(op.record.position, None)
                if held is not None and op.clear_notices:
                    self._clear_notices(op.key, op.record.position)
                if held is not None and rules.gives_back(op.record):  # so was its reservation
                    self._accounts.give_back(op.key, op.record.position)
                return Verdict.DONE if present.epoch == op.record.epoch else Verdict.FENCED
        if held is None:
            return Verdict.FENCED
        bisect.insort(self._records.setdefault(op.key, []), op.record, key=lambda record: record.seq)
        if op.consume is not None:
            self._mailboxes.get(op.key, {}).pop(op.consume, None)
        if op.clear_attempt:
            self._attempts.get(op.key, {}).pop(op.record.position, None)
        if op.reset_deliveries:
            held = replace(held, deliveries=0, suspicion=0)
            self._put(held)
        if op.record.kind is Kind.CANCEL:
            self._put(replace(held, cancel=Cancel.RECORDED))
        if rules.gives_back(op.record):
            self._accounts.give_back(op.key, op.record.position)
        if op.used is not None:
            self._accounts.use(op.key, op.used)
            self._spend(held, op)
            self._charge(held, op.used.tokens)
        if op.memory is not None:
            self._remember(op.memory)
        if op.clear_notices:
            self._clear_notices(op.key, op.record.position)
        return Verdict.DONE

    def _spend(self, run: Run, op: AppendRecord) -> None:
        new = spent(op.used, op.model, op.record.at)
        if new is not None:
            place = (new.day, run.workflow, new.model)
            self._spent[place] = self._spent.get(place, Usage()) + new.used

    def _note_attempt(self, op: NoteAttempt) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        attempts, position = self._attempts.setdefault(op.key, {}), op.attempt.position
        outcome = attempts[position].outcome if position in attempts else None
        attempts[position] = op.attempt._replace(outcome=outcome)
        return Verdict.DONE

    def _reserve(self, op: ReserveUsage) -> Answer:
        run = self._held(op.key, op.epoch)
        if run is None:
            return Verdict.FENCED
        if not run.has_budget:
            return Verdict.DONE
        return self._accounts.reserve(op.key, op.position, op.expected) or Verdict.DONE

    def _finish(self, op: FinishRun) -> Verdict:
        run = self._runs.get(op.key)
        if run is None:
            return Verdict.FENCED
        if not rules.holds(run.state, run.epoch, op.epoch):
            return Verdict.TOLD if rules.is_finish_repeat(run.state, run.epoch, op) else Verdict.FENCED
        if run.cancel is not Cancel.NO and op.heed_cancel:
            return Verdict.REFUSED if run.cancel is Cancel.ASKED else Verdict.FENCED
        is_awaited = bool(self._awaited.get(run.key))
        self._end(replace(run, state=op.state, output=op.output, error=op.error, finished_at=op.at, rewind=op.rewind))
        return Verdict.TOLD if is_awaited else Verdict.DONE

    def _park(self, op: ParkRun) -> Verdict:
        run = self._runs.get(op.key)
        if run is None:
            return Verdict.FENCED
        if not rules.holds(run.state, run.epoch, op.epoch):
            return Verdict.DONE if rules.is_park_repeat(run.state, run.epoch, op.epoch) else Verdict.FENCED
        journal = self._records.get(op.key)
        if op.next_seq is not None and journal and journal[-1].seq >= op.next_seq:
            return Verdict.FENCED
        if run.cancel is Cancel.ASKED:
            return Verdict.REFUSED
        unread = [] if op.paused else list(self._mailboxes.get(op.key, {}).values())
        if op.paused and run.paused_at is None:
            return Verdict.REFUSED
        if any(rules.waits_for(op, signal.name, signal.position) for signal in unread):
            return Verdict.REFUSED
        self._parked_by.pop(run.key, None)
        if unread and not run.by_delivery and run.owner is not None:
            self._parked_by[run.key] = run.owner
        self._accounts.give_back_all(run.key)
        parked = replace(run, state=RunState.WAITING, owner=None, wake_at=op.wake_at, waits_for=op.waits_for)
        self._put(replace(parked, suspicion=0))
        return Verdict.DONE

    def _release(self, op: ReleaseRun) -> Verdict:
        run = self._held(op.key, op.epoch)
        if run is None:
            return Verdict.FENCED
        if op.error is None:
            self._free(run)
        elif not rules.may_be_delivered_again(run.deliveries, run.max_deliveries):
            now = self._clock()
            dead = replace(run, state=RunState.DEAD, deliveries=run.deliveries + 1, error=op.error, finished_at=now)
            self._end(dead)
            return Verdict.DONE
        else:
            self._free(replace(run, deliveries=run.deliveries + 1))
        if op.wake_at is not None:
            self._put(replace(self._runs[op.key], wake_at=op.wake_at))
        return Verdict.DONE
