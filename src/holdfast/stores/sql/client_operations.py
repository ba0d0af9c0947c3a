"""Operations from outside, in a transaction: signals, cancelling, pausing, budgets, and a person's retry."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.core.records import Record, Rewind
from holdfast.core.states import TERMINAL_STATES, RunState
from holdfast.stores import rules
from holdfast.stores.operations import (
    CancelRun,
    CancelState,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    SendSignal,
    SetBudget,
)
from holdfast.stores.rules import LinkAction, LinkState
from holdfast.stores.sql.rows import RowReader, record_to_row
from holdfast.stores.sql.transaction import Fence, Transaction


class _ReopenedRun(NamedTuple):
    """A run that is being reopened."""

    id: str
    rewind_values: dict[str, Any] | None
    """The values for the statements that ask which records go; ``None``: none do."""
    abandoned_positions: tuple[int, ...]


class _PendingChild(NamedTuple):
    """A run that a reopened one waits for, and has no end of."""

    position: int
    child_key: int
    state: str
    parent_id: str
    is_end_rewound: bool
    """It had one, which is taken back."""
    is_after_rewind: bool
    """It was awaited because of what is taken back."""


class ClientOperations(Transaction):
    """What anybody can ask of a run."""

    _reader: RowReader
    _new_signal_keys: set[tuple[int, str]]
    """The deduplication keys that this transaction has noted, by run."""

    def _send_signal(self, op: SendSignal) -> OpStatus:
        fence = self._fences_by_id.get(op.run_id)
        if fence is None:
            return OpStatus.UNKNOWN_RUN
        if op.dedup_key is not None and self._has_signal_key(fence.key, op.dedup_key):
            return OpStatus.DUPLICATE
        if fence.state in TERMINAL_STATES:
            return OpStatus.ENDED
        if op.dedup_key is not None:
            self._new_signal_keys.add((fence.key, op.dedup_key))
            self._buffer_write("signals", self._sql.ADD_SIGNAL_KEY, fence.key, (fence.key, op.dedup_key))
        self._add_signal(fence.key, op.name, op.at, self._to_column(op.payload))
        self._wake(fence)
        return OpStatus.DONE

    def _has_signal_key(self, key: int, dedup_key: str) -> bool:
        return (key, dedup_key) in self._new_signal_keys or bool(
            self._db.lookup(self._sql.HAS_SIGNAL_KEY, key, dedup_key)
        )

    def _cancel(self, op: CancelRun) -> OpStatus:
        fence = self._fences_by_id.get(op.run_id)
        if fence is None:
            return OpStatus.UNKNOWN_RUN
        same_seed = op.seed is None or self._has_seed(fence.key, op.seed)
        answer = rules.decide_cancel(
            fence.state, fence.cancel_state, is_paused=fence.is_paused, has_same_seed=same_seed
        )
        if answer is not OpStatus.DONE:
            return answer
        fence.cancel_state = fence.cancel_state or CancelState.REQUESTED
        fence.is_paused = False
        if rules.is_cancelled_at_once(fence.state, fence.epoch, is_delivery=fence.is_delivery):
            self._buffer_write("runs", self._sql.CANCEL_IMMEDIATELY, fence.key, (op.at, fence.key))
            fence.state = RunState.CANCELLED
            self.handle_run_end(fence.key, fence.state, rules.make_end_payload(None, None), op.at)
        elif fence.state == RunState.RUNNING:
            self._buffer_write("runs", self._sql.CANCEL_CLAIMED, fence.key, (fence.key,))
        else:
            self._buffer_write("runs", self._sql.CANCEL_IDLE, fence.key, (self._now, fence.key))
        return OpStatus.DONE

    def _has_seed(self, key: int, seed: bytes) -> bool:
        self._flush_table("runs")  # it may have been started in this transaction
        return self._db.query_one(self._sql.SEED, key) == (seed,)

    def _pause(self, op: PauseRun) -> OpStatus:
        fence = self._fences_by_id.get(op.run_id)
        if fence is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_pause(fence.state, is_paused=fence.is_paused, should_pause=True)
        if answer is OpStatus.DONE:
            self._buffer_write("runs", self._sql.PAUSE_RUN, fence.key, (op.at, fence.key))
            fence.is_paused = True
            fence.is_woken = False
        return answer

    def _resume(self, op: ResumeRun) -> OpStatus:
        fence = self._fences_by_id.get(op.run_id)
        if fence is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_pause(fence.state, is_paused=fence.is_paused, should_pause=False)
        if answer is not OpStatus.DONE:
            return answer
        if fence.state == RunState.RUNNING:
            self._buffer_write("runs", self._sql.RESUME_CLAIMED, fence.key, (fence.key,))
        elif rules.should_keep_wake_at(fence.state, fence.epoch):
            self._buffer_write("runs", self._sql.RESUME_UNSTARTED, fence.key, (self._now, fence.key))
        else:
            self._buffer_write("runs", self._sql.RESUME_IDLE, fence.key, (self._now, fence.key))
        fence.is_paused = False
        return answer

    def _set_budget(self, op: SetBudget) -> OpStatus:
        fence = self._fences_by_id.get(op.run_id)
        if fence is None:
            return OpStatus.UNKNOWN_RUN
        answer = rules.decide_budget(fence.state, self._accounts.get(fence.key).budget)
        if answer is OpStatus.DONE:
            self._accounts.set_budget(fence.key, op.budget)
            short = self._accounts.find_short_in_tree(fence.key)
            self.read_fences(short)
            for key in short:
                if self._fences_by_key[key].state not in TERMINAL_STATES:
                    self._wake_short_calls(self._fences_by_key[key], rules.encode_budget(op.budget), op.at)
        return answer

    def _wake_short_calls(self, fence: Fence, payload: bytes, at: float) -> None:
        """Tell a run that was short that what was refused may be granted now: once for each call that waits."""
        for _ in range(self._accounts.clear_short(fence.key)):
            self._add_signal(fence.key, BUDGET_SIGNAL, at, payload)
        self._wake(fence)

    # Reopening: a person does that, so it may ask the database one thing after the other

    def _reopen(self, op: ReopenRun) -> OpStatus:
        fence = self._fences_by_id.get(op.run_id)
        if fence is None:
            return OpStatus.UNKNOWN_RUN
        if rules.is_settlement_stale(op, fence.epoch):
            return OpStatus.ENDED
        self.flush()
        affected: dict[int, _ReopenedRun] = {}
        answer = self._decide_reopen(fence.key, op, affected)  # look before anything is changed
        if answer is OpStatus.DONE:
            for key, run in affected.items():
                self._rewind(key, run, affected)
                [last_kept] = self._db.query_one(self._sql.LAST_SEQ, key) or (-1,)
                self._add_lasting_event(key, -1, op.at, *rules.make_reopened_event(last_kept))
                if self._accounts.get(key).short_positions:
                    self._wake_short_calls(self._fences_by_key[key], b"null", op.at)
            if op.settlement is not None and op.settlement.record is not None:
                self._append_after_last(fence.key, op.settlement.record)
            if op.version is not None:
                self._db.execute(self._sql.SET_VERSION, (op.version, fence.key))
        return answer

    def _append_after_last(self, key: int, record: Record) -> None:
        [last_kept] = self._db.query_one(self._sql.LAST_SEQ, key) or (-1,)
        record = record._replace(seq=last_kept + 1)
        self._append_row(key, record.seq, record.epoch, record_to_row(key, record, self._to_column(record.payload)))

    def _decide_reopen(self, key: int, op: ReopenRun, affected: dict[int, _ReopenedRun]) -> OpStatus:
        """Add to ``affected`` what is reopened with the run."""
        row = self._db.query_one(self._sql.REOPENED_RUN, key)
        assert row is not None
        rewind = self._reader.read_rewind(row[2], f"run {row[0]!r}")
        if op.settlement is not None and row[0] == op.run_id:
            rewind = op.settlement.rewind
        answer = rules.decide_reopen(row[1], rewind, rerun_once_steps=op.rerun_once_steps)
        if answer is not OpStatus.DONE:
            return answer
        run = affected[key] = _ReopenedRun(
            row[0], self._make_rewind_values(key, rewind), () if rewind is None else rewind.abandoned_positions
        )
        for end in self._list_pending_children(run):
            if (
                end.is_after_rewind
                or end.child_key in affected
                or end.parent_id != run.id
                or end.state not in rules.REOPENABLE
            ):
                continue
            attempt = dict(affected)
            answer = self._decide_reopen(end.child_key, op, attempt)
            if answer is OpStatus.DONE:
                affected.update(attempt)
            elif end.is_end_rewound:
                return answer
        return OpStatus.DONE

    def _list_pending_children(self, run: _ReopenedRun) -> list[_PendingChild]:
        if run.rewind_values is None:
            return []
        rows = self._db.query(self._sql.PENDING_CHILDREN, run.rewind_values)
        unread = [row[1] for row in rows if row[1] not in self._fences_by_key]
        if unread:  # one of them may be reopened by itself just now: look again when nobody else can change them
            self.read_fences(unread)
            rows = self._db.query(self._sql.PENDING_CHILDREN, run.rewind_values)
        later = run.rewind_values["positions"]
        return [
            _PendingChild(row[0], row[1], row[2], row[3], row[4] == 1, row[0] >= later)
            for row in rows
            if row[0] not in run.abandoned_positions
        ]

    def _rewind(self, key: int, run: _ReopenedRun, affected: dict[int, _ReopenedRun]) -> None:
        change, write = self._db.execute, self._db.write
        for end in self._list_pending_children(run):
            redo = rules.choose_link_action(
                is_after_rewind=end.is_after_rewind,
                is_end_rewound=end.is_end_rewound,
                is_reopened=end.child_key in affected,
                has_ended=end.state in TERMINAL_STATES,
            )
            if redo is not LinkAction.KEEP:
                write(self._sql.DELETE_END_SIGNAL, [(key, end.position)])
            if redo is LinkAction.AWAIT:
                write(self._sql.PUT_LINK, [(key, end.position, end.child_key, int(LinkState.PENDING))])
                self._mark_awaited(end.child_key)
            elif redo is LinkAction.DROP:
                write(self._sql.DELETE_LINK, [(key, end.position)])
        if run.rewind_values is not None:
            change(self._sql.DELETE_REWOUND_ANSWERS, run.rewind_values)
            change(self._sql.WITHDRAW_REWOUND_APPROVALS, run.rewind_values)
            change(self._sql.DELETE_REWOUND_ATTEMPTS, run.rewind_values)
            change(self._sql.RESTORE_SIGNALS, run.rewind_values)
            change(self._sql.DELETE_REWOUND_RECORDS, run.rewind_values)
            point = [run.rewind_values["positions"], run.rewind_values["first"]]
            change(self._sql.ADD_REWIND_POINT, (json.dumps(point), key))
        self._db.query_one(self._sql.LOCK_QUEUE_OF_RUN, key)
        change(self._sql.REOPEN_RUN, (self._now, self._now, key))
        self._reload_run(key)

    def _make_rewind_values(self, key: int, rewind: Rewind | None) -> dict[str, Any] | None:
        if rewind is None or not rewind.failed_seqs:
            return None
        return {
            "run": key, "first": min(rewind.failed_seqs), "failed": self._db.to_list_parameter(rewind.failed_seqs),
            "positions": rewind.command_count, "timers": rewind.timer_count,
        }  # fmt: skip
