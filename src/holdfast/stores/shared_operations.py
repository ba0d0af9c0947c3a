"""The operations of a commit, as every store carries them out: what is checked, in which order, and how it is answered.

Each store keeps rows in its own way (``row_access``). The decisions are made here once, so the stores cannot drift
apart. ``rules`` has the decisions that are pure functions of a row.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.core.records import RESTORED_POSITION, make_restored_attempt
from holdfast.core.states import TERMINAL_STATES
from holdfast.stores import operations as ops
from holdfast.stores import rules
from holdfast.stores.approvals import (
    AnswerApproval,
    RemindApproval,
    RequestApproval,
    WithdrawApproval,
    make_answer_name,
)
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import CancelState, OpResult, OpStatus, Run, RunLink, StartResult
from holdfast.stores.row_access import AccountsT, ApprovalRow, LinkKey, ReopenedRun, RowAccess, RowT
from holdfast.stores.rules import LinkAction, LinkState


class SharedOperations(RowAccess[RowT, AccountsT]):
    """A method for every operation."""

    def _apply_op(self, op: ops.Op) -> ops.OpResult:
        match op:
            case ops.AppendRecord():
                return self._append(op)
            case ops.SaveAttempt():
                return self._save_attempt(op)
            case ops.ReserveUsage():
                return self._reserve(op)
            case ops.FinishRun():
                return self._finish(op)
            case ops.ParkRun():
                return self._park(op)
            case ops.ReleaseRun():
                return self._release(op)
            case ops.SendSignal():
                return self._send_signal(op)
            case ops.StartRun():
                return self._start(op)
            case ops.AwaitRun():
                return self._await(op)
            case ops.CancelRun():
                return self._cancel(op)
            case ops.PauseRun():
                return self._pause(op)
            case ops.ResumeRun():
                return self._resume(op)
            case ops.ReopenRun():
                return self._reopen(op)
            case ops.SetBudget():
                return self._set_budget(op)
            case ops.ForkRun():
                return self._fork(op)
            case ops.AppendLiveEvents():
                return self._append_live_events(op)
            case RequestApproval():
                return self._request_approval(op)
            case RemindApproval():
                return self._remind_approval(op)
            case WithdrawApproval():
                return self._withdraw_approval(op)
            case AnswerApproval():
                return self._answer_approval(op)
            case PutMemory() | DeleteMemory():
                return self._change_memory(op)
            case AuditEvent():
                return self._log_request(op)

    # Held runs

    def _save_attempt(self, op: ops.SaveAttempt) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        self._put_attempt(op.key, op.attempt)
        return OpStatus.DONE

    def _reserve(self, op: ops.ReserveUsage) -> OpResult:
        run = self._get_claimed(op.key, op.epoch)
        if run is None:
            return OpStatus.FENCED
        if not run.has_budget:
            return OpStatus.DONE
        return self._accounts.reserve(op.key, op.position, op.expected) or OpStatus.DONE

    def _finish(self, op: ops.FinishRun) -> OpStatus:
        run = self._get_by_key(op.key)
        if run is None:
            return OpStatus.FENCED
        if not rules.can_write(run.state, run.epoch, op.epoch):
            return OpStatus.DONE_NOTIFIED if rules.is_finish_repeat(run.state, run.epoch, op) else OpStatus.FENCED
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        if run.cancel_state != CancelState.NONE and op.respect_cancel:
            return OpStatus.REFUSED if run.cancel_state == CancelState.REQUESTED else OpStatus.FENCED
        return OpStatus.DONE_NOTIFIED if self._finish_run(run, op) else OpStatus.DONE

    def _park(self, op: ops.ParkRun) -> OpStatus:
        run = self._get_by_key(op.key)
        if run is None:
            return OpStatus.FENCED
        if not rules.can_write(run.state, run.epoch, op.epoch):
            return OpStatus.DONE if rules.is_park_repeat(run.state, run.epoch, op.epoch) else OpStatus.FENCED
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        if op.next_seq is not None and self._has_record(op.key, op.next_seq):
            return OpStatus.FENCED
        if run.cancel_state == CancelState.REQUESTED or (op.is_pause and not self._is_paused(run)):
            return OpStatus.REFUSED
        unread = () if op.is_pause else self._list_mailbox(op.key)
        if any(rules.is_waiting_for(op, name, position) for name, position in unread):
            return OpStatus.REFUSED
        self._park_run(run, op, has_unread=bool(unread))
        return OpStatus.DONE

    # Starting, awaiting, and forking

    def _start(self, op: ops.StartRun) -> StartResult | OpStatus:
        new, parent = op.run, None
        if op.link is not None:
            parent = self._get_claimed(op.link.parent_key, op.link.epoch)
            if parent is None:
                return OpStatus.FENCED
        present = self._read_run(new.id)
        if present is not None:
            if present.seed == new.seed:
                return self._link_and_answer(present, True, op.link)
            return self._link_and_answer(present, False, op.link)._replace(is_deduplicated=rules.can_inputs_differ(new))
        if new.dedup_key and (joined := self._join_dedup_owner(new)) is not None:
            return self._link_and_answer(joined, False, op.link)._replace(is_deduplicated=True)
        if op.join_orphan and (orphan := self._join_orphan(new)) is not None:
            return self._link_and_answer(orphan, False, op.link)
        if self._is_disabled(new.workflow):
            return OpStatus.WORKFLOW_DISABLED
        inherits_budget = parent is not None and parent.has_budget
        run = self._create(new, None if new.restored_from else op.claim_as, inherits_budget)
        if new.restored_from:
            self._put_attempt(run.key, make_restored_attempt(new.restored_from, new.created_at))
        if op.claim_event is not None and run.owner is not None:
            self._append_live_events(ops.AppendLiveEvents(run.key, run.epoch, (op.claim_event,)))
        return self._link_and_answer(run, True, op.link)

    def _await(self, op: ops.AwaitRun) -> StartResult | OpStatus:
        if self._get_claimed(op.link.parent_key, op.link.epoch) is None:
            return OpStatus.FENCED
        run = self._read_run(op.run_id)
        return OpStatus.UNKNOWN_RUN if run is None else self._link_and_answer(run, False, op.link)

    def _link_and_answer(self, run: Run, is_new: bool, link: RunLink | None) -> StartResult:
        """Link the waiting run to ``run``, if one waits, and make the answer to the operation."""
        if link is None or not link.is_awaited:
            return StartResult(run, is_new)
        link_key = (link.parent_key, link.position)
        awaited_key, state = self._get_link(link_key) or (None, None)
        if awaited_key is not None and awaited_key != run.key:  # the link of a command that a retry has removed
            self._delete_end_signal(link_key)
            state = None
        is_linked = rules.is_linked(state, run.state)
        if not is_linked:
            self._put_link(link_key, run.key, LinkState.LATE)
        elif state in (None, LinkState.LATE):
            self._put_link(link_key, run.key, LinkState.PENDING)
        return StartResult(run, is_new, is_linked)

    def _fork(self, op: ops.ForkRun) -> StartResult | OpStatus:
        present = self._read_run(op.run.id)
        if present is not None:
            return StartResult(present, is_new=present.seed == op.run.seed)
        source = self._get_by_id(op.source_run)
        if source is None:
            return OpStatus.UNKNOWN_RUN
        if self._is_erased(source.key):
            return OpStatus.ERASED
        if self._is_disabled(op.run.workflow):
            return OpStatus.WORKFLOW_DISABLED
        run = self._create(op.run, None, inherits_budget=False)
        self._copy_journal(source.key, run.key, op.before_seq)
        if op.record is not None:
            self._append_record(run.key, op.record)
        return StartResult(run, is_new=True)

    # Requests from outside

    def _send_signal(self, op: ops.SendSignal) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        if op.dedup_key is not None and self._has_signal_key(run.key, op.dedup_key):
            return OpStatus.DUPLICATE
        if run.state in TERMINAL_STATES:
            return OpStatus.ENDED
        if op.dedup_key is not None:
            self._add_signal_key(run.key, op.dedup_key)
        self._add_signal(run.key, op.name, op.at, self._to_column(op.payload))
        self._wake(run)
        return OpStatus.DONE

    def _cancel(self, op: ops.CancelRun) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        has_same_seed = op.seed is None or self._get_seed(run) == op.seed
        answer = rules.decide_cancel(
            run.state, run.cancel_state, is_paused=self._is_paused(run), has_same_seed=has_same_seed
        )
        if answer is OpStatus.DONE:
            is_immediate = rules.is_cancelled_at_once(run.state, run.epoch, is_delivery=run.is_delivery)
            self._cancel_run(run, op.at, is_immediate=is_immediate)
        return answer

    def _pause(self, op: ops.PauseRun) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_pause(run.state, is_paused=self._is_paused(run), should_pause=True)
        if answer is OpStatus.DONE:
            self._pause_run(run, op.at)
        return answer

    def _resume(self, op: ops.ResumeRun) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_pause(run.state, is_paused=self._is_paused(run), should_pause=False)
        if answer is OpStatus.DONE:
            self._resume_run(run)
        return answer

    def _set_budget(self, op: ops.SetBudget) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_budget(run.state, self._accounts.get(run.key).budget)
        if answer is OpStatus.DONE:
            self._accounts.set_budget(run.key, op.budget)
            for refused_run in self._list_by_key(self._accounts.find_short_in_tree(run.key)):
                if refused_run.state not in TERMINAL_STATES:
                    self._wake_refused_calls(refused_run, rules.encode_budget(op.budget), op.at)
        return answer

    def _wake_refused_calls(self, run: RowT, payload: bytes, at: float) -> None:
        """Send one signal for each refused model call of a run: the call may be granted now."""
        for _ in range(self._accounts.clear_short(run.key)):
            self._add_signal(run.key, BUDGET_SIGNAL, at, payload)
        self._wake(run)

    # A person's retry

    def _reopen(self, op: ops.ReopenRun) -> OpStatus:
        run = self._get_by_id(op.run_id)
        if run is None:
            return OpStatus.UNKNOWN_RUN
        if rules.is_settlement_stale(op, run.epoch):
            return OpStatus.ENDED
        affected: dict[int, ReopenedRun] = {}
        answer = self._decide_reopen(run.key, op, affected)
        if answer is not OpStatus.DONE:
            return answer
        for key, reopened in affected.items():
            self._rewind(reopened, affected)
            self._add_lasting_event(key, -1, op.at, *rules.make_reopened_event(self._get_last_seq(key)))
            if self._accounts.get(key).short_positions:
                [refused_run] = self._list_by_key([key])
                self._wake_refused_calls(refused_run, b"null", op.at)
        if op.settlement is not None and op.settlement.record is not None:
            self._append_record(run.key, op.settlement.record._replace(seq=self._get_last_seq(run.key) + 1))
        if op.settlement is not None and op.settlement.attempt is not None:
            self._put_attempt(run.key, op.settlement.attempt)
        if op.rerun_once_steps:
            for key in affected:
                self._delete_attempt(key, RESTORED_POSITION)
        if op.version is not None:
            self._set_version(run.key, op.version)
        return answer

    def _decide_reopen(self, key: int, op: ops.ReopenRun, affected: dict[int, ReopenedRun]) -> OpStatus:
        """Add the runs that are reopened together to ``affected``, before anything is changed."""
        run = self._read_reopened(key)
        if op.settlement is not None and run.id == op.run_id:
            run = run._replace(rewind=op.settlement.rewind)
        answer = rules.decide_reopen(run.state, run.rewind, rerun_once_steps=op.rerun_once_steps)
        if answer is OpStatus.DONE and self._is_erased(key):
            answer = OpStatus.ERASED
        if answer is not OpStatus.DONE:
            return answer
        affected[key] = run
        for awaited in self._list_awaited_runs(run):
            is_started_by_it = awaited.parent_id == run.id and not awaited.is_after_rewind
            if not is_started_by_it or awaited.key in affected or awaited.state not in rules.REOPENABLE:
                continue
            with_child = dict(affected)
            answer = self._decide_reopen(awaited.key, op, with_child)
            if answer is OpStatus.DONE:
                affected.update(with_child)
            elif awaited.is_end_rewound:
                return answer
        return OpStatus.DONE

    def _rewind(self, run: ReopenedRun, affected: Mapping[int, ReopenedRun]) -> None:
        for awaited in self._list_awaited_runs(run):
            action = rules.choose_link_action(
                is_after_rewind=awaited.is_after_rewind,
                is_end_rewound=awaited.is_end_rewound,
                is_reopened=awaited.key in affected,
                has_ended=awaited.state in TERMINAL_STATES,
            )
            self._apply_link_action((run.key, awaited.position), awaited.key, action)
        self._rewind_journal(run)

    def _apply_link_action(self, link_key: LinkKey, awaited_key: int, action: LinkAction) -> None:
        if action is LinkAction.KEEP:
            return
        self._delete_end_signal(link_key)
        if action is LinkAction.AWAIT:
            self._put_link(link_key, awaited_key, LinkState.PENDING)
        else:
            self._delete_link(link_key)

    # Approvals

    def _request_approval(self, op: RequestApproval) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        known = self._get_approval(op.id)
        if known is not None and known.run_key != op.key:
            return OpStatus.REFUSED
        if known is not None and not rules.should_request_again(known.state, known.withdrawn_epoch, op.epoch):
            return OpStatus.DONE
        self._withdraw_others(op)
        self._put_approval(op)
        self._add_lasting_event(op.key, op.position, op.at, *rules.make_requested_event(op))
        return OpStatus.DONE

    def _withdraw_others(self, op: RequestApproval) -> None:
        """Withdraw earlier approvals of this position: no command waits for their answers any more."""
        for other in self._list_other_approvals(op):
            self._set_withdrawn(other, op.epoch)
            self._add_lasting_event(op.key, op.position, op.at, *rules.make_withdrawn_event(other))
        self._delete_answers_at(op.key, op.position)

    def _remind_approval(self, op: RemindApproval) -> OpStatus:
        known = self._get_own_approval(op)
        if isinstance(known, OpStatus):
            return known
        answer, is_new = rules.decide_reminder(known.state, known.reminder_count, op)
        if is_new:
            self._save_reminder(op)
            self._add_lasting_event(op.key, known.position, op.at, *rules.make_reminded_event(op))
        return answer

    def _withdraw_approval(self, op: WithdrawApproval) -> OpStatus:
        known = self._get_own_approval(op)
        if isinstance(known, OpStatus):
            return known
        answer, is_new = rules.decide_withdrawal(known.state)
        if is_new:
            self._set_withdrawn(op.id, op.epoch)
            self._add_lasting_event(op.key, known.position, op.at, *rules.make_withdrawn_event(op.id))
        return answer

    def _get_own_approval(self, op: RemindApproval | WithdrawApproval) -> ApprovalRow | OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        known = self._get_approval(op.id)
        return OpStatus.UNKNOWN_APPROVAL if known is None or known.run_key != op.key else known

    def _answer_approval(self, op: AnswerApproval) -> OpStatus:
        known = self._get_approval(op.id)
        if known is None:
            return OpStatus.UNKNOWN_APPROVAL
        [run] = self._list_by_key([known.run_key])
        known = self._get_approval(op.id) or known  # another answer may have come while this one waited for the run
        answer = rules.decide_answer(known.state, run.state)
        if answer is OpStatus.DONE:
            payload = self._to_column(op.payload)
            self._save_answer(op, payload)
            self._add_signal(run.key, make_answer_name(op.id), op.at, payload, known.position)
            self._wake(run)
        return answer
