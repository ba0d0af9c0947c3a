"""Operations from outside, in memory: signals, cancelling, pausing, budgets, and a person's retry."""

from __future__ import annotations

from dataclasses import replace

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.core.records import Kind, Record
from holdfast.core.states import TERMINAL, RunState
from holdfast.stores import rules
from holdfast.stores.approvals import ApprovalState
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import (
    Cancel,
    CancelRun,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    SendSignal,
    SetBudget,
    Verdict,
)
from holdfast.stores.rules import Redo, Told


class Requests(Tables):
    """What anybody can ask of a run."""

    def _send(self, op: SendSignal) -> Verdict:
        run = self._by_id(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        if op.dedup is not None and (run.key, op.dedup) in self._signal_keys:
            return Verdict.DUPLICATE
        if run.state in TERMINAL:
            return Verdict.ENDED
        if op.dedup is not None:
            self._signal_keys.add((run.key, op.dedup))
        self._post(run.key, op.name, op.payload, op.at)
        self._wake(run)
        return Verdict.DONE

    def _cancel(self, op: CancelRun) -> Verdict:
        run = self._by_id(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        answer = rules.answer_to_cancel(
            run.state, run.cancel, paused=run.paused_at is not None, same_seed=op.seed in (None, run.seed)
        )
        if answer is not Verdict.DONE:
            return answer
        asked = replace(run, cancel=run.cancel or Cancel.ASKED, paused_at=None)
        if rules.is_cancelled_at_once(run.state, run.epoch, by_delivery=run.by_delivery):
            self._end(replace(asked, state=RunState.CANCELLED, finished_at=op.at))
        elif run.state is RunState.RUNNING:
            self._put(asked)
        else:
            self._put(replace(asked, wake_at=self._clock()))
        return Verdict.DONE

    def _pause(self, op: PauseRun) -> Verdict:
        run = self._by_id(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        answer = rules.answer_to_pause(run.state, paused=run.paused_at is not None, wanted=True)
        if answer is Verdict.DONE:
            self._put(replace(run, paused_at=op.at))
        return answer

    def _resume(self, op: ResumeRun) -> Verdict:
        run = self._by_id(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        answer = rules.answer_to_pause(run.state, paused=run.paused_at is not None, wanted=False)
        if answer is Verdict.DONE:
            kept = run.state is RunState.RUNNING or rules.keeps_its_time(run.state, run.epoch)
            self._put(replace(run, paused_at=None, wake_at=run.wake_at if kept else self._clock()))
        return answer

    def _set_budget(self, op: SetBudget) -> Verdict:
        run = self._by_id(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        answer = rules.answer_to_budget(run.state, self._accounts.of(run.key).budget)
        if answer is Verdict.DONE:
            self._accounts.give_budget(run.key, op.budget)
            short = [self._runs[key] for key in self._accounts.short_below(run.key)]
            for one in short:
                if one.state not in TERMINAL:
                    self._ask_again(one, rules.budget_payload(op.budget), op.at)
        return answer

    def _ask_again(self, run: Run, payload: bytes, at: float) -> None:
        """Tell a run that was short that what was refused may be granted now: once for each call that waits."""
        for _ in range(self._accounts.no_longer_short(run.key)):
            self._post(run.key, BUDGET_SIGNAL, payload, at)
        self._wake(run)

    # Reopening

    def _reopen(self, op: ReopenRun) -> Verdict:
        run = self._by_id(op.run_id)
        if run is None:
            return Verdict.UNKNOWN_RUN
        if rules.is_settled_too_late(op, run.epoch):
            return Verdict.ENDED
        if op.settles is not None:
            run = replace(run, rewind=op.settles.rewind)
        affected: dict[int, None] = {}
        answer = self._may_reopen(run, op, affected)
        if answer is Verdict.DONE:
            self._put(run)
            for key in affected:
                self._rewind(self._runs[key], affected)
                kept = self._records.get(key)
                self._leave(key, -1, op.at, *rules.reopened_notice(kept[-1].seq if kept else -1))
                if self._accounts.of(key).short:
                    self._ask_again(self._runs[key], b"null", op.at)
            if op.settles is not None and op.settles.record is not None:
                journal = self._records.setdefault(run.key, [])
                journal.append(op.settles.record._replace(seq=journal[-1].seq + 1 if journal else 0))
            if op.version is not None:
                self._put(replace(self._runs[run.key], version=op.version))
        return answer

    def _may_reopen(self, run: Run, op: ReopenRun, affected: dict[int, None]) -> Verdict:
        """Look before anything is changed: add to ``affected`` what is reopened with ``run``."""
        answer = rules.answer_to_reopen(run.state, run.rewind, run_again=op.run_again)
        if answer is not Verdict.DONE:
            return answer
        affected[run.key] = None
        for position, child, is_taken in self._open_ends(run):
            is_later = run.rewind is not None and position >= run.rewind.positions
            if is_later or child.key in affected or child.parent != run.id or child.state not in rules.REOPENABLE:
                continue
            attempt = dict(affected)
            answer = self._may_reopen(child, op, attempt)
            if answer is Verdict.DONE:
                affected.update(attempt)
            elif is_taken:
                return answer
        return Verdict.DONE

    def _open_ends(self, run: Run) -> list[tuple[int, Run, bool]]:
        """The runs that this one waits for, and will have no end of; with the position, and whether it had one."""
        if run.rewind is None or not run.rewind.failed:
            return []
        taken, kept = set[int](), {*run.rewind.given_up}
        for record in self._records.get(run.key, []):
            if record.kind is Kind.CHILD:
                (taken if run.rewind.takes(record) else kept).add(record.position)
        return [
            (position, self._runs[self._links[run.key, position].child], position in taken)
            for position in sorted(self._places.get(run.key, ()))
            if position not in kept
        ]

    def _taken(self, run: Run) -> list[Record]:
        """The records that a retry takes back."""
        journal = self._records.get(run.key, [])
        return [] if run.rewind is None else [record for record in journal if run.rewind.takes(record)]

    def _rewind(self, run: Run, affected: dict[int, None]) -> None:
        taken = self._taken(run)
        for record in taken:
            if record.kind is Kind.SIGNAL:
                self._post(run.key, record.name, record.payload or b"null", record.started_at)
        self._take_back_answers(run, taken)
        for position, child, is_taken in self._open_ends(run):
            redo = rules.redo_link(
                is_later=run.rewind is not None and position >= run.rewind.positions,
                is_taken=is_taken,
                is_reopened=child.key in affected,
                has_ended=child.state in TERMINAL,
            )
            self._redo((run.key, position), child.key, redo)
        if run.rewind is not None and run.rewind.failed:
            for attempt in [*self._attempts.get(run.key, {}).values()]:
                if attempt.position >= run.rewind.positions and not attempt.intent:
                    del self._attempts[run.key][attempt.position]
        if taken:
            gone = {record.seq for record in taken}
            self._records[run.key] = [record for record in self._records[run.key] if record.seq not in gone]
        cancel = rules.cancel_after(any(r.kind is Kind.CANCEL for r in self._records.get(run.key, [])))
        if run.key in self._generated:
            self._unclaimed.add(run.key)
        now = self._clock()
        deadline = run.deadline if run.deadline is not None and run.deadline > now else None
        self._put(
            replace(
                run, state=RunState.PENDING, owner=None, deliveries=0, suspicion=0, output=None, error=None,
                finished_at=None,
                wake_at=now, deadline=deadline, cancel=cancel, paused_at=None, rewind=None,
                rewound=rules.rewound_by(run.rewound, run.rewind), limited=run.queue in self._queues,
            )
        )  # fmt: skip

    def _take_back_answers(self, run: Run, taken: list[Record]) -> None:
        """Withdraw questions whose answer is taken back, or that were asked because of what is taken back."""
        if run.rewind is None or not run.rewind.failed:
            return
        answered, later = {r.position for r in taken if r.kind is Kind.APPROVAL}, run.rewind.positions
        self._drop_answers(run.key, lambda position: position >= later)
        for approval in [*self._approvals.values()]:
            if approval.run_id == run.id and (approval.position >= later or approval.position in answered):
                self._approvals[approval.id] = replace(approval, state=ApprovalState.WITHDRAWN)

    def _redo(self, place: tuple[int, int], child: int, redo: Redo) -> None:
        if redo is Redo.LEAVE:
            return
        self._drop_end(place)
        if redo is Redo.AWAIT:
            self._link(place, child, Told.NOT_YET)
        else:
            self._unlink(place)
