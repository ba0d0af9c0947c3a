"""Requests to a run, as messages to its workflow: signals, cancel, pause, resume, budgets, and answers to approvals."""

from __future__ import annotations

import asyncio

from temporalio.client import Client

from holdfast.errors import UsageError
from holdfast.stores.approvals import AnswerApproval, ApprovalState
from holdfast.stores.operations import CancelRun, CancelState, OpStatus, PauseRun, ResumeRun, SendSignal, SetBudget
from holdfast.stores.rules import decide_budget, decide_cancel, decide_pause
from holdfast.stores.temporal import budgets, identifiers
from holdfast.stores.temporal.approvals import read_approvals
from holdfast.stores.temporal.errors import suppress_not_found
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.payloads import to_raw_value
from holdfast.stores.temporal.rows import ExecutionDescription, find_run, read_row
from holdfast.stores.temporal.run_memo import budget_from_memo

MAX_IDLE_POLLS = 100
IDLE_POLL_INTERVAL_S = 0.02
"""How often, and how many seconds apart, to check whether a run is idle."""


async def send_signal(histories: HistoryCache, op: SendSignal) -> OpStatus:
    """Send a signal. The run itself ignores a second one with the same deduplication id."""
    if op.name.startswith(identifiers.RESERVED_PREFIX):
        raise UsageError(
            f"signal {op.name!r} for run {op.run_id!r}: names that begin with {identifiers.RESERVED_PREFIX!r} are "
            f"Holdfast's own on Temporal. Choose another name"
        )
    execution = await find_run(histories.client, op.run_id)
    if execution is None:
        return OpStatus.UNKNOWN_RUN
    if op.dedup_key is None:
        return await _signal_run(histories.client, execution, op.name, to_raw_value(op.payload))
    outcomes = await histories.get_outcomes(await _wait_until_idle(histories.client, execution))
    if op.dedup_key in outcomes.signal_ids:
        return OpStatus.DUPLICATE
    return await _signal_run(histories.client, execution, op.name, to_raw_value(op.payload), op.dedup_key)


async def _wait_until_idle(client: Client, execution: ExecutionDescription) -> ExecutionDescription:
    """The run once no worker executes a workflow task of it: until then, the server buffers signals.

    This takes some milliseconds. The wait is bounded, because a worker may die during the task.
    """
    for _ in range(MAX_IDLE_POLLS):
        if not execution.is_task_started:
            break
        await asyncio.sleep(IDLE_POLL_INTERVAL_S)
        execution = await find_run(client, execution.id) or execution
    return execution


async def _signal_run(client: Client, execution: ExecutionDescription, name: str, *args: object) -> OpStatus:
    """Send a message to a run, unless it has ended."""
    if execution.is_open:
        with suppress_not_found():
            # To the current execution: the run may have continued as new since it was described.
            await client.get_workflow_handle(execution.id).signal(name, args=list(args))
            return OpStatus.DONE
    return OpStatus.ENDED


async def cancel_run(client: Client, op: CancelRun) -> OpStatus:
    """Ask for a run to be cancelled."""
    execution = await find_run(client, op.run_id)
    if execution is None:
        return OpStatus.UNKNOWN_RUN
    run = await read_row(client, execution, include_external=False)
    verdict = decide_cancel(
        run.state, run.cancel_state, is_paused=run.paused_at is not None, has_same_seed=op.seed in (None, run.seed)
    )
    if verdict is not OpStatus.DONE:
        return verdict
    if run.cancel_state is not CancelState.NONE:  # it was paused after that
        return await _signal_run(client, execution, identifiers.RESUME_SIGNAL)
    with suppress_not_found():
        await client.get_workflow_handle(execution.id).cancel()
        return OpStatus.DONE
    return OpStatus.ENDED


async def pause_or_resume_run(client: Client, op: PauseRun | ResumeRun) -> OpStatus:
    """Pause or resume a run."""
    execution = await find_run(client, op.run_id)
    if execution is None:
        return OpStatus.UNKNOWN_RUN
    if not execution.is_open:
        return OpStatus.ENDED
    should_pause = isinstance(op, PauseRun)
    run = await read_row(client, execution, include_external=False)
    verdict = decide_pause(run.state, is_paused=run.paused_at is not None, should_pause=should_pause)
    if verdict is not OpStatus.DONE:
        return verdict
    return await _signal_run(client, execution, identifiers.PAUSE_SIGNAL if should_pause else identifiers.RESUME_SIGNAL)


async def set_budget(client: Client, op: SetBudget) -> OpStatus:
    """Replace a run's budget. Its account tells the steps that were refused to ask again."""
    execution = await find_run(client, op.run_id)
    if execution is None:
        return OpStatus.UNKNOWN_RUN
    run = await read_row(client, execution, include_external=False)
    own = budget_from_memo(execution.run_memo)
    verdict = decide_budget(run.state, own)
    if verdict is OpStatus.DONE:
        assert own is not None
        await budgets.set_budget(client, budgets.BudgetOwner(run.id, own), op.budget)
    return verdict


async def answer_approval(histories: HistoryCache, run_id: str, op: AnswerApproval) -> OpStatus:
    """Answer an approval of this run."""
    execution = await find_run(histories.client, run_id)
    if execution is None:
        return OpStatus.UNKNOWN_APPROVAL
    states = {approval.id: approval.state for approval in await read_approvals(histories, execution)}
    is_in_memo = any(str(entry["id"]) == op.id for entry in execution.open_approvals)
    match states.get(op.id, ApprovalState.OPEN if is_in_memo else None):
        case None:
            return OpStatus.UNKNOWN_APPROVAL
        case ApprovalState.ANSWERED:
            return OpStatus.DUPLICATE
        case ApprovalState.WITHDRAWN:
            return OpStatus.ENDED
        case ApprovalState.OPEN:
            payload = to_raw_value(op.payload)
            return await _signal_run(histories.client, execution, identifiers.ANSWER_SIGNAL, op.id, payload)
