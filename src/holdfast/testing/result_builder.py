"""Builds the result that a test sees, from a run's journal and its trace."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.admission.usage import Usage
from holdfast.agents.llm_answers import InvalidAnswer
from holdfast.authoring.classes.graph import get_fan_out_names
from holdfast.authoring.registry import get_definition
from holdfast.codec import decode_error, read_error_info
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import BudgetExceeded, CodecError, StepFailed
from holdfast.reports.recorded_reply import reply_from_record
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.run_outcome import make_unsuccessful_error
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.operations import Run
from holdfast.testing.results import Children, RunResult, StepResult, Steps
from holdfast.testing.simulated_process import RunTrace, World
from holdfast.testing.traced_execution import IssuedCommand, TracedExecution

_STEP_KINDS = (RecordKind.STEP, RecordKind.COMPENSATION)
_CHILD_KINDS = (RecordKind.CHILD, RecordKind.START)


def build_short_result(run: Run, *, has_crashed: bool) -> RunResult:
    """A result without what the run did, for a caller who only needs to know whether it has ended."""
    return RunResult(
        run.id, run.workflow, run.state.value, has_crashed, None, None, run.waits_for, Steps([], {}), Children({})
    )


async def build_run_result(world: World, run: Run, *, has_crashed: bool, ancestors: Collection[str] = ()) -> RunResult:
    """The result of a run and its children. ``ancestors``: the runs whose children are being built."""
    definition = get_definition(run.workflow, run.version)
    trace = world.traces[run.id]
    output: Any = None
    error: BaseException | None = None
    if run.state is RunState.COMPLETED:
        output = definition.output_codec.decode(run.output or b"null", definition.result_label)
    elif run.state.is_terminal:
        error = make_unsuccessful_error(run, [definition.namespace])
        error = error.__cause__ or error
    [history] = await world.store.get_histories([run.key])
    usages = await world.store.get_usages([run.id])
    approvals = await world.store.list_approvals(ApprovalFilter(run.id, only_open=False))
    records = {record.position: record for record in history.records if record.kind in _STEP_KINDS}
    return RunResult(
        run_id=run.id,
        workflow=run.workflow,
        status=run.state.value,
        has_crashed=has_crashed,
        output=output,
        error=error,
        waits_for=run.waits_for,
        steps=_build_steps(trace, records, definition),
        children=await _build_children(world, trace, has_crashed, [*ancestors, run.id]),
        is_paused=run.paused_at is not None and not run.state.is_terminal,
        usage=usages[run.id].used if run.id in usages else Usage(),
        approvals=[ApprovalInfo.from_row(row) for row in approvals],
    )


async def _build_children(world: World, trace: RunTrace, has_crashed: bool, ancestors: Collection[str]) -> Children:
    found: dict[int, RunResult] = {}
    seen = set(ancestors)  # a run may be awaited more than once, and even by its own descendant
    for command in trace.traced_executions[-1].issued if trace.traced_executions else ():
        if command.kind not in _CHILD_KINDS or command.run_id in seen:
            continue
        seen.add(command.run_id)
        run = await world.store.get_run(command.run_id)
        if run is not None:
            found[command.position + 1] = await build_run_result(
                world, run, has_crashed=has_crashed, ancestors=ancestors
            )
    return Children(found)


def _build_steps(trace: RunTrace, records: Mapping[int, Record], definition: WorkflowDefinition) -> Steps:
    numbers = definition.step_numbers
    declared = {number: name for name, number in numbers.items()}
    fan_outs = {number for name, number in numbers.items() if name in get_fan_out_names(definition.function)}
    if not trace.traced_executions:
        return Steps([], {}, declared, fan_outs)
    last = trace.traced_executions[-1]
    replayed = {record.position for record in last.delivered[: last.replayed_count] if record.kind in _STEP_KINDS}
    compensated = {
        last.compensated_positions[at]
        for at, record in records.items()
        if at in last.compensated_positions and record.ok
    }

    def number_of(command: IssuedCommand) -> int:
        if not numbers:
            return command.position + 1
        return 0 if command.kind is RecordKind.COMPENSATION else numbers.get(command.name, 0)

    steps: list[StepResult] = []
    others: dict[int, str] = {}
    for command in last.issued:
        position = command.position
        if command.kind not in _STEP_KINDS:
            others[position + 1] = _describe_command(command)
            continue
        record = records.get(position)
        if record is not None and (record.kind, record.name) != (command.kind, command.name):
            record = None  # it belongs to another step: the run failed because its code has changed
        output, error = _decode_outcome(last, record) if record is not None else (None, None)
        reply = None if record is None else reply_from_record(record)
        steps.append(
            StepResult(
                number=number_of(command),
                name=command.name,
                output=output,
                error=error,
                is_recorded=record is not None,
                was_replayed=record is not None and position in replayed,
                attempt_count=0 if record is None else record.attempts,
                execution_count=trace.execution_counts[position],
                compensates=number_of(last.issued[last.compensated_positions[position]])
                if position in last.compensated_positions
                else None,
                was_compensated=position in compensated,
                was_repeated=isinstance(output, InvalidAnswer) or isinstance(error, BudgetExceeded),
                usage=None if reply is None else reply.usage,
            )
        )
    return Steps(steps, {} if numbers else others, declared, fan_outs)


def _describe_command(command: IssuedCommand) -> str:
    if command.kind is RecordKind.SIGNAL:
        return f"the wait for signal {command.name!r}"
    if command.kind is RecordKind.APPROVAL:
        return "an approval (see `.approvals`)"
    return f"a run of workflow {command.name!r} (see `.children`)"


def _decode_outcome(execution: TracedExecution, record: Record) -> tuple[Any, BaseException | None]:
    step = execution.step_definitions[record.position]
    payload = record.payload or b"null"
    if record.ok:
        return step.output_codec.decode(payload, f"the output of step {step.name!r}"), None
    try:
        return None, decode_error(payload, [step.namespace])
    except CodecError:
        info = read_error_info(payload)
        return None, StepFailed(f"{info.type}: {info.message}", step.name)
