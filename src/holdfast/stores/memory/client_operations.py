"""Operations from outside, in memory: signals, cancelling, pausing, and a person's retry."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.stores import rules
from holdfast.stores.approvals import ApprovalState
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import CancelState, Run
from holdfast.stores.row_access import AwaitedRunRow, ReopenedRun


class ClientOperations(Tables):
    """What anyone can ask of a run."""

    def _has_signal_key(self, key: int, dedup_key: str) -> bool:
        return (key, dedup_key) in self._signal_dedup_keys

    def _add_signal_key(self, key: int, dedup_key: str) -> None:
        self._signal_dedup_keys.add((key, dedup_key))

    def _get_seed(self, run: Run) -> bytes:
        return run.seed

    def _cancel_run(self, run: Run, at: float, *, is_immediate: bool) -> None:
        requested = replace(run, cancel_state=run.cancel_state or CancelState.REQUESTED, paused_at=None)
        if is_immediate:
            self._end_run(replace(requested, state=RunState.CANCELLED, finished_at=at))
        elif run.state is RunState.RUNNING:
            self._save_run(requested)
        else:
            self._save_run(replace(requested, wake_at=self._clock()))

    def _pause_run(self, run: Run, at: float) -> None:
        self._save_run(replace(run, paused_at=at))

    def _resume_run(self, run: Run) -> None:
        keeps_time = run.state is RunState.RUNNING or rules.should_keep_wake_at(run.state, run.epoch)
        self._save_run(replace(run, paused_at=None, wake_at=run.wake_at if keeps_time else self._clock()))

    # Reopening

    def _read_reopened(self, key: int) -> ReopenedRun:
        run = self._runs[key]
        return ReopenedRun(key, run.id, run.state, run.rewind)

    def _list_awaited_runs(self, run: ReopenedRun) -> list[AwaitedRunRow]:
        rewind = run.active_rewind
        if rewind is None:
            return []
        rewound, kept = set[int](), {*rewind.abandoned_positions}
        for record in self._records.get(run.key, []):
            if record.kind is RecordKind.CHILD:
                (rewound if rewind.should_remove(record) else kept).add(record.position)
        found: list[AwaitedRunRow] = []
        for position in sorted(self._link_positions.get(run.key, ())):
            if position not in kept:
                awaited = self._runs[self._links[run.key, position].child_key]
                is_after_rewind = position >= rewind.command_count
                found.append(
                    AwaitedRunRow(
                        position, awaited.key, awaited.state, awaited.parent, position in rewound, is_after_rewind
                    )
                )
        return found

    def _set_version(self, key: int, version: str) -> None:
        self._save_run(replace(self._runs[key], version=version))

    def _list_rewound_records(self, run: ReopenedRun) -> list[Record]:
        """The records that a retry removes."""
        journal = self._records.get(run.key, [])
        return [] if run.rewind is None else [record for record in journal if run.rewind.should_remove(record)]

    def _rewind_journal(self, run: ReopenedRun) -> None:
        rewound = self._list_rewound_records(run)
        for record in rewound:
            if record.kind is RecordKind.SIGNAL:
                self._add_signal(run.key, record.name, record.started_at, record.payload or b"null")
        self._rewind_approvals(run, rewound)
        if run.active_rewind is not None:
            for attempt in [*self._attempts.get(run.key, {}).values()]:
                if attempt.position >= run.active_rewind.command_count and not attempt.intent:
                    del self._attempts[run.key][attempt.position]
        if rewound:
            gone = {record.seq for record in rewound}
            self._records[run.key] = [record for record in self._records[run.key] if record.seq not in gone]
        if run.key in self._with_generated_id:
            self._with_unclaimed_result.add(run.key)
        self._reopen_row(self._runs[run.key], run)

    def _reopen_row(self, row: Run, run: ReopenedRun) -> None:
        is_cancel_recorded = any(record.kind is RecordKind.CANCEL for record in self._records.get(run.key, []))
        now = self._clock()
        self._save_run(
            replace(
                row, state=RunState.PENDING, owner=None, delivery_count=0, suspicion=0, output=None, error=None,
                finished_at=None, wake_at=now, cancel_state=rules.get_reopened_cancel_state(is_cancel_recorded),
                deadline=row.deadline if row.deadline is not None and row.deadline > now else None, paused_at=None,
                rewind=None, rewind_points=rules.add_rewind_point(row.rewind_points, run.rewind),
                is_limited=row.queue in self._queues,
            )
        )  # fmt: skip

    def _rewind_approvals(self, run: ReopenedRun, rewound: list[Record]) -> None:
        """Withdraw approvals whose answer is removed, or that were requested because of what is removed."""
        if run.active_rewind is None:
            return
        answered = {record.position for record in rewound if record.kind is RecordKind.APPROVAL}
        later = run.active_rewind.command_count
        self._delete_answer_signals(run.key, lambda position: position >= later)
        for approval in [*self._approvals.values()]:
            if approval.run_id == run.id and (approval.position >= later or approval.position in answered):
                self._approvals[approval.id] = replace(approval, state=ApprovalState.WITHDRAWN)
