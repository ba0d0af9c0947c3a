"""What people ask of a run, in the checker's eyes: cancelling, pausing, resuming, retrying, forking.

Each is worked out here once more, from what the store contract says and not from what the store does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.records import Kind, Record, Rewind
from holdfast.core.states import RunState
from holdfast.stores.operations import Cancel, CancelRun, ForkRun, PauseRun, ReopenRun, ResumeRun, Run, Started, Verdict
from simulation.link_checks import Tie, Told

if TYPE_CHECKING:
    from simulation.invariants import Checker, RunModel

_REOPENABLE = (RunState.FAILED, RunState.CANCELLED, RunState.DEAD)


def takes(rewind: Rewind | None, record: Record) -> bool:
    """Whether a retry takes a record back: those that ended the run, and what was issued because of the first."""
    if rewind is None or not rewind.failed or record.seq < min(rewind.failed):
        return False
    if record.seq in rewind.failed or record.kind in (Kind.DEADLINE, Kind.CANCEL):
        return True
    return record.position >= (rewind.timers if record.kind is Kind.TIMER else rewind.positions)


class Asking:
    """Requests, and whether they were answered and carried out as they should be."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.paused_since: dict[int, float] = {}
        self.switched_since: dict[str, float] = {}

    def _fail(self, invariant: str, what: str) -> None:
        self._checker.fail(invariant, what)

    def switched(self, workflow: str, off: bool) -> None:
        """A workflow was switched off, or on again."""
        if off:
            self.switched_since.setdefault(workflow, self._checker.world.time)
        else:
            self.switched_since.pop(workflow, None)

    # Cancelling and pausing

    def cancelled(self, op: CancelRun, answer: Verdict) -> None:
        """``CancelRun`` has been carried out."""
        model = self._checker.by_id.get(op.run_id)
        if model is None:
            if answer is not Verdict.UNKNOWN_RUN:
                self._fail("requests are answered as they should be", f"{op} was answered {answer}")
            return
        before, after = model.row, self._checker.database._runs[model.row.key]
        told = f"cancel of {op.run_id} ({before.state.value}, {before.cancel!r}) was answered {answer.value}"
        if op.seed is not None and op.seed != before.seed:
            expected = Verdict.REFUSED
        elif before.state.is_terminal:
            again = before.state is RunState.CANCELLED and before.cancel is not Cancel.NO
            expected = Verdict.DUPLICATE if again else Verdict.ENDED
        elif before.cancel is not Cancel.NO and before.paused_at is None:
            expected = Verdict.DUPLICATE
        else:
            expected = Verdict.DONE
        if answer is not expected:
            self._fail("requests are answered as they should be", told)
        if answer is not Verdict.DONE:
            return
        model.cancel_accepted = True
        model.cancelled_by.add("parent" if op.seed is not None else "person")
        self.paused_since.pop(before.key, None)
        if after.cancel is Cancel.NO or after.paused_at is not None:
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
        self._checker.row_changed(model, after, told, by_request=True)

    def paused(self, op: PauseRun | ResumeRun, answer: Verdict) -> None:
        """``PauseRun`` or ``ResumeRun`` has been carried out."""
        model = self._checker.by_id.get(op.run_id)
        if model is None:
            return
        wanted = isinstance(op, PauseRun)
        before, after = model.row, self._checker.database._runs[model.row.key]
        told = f"{type(op).__name__} of {op.run_id} ({before.state.value}) was answered {answer.value}"
        expected = Verdict.DUPLICATE if (before.paused_at is not None) is wanted else Verdict.DONE
        if answer is not (Verdict.ENDED if before.state.is_terminal else expected):
            self._fail("requests are answered as they should be", told)
        if answer is not Verdict.DONE:
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
        self._checker.row_changed(model, after, told, by_request=True)

    def _is_due(self, row: Run) -> bool:
        return row.wake_at is not None and row.wake_at <= self._checker.database.now()

    # Retrying

    def reopened(self, op: ReopenRun, answer: Verdict) -> None:
        """``ReopenRun`` has been carried out: the one thing that may reopen a run, and take records away."""
        model = self._checker.by_id.get(op.run_id)
        if model is None:
            return
        affected: list[RunModel] = []
        ended = model.row
        if op.settles is not None:
            model.row = replace(ended, rewind=op.settles.rewind)
        is_late = op.settles is not None and op.settles.epoch != ended.epoch
        expected = Verdict.ENDED if is_late else self._may_reopen(model, op, affected)
        told = f"retry of {op.run_id} ({model.row.state.value}, {model.row.rewind}) was answered {answer.value}"
        if answer is not expected:
            self._fail("a retry reopens what has failed, unless that would do harm", f"{told}, not {expected}")
        if answer is not Verdict.DONE:
            model.row = ended
            return
        keys = {one.row.key for one in affected}
        for one in affected:
            self._rewound(one, keys, op.settles.record if one is model and op.settles is not None else None)

    def _may_reopen(self, model: RunModel, op: ReopenRun, affected: list[RunModel]) -> Verdict:
        row = model.row
        if row.state not in _REOPENABLE:
            return Verdict.ENDED
        if row.rewind is not None and row.rewind.undone:
            return Verdict.UNDONE
        if row.rewind is not None and row.rewind.once and not op.run_again:
            return Verdict.REFUSED
        affected.append(model)
        for position, tie, is_taken in self._open_ends(model):
            child = self._checker.runs[tie.child]
            is_later = row.rewind is not None and position >= row.rewind.positions
            if is_later or child in affected or child.row.parent != row.id or child.row.state not in _REOPENABLE:
                continue
            attempt = list(affected)
            answer = self._may_reopen(child, op, attempt)
            if answer is Verdict.DONE:
                affected[:] = attempt
            elif is_taken:
                return answer
        return Verdict.DONE

    def _open_ends(self, model: RunModel) -> list[tuple[int, Tie, bool]]:
        """The links whose end the journal of a reopened run does not have: position, link, whether it had one."""
        rewind = model.row.rewind
        if rewind is None or not rewind.failed:
            return []
        ends = {one.position: takes(rewind, one) for one in model.journal if one.kind is Kind.CHILD}
        return [
            (position, tie, position in ends)
            for (parent, position), tie in sorted(self._checker.family.ties.items())
            if parent == model.row.key and ends.get(position, True) and position not in rewind.given_up
        ]

    def _rewound(self, model: RunModel, keys: set[int], settled: Record | None) -> None:
        """See what became of one run that was reopened, and forget what it may do differently now."""
        checker, row = self._checker, model.row
        database = checker.database
        after, rewind = database._runs[row.key], row.rewind
        told = f"retry of {row.id} ({rewind})"
        taken = [record for record in model.journal if takes(rewind, record)]
        kept = [record for record in model.journal if not takes(rewind, record)]
        if settled is not None:
            kept.append(settled._replace(seq=kept[-1].seq + 1 if kept else 0))
        if database._records.get(row.key, []) != kept:
            self._fail("a retry takes back what ended the run and what followed from it, and nothing else", told)
        cancelled = any(record.kind is Kind.CANCEL for record in kept)
        cancel = Cancel.RECORDED if cancelled else Cancel.NO
        if (after.state, after.deliveries, after.cancel, after.paused_at) != (RunState.PENDING, 0, cancel, None):
            self._fail("a reopened run begins afresh", f"{told}: {after}")
        checker.questions.rewound(model, rewind, taken)
        ends = self._open_ends(model)
        for position, tie, is_taken in ends:
            self._await_again(model, position, tie, is_taken, keys)
        reopened = [position for position, tie, _ in ends if tie.child in keys]
        mailbox = database._mailboxes.get(row.key, {})
        back = [(one.name, one.payload) for at, one in mailbox.items() if at not in model.mailbox]
        signals = [(one.name, one.payload) for one in taken if one.kind is Kind.SIGNAL]
        if back != signals or any(at not in mailbox for at in model.mailbox):
            self._fail("a retry puts signals back that were consumed", f"{told}: {back}, not {signals}")
        model.consumed -= len(signals)
        model.mailbox, model.journal, model.row, model.deaths = dict(mailbox), kept, after, 0
        model.attempts = dict(database._attempts.get(row.key, {}))
        model.cancel_accepted = model.cancel_recorded = cancelled
        model.cancelled_by.clear()
        model.reopened_at = row.epoch
        self.paused_since.pop(row.key, None)
        model.outcomes = outcomes_of(kept)
        self._forget(model, rewind, taken, settled)
        checker.world.run_reopened(row.id)
        checker.world.replay_reopened(model, row, reopened)

    def _await_again(self, model: RunModel, position: int, tie: Tie, is_taken: bool, keys: set[int]) -> None:
        family, place, rewind = self._checker.family, (model.row.key, position), model.row.rewind
        goes_on = tie.child in keys or not self._checker.runs[tie.child].row.state.is_terminal
        if rewind is not None and position >= rewind.positions:
            goes_on, is_taken = False, True  # nobody asks for it any more, or somebody else does
        if goes_on or is_taken:
            family.drop_end(place)
            del family.ties[place]
        if goes_on:
            family.ties[place] = Tie(tie.child, Told.ARMED)

    def _forget(self, model: RunModel, rewind: Rewind | None, taken: list[Record], settled: Record | None) -> None:
        checker, row = self._checker, model.row
        if not taken or rewind is None:
            return
        checker.rewound.add(row.id)
        gone = {record.position for record in taken if record.kind is not Kind.TIMER}
        if settled is not None:
            gone.discard(settled.position)
        for known in [one for one in checker.begun if one[0] == row.key and one[1] in gone]:
            del checker.begun[known]  # a person has said that it may run again
        # What the code did after the record that is gone, it may do differently now.
        for place in [one for one in checker.commands if one[0] == row.id and one[1] >= rewind.positions]:
            del checker.commands[place]
        for which in [one for one in checker.keys if one[0] == row.id]:
            del checker.keys[which]

    # Forking

    def forked(self, op: ForkRun, answer: Started | Verdict) -> None:
        """``ForkRun`` has been carried out."""
        checker = self._checker
        known, source = checker.by_id.get(op.run.id), checker.by_id[op.source]
        if not isinstance(answer, Started):
            if op.run.workflow not in self.switched_since:
                self._fail("a run can be forked", f"{op.source}: {answer}")
            return
        if known is not None:
            if answer.created is not (known.row.seed == op.run.seed):
                self._fail("a run is forked once", f"{op.run.id} was forked again")
            return
        model = checker.new_model(answer.run)
        shared = [record for record in source.journal if record.seq < op.keep]
        expected = shared if op.record is None else [*shared, op.record]
        model.journal = list(checker.database._records.get(answer.run.key, []))
        if model.journal != expected:
            self._fail("a fork shares the beginning of its origin, and nothing else", op.run.id)
        model.outcomes = outcomes_of(expected)
        model.inherited = len(expected)
        # What belongs to a question names it, and a fork asks under ids of its own.
        steps = {
            record.position
            for record in expected
            if record.kind in (Kind.STEP, Kind.COMPENSATION) and not record.name.startswith("approval ")
        }
        for (run_id, position), command in list(checker.commands.items()):
            # It issues what its origin issued, at least as far as that had seen the records that it shares.
            if run_id == op.source and position in steps:
                checker.commands[op.run.id, position] = command
        checker.world.run_forked(answer.run, op)
        checker.row_changed(model, answer.run, "fork")


def outcomes_of(journal: list[Record]) -> set[tuple[bool, int]]:
    """Which timers, and which other commands, have an outcome."""
    timer = Kind.TIMER
    return {(one.kind is timer, one.position) for one in journal if one.kind.has_position or one.kind is timer}
