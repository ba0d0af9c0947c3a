"""A recorded run against the code of today: does it still do what the journal says it did?

``replay`` does with a journal what a worker does that takes the run over, and no more: the workflow's code runs until
it is idle, gets one record, and so on. There is no engine, no store and no clock: no step is executed, whatever is
recorded, and the code sees the time of the records. When the journal is used up, what the code has come to is compared
with what was recorded:

- a *completed* run must end with the same output, byte for byte;
- a *failed* run must fail with the same error; but if it failed because the code of that day did not fit its journal
  (``NonDeterminismError`` and its like), then today's code is there to mend that, and it fits when it can go on;
- a *cancelled* run must give in to its cancellation, if that is in its journal: a run that was cancelled before anybody
  had begun it has none;
- any other run must be able to go on, and the steps that were in flight must be asked for under the same names.

Runs that the workflow has started, and steps that undo others, are records like any: they are neither started nor done.

Keep the journals of runs from production beside the tests, and ``replay_journal`` says before a deploy what it would do
to the runs that are under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from os import PathLike
from typing import Any, Literal

from holdfast import errors
from holdfast.authoring.registry import definitions
from holdfast.authoring.workflow import Workflow
from holdfast.codec import LARGEST, decode_error, describe_error, encode_error, preview, to_plain
from holdfast.core.commands import Command
from holdfast.core.execution import Ending
from holdfast.core.patches import Patches
from holdfast.core.records import Kind
from holdfast.core.states import RunState
from holdfast.engine import replay_logging
from holdfast.engine.definitions import ChildCall, WorkflowDefinition
from holdfast.engine.run_approvals import ApprovalCall
from holdfast.engine.run_outcome import end_of
from holdfast.errors import (
    CodecError,
    HoldfastError,
    InputError,
    ReplayError,
    StoreError,
    UnknownWorkflow,
    UnreadableRecord,
    UsageError,
)
from holdfast.services.journal_files import Journal
from holdfast.stores.served_versions import served_name
from holdfast.testing.traced_execution import Issued, TracedExecution

_NOT_OF_THE_RUN = (ReplayError, UnreadableRecord, InputError, StoreError)
"""Errors that ended a run although its own code did not: mended code, or a mended database, lets it go on."""

_STEPS = (Kind.STEP, Kind.COMPENSATION)
"""What is carried out as a step."""

AnyWorkflow = Workflow[..., Any] | WorkflowDefinition
Whereabouts = Literal["completed", "failed", "cancelled", "waiting"]


class JournalMismatch(AssertionError):
    """Today's code can be replayed with the journal, but comes to another end than the one recorded."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Where today's code stands after a journal."""

    run_id: str
    workflow: str
    recorded: RunState
    """The run's state when it was exported."""
    state: Whereabouts
    """Where the code has come to. Code that does not fit the journal has ``failed``, as it would on a worker."""
    replayed: int
    """How many records the code has taken; all of the journal, unless there is a ``fault``."""
    issued: tuple[Issued, ...]
    """All that the code asked for, with the arguments of steps as bytes."""
    keys: Mapping[int, str]
    """The idempotency key of each step in ``issued``, by position."""
    waits_for: tuple[str, ...] = ()
    """In words, what it waits for: steps that have no record, signals, other runs, the next timer."""
    output: Any = None
    """The result, if it has completed."""
    output_bytes: bytes | None = None
    """The result as it would be recorded."""
    error: BaseException | None = None
    """Why it failed."""
    fault: HoldfastError | None = None
    """Why this code cannot go on with this journal: a ``NonDeterminismError`` as a rule."""
    differs: str = ""
    """What is not as it was recorded, if there is no ``fault``; empty when nothing is."""

    @property
    def fits(self) -> bool:
        """Whether today's code does what was recorded."""
        return self.fault is None and not self.differs

    def check(self) -> None:
        """Raise the ``fault``, or ``JournalMismatch``, when it does not fit."""
        if self.fault is not None:
            raise self.fault
        if self.differs:
            raise JournalMismatch(self.differs)


def replay(journal: Journal, workflow: AnyWorkflow | None = None) -> Replayed:
    """Run today's code of a workflow through a journal, and tell what came of it. Nothing is executed or recorded.

    Raises ``UnknownWorkflow`` or ``UsageError`` when there is nothing to replay it with.
    """
    definition = _definition(journal, workflow)
    replay_logging.install()
    try:
        args, kwargs = definition.inputs.decode(journal.run.inputs)
    except HoldfastError as error:
        return _unfit(journal, error)
    run = journal.run
    execution = TracedExecution(
        run.id,
        partial(definition.execute, args, kwargs, LARGEST),
        workflow=run.workflow,
        start_time=run.began_at,
        seed=run.seed,
        recorded_python=run.python,
        rewound=run.rewound,
        patches=Patches(journal.records, _begun(journal), is_over=run.state.is_terminal),
    )
    execution.start()
    try:
        taken = _deliver_all(execution, journal)
        return _where_it_stands(execution, journal, definition, taken)
    finally:
        execution.leave()


def replay_journal(path: str | PathLike[str], workflow: AnyWorkflow | None = None) -> Replayed:
    """Replay a journal file in a test: raises when today's code does not fit it.

    Args:
        path: a file that ``holdfast export`` has written.
        workflow: the workflow it is a run of; found by its name among those that this process knows unless given.

    Raises:
        NonDeterminismError: the code no longer does what was recorded (with a diff of the two).
        JournalMismatch: it does, but ends otherwise (an ``AssertionError``).
        UsageError: the file is not a journal.
        UnknownWorkflow: no workflow of that name is known.
    """
    replayed = replay(Journal.read(path), workflow)
    replayed.check()
    return replayed


def _definition(journal: Journal, workflow: AnyWorkflow | None) -> WorkflowDefinition:
    name, version = journal.run.workflow, journal.run.version
    if workflow is None:
        found = definitions.get(served_name(name, version))
        if found is None:
            of = f"version {version!r} of workflow {name!r}" if version else f"workflow {name!r}"
            raise UnknownWorkflow(
                f"the journal is that of a run of {of}, and no such workflow is defined in this process "
                f"(known: {', '.join(definitions) or 'none'}). Import the module that defines it first, or say which "
                f"workflow to replay it with."
            )
        return found
    definition = workflow.definition if isinstance(workflow, Workflow) else workflow
    if definition.name != name:
        # Not a detail: a worker finds the code of a run by this name, so the run would wait for ever.
        raise UsageError(
            f"the journal is that of a run of workflow {name!r}, not of {definition.name!r}. If that is what it is "
            f"called now, let it keep its name for the store with `@workflow(name={name!r})`."
        )
    return definition


# Replaying


def _begun(journal: Journal) -> list[int]:
    told = [signal.position for signal in journal.signals if signal.position is not None]
    return [*(attempt.position for attempt in journal.attempts), *told]


def _deliver_all(execution: TracedExecution, journal: Journal) -> int:
    """Hand every record to the code, as the engine's driver does; returns how many of them it took."""
    taken = 0
    _turn(execution)
    for at, record in enumerate(journal.records):
        if execution.begin_undoing(islice(journal.records, at, None)):
            _turn(execution)
        if execution.fault is not None:
            break
        if execution.ending is not None:
            execution.leftover(record)
        else:
            execution.deliver(record)
        taken += execution.fault is None
        _turn(execution)
    if execution.begin_undoing():
        _turn(execution)
    return taken


def _turn(execution: TracedExecution) -> None:
    while not execution.turn():
        pass


def _where_it_stands(
    execution: TracedExecution, journal: Journal, definition: WorkflowDefinition, taken: int
) -> Replayed:
    issued = tuple(execution.issued)
    keys = {one.position: execution.idempotency_key(one.position, one.name) for one in issued if one.kind in _STEPS}
    if execution.fault is not None:
        return _unfit(journal, execution.fault, taken, issued, keys)
    ending = execution.ending
    state: Whereabouts = "waiting"
    output, data, error = None, None, None
    if ending is not None and ending.error is None:
        state, data = "completed", ending.value
        output = definition.output.decode(ending.value, definition.result_label)
    elif ending is not None:
        state, error = _unsuccessful(ending, journal.run.id)
    waits = () if ending is not None else _waits(execution)
    return Replayed(
        run_id=journal.run.id,
        workflow=journal.run.workflow,
        recorded=journal.run.state,
        state=state,
        replayed=taken,
        issued=issued,
        keys=keys,
        waits_for=waits,
        output=output,
        output_bytes=data,
        error=error,
        differs=_difference(journal, state, data, error, waits) or _lost_step(journal, issued),
    )


def _unsuccessful(ending: Ending, run_id: str) -> tuple[Whereabouts, BaseException | None]:
    """How the engine would tell an end without a result."""
    end = end_of(ending, run_id)
    if end.state is RunState.CANCELLED:
        return "cancelled", None
    if ending.not_undone is not None and end.error is not None:
        return "failed", decode_error(end.error, ())
    return "failed", ending.error


def _unfit(
    journal: Journal,
    fault: HoldfastError,
    taken: int = 0,
    issued: tuple[Issued, ...] = (),
    keys: Mapping[int, str] | None = None,
) -> Replayed:
    run = journal.run
    return Replayed(run.id, run.workflow, run.state, "failed", taken, issued, keys or {}, error=fault, fault=fault)


def _waits(execution: TracedExecution) -> tuple[str, ...]:
    words = [_wait_in_words(command) for command in execution.open.values()]
    timer = execution.loop.next_timer()
    return tuple(dict.fromkeys([*words, *([] if timer is None else [f"a timer ({timer.name})"])]))


def _wait_in_words(command: Command) -> str:
    if command.kind is Kind.SIGNAL:
        return f"signal {command.name!r}"
    if command.kind is Kind.CHILD and isinstance(command.call, ChildCall):
        return f"run {command.call.run_id!r}"
    if isinstance(command.call, ApprovalCall):
        return f"an answer to {command.call.question.text!r}"
    return f"{command.kind.label} {command.name!r} (#{command.position + 1})"


# Comparing


def _difference(
    journal: Journal, state: str, output: bytes | None, error: BaseException | None, waits: Sequence[str]
) -> str:
    """What today's ending has that the recorded one has not; nothing when they agree."""
    run = journal.run
    if run.state is RunState.COMPLETED and (state, output) != ("completed", run.output):
        if state == "completed":
            return f"run {run.id!r} comes to another result today.\n{_side_by_side(run.output, output)}"
        return f"run {run.id!r} is recorded as completed, but today it {_in_words(state, error, waits)}"
    if run.state is RunState.FAILED and run.error is not None:
        recorded = describe_error(run.error)
        if _is_not_of_the_run(recorded.type):
            return ""
        now = None if error is None else describe_error(encode_error(error))
        if now is None or not _same_type(recorded.type, now.type) or recorded.message != now.message:
            told = f"{recorded.type}: {recorded.message}"
            return f"run {run.id!r} is recorded as failed ({told}), but today it {_in_words(state, error, waits)}"
    is_told = any(record.kind is Kind.CANCEL for record in journal.records)
    if run.state is RunState.CANCELLED and is_told and state != "cancelled":
        return f"run {run.id!r} is recorded as cancelled, but today it {_in_words(state, error, waits)}"
    return ""


def _lost_step(journal: Journal, issued: Sequence[Issued]) -> str:
    """A step that was in flight, and that today's code does not ask for."""
    if journal.run.state.is_terminal:
        return ""
    for attempt in journal.attempts:
        now = issued[attempt.position] if attempt.position < len(issued) else None
        if attempt.name and (now is None or now.kind not in _STEPS or now.name != attempt.name):
            today = "nothing" if now is None else f"{now.kind.label} {now.name!r}"
            return (
                f"run {journal.run.id!r} was exported with step {attempt.name!r} (#{attempt.position + 1}) in flight, "
                f"but today's code asks for {today} there"
            )
    return ""


def _is_not_of_the_run(name: str) -> bool:
    module, _, cls = name.rpartition(".")
    found = getattr(errors, cls, None) if module == errors.__name__ else None
    return isinstance(found, type) and issubclass(found, _NOT_OF_THE_RUN)


def _same_type(one: str, other: str) -> bool:
    # What a script calls `__main__.Declined` is `app.Declined` for a worker, and for a test.
    last_parts = one.rpartition(".")[2] == other.rpartition(".")[2]
    return one == other or (last_parts and "__main__" in (one.partition(".")[0], other.partition(".")[0]))


def _in_words(state: str, error: BaseException | None, waits: Sequence[str]) -> str:
    if state == "waiting":
        return f"waits for {' or '.join(waits)}"
    if state == "cancelled":
        return "ends cancelled"
    return "completes" if error is None else f"fails with {type(error).__qualname__}: {error}"


def _side_by_side(recorded: bytes | None, today: bytes | None) -> str:
    before, now = _shown(recorded), _shown(today)
    if before == now:  # the short forms do not show it
        one, other = recorded or b"", today or b""
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        before, now = (f"…{_cut(part, at)}… (from byte {at} on)" for part in (one, other))
    return f"  recorded: {before}\n  today:    {now}"


def _shown(data: bytes | None) -> str:
    try:
        return "nothing" if data is None else preview((), (to_plain(data),), {})
    except CodecError:
        return repr(data)[:512]


def _cut(data: bytes, at: int) -> str:
    return data[at : at + 60].decode("utf-8", "backslashreplace")
