"""Replays a recorded run with today's code, and checks that the code still does what the journal recorded.

``replay`` does what a worker does when it takes over a run: the workflow's code runs until it is idle, gets one record,
and so on. There is no engine, no store, and no clock. No step is executed, and the code sees the times of the records.
At the end of the journal, the state of the code is compared with the recorded one:

- A *completed* run must return the same output, byte for byte.
- A *failed* run must fail with the same error. If it failed because its code did not fit its journal
  (``NonDeterminismError`` and similar errors), today's code may be the fix, so it only has to be able to continue.
- A *cancelled* run must end cancelled, if its journal has the cancellation. A run that was cancelled before a worker
  claimed it has none.
- Any other run must be able to continue, and must call the steps that were in flight under the same names.

Child runs and compensations are records like any others: nothing is started or undone.

Keep journals of production runs with your tests, and ``replay_journal`` shows before a deploy what it would do to the
runs in progress.
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
from holdfast.codec import (
    DEFAULT_MAX_VALUE_BYTES,
    decode_error,
    decode_plain,
    encode_error,
    preview_arguments,
    read_error_info,
)
from holdfast.core.commands import Command
from holdfast.core.patches import Patches
from holdfast.core.records import RESTORED_POSITION, RecordKind
from holdfast.core.states import RunState
from holdfast.core.workflow_code import ExecutionResult
from holdfast.engine import replay_logging
from holdfast.engine.definitions import ChildCall, WorkflowDefinition
from holdfast.engine.run_approvals import ApprovalCall
from holdfast.engine.run_outcome import make_run_outcome
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
from holdfast.stores.served_versions import make_served_name
from holdfast.testing.traced_execution import IssuedCommand, TracedExecution

_INFRASTRUCTURE_ERRORS = (ReplayError, UnreadableRecord, InputError, StoreError)
"""Errors that ended a run although its own code did not: with fixed code, or a repaired database, it can continue."""

_STEP_KINDS = (RecordKind.STEP, RecordKind.COMPENSATION)
"""Kinds that are executed as steps."""

AnyWorkflow = Workflow[..., Any] | WorkflowDefinition
ReplayState = Literal["completed", "failed", "cancelled", "waiting"]


class JournalMismatch(AssertionError):
    """Today's code fits the journal, but ends differently from what was recorded."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The outcome of a replay with today's code."""

    run_id: str
    workflow: str
    recorded_state: RunState
    """The run's state when it was exported."""
    state: ReplayState
    """The state after the replay. Code that does not fit the journal has ``failed``, as it would on a worker."""
    replayed_count: int
    """Number of records replayed: the whole journal, unless there is a ``replay_error``."""
    commands: tuple[IssuedCommand, ...]
    """All commands that the code issued, with the arguments of steps as bytes."""
    idempotency_keys: Mapping[int, str]
    """The idempotency key of each step in ``commands``, by position."""
    waits_for: tuple[str, ...] = ()
    """What the run waits for, in words: steps without a record, signals, other runs, the next timer."""
    output: Any = None
    """The result, if the run completed."""
    output_bytes: bytes | None = None
    """The result as it would be recorded."""
    error: BaseException | None = None
    """Why the run failed."""
    replay_error: HoldfastError | None = None
    """Why this code cannot continue with this journal: usually a ``NonDeterminismError``."""
    difference: str = ""
    """How the outcome differs from the recorded one, if there is no ``replay_error``; empty if it does not."""

    @property
    def is_match(self) -> bool:
        """Whether today's code does what was recorded."""
        return self.replay_error is None and not self.difference

    def check(self) -> None:
        """Raise the ``replay_error``, or ``JournalMismatch``, if there is one."""
        if self.replay_error is not None:
            raise self.replay_error
        if self.difference:
            raise JournalMismatch(self.difference)


def replay(journal: Journal, workflow: AnyWorkflow | None = None) -> ReplayResult:
    """Replay a journal with today's code of its workflow. Nothing is executed or recorded.

    Raises ``UnknownWorkflow`` or ``UsageError`` if there is no workflow to replay it with.
    """
    definition = _find_definition(journal, workflow)
    if definition.is_program:
        raise UsageError(
            f"run {journal.run.id!r} is one of the program {definition.name!r}, whose journal cannot be replayed: its "
            "code really does what it does between its calls. `Runner().crash_everywhere(...)` tests a program, and "
            f"`holdfast fork {journal.run.id}` runs it again in a new run, with its recorded calls."
        )
    replay_logging.install_filter()
    try:
        args, kwargs = definition.inputs_codec.decode(journal.run.inputs)
    except HoldfastError as error:
        return _build_incompatible(journal, error)
    run = journal.run
    execution = TracedExecution(
        run.id,
        partial(definition.execute, args, kwargs, DEFAULT_MAX_VALUE_BYTES),
        workflow=run.workflow,
        start_time=run.clock_started_at,
        seed=run.seed,
        recorded_python=run.python_version,
        rewind_points=run.rewind_points,
        patches=Patches(journal.records, _list_started_positions(journal), has_run_ended=run.state.is_terminal),
    )
    execution.start()
    try:
        return _build_result(execution, journal, definition, _deliver_records(execution, journal))
    finally:
        execution.unload()


def replay_journal(path: str | PathLike[str], workflow: AnyWorkflow | None = None) -> ReplayResult:
    """Replay a journal file in a test, and raise if today's code does not fit it.

    Args:
        path: a file written by ``holdfast export``.
        workflow: the run's workflow. Default: the workflow with the recorded name.

    Raises:
        NonDeterminismError: the code no longer does what was recorded (with a diff of the two).
        JournalMismatch: it does, but ends differently (an ``AssertionError``).
        UsageError: the file is not a journal.
        UnknownWorkflow: no workflow of that name is defined in this process.
    """
    replayed = replay(Journal.read(path), workflow)
    replayed.check()
    return replayed


def _find_definition(journal: Journal, workflow: AnyWorkflow | None) -> WorkflowDefinition:
    name, version = journal.run.workflow, journal.run.version
    if workflow is None:
        found = definitions.get(make_served_name(name, version))
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
        # A worker finds the code of a run by this name, so the run would wait forever.
        raise UsageError(
            f"the journal is that of a run of workflow {name!r}, not of {definition.name!r}. If that is what it is "
            f"called now, let it keep its name for the store with `@workflow(name={name!r})`."
        )
    return definition


# Replaying


def _list_started_positions(journal: Journal) -> list[int]:
    signaled = [signal.position for signal in journal.signals if signal.position is not None]
    return [*(attempt.position for attempt in journal.attempts), *signaled]


def _deliver_records(execution: TracedExecution, journal: Journal) -> int:
    """Deliver every record as the engine's driver does. Returns how many of them the code accepted."""
    accepted_count = 0
    _run_turns(execution)
    for at, record in enumerate(journal.records):
        if execution.try_start_compensation(islice(journal.records, at, None)):
            _run_turns(execution)
        if execution.fatal_error is not None:
            break
        if execution.result is not None:
            execution.deliver_after_end(record)
        else:
            execution.deliver(record)
        accepted_count += execution.fatal_error is None
        _run_turns(execution)
    if execution.try_start_compensation():
        _run_turns(execution)
    return accepted_count


def _run_turns(execution: TracedExecution) -> None:
    while not execution.turn():
        pass


def _build_result(
    execution: TracedExecution, journal: Journal, definition: WorkflowDefinition, replayed_count: int
) -> ReplayResult:
    issued = tuple(execution.issued)
    keys = {
        command.position: execution.seeded_random.derive_idempotency_key(command.position, command.name)
        for command in issued
        if command.kind in _STEP_KINDS
    }
    if execution.fatal_error is not None:
        return _build_incompatible(journal, execution.fatal_error, replayed_count, issued, keys)
    ending = execution.result
    state: ReplayState = "waiting"
    output, data, error = None, None, None
    if ending is not None and ending.error is None:
        state, data = "completed", ending.value
        output = definition.output_codec.decode(ending.value, definition.result_label)
    elif ending is not None:
        state, error = _classify_failure(ending, journal.run.id)
    waits = () if ending is not None else _list_waits(execution)
    return ReplayResult(
        run_id=journal.run.id,
        workflow=journal.run.workflow,
        recorded_state=journal.run.state,
        state=state,
        replayed_count=replayed_count,
        commands=issued,
        idempotency_keys=keys,
        waits_for=waits,
        output=output,
        output_bytes=data,
        error=error,
        difference=_describe_difference(journal, state, data, error, waits) or _describe_lost_step(journal, issued),
    )


def _classify_failure(ending: ExecutionResult, run_id: str) -> tuple[ReplayState, BaseException | None]:
    """The state and the error that the engine would record for an end without a result."""
    end = make_run_outcome(ending, run_id)
    if end.state is RunState.CANCELLED:
        return "cancelled", None
    if ending.failed_compensation is not None and end.error is not None:
        return "failed", decode_error(end.error, ())
    return "failed", ending.error


def _build_incompatible(
    journal: Journal,
    replay_error: HoldfastError,
    replayed_count: int = 0,
    commands: tuple[IssuedCommand, ...] = (),
    idempotency_keys: Mapping[int, str] | None = None,
) -> ReplayResult:
    run = journal.run
    return ReplayResult(
        run.id,
        run.workflow,
        run.state,
        "failed",
        replayed_count,
        commands,
        idempotency_keys or {},
        error=replay_error,
        replay_error=replay_error,
    )


def _list_waits(execution: TracedExecution) -> tuple[str, ...]:
    words = [_describe_wait(command) for command in execution.open_commands.values()]
    timer = execution.loop.get_next_timer()
    return tuple(dict.fromkeys([*words, *([] if timer is None else [f"a timer ({timer.name})"])]))


def _describe_wait(command: Command) -> str:
    if command.kind is RecordKind.SIGNAL:
        return f"signal {command.name!r}"
    if command.kind is RecordKind.CHILD and isinstance(command.call, ChildCall):
        return f"run {command.call.run_id!r}"
    if isinstance(command.call, ApprovalCall):
        return f"an answer to {command.call.request.question!r}"
    return f"{command.kind.label} {command.name!r} (#{command.position + 1})"


# Comparing


def _describe_difference(
    journal: Journal, state: str, output: bytes | None, error: BaseException | None, waits: Sequence[str]
) -> str:
    """How today's outcome differs from the recorded one; empty if it does not."""
    run = journal.run
    if run.state is RunState.COMPLETED and (state, output) != ("completed", run.output):
        if state == "completed":
            return f"run {run.id!r} comes to another result today.\n{_format_side_by_side(run.output, output)}"
        return f"run {run.id!r} is recorded as completed, but today it {_describe_state(state, error, waits)}"
    if run.state is RunState.FAILED and run.error is not None:
        recorded = read_error_info(run.error)
        if _is_infrastructure_error(recorded.type):
            return ""
        now = None if error is None else read_error_info(encode_error(error))
        if now is None or not _is_same_type(recorded.type, now.type) or recorded.message != now.message:
            reason = f"{recorded.type}: {recorded.message}"
            today = _describe_state(state, error, waits)
            return f"run {run.id!r} is recorded as failed ({reason}), but today it {today}"
    has_cancel = any(record.kind is RecordKind.CANCEL for record in journal.records)
    if run.state is RunState.CANCELLED and has_cancel and state != "cancelled":
        return f"run {run.id!r} is recorded as cancelled, but today it {_describe_state(state, error, waits)}"
    return ""


def _describe_lost_step(journal: Journal, commands: Sequence[IssuedCommand]) -> str:
    """Names a step that was in flight and that today's code does not call; empty if there is none."""
    if journal.run.state.is_terminal:
        return ""
    for attempt in journal.attempts:
        now = commands[attempt.position] if attempt.position < len(commands) else None
        if (
            attempt.position != RESTORED_POSITION
            and attempt.name
            and (now is None or now.kind not in _STEP_KINDS or now.name != attempt.name)
        ):
            today = "nothing" if now is None else f"{now.kind.label} {now.name!r}"
            return (
                f"run {journal.run.id!r} was exported with step {attempt.name!r} (#{attempt.position + 1}) in flight, "
                f"but today's code asks for {today} there"
            )
    return ""


def _is_infrastructure_error(name: str) -> bool:
    module, _, cls = name.rpartition(".")
    found = getattr(errors, cls, None) if module == errors.__name__ else None
    return isinstance(found, type) and issubclass(found, _INFRASTRUCTURE_ERRORS)


def _is_same_type(one: str, other: str) -> bool:
    # `__main__.Declined` of a script is `app.Declined` for a worker and for a test.
    has_same_name = one.rpartition(".")[2] == other.rpartition(".")[2]
    return one == other or (has_same_name and "__main__" in (one.partition(".")[0], other.partition(".")[0]))


def _describe_state(state: str, error: BaseException | None, waits: Sequence[str]) -> str:
    if state == "waiting":
        return f"waits for {' or '.join(waits)}"
    if state == "cancelled":
        return "ends cancelled"
    return "completes" if error is None else f"fails with {type(error).__qualname__}: {error}"


def _format_side_by_side(recorded: bytes | None, today: bytes | None) -> str:
    before, now = _format_value(recorded), _format_value(today)
    if before == now:  # the short forms do not show the difference
        one, other = recorded or b"", today or b""
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        before, now = (f"…{_excerpt(part, at)}… (from byte {at} on)" for part in (one, other))
    return f"  recorded: {before}\n  today:    {now}"


def _format_value(data: bytes | None) -> str:
    try:
        return "nothing" if data is None else preview_arguments((), (decode_plain(data),), {})
    except CodecError:
        return repr(data)[:512]


def _excerpt(data: bytes, at: int) -> str:
    return data[at : at + 60].decode("utf-8", "backslashreplace")
