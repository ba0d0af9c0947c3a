"""From what is recorded of a run, and what was seen of it, to what a test may look at."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.admission.usage import Usage
from holdfast.agents.llm_answers import Unfit
from holdfast.authoring.classes.graph import fan_outs_of
from holdfast.authoring.registry import definition_of
from holdfast.codec import decode_error, describe_error
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import BudgetExceeded, CodecError, StepFailed
from holdfast.reports.recorded_reply import reply_of
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.run_outcome import unsuccessful
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.operations import Run
from holdfast.testing.results import Children, RunResult, StepResult, Steps
from holdfast.testing.simulated_process import RunTrace, World
from holdfast.testing.traced_execution import Issued, TracedExecution

_STEPS = (Kind.STEP, Kind.COMPENSATION)
_CHILDREN = (Kind.CHILD, Kind.START)


async def result_of_run(world: World, run: Run, *, crashed: bool, above: Collection[str] = ()) -> RunResult:
    """How a run stands, with its children; ``above`` are the runs whose children are being looked at."""
    definition = definition_of(run.workflow, run.version)
    trace = world.traces[run.id]
    output: Any = None
    error: BaseException | None = None
    if run.state is RunState.COMPLETED:
        output = definition.output.decode(run.output or b"null", definition.result_label)
    elif run.state.is_terminal:
        error = unsuccessful(run, [definition.namespace])
        error = error.__cause__ or error
    [history] = await world.store.histories([run.key])
    usages = await world.store.usages([run.id])
    asked = await world.store.approvals(ApprovalFilter(run.id, only_open=False))
    records = {record.position: record for record in history.records if record.kind in _STEPS}
    return RunResult(
        run_id=run.id,
        workflow=run.workflow,
        status=run.state.value,
        crashed=crashed,
        output=output,
        error=error,
        waits_for=run.waits_for,
        steps=_steps(trace, records, definition),
        children=await _children(world, trace, crashed, [*above, run.id]),
        is_paused=run.paused_at is not None and not run.state.is_terminal,
        usage=usages[run.id].used if run.id in usages else Usage(),
        approvals=[ApprovalInfo.of(row) for row in asked],
    )


async def _children(world: World, trace: RunTrace, crashed: bool, above: Collection[str]) -> Children:
    found: dict[int, RunResult] = {}
    seen = set(above)  # a run may be waited for more than once, and somebody may wait for one of its own ancestors
    for command in trace.lives[-1].issued if trace.lives else ():
        if command.kind not in _CHILDREN or command.run_id in seen:
            continue
        seen.add(command.run_id)
        run = await world.store.get(command.run_id)
        if run is not None:
            found[command.position + 1] = await result_of_run(world, run, crashed=crashed, above=above)
    return Children(found)


def _steps(trace: RunTrace, records: Mapping[int, Record], definition: WorkflowDefinition) -> Steps:
    numbers = definition.numbers
    declared = {number: name for name, number in numbers.items()}
    fan_outs = {number for name, number in numbers.items() if name in fan_outs_of(definition.function)}
    if not trace.lives:
        return Steps([], {}, declared, fan_outs)
    last = trace.lives[-1]
    replayed = {record.position for record in last.delivered[: last.replayed] if record.kind in _STEPS}
    undone = {last.undoes[at] for at, record in records.items() if at in last.undoes and record.ok}

    def number_of(command: Issued) -> int:
        if not numbers:
            return command.position + 1
        return 0 if command.kind is Kind.COMPENSATION else numbers.get(command.name, 0)

    steps: list[StepResult] = []
    others: dict[int, str] = {}
    for command in last.issued:
        position = command.position
        if command.kind not in _STEPS:
            others[position + 1] = _in_words(command)
            continue
        record = records.get(position)
        if record is not None and (record.kind, record.name) != (command.kind, command.name):
            record = None  # it is another step's: the code has changed, and the run has failed by that
        output, error = _outcome(last, record) if record is not None else (None, None)
        reply = None if record is None else reply_of(record)
        steps.append(
            StepResult(
                number=number_of(command),
                name=command.name,
                output=output,
                error=error,
                is_recorded=record is not None,
                was_replayed=record is not None and position in replayed,
                attempts=0 if record is None else record.attempts,
                executions=trace.executions[position],
                undoes=number_of(last.issued[last.undoes[position]]) if position in last.undoes else None,
                was_undone=position in undone,
                was_repeated=isinstance(output, Unfit) or isinstance(error, BudgetExceeded),
                usage=None if reply is None else reply.usage,
            )
        )
    return Steps(steps, {} if numbers else others, declared, fan_outs)


def _in_words(command: Issued) -> str:
    if command.kind is Kind.SIGNAL:
        return f"the wait for signal {command.name!r}"
    if command.kind is Kind.APPROVAL:
        return "a question to a person (see `.approvals`)"
    return f"a run of workflow {command.name!r} (see `.children`)"


def _outcome(execution: TracedExecution, record: Record) -> tuple[Any, BaseException | None]:
    step = execution.calls[record.position]
    payload = record.payload or b"null"
    if record.ok:
        return step.output.decode(payload, f"the output of step {step.name!r}"), None
    try:
        return None, decode_error(payload, [step.namespace])
    except CodecError:
        info = describe_error(payload)
        return None, StepFailed(f"{info.type}: {info.message}", step.name)
