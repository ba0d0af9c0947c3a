"""Workflows that workflow code calls: each is a run of its own, with its own journal, in its own queue.

``await child(...)`` starts a run and waits; cancelling the call cancels the run. ``await child.start(...)`` starts an
independent run, which may be awaited, signalled, and cancelled through its handle, and continues when its starter ends.
Either way the run's id follows from the id of its parent and the position of the call, unless the child has an id
template or is given an id. So a call that is repeated after a crash finds the run that it has started.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from holdfast.authoring.step import STORE_RETRY_POLICY, define_step
from holdfast.client.handle import Handle
from holdfast.codec import decode_error
from holdfast.codec.run_ids import MAX_ID_LENGTH
from holdfast.core.commands import Outcome
from holdfast.core.execution import Execution
from holdfast.core.failure_origin import mark_origin
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.engine.definitions import ChildCall, StepCall, WorkflowDefinition
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import RunEnded, UsageError
from holdfast.services.run_outcome import EndedRun, make_unsuccessful_error
from holdfast.services.run_start import build_new_run, check_same_run, resolve_start
from holdfast.services.store_provider import StoreProvider
from holdfast.stores.approvals import AnswerApproval
from holdfast.stores.contract import Store
from holdfast.stores.operations import ClientOp, NewRun, OpStatus, SendSignal, StartResult

if TYPE_CHECKING:
    from holdfast.authoring.workflow import Workflow


async def call_child(execution: Execution, workflow: Workflow[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a workflow as a child of the calling run, and return its result."""
    call = make_child_call(execution, workflow, args, kwargs)
    _, result = await _await_child(execution, workflow.definition, call)
    return result


def make_child_call(execution: Execution, workflow: Workflow[..., Any], args: Any, kwargs: Any) -> ChildCall:
    """A call of a workflow for the next command of the calling run, which must be issued at once."""
    new, make = _prepare_child(execution, workflow, args, kwargs)

    def check(answer: StartResult) -> None:
        check_same_run(answer.run, new)

    return ChildCall(new.id, check, make, new.seed)


async def start_child(execution: Execution, workflow: Workflow[..., Any], args: Any, kwargs: Any) -> Handle[Any]:
    """Start an independent run from workflow code."""
    new, make = _prepare_child(execution, workflow, args, kwargs)

    def check(answer: StartResult) -> None:
        check_same_run(answer.run, new)
        resolve_start(answer, new)

    definition = workflow.definition
    outcome = await execution.issue(RecordKind.START, definition.name, ChildCall(new.id, check, make))
    if not outcome.record.ok:
        raise _decode_failure(execution, outcome, definition)
    run_id = json.loads(outcome.record.payload or b"null")
    return workflow.get_handle(_WorkflowStoreProvider(execution, definition), run_id)


def _prepare_child(
    execution: Execution, workflow: Workflow[..., Any], args: Any, kwargs: Any
) -> tuple[NewRun, Callable[[float], NewRun]]:
    """The run to start, and a function that makes it for a start time."""
    definition, options = workflow.definition, workflow.start_options
    if options.dedup is not None:
        raise UsageError(
            f"workflow {definition.name!r}: dedup={options.dedup!r} is for starts from outside. What workflow code "
            f"starts must be the same run when the code is replayed: give it an id, as in "
            f".options(id={options.dedup!r}), or start it in a step, with a Client"
        )
    spec, position = definition.to_spec(), execution.next_position
    if options.id is None and spec.id_template is None:
        suffix = execution.seeded_random.make_child_id_suffix(position)
        options = replace(options, id=_make_child_id(execution.run_id, spec.name, suffix))
    given = workflow.prepare_start(args, kwargs)
    inputs = definition.inputs_codec.encode(given.args, given.kwargs)
    seed = execution.seeded_random.derive_child_seed(position)

    def make(now: float) -> NewRun:
        return replace(
            build_new_run(spec, inputs, options, now=now, defaults=definition.defaults),
            seed=seed,
            parent=execution.run_id,
        )

    new = make(0.0)
    if given.bind_run is not None:
        given.bind_run(new.id)
    return new, make


def _make_child_id(parent_id: str, name: str, position: str) -> str:
    run_id = f"{parent_id}:{name}-{position}"
    if len(run_id) <= MAX_ID_LENGTH:
        return run_id
    return f"{name[:100]}-{hashlib.blake2b(run_id.encode(), digest_size=12).hexdigest()}"


async def _await_child(execution: Execution, definition: WorkflowDefinition, call: ChildCall) -> tuple[EndedRun, Any]:
    """How the run of this call ended, and its result; raises if it failed."""
    outcome = await execution.issue(RecordKind.CHILD, definition.name, call)
    record = outcome.record
    if record.ok:
        ended = EndedRun(call.run_id, definition.name, RunState.COMPLETED, record.payload, None)
        what = f"{definition.result_label} (run {call.run_id!r}, #{record.position + 1} of run {execution.run_id!r})"
        with execution.guard_decoding():
            return ended, definition.output_codec.decode(record.payload or b"null", what)
    failure = json.loads(record.payload or b"null")
    if "child" not in failure:
        raise _decode_failure(execution, outcome, definition)
    ended = EndedRun(
        failure["child"],
        definition.name,
        RunState(failure["state"]),
        None,
        None if failure["error"] in (None, "null") else failure["error"].encode(),
    )
    with execution.guard_decoding():
        error = make_unsuccessful_error(ended, [definition.namespace])
    mark_origin(error, outcome.origin)
    raise error


def _decode_failure(execution: Execution, outcome: Outcome, definition: WorkflowDefinition) -> Exception:
    with execution.guard_decoding():
        error = decode_error(outcome.record.payload or b"null", [definition.namespace])
    mark_origin(error, outcome.origin)
    return error


class _WorkflowStoreProvider(StoreProvider):
    """The store for handles in workflow code: every change is a recorded command, and nothing can be read."""

    can_read = False

    def __init__(self, execution: Execution, definition: WorkflowDefinition) -> None:
        self._execution = execution
        self._definition = definition

    @override
    async def store(self) -> Store:
        raise UsageError(
            "workflow code cannot read other runs, nor answer their approvals, because that would differ on replay: do "
            "it in a step, with a Client"
        )

    @override
    async def now(self) -> float:
        return self._execution.loop.time()

    @override
    async def wait_for_end(self, run_id: str) -> EndedRun:
        # Cancelling this wait does not cancel the run.
        ended, _ = await _await_child(self._execution, self._definition, ChildCall(run_id, lambda _: None))
        return ended

    @override
    async def change(self, op: ClientOp) -> OpStatus:
        outcome = await self._execution.issue(RecordKind.STEP, _CHANGE_STEP.name, StepCall(_CHANGE_STEP, (op,), {}))
        if not outcome.record.ok:
            raise _decode_failure(self._execution, outcome, self._definition)
        status = OpStatus(json.loads(outcome.record.payload or b"null"))
        # Raised here: outside of workflow code, the caller reads the run again to say how it ended.
        if status is OpStatus.ENDED and not isinstance(op, AnswerApproval):
            ended = RunEnded(f"run {op.run_id!r} has ended: it can be neither signalled nor changed", op.run_id)
            mark_origin(ended, outcome.origin)
            raise ended
        return status


async def _change_run(op: ClientOp) -> str:
    """A step that sends a signal to another run, or cancels, pauses, or resumes it."""
    executor = get_step_executor()
    if isinstance(op, SendSignal) and op.dedup_key is None:
        op = op._replace(dedup_key=executor.idempotency_key)  # a step may run again after a crash: it counts once
    return (await executor.change_run(op)).value


_CHANGE_STEP = define_step(_change_run, "change run", retry=STORE_RETRY_POLICY)
