"""Checks of compensations: which step is compensated, in which order, and never twice.

The execution knows which records the workflow had seen when it issued a compensation. So the step that must be
compensated next follows from the journal alone: the last one that can be compensated and has not been.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast.codec import read_error_info
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.stores.operations import Run
from simulation.expectations import is_undoable

if TYPE_CHECKING:
    from simulation.invariants import InvariantChecker, RunModel


class CompensationChecker:
    """Compensations, and whether they are the right ones."""

    def __init__(self, checker: InvariantChecker) -> None:
        self._checker = checker

    def check_compensation(self, run_id: str, last_seq: int, arguments: str) -> None:
        """Check a compensation that workflow code issues after it has seen the records up to ``seen``."""
        model = self._checker.runs_by_id[run_id]
        undone = self._list_compensated(model, [r for r in model.journal if r.seq <= last_seq])
        todo = [
            label
            for label in self._list_done(model, [r for r in model.journal if r.seq <= last_seq])
            if label not in undone
        ]
        label = json.loads(arguments)[1]["label"]
        if not todo or todo[-1] != label:
            self._checker.fail(
                "steps are undone in reverse order", f"{run_id} undoes {label}; to be undone are {todo}, the last first"
            )

    def check_run_end(self, model: RunModel, row: Run) -> None:
        """A run has ended by its own code."""
        done, undone = self._list_done(model, model.journal), self._list_compensated(model, model.journal)
        compensations = [record for record in model.journal if record.kind is RecordKind.COMPENSATION]
        told = f"{row.id} is {row.state.value}; done: {done}, undone: {undone}"
        if len(undone) != len(set(undone)):
            self._checker.fail("a step is undone once", told)
        if undone != done[::-1][: len(undone)]:
            self._checker.fail("steps are undone in the reverse order of their records", told)
        if row.state is RunState.COMPLETED:
            if compensations:
                self._checker.fail("nothing is undone in a run that completes", told)
            return
        failed = [record for record in compensations if not record.ok]
        stands = row.error is not None and read_error_info(row.error).type.endswith(".CompensationFailed")
        if failed:
            if not stands or len(failed) > 1 or compensations[-1] is not failed[0]:
                self._checker.fail("a compensation that failed stops the others, and ends the run", told)
        elif set(done) != set(undone):
            self._checker.fail("every step that can be undone is, if the run does not complete", told)
        self._checker.world.counts["steps undone"] += len(undone)

    def _list_done(self, model: RunModel, journal: list[Record]) -> list[str]:
        return [self.get_label(model, r) for r in journal if is_undoable(r.kind, r.name) and r.ok]

    def _list_compensated(self, model: RunModel, journal: list[Record]) -> list[str]:
        return [self.get_label(model, r) for r in journal if r.kind is RecordKind.COMPENSATION and r.ok]

    def get_label(self, model: RunModel, record: Record) -> str:
        """The label of a step that is recorded: its preview begins with the arguments."""
        args, kwargs = json.loads(self._checker.commands[model.row.id, record.position][2])
        return str(args[0] if args else kwargs["label"])
