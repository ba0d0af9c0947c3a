"""What must hold when a world has come to its end: every run ended, as its program and its journal say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.codec import LARGEST, describe_error
from holdfast.core.execution import Execution
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.engine.run_outcome import end_of
from holdfast.stores.operations import Run
from simulation.expectations import Whose, can_fail, fits, kills, must_fail
from simulation.process import DEFINITIONS

if TYPE_CHECKING:
    from simulation.invariants import RunModel
    from simulation.world import World


def check_end(world: World) -> None:
    """Everything that must be true after the last run has ended."""
    missing = [run.id for run in world.plan.runs if run.id not in world.checker.by_id]
    if missing:
        world.fail("every run ends once the faults have stopped", f"{missing[0]} is missing")
        return
    for model in world.checker.by_id.values():
        row = model.row
        if not row.state.is_terminal:
            world.fail("every run ends once the faults have stopped", f"{row.id} is {_where(world, model)}")
            return
        check_replay(world, row, model.journal)
        _check_result(world, model)
        left = sum(signal.position is None for signal in model.mailbox.values())
        if model.consumed + left != model.accepted:
            world.fail(
                "no signal is lost", f"{row.id}: {model.accepted} accepted, {model.consumed} consumed, {left} left"
            )
    for process in world.open_processes():
        engine = process.engine
        if engine._drivers or engine._by_id or engine._coming or len(engine._idle) or process.in_flight:
            world.fail(
                "a worker with nothing to do holds nothing",
                f"{process}: {len(engine._drivers)} drivers, {engine._coming} coming, {process.in_flight} in flight",
            )


def _where(world: World, model: RunModel) -> str:
    row = model.row
    ties = world.checker.family.ties
    awaited = [
        f"{world.checker.runs[tie.child].row.id} ({world.checker.runs[tie.child].row.state.value}, {tie.told.value})"
        for place, tie in ties.items()
        if place[0] == row.key
    ]
    return (
        f"{row.state.value} with {len(model.journal)} records, owner {row.owner}, wake_at {row.wake_at}, "
        f"cancel {row.cancel.value!r}, paused {row.paused_at}, waits for {awaited}"
    )


def _check_result(world: World, model: RunModel) -> None:
    row, program = model.row, model.program
    match row.state:
        case RunState.COMPLETED:
            value = DEFINITIONS[row.workflow].output.decode(row.output or b"null", "a result")
            whose = Whose({row.id} | world.lineage.get(row.id, set()), row.id in world.forced)
            if (must_fail(program) and not whose.forced) or not _fits(program, value, whose):
                world.fail("results are what the program says", f"{row.id}: {program} returned {value}")
        case RunState.FAILED:
            told = describe_error(row.error or b"")
            timed_out = told.type.endswith("RunTimedOut") and world.has_deadline(row)
            undone = told.type.endswith("CompensationFailed")
            if not timed_out and not undone and not can_fail(program):
                world.fail("a run fails only if its program can", f"{row.id}: {told.type}: {told.message}")
        case RunState.DEAD if world.plan.has_killer and not kills(program):
            world.fail("a run never ends dead because of another one", f"{row.id}: {program}")
        case _:
            pass  # dead or cancelled: the checker has seen why
    if world.plan.has_killer and kills(program) and row.state is not RunState.DEAD:
        world.fail("a run that kills its process each time ends dead", f"{row.id} is {row.state.value}")


def _fits(program: Any, value: Any, whose: Whose) -> bool:
    try:
        return fits(program, value, whose)
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


def check_replay(
    world: World, row: Run, journal: Sequence[Record], ended: Run | None = None, children: Sequence[int] = ()
) -> None:
    """Replay a journal with nothing but its records: it must lead to the ending that is recorded, if one is.

    ``ended`` is the row before a retry: then it must not come to the same end once more. ``children`` are the
    places of runs that were reopened with it: it must wait for them.
    """
    definition = DEFINITIONS[row.workflow]
    args, kwargs = definition.inputs.decode(row.inputs)
    execution = _Replay(
        world,
        row.id,
        partial(definition.execute, args, kwargs, LARGEST),
        workflow=row.workflow,
        start_time=row.began_at,
        seed=row.seed,
        rewound=row.rewound,
    )
    world.counts["replays"] += 1
    try:
        execution.start()
        _turn(execution)
        for at, record in enumerate(journal):
            if execution.begin_undoing(islice(journal, at, None)):
                _turn(execution)
            if execution.ending is not None:
                execution.leftover(record)
            else:
                execution.deliver(record)
            _turn(execution)
        if execution.begin_undoing():
            _turn(execution)
        if execution.fault is not None:
            world.fail("P5 every journal replays", f"{row.id}: {execution.fault}")
        elif ended is not None and not _goes_on(execution, ended):
            world.fail("a retry takes back what ended the run", f"{row.id}: {execution.ending}")
        elif any(position not in execution.open for position in children):
            world.fail(
                "a retry reopens only children that are awaited again", f"{row.id}: {children}, not {[*execution.open]}"
            )
        elif row.state.is_terminal and row.state is not RunState.DEAD and row.epoch:
            _check_ending(world, row, execution)
    finally:
        execution.leave()


def _goes_on(execution: Execution, ended: Run) -> bool:
    """Whether a run that was retried has something left to do, or ends in another way than before."""
    ending = execution.ending
    if ended.rewind is None or not ended.rewind.failed or ending is None:
        return True
    end = end_of(ending, ended.id)
    return (end.state, _in_words(end.error)) != (ended.state, _in_words(ended.error))


def _in_words(error: bytes | None) -> tuple[str, str] | None:
    told = None if error is None else describe_error(error)
    return None if told is None else (told.type, told.message)


def _turn(execution: Execution) -> None:
    while not execution.turn():
        pass


def _check_ending(world: World, row: Run, execution: Execution) -> None:
    ending = execution.ending
    if ending is None:
        world.fail("P5 a replay ends as recorded", f"{row.id} is {row.state.value}, its replay has not ended")
        return
    end = end_of(ending, row.id)
    known, now = _in_words(row.error), _in_words(end.error)
    if (row.state, row.output, known) != (end.state, end.output, now):
        world.fail("P5 a replay ends as recorded", f"{row.id} is {row.state} {row.output!r} {known}, its replay {end}")
    if row.rewind != ending.rewind:
        world.fail(
            "P5 a retry would take back the same after a replay", f"{row.id}: {row.rewind}, its replay {ending.rewind}"
        )
