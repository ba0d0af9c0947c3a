"""Checks at the end of a world: every run has ended as its program and its journal require."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, read_error_info
from holdfast.core.execution import Execution
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.engine.run_outcome import make_run_outcome
from holdfast.stores.operations import Run
from simulation.expectations import ResultOwner, can_fail, has_kill, is_valid_result, must_fail
from simulation.process import DEFINITIONS

if TYPE_CHECKING:
    from simulation.invariants import RunModel
    from simulation.world import World


def check_end(world: World) -> None:
    """Everything that must be true after the last run has ended."""
    missing = [run.id for run in world.plan.runs if run.id not in world.checker.runs_by_id]
    if missing:
        world.fail("every run ends once the faults have stopped", f"{missing[0]} is missing")
        return
    for model in world.checker.runs_by_id.values():
        row = model.row
        if not row.state.is_terminal:
            world.fail("every run ends once the faults have stopped", f"{row.id} is {_describe_state(world, model)}")
            return
        check_replay(world, row, model.journal)
        _check_result(world, model)
        left = sum(signal.position is None for signal in model.mailbox.values())
        if model.consumed_signal_count + left != model.accepted_signal_count:
            world.fail(
                "no signal is lost",
                f"{row.id}: {model.accepted_signal_count} accepted, {model.consumed_signal_count} consumed, {left} "
                "left",
            )
    for process in world.list_open_processes():
        engine = process.engine
        if (
            engine.held_runs.drivers
            or engine.held_runs.drivers_by_run_id
            or engine.held_runs._incoming_count
            or len(engine._idle_runs)
            or process.in_flight_count
        ):
            world.fail(
                "a worker with nothing to do holds nothing",
                f"{process}: {len(engine.held_runs.drivers)} drivers, {engine.held_runs._incoming_count} coming, "
                f"{process.in_flight_count} in flight",
            )


def _describe_state(world: World, model: RunModel) -> str:
    row = model.row
    ties = world.checker.link_checker.links
    awaited = [
        f"{world.checker.runs[tie.child].row.id} ({world.checker.runs[tie.child].row.state.value}, {tie.state.value})"
        for place, tie in ties.items()
        if place[0] == row.key
    ]
    return (
        f"{row.state.value} with {len(model.journal)} records, owner {row.owner}, wake_at {row.wake_at}, "
        f"cancel {row.cancel_state.value!r}, paused {row.paused_at}, waits for {awaited}"
    )


def _check_result(world: World, model: RunModel) -> None:
    row, program = model.row, model.program
    match row.state:
        case RunState.COMPLETED:
            value = DEFINITIONS[row.workflow].output_codec.decode(row.output or b"null", "a result")
            whose = ResultOwner({row.id} | world.fork_ancestors.get(row.id, set()), row.id in world.forced_fork_ids)
            if (must_fail(program) and not whose.has_given_output) or not _is_valid_result(program, value, whose):
                world.fail("results are what the program says", f"{row.id}: {program} returned {value}")
        case RunState.FAILED:
            told = read_error_info(row.error or b"")
            timed_out = told.type.endswith("RunTimedOut") and world.has_deadline(row)
            undone = told.type.endswith("CompensationFailed")
            if not timed_out and not undone and not can_fail(program):
                world.fail("a run fails only if its program can", f"{row.id}: {told.type}: {told.message}")
        case RunState.DEAD if world.plan.has_killer and not has_kill(program):
            world.fail("a run never ends dead because of another one", f"{row.id}: {program}")
        case _:
            pass  # dead or cancelled: the checker has seen why
    if world.plan.has_killer and has_kill(program) and row.state is not RunState.DEAD:
        world.fail("a run that kills its process each time ends dead", f"{row.id} is {row.state.value}")


def _is_valid_result(program: Any, value: Any, owner: ResultOwner) -> bool:
    try:
        return is_valid_result(program, value, owner)
    except (TypeError, IndexError, KeyError):
        return False


class _CheckedReplay(Execution):
    """A run in memory that remembers its commands."""

    def __init__(self, world: World, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._world = world

    def issue(self, kind: RecordKind, name: str, call: Any) -> Any:
        """Issue a command, and see that it is the one that was issued here before."""
        known = self._world.checker.commands.get((self.run_id, self._issued_count))
        if known is not None and known[:2] != (kind, name):
            self._world.fail("P5 a bare replay issues the same commands", f"{self.run_id}: {known}, now {kind} {name}")
        return super().issue(kind, name, call)


def check_replay(
    world: World, row: Run, journal: Sequence[Record], ended: Run | None = None, children: Sequence[int] = ()
) -> None:
    """Replay a journal with nothing but its records: it must reach the recorded end, if there is one.

    ``ended`` is the row before a retry: then the replay must not reach the same end again. ``children`` are the
    positions of runs that were reopened with it: the replay must wait for them.
    """
    definition = DEFINITIONS[row.workflow]
    args, kwargs = definition.inputs_codec.decode(row.inputs)
    execution = _CheckedReplay(
        world,
        row.id,
        partial(definition.execute, args, kwargs, DEFAULT_MAX_VALUE_BYTES),
        workflow=row.workflow,
        start_time=row.clock_started_at,
        seed=row.seed,
        rewind_points=row.rewind_points,
    )
    world.counts["replays"] += 1
    try:
        execution.start()
        _run_turns(execution)
        for at, record in enumerate(journal):
            if execution.try_start_compensation(islice(journal, at, None)):
                _run_turns(execution)
            if execution.result is not None:
                execution.deliver_after_end(record)
            else:
                execution.deliver(record)
            _run_turns(execution)
        if execution.try_start_compensation():
            _run_turns(execution)
        if execution.fatal_error is not None:
            world.fail("P5 every journal replays", f"{row.id}: {execution.fatal_error}")
        elif ended is not None and not _can_continue(execution, ended):
            world.fail("a retry takes back what ended the run", f"{row.id}: {execution.result}")
        elif any(position not in execution.open_commands for position in children):
            world.fail(
                "a retry reopens only children that are awaited again",
                f"{row.id}: {children}, not {[*execution.open_commands]}",
            )
        elif row.state.is_terminal and row.state is not RunState.DEAD and row.epoch:
            _check_ending(world, row, execution)
    finally:
        execution.unload()


def _can_continue(execution: Execution, ended: Run) -> bool:
    """Whether a run that was retried has something left to do, or ends in another way than before."""
    ending = execution.result
    if ended.rewind is None or not ended.rewind.failed_seqs or ending is None:
        return True
    end = make_run_outcome(ending, ended.id)
    return (end.state, _summarize_error(end.error)) != (ended.state, _summarize_error(ended.error))


def _summarize_error(error: bytes | None) -> tuple[str, str] | None:
    told = None if error is None else read_error_info(error)
    return None if told is None else (told.type, told.message)


def _run_turns(execution: Execution) -> None:
    while not execution.turn():
        pass


def _check_ending(world: World, row: Run, execution: Execution) -> None:
    ending = execution.result
    if ending is None:
        world.fail("P5 a replay ends as recorded", f"{row.id} is {row.state.value}, its replay has not ended")
        return
    end = make_run_outcome(ending, row.id)
    known, now = _summarize_error(row.error), _summarize_error(end.error)
    if (row.state, row.output, known) != (end.state, end.output, now):
        world.fail("P5 a replay ends as recorded", f"{row.id} is {row.state} {row.output!r} {known}, its replay {end}")
    if row.rewind != ending.rewind:
        world.fail(
            "P5 a retry would take back the same after a replay", f"{row.id}: {row.rewind}, its replay {ending.rewind}"
        )
