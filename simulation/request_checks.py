"""Checks of users' requests: cancel, pause, resume, retry, fork.

The rules are implemented here a second time, from the store contract and not from the store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.records import Record, RecordKind, Rewind
from holdfast.core.states import RunState
from holdfast.stores.operations import (
    CancelRun,
    CancelState,
    ForkRun,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    StartResult,
)
from simulation.link_checks import LinkModel, LinkState

if TYPE_CHECKING:
    from simulation.invariants import InvariantChecker, RunModel

_REOPENABLE_STATES = (RunState.FAILED, RunState.CANCELLED, RunState.DEAD)


def is_rewound(rewind: Rewind | None, record: Record) -> bool:
    """Whether a retry takes a record back: one that ended the run, or one that was issued because of the first."""
    if rewind is None or not rewind.failed_seqs or record.seq < min(rewind.failed_seqs):
        return False
    if record.seq in rewind.failed_seqs or record.kind in (RecordKind.DEADLINE, RecordKind.CANCEL):
        return True
    return record.position >= (rewind.timer_count if record.kind is RecordKind.TIMER else rewind.command_count)


class RequestChecker:
    """Requests, and whether they were answered and carried out as they should be."""

    def __init__(self, checker: InvariantChecker) -> None:
        self._checker = checker
        self.paused_since: dict[int, float] = {}
        self.disabled_since: dict[str, float] = {}

    def _fail(self, invariant: str, details: str) -> None:
        self._checker.fail(invariant, details)

    def note_disabled(self, workflow: str, is_disabled: bool) -> None:
        """A workflow was switched off, or on again."""
        if is_disabled:
            self.disabled_since.setdefault(workflow, self._checker.world.time)
        else:
            self.disabled_since.pop(workflow, None)

    # Cancelling and pausing

    def check_cancel(self, op: CancelRun, answer: OpStatus) -> None:
        """``CancelRun`` has been carried out."""
        model = self._checker.runs_by_id.get(op.run_id)
        if model is None:
            if answer is not OpStatus.UNKNOWN_RUN:
                self._fail("requests are answered as they should be", f"{op} was answered {answer}")
            return
        before, after = model.row, self._checker.database._runs[model.row.key]
        told = f"cancel of {op.run_id} ({before.state.value}, {before.cancel_state!r}) was answered {answer.value}"
        if op.seed is not None and op.seed != before.seed:
            expected = OpStatus.REFUSED
        elif before.state.is_terminal:
            again = before.state is RunState.CANCELLED and before.cancel_state is not CancelState.NONE
            expected = OpStatus.DUPLICATE if again else OpStatus.ENDED
        elif before.cancel_state is not CancelState.NONE and before.paused_at is None:
            expected = OpStatus.DUPLICATE
        else:
            expected = OpStatus.DONE
        if answer is not expected:
            self._fail("requests are answered as they should be", told)
        if answer is not OpStatus.DONE:
            return
        model.is_cancel_accepted = True
        model.cancel_sources.add("parent" if op.seed is not None else "person")
        self.paused_since.pop(before.key, None)
        if after.cancel_state is CancelState.NONE or after.paused_at is not None:
            self._fail("an accepted cancel is in the row", told)
        if before.state is RunState.PENDING and before.epoch == 0:
            if after.state is not RunState.CANCELLED:
                self._fail("a run that nobody has claimed is cancelled at once", told)
        elif after.state is not before.state:
            self._fail("a cancel leaves the ending to the holder", told)
        elif before.state is not RunState.RUNNING and (
            after.wake_at is None or after.wake_at > self._checker.database.now()
        ):
            self._fail("a cancel wakes a parked run", told)
        self._checker.update_row(model, after, told, is_request=True)

    def check_pause(self, op: PauseRun | ResumeRun, answer: OpStatus) -> None:
        """``PauseRun`` or ``ResumeRun`` has been carried out."""
        model = self._checker.runs_by_id.get(op.run_id)
        if model is None:
            return
        wanted = isinstance(op, PauseRun)
        before, after = model.row, self._checker.database._runs[model.row.key]
        told = f"{type(op).__name__} of {op.run_id} ({before.state.value}) was answered {answer.value}"
        expected = OpStatus.DUPLICATE if (before.paused_at is not None) is wanted else OpStatus.DONE
        if answer is not (OpStatus.ENDED if before.state.is_terminal else expected):
            self._fail("requests are answered as they should be", told)
        if answer is not OpStatus.DONE:
            return
        if (after.paused_at is not None) is not wanted or after.state is not before.state:
            self._fail("a run is paused when it is said to be", told)
        if wanted:
            self.paused_since[before.key] = self._checker.world.time
        else:
            self.paused_since.pop(before.key, None)
            asleep = after.state is RunState.WAITING or (after.state is RunState.PENDING and after.epoch > 0)
            if asleep and not self._is_due(after):
                self._fail("a resumed run can be claimed", told)
        self._checker.update_row(model, after, told, is_request=True)

    def _is_due(self, row: Run) -> bool:
        return row.wake_at is not None and row.wake_at <= self._checker.database.now()

    # Retrying

    def check_reopen(self, op: ReopenRun, answer: OpStatus) -> None:
        """``ReopenRun`` has been carried out: the one thing that may reopen a run, and take records away."""
        model = self._checker.runs_by_id.get(op.run_id)
        if model is None:
            return
        affected: list[RunModel] = []
        ended = model.row
        if op.settlement is not None:
            model.row = replace(ended, rewind=op.settlement.rewind)
        is_late = op.settlement is not None and op.settlement.epoch != ended.epoch
        expected = OpStatus.ENDED if is_late else self._predict_reopen(model, op, affected)
        told = f"retry of {op.run_id} ({model.row.state.value}, {model.row.rewind}) was answered {answer.value}"
        if answer is not expected:
            self._fail("a retry reopens what has failed, unless that would do harm", f"{told}, not {expected}")
        if answer is not OpStatus.DONE:
            model.row = ended
            return
        keys = {one.row.key for one in affected}
        for one in affected:
            self._check_rewind(one, keys, op.settlement.record if one is model and op.settlement is not None else None)

    def _predict_reopen(self, model: RunModel, op: ReopenRun, affected: list[RunModel]) -> OpStatus:
        row = model.row
        if row.state not in _REOPENABLE_STATES:
            return OpStatus.ENDED
        if row.rewind is not None and row.rewind.is_compensated:
            return OpStatus.COMPENSATED
        if row.rewind is not None and row.rewind.once_seqs and not op.rerun_once_steps:
            return OpStatus.REFUSED
        affected.append(model)
        for position, tie, is_taken in self._list_open_links(model):
            child = self._checker.runs[tie.child]
            is_later = row.rewind is not None and position >= row.rewind.command_count
            if is_later or child in affected or child.row.parent != row.id or child.row.state not in _REOPENABLE_STATES:
                continue
            attempt = list(affected)
            answer = self._predict_reopen(child, op, attempt)
            if answer is OpStatus.DONE:
                affected[:] = attempt
            elif is_taken:
                return answer
        return OpStatus.DONE

    def _list_open_links(self, model: RunModel) -> list[tuple[int, LinkModel, bool]]:
        """The links whose end is not in the journal of a reopened run: position, link, and whether it had one."""
        rewind = model.row.rewind
        if rewind is None or not rewind.failed_seqs:
            return []
        ends = {one.position: is_rewound(rewind, one) for one in model.journal if one.kind is RecordKind.CHILD}
        return [
            (position, tie, position in ends)
            for (parent, position), tie in sorted(self._checker.link_checker.links.items())
            if parent == model.row.key and ends.get(position, True) and position not in rewind.abandoned_positions
        ]

    def _check_rewind(self, model: RunModel, keys: set[int], settled: Record | None) -> None:
        """Check a run that was reopened, and forget what it may do differently now."""
        checker, row = self._checker, model.row
        database = checker.database
        after, rewind = database._runs[row.key], row.rewind
        told = f"retry of {row.id} ({rewind})"
        taken = [record for record in model.journal if is_rewound(rewind, record)]
        kept = [record for record in model.journal if not is_rewound(rewind, record)]
        if settled is not None:
            kept.append(settled._replace(seq=kept[-1].seq + 1 if kept else 0))
        if database._records.get(row.key, []) != kept:
            self._fail("a retry takes back what ended the run and what followed from it, and nothing else", told)
        cancelled = any(record.kind is RecordKind.CANCEL for record in kept)
        cancel = CancelState.RECORDED if cancelled else CancelState.NONE
        if (after.state, after.delivery_count, after.cancel_state, after.paused_at) != (
            RunState.PENDING,
            0,
            cancel,
            None,
        ):
            self._fail("a reopened run begins afresh", f"{told}: {after}")
        checker.approval_checker.check_rewind(model, rewind, taken)
        ends = self._list_open_links(model)
        for position, tie, is_taken in ends:
            self._rearm_link(model, position, tie, is_taken, keys)
        reopened = [position for position, tie, _ in ends if tie.child in keys]
        mailbox = database._mailboxes.get(row.key, {})
        back = [(one.name, one.payload) for at, one in mailbox.items() if at not in model.mailbox]
        signals = [(one.name, one.payload) for one in taken if one.kind is RecordKind.SIGNAL]
        if back != signals or any(at not in mailbox for at in model.mailbox):
            self._fail("a retry puts signals back that were consumed", f"{told}: {back}, not {signals}")
        model.consumed_signal_count -= len(signals)
        model.mailbox, model.journal, model.row, model.death_count = dict(mailbox), kept, after, 0
        model.attempts = dict(database._attempts.get(row.key, {}))
        model.is_cancel_accepted = model.is_cancel_recorded = cancelled
        model.cancel_sources.clear()
        model.reopened_epoch = row.epoch
        self.paused_since.pop(row.key, None)
        model.outcomes = collect_outcomes(kept)
        self._forget_rewound(model, rewind, taken, settled)
        checker.world.on_run_reopened(row.id)
        checker.world.check_reopened(model, row, reopened)

    def _rearm_link(self, model: RunModel, position: int, link: LinkModel, is_rewound: bool, keys: set[int]) -> None:
        family, place, rewind = self._checker.link_checker, (model.row.key, position), model.row.rewind
        goes_on = link.child in keys or not self._checker.runs[link.child].row.state.is_terminal
        if rewind is not None and position >= rewind.command_count:
            goes_on, is_rewound = False, True  # it is no longer awaited, or another run awaits it
        if goes_on or is_rewound:
            family.remove_end(place)
            del family.links[place]
        if goes_on:
            family.links[place] = LinkModel(link.child, LinkState.ARMED)

    def _forget_rewound(
        self, model: RunModel, rewind: Rewind | None, rewound_records: list[Record], settled: Record | None
    ) -> None:
        checker, row = self._checker, model.row
        if not rewound_records or rewind is None:
            return
        checker.rewound_run_ids.add(row.id)
        gone = {record.position for record in rewound_records if record.kind is not RecordKind.TIMER}
        if settled is not None:
            gone.discard(settled.position)
        for known in [one for one in checker.step_start_counts if one[0] == row.key and one[1] in gone]:
            del checker.step_start_counts[known]  # a user has allowed it to run again
        # After the record that is gone, the code may do something else now.
        for place in [one for one in checker.commands if one[0] == row.id and one[1] >= rewind.command_count]:
            del checker.commands[place]
        for which in [one for one in checker.idempotency_keys if one[0] == row.id]:
            del checker.idempotency_keys[which]

    # Forking

    def check_fork(self, op: ForkRun, answer: StartResult | OpStatus) -> None:
        """``ForkRun`` has been carried out."""
        checker = self._checker
        known, source = checker.runs_by_id.get(op.run.id), checker.runs_by_id[op.source_run]
        if not isinstance(answer, StartResult):
            if op.run.workflow not in self.disabled_since:
                self._fail("a run can be forked", f"{op.source_run}: {answer}")
            return
        if known is not None:
            if answer.is_new is not (known.row.seed == op.run.seed):
                self._fail("a run is forked once", f"{op.run.id} was forked again")
            return
        model = checker.add_model(answer.run)
        shared = [record for record in source.journal if record.seq < op.before_seq]
        expected = shared if op.record is None else [*shared, op.record]
        model.journal = list(checker.database._records.get(answer.run.key, []))
        if model.journal != expected:
            self._fail("a fork shares the beginning of its origin, and nothing else", op.run.id)
        model.outcomes = collect_outcomes(expected)
        model.inherited_count = len(expected)
        # Steps of an approval have its id in their name, and a fork asks under ids of its own.
        steps = {
            record.position
            for record in expected
            if record.kind in (RecordKind.STEP, RecordKind.COMPENSATION) and not record.name.startswith("approval ")
        }
        for (run_id, position), command in list(checker.commands.items()):
            # It issues what its origin issued, at least as far as that had seen the records that it shares.
            if run_id == op.source_run and position in steps:
                checker.commands[op.run.id, position] = command
        checker.world.on_run_forked(answer.run, op)
        checker.update_row(model, answer.run, "fork")


def collect_outcomes(journal: list[Record]) -> set[tuple[bool, int]]:
    """Which timers, and which other commands, have an outcome."""
    timer = RecordKind.TIMER
    return {(one.kind is timer, one.position) for one in journal if one.kind.has_position or one.kind is timer}
