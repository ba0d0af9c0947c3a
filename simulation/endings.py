"""What must hold when a world has come to its end: every run ended, as its program and its journal say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.codec import describe_error, encode_error
from holdfast.core.execution import Execution
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.stores.contract import Run
from simulation.plan import PlannedRun
from simulation.process import DEFINITIONS
from simulation.workloads import can_fail, fits, must_fail

if TYPE_CHECKING:
    from simulation.invariants import RunModel
    from simulation.world import World


def check_end(world: World) -> None:
    """Everything that must be true after the last run has ended."""
    for run in world.plan.runs:
        model = world.checker.by_id.get(run.id)
        if model is None or not model.row.state.is_terminal:
            world.fail("every run ends once the faults have stopped", f"{run.id} is {_where(model)}")
            return
        check_replay(world, model.row, model.journal)
        _check_result(world, run, model.row)
        if model.consumed + len(model.mailbox) != model.accepted:
            world.fail(
                "no signal is lost",
                f"{run.id}: {model.accepted} accepted, {model.consumed} consumed, {len(model.mailbox)} left",
            )
    for process in world.open_processes():
        engine = process.engine
        if engine._drivers or engine._by_id or engine._coming or len(engine._idle) or process.in_flight:
            world.fail(
                "a worker with nothing to do holds nothing",
                f"{process}: {len(engine._drivers)} drivers, {engine._coming} coming, {process.in_flight} in flight",
            )


def _where(model: RunModel | None) -> str:
    if model is None:
        return "missing"
    row = model.row
    return f"{row.state.value} with {len(model.journal)} records, owner {row.owner}, wake_at {row.wake_at}"


def _check_result(world: World, run: PlannedRun, row: Run) -> None:
    definition = DEFINITIONS["simulated"]
    match row.state:
        case RunState.COMPLETED:
            value = definition.output.decode(row.output or b"null", "a result")
            if must_fail(run.program) or not _fits(run.program, value, run.id):
                world.fail("results are what the program says", f"{run.id}: {run.program} returned {value}")
        case RunState.FAILED:
            told = describe_error(row.error or b"")
            timed_out = run.options["timeout"] is not None and told.type.endswith("RunTimedOut")
            if not timed_out and not can_fail(run.program):
                world.fail("a run fails only if its program can", f"{run.id}: {told.type}: {told.message}")
        case _:
            pass  # dead: the checker has seen why


def _fits(program: Any, value: Any, run_id: str) -> bool:
    try:
        return fits(program, value, run_id)
    except (TypeError, IndexError, KeyError):
        return False


class _Replay(Execution):
    """A run in memory that keeps what it asks for."""

    def __init__(self, world: World, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._world = world

    def issue(self, kind: Kind, name: str, call: Any) -> Any:
        """Issue a command, and see that it is the one that was issued here before."""
        known = self._world.checker.commands.get((self.run_id, self._issued))
        if known is not None and known[:2] != (kind, name):
            self._world.fail("P5 a bare replay issues the same commands", f"{self.run_id}: {known}, now {kind} {name}")
        return super().issue(kind, name, call)


def check_replay(world: World, row: Run, journal: Sequence[Record]) -> None:
    """Replay a journal with nothing but its records: it must lead to the ending that is recorded, if one is."""
    definition = DEFINITIONS["simulated"]
    args, kwargs = definition.inputs.decode(row.inputs)
    execution = _Replay(
        world,
        row.id,
        partial(definition.function, *args, **kwargs),
        workflow=row.workflow,
        start_time=row.created_at,
        seed=row.seed,
        deadline=row.deadline,
    )
    world.counts["replays"] += 1
    try:
        execution.start()
        _turn(execution)
        for record in journal:
            if execution.ending is not None:
                execution.leftover(record)
            else:
                execution.deliver(record)
            _turn(execution)
        if execution.fault is not None:
            world.fail("P5 every journal replays", f"{row.id}: {execution.fault}")
        elif row.state in (RunState.COMPLETED, RunState.FAILED):
            _check_ending(world, row, execution)
    finally:
        execution.leave()


def _turn(execution: Execution) -> None:
    while not execution.turn():
        pass


def _check_ending(world: World, row: Run, execution: Execution) -> None:
    ending = execution.ending
    if ending is None:
        world.fail("P5 a replay ends as recorded", f"{row.id} is {row.state.value}, its replay has not ended")
    elif row.state is RunState.FAILED:
        known = describe_error(row.error or b"")
        now = None if ending.error is None else describe_error(encode_error(ending.error))
        if now is None or (known.type, known.message) != (now.type, now.message):
            world.fail("P5 a replay ends as recorded", f"{row.id} failed with {known.message}, its replay {now}")
    elif ending.error is not None:
        world.fail("P5 a replay ends as recorded", f"{row.id} is completed, its replay raises {ending.error!r}")
    else:
        output, _ = DEFINITIONS["simulated"].output.record(ending.value, "a result")
        if output != row.output:
            world.fail("P5 a replay ends as recorded", f"{row.id} returned {row.output!r}, its replay {output!r}")
