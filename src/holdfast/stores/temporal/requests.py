"""What anybody can ask of a run, as messages to its workflow: signals, cancelling, pausing, answers to questions."""

from __future__ import annotations

import asyncio

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from holdfast.errors import UsageError
from holdfast.stores.approvals import AnswerApproval, ApprovalState
from holdfast.stores.operations import CancelRun, CancelState, OpStatus, PauseRun, ResumeRun, SendSignal, SetBudget
from holdfast.stores.rules import decide_cancel, decide_pause
from holdfast.stores.temporal import budgets, identifiers
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.payloads import to_raw_value
from holdfast.stores.temporal.rows import ExecutionDescription, describe_execution, read_row
from holdfast.stores.temporal.run_details import read_approvals, read_signal_ids
from holdfast.stores.temporal.run_memo import budget_from_memo

MAX_IDLE_POLLS = 100
IDLE_POLL_INTERVAL_S = 0.02
"""How often, and how many seconds apart, it is looked whether a run is at rest."""


async def find_run(client: Client, run_id: str) -> ExecutionDescription | None:
    """What is told of a run; ``None``: there is none, or it is something that Holdfast keeps for itself."""
    told = await describe_execution(client, run_id)
    return told if told is not None and told.is_run else None


async def send_signal(client: Client, histories: HistoryCache, op: SendSignal) -> OpStatus:
    """Send a signal. The run itself passes over what was sent before under the same deduplication id."""
    if op.name.startswith(identifiers.RESERVED_PREFIX):
        raise UsageError(
            f"signal {op.name!r} for run {op.run_id!r}: names that begin with {identifiers.RESERVED_PREFIX!r} are "
            "Holdfast's "
            "own on "
            f"Temporal. Choose another name"
        )
    told = await find_run(client, op.run_id)
    if told is None:
        return OpStatus.UNKNOWN_RUN
    if op.dedup_key is not None and op.dedup_key in await read_signal_ids(
        histories, await _wait_until_idle(client, told)
    ):
        return OpStatus.DUPLICATE
    more = () if op.dedup_key is None else (op.dedup_key,)
    return await _signal_run(client, told, op.name, to_raw_value(op.payload), *more)


async def _wait_until_idle(client: Client, execution: ExecutionDescription) -> ExecutionDescription:
    """What is told of a run when nobody takes it a step further: until then, the server keeps signals to itself.

    That takes some milliseconds; somebody who dies over it is not waited for.
    """
    for _ in range(MAX_IDLE_POLLS):
        if not execution.is_task_started:
            break
        await asyncio.sleep(IDLE_POLL_INTERVAL_S)
        execution = await find_run(client, execution.id) or execution
    return execution


async def _signal_run(client: Client, execution: ExecutionDescription, name: str, *args: object) -> OpStatus:
    """Send a message to a run, unless it has ended."""
    if not execution.is_open:
        return OpStatus.ENDED
    try:
        # To whichever execution is there: it may have continued as new since it was described.
        await client.get_workflow_handle(execution.id).signal(name, args=list(args))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return OpStatus.ENDED
        raise
    return OpStatus.DONE


async def cancel_run(client: Client, op: CancelRun) -> OpStatus:
    """Ask for a run to be cancelled."""
    told = await find_run(client, op.run_id)
    if told is None:
        return OpStatus.UNKNOWN_RUN
    run = await read_row(client, told, include_external=False)
    verdict = decide_cancel(
        run.state, run.cancel_state, is_paused=run.paused_at is not None, has_same_seed=op.seed in (None, run.seed)
    )
    if verdict is not OpStatus.DONE:
        return verdict
    if run.cancel_state is not CancelState.NONE:  # it was paused after that
        return await _signal_run(client, told, identifiers.RESUME_SIGNAL)
    try:
        await client.get_workflow_handle(told.id).cancel()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return OpStatus.ENDED
        raise
    return OpStatus.DONE


async def pause_or_resume_run(client: Client, op: PauseRun | ResumeRun) -> OpStatus:
    """Keep a run from going on, or let it go on."""
    told = await find_run(client, op.run_id)
    if told is None:
        return OpStatus.UNKNOWN_RUN
    wanted = isinstance(op, PauseRun)
    if not told.is_open:
        return OpStatus.ENDED
    run = await read_row(client, told, include_external=False)
    verdict = decide_pause(run.state, is_paused=run.paused_at is not None, should_pause=wanted)
    return (
        verdict
        if verdict is not OpStatus.DONE
        else await _signal_run(client, told, identifiers.PAUSE_SIGNAL if wanted else identifiers.RESUME_SIGNAL)
    )


async def set_budget(client: Client, op: SetBudget) -> OpStatus:
    """Give a run another budget, and let those ask again that were refused."""
    told = await find_run(client, op.run_id)
    if told is None:
        return OpStatus.UNKNOWN_RUN
    run = await read_row(client, told, include_external=False)
    return await budgets.set_budget(client, run, budget_from_memo(told.run_memo), op.budget)


async def answer_approval(client: Client, histories: HistoryCache, run_id: str, op: AnswerApproval) -> OpStatus:
    """Answer a question of this run."""
    told = await find_run(client, run_id)
    if told is None:
        return OpStatus.UNKNOWN_APPROVAL
    asked = next((one for one in await read_approvals(histories, told) if one.id == op.id), None)
    if asked is None:
        is_open = any(str(one["id"]) == op.id for one in told.open_approvals)
        return await _send_answer(client, told, op) if is_open else OpStatus.UNKNOWN_APPROVAL
    if asked.state is ApprovalState.ANSWERED:
        return OpStatus.DUPLICATE
    return OpStatus.ENDED if asked.state is ApprovalState.WITHDRAWN else await _send_answer(client, told, op)


async def _send_answer(client: Client, execution: ExecutionDescription, op: AnswerApproval) -> OpStatus:
    return await _signal_run(client, execution, identifiers.ANSWER_SIGNAL, op.id, to_raw_value(op.payload))
