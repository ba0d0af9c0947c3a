"""Operations from outside, in memory: signals, cancelling, pausing, budgets, and a person's retry."""

from __future__ import annotations

from dataclasses import replace

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import TERMINAL_STATES, RunState
from holdfast.stores import rules
from holdfast.stores.approvals import ApprovalState
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import (
    CancelRun,
    CancelState,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    SendSignal,
    SetBudget,
)
from holdfast.stores.rules import LinkAction, LinkState


class ClientOperations(Tables):
    """What anybody can ask of a run."""

    def _send_signal(self, op: SendSignal) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        if op.dedup_key is not None and (run.key, op.dedup_key) in self._signal_dedup_keys:
            return OpStatus.DUPLICATE
        if run.state in TERMINAL_STATES:
            return OpStatus.ENDED
        if op.dedup_key is not None:
            self._signal_dedup_keys.add((run.key, op.dedup_key))
        self._add_signal(run.key, op.name, op.payload, op.at)
        self._wake(run)
        return OpStatus.DONE

    def _cancel(self, op: CancelRun) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_cancel(
            run.state, run.cancel_state, is_paused=run.paused_at is not None, has_same_seed=op.seed in (None, run.seed)
        )
        if answer is not OpStatus.DONE:
            return answer
        asked = replace(run, cancel_state=run.cancel_state or CancelState.REQUESTED, paused_at=None)
        if rules.is_cancelled_at_once(run.state, run.epoch, is_delivery=run.is_delivery):
            self._end_run(replace(asked, state=RunState.CANCELLED, finished_at=op.at))
        elif run.state is RunState.RUNNING:
            self._save_run(asked)
        else:
            self._save_run(replace(asked, wake_at=self._clock()))
        return OpStatus.DONE

    def _pause(self, op: PauseRun) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_pause(run.state, is_paused=run.paused_at is not None, should_pause=True)
        if answer is OpStatus.DONE:
            self._save_run(replace(run, paused_at=op.at))
        return answer

    def _resume(self, op: ResumeRun) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_pause(run.state, is_paused=run.paused_at is not None, should_pause=False)
        if answer is OpStatus.DONE:
            kept = run.state is RunState.RUNNING or rules.should_keep_wake_at(run.state, run.epoch)
            self._save_run(replace(run, paused_at=None, wake_at=run.wake_at if kept else self._clock()))
        return answer

    def _set_budget(self, op: SetBudget) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_budget(run.state, self._accounts.get(run.key).budget)
        if answer is OpStatus.DONE:
            self._accounts.set_budget(run.key, op.budget)
            short = [self._runs[key] for key in self._accounts.find_short_in_tree(run.key)]
            for one in short:
                if one.state not in TERMINAL_STATES:
                    self._wake_short_calls(one, rules.encode_budget(op.budget), op.at)
        return answer

    def _wake_short_calls(self, run: Run, payload: bytes, at: float) -> None:
        """Tell a run that was short that what was refused may be granted now: once for each call that waits."""
        for _ in range(self._accounts.clear_short(run.key)):
            self._add_signal(run.key, BUDGET_SIGNAL, payload, at)
        self._wake(run)

    # Reopening

    def _reopen(self, op: ReopenRun) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        if rules.is_settlement_stale(op, run.epoch):
            return OpStatus.ENDED
        if op.settlement is not None:
            run = replace(run, rewind=op.settlement.rewind)
        affected: dict[int, None] = {}
        answer = self._decide_reopen(run, op, affected)
        if answer is OpStatus.DONE:
            self._save_run(run)
            for key in affected:
                self._rewind(self._runs[key], affected)
                kept = self._records.get(key)
                self._add_lasting_event(key, -1, op.at, *rules.make_reopened_event(kept[-1].seq if kept else -1))
                if self._accounts.get(key).short_positions:
                    self._wake_short_calls(self._runs[key], b"null", op.at)
            if op.settlement is not None and op.settlement.record is not None:
                journal = self._records.setdefault(run.key, [])
                journal.append(op.settlement.record._replace(seq=journal[-1].seq + 1 if journal else 0))
            if op.version is not None:
                self._save_run(replace(self._runs[run.key], version=op.version))
        return answer

    def _decide_reopen(self, run: Run, op: ReopenRun, affected: dict[int, None]) -> OpStatus:
        """Look before anything is changed: add to ``affected`` what is reopened with ``run``."""
        answer = rules.decide_reopen(run.state, run.rewind, rerun_once_steps=op.rerun_once_steps)
        if answer is not OpStatus.DONE:
            return answer
        affected[run.key] = None
        for position, child, is_taken in self._list_pending_children(run):
            is_later = run.rewind is not None and position >= run.rewind.command_count
            if is_later or child.key in affected or child.parent != run.id or child.state not in rules.REOPENABLE:
                continue
            attempt = dict(affected)
            answer = self._decide_reopen(child, op, attempt)
            if answer is OpStatus.DONE:
                affected.update(attempt)
            elif is_taken:
                return answer
        return OpStatus.DONE

    def _list_pending_children(self, run: Run) -> list[tuple[int, Run, bool]]:
        """The runs that this one waits for, and will have no end of; with the position, and whether it had one."""
        if run.rewind is None or not run.rewind.failed_seqs:
            return []
        taken, kept = set[int](), {*run.rewind.abandoned_positions}
        for record in self._records.get(run.key, []):
            if record.kind is RecordKind.CHILD:
                (taken if run.rewind.should_remove(record) else kept).add(record.position)
        return [
            (position, self._runs[self._links[run.key, position].child_key], position in taken)
            for position in sorted(self._link_positions.get(run.key, ()))
            if position not in kept
        ]

    def _list_rewound_records(self, run: Run) -> list[Record]:
        """The records that a retry takes back."""
        journal = self._records.get(run.key, [])
        return [] if run.rewind is None else [record for record in journal if run.rewind.should_remove(record)]

    def _rewind(self, run: Run, affected: dict[int, None]) -> None:
        taken = self._list_rewound_records(run)
        for record in taken:
            if record.kind is RecordKind.SIGNAL:
                self._add_signal(run.key, record.name, record.payload or b"null", record.started_at)
        self._rewind_approvals(run, taken)
        for position, child, is_taken in self._list_pending_children(run):
            redo = rules.choose_link_action(
                is_after_rewind=run.rewind is not None and position >= run.rewind.command_count,
                is_end_rewound=is_taken,
                is_reopened=child.key in affected,
                has_ended=child.state in TERMINAL_STATES,
            )
            self._apply_link_action((run.key, position), child.key, redo)
        if run.rewind is not None and run.rewind.failed_seqs:
            for attempt in [*self._attempts.get(run.key, {}).values()]:
                if attempt.position >= run.rewind.command_count and not attempt.intent:
                    del self._attempts[run.key][attempt.position]
        if taken:
            gone = {record.seq for record in taken}
            self._records[run.key] = [record for record in self._records[run.key] if record.seq not in gone]
        cancel = rules.get_reopened_cancel_state(
            any(r.kind is RecordKind.CANCEL for r in self._records.get(run.key, []))
        )
        if run.key in self._with_generated_id:
            self._with_unclaimed_result.add(run.key)
        now = self._clock()
        deadline = run.deadline if run.deadline is not None and run.deadline > now else None
        self._save_run(
            replace(
                run, state=RunState.PENDING, owner=None, delivery_count=0, suspicion=0, output=None, error=None,
                finished_at=None, wake_at=now, deadline=deadline, cancel_state=cancel, paused_at=None, rewind=None,
                rewind_points=rules.add_rewind_point(run.rewind_points, run.rewind),
                is_limited=run.queue in self._queues,
            )
        )  # fmt: skip

    def _rewind_approvals(self, run: Run, taken: list[Record]) -> None:
        """Withdraw questions whose answer is taken back, or that were asked because of what is taken back."""
        if run.rewind is None or not run.rewind.failed_seqs:
            return
        answered, later = {r.position for r in taken if r.kind is RecordKind.APPROVAL}, run.rewind.command_count
        self._delete_answer_signals(run.key, lambda position: position >= later)
        for approval in [*self._approvals.values()]:
            if approval.run_id == run.id and (approval.position >= later or approval.position in answered):
                self._approvals[approval.id] = replace(approval, state=ApprovalState.WITHDRAWN)

    def _apply_link_action(self, link_key: tuple[int, int], child: int, action: LinkAction) -> None:
        if action is LinkAction.KEEP:
            return
        self._delete_end_signal(link_key)
        if action is LinkAction.AWAIT:
            self._put_link(link_key, child, LinkState.PENDING)
        else:
            self._delete_link(link_key)
