"""What anybody can ask of a run, as messages to its workflow: signals, cancelling, pausing, answers to questions."""

from __future__ import annotations

import asyncio

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from holdfast.errors import UsageError
from holdfast.stores.approvals import AnswerApproval, ApprovalState
from holdfast.stores.operations import Cancel, CancelRun, PauseRun, ResumeRun, SendSignal, SetBudget, Verdict
from holdfast.stores.rules import answer_to_cancel, answer_to_pause
from holdfast.stores.temporal import budgets, identifiers
from holdfast.stores.temporal.history_cache import Histories
from holdfast.stores.temporal.payloads import raw
from holdfast.stores.temporal.rows import Described, describe, row_of
from holdfast.stores.temporal.run_details import all_questions, sent_ids
from holdfast.stores.temporal.run_memo import budget_in

LOOKS = 100
LOOK_EVERY = 0.02
"""How often, and how many seconds apart, it is looked whether a run is at rest."""


async def find_run(client: Client, run_id: str) -> Described | None:
    """What is told of a run; ``None``: there is none, or it is something that Holdfast keeps for itself."""
    told = await describe(client, run_id)
    return told if told is not None and told.is_run else None


async def send_signal(client: Client, histories: Histories, op: SendSignal) -> Verdict:
    """Send a signal. The run itself passes over what was sent before under the same ``dedup``."""
    if op.name.startswith(identifiers.PREFIX):
        raise UsageError(
            f"signal {op.name!r} for run {op.run_id!r}: names that begin with {identifiers.PREFIX!r} are Holdfast's "
            "own on "
            f"Temporal. Choose another name"
        )
    told = await find_run(client, op.run_id)
    if told is None:
        return Verdict.UNKNOWN_RUN
    if op.dedup is not None and op.dedup in await sent_ids(histories, await _at_rest(client, told)):
        return Verdict.DUPLICATE
    more = () if op.dedup is None else (op.dedup,)
    return await _tell(client, told, op.name, raw(op.payload), *more)


async def _at_rest(client: Client, told: Described) -> Described:
    """What is told of a run when nobody takes it a step further: until then, the server keeps signals to itself.

    That takes some milliseconds; somebody who dies over it is not waited for.
    """
    for _ in range(LOOKS):
        if not told.at_task:
            break
        await asyncio.sleep(LOOK_EVERY)
        told = await find_run(client, told.id) or told
    return told


async def _tell(client: Client, told: Described, name: str, *args: object) -> Verdict:
    """Send a message to a run, unless it has ended."""
    if not told.is_open:
        return Verdict.ENDED
    try:
        # To whichever execution is there: it may have continued as new since it was described.
        await client.get_workflow_handle(told.id).signal(name, args=list(args))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return Verdict.ENDED
        raise
    return Verdict.DONE


async def cancel_run(client: Client, op: CancelRun) -> Verdict:
    """Ask for a run to be cancelled."""
    told = await find_run(client, op.run_id)
    if told is None:
        return Verdict.UNKNOWN_RUN
    run = await row_of(client, told, whole=False)
    verdict = answer_to_cancel(
        run.state, run.cancel, paused=run.paused_at is not None, same_seed=op.seed in (None, run.seed)
    )
    if verdict is not Verdict.DONE:
        return verdict
    if run.cancel is not Cancel.NO:  # it was paused after that
        return await _tell(client, told, identifiers.RESUME)
    try:
        await client.get_workflow_handle(told.id).cancel()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return Verdict.ENDED
        raise
    return Verdict.DONE


async def pause_run(client: Client, op: PauseRun | ResumeRun) -> Verdict:
    """Keep a run from going on, or let it go on."""
    told = await find_run(client, op.run_id)
    if told is None:
        return Verdict.UNKNOWN_RUN
    wanted = isinstance(op, PauseRun)
    if not told.is_open:
        return Verdict.ENDED
    run = await row_of(client, told, whole=False)
    verdict = answer_to_pause(run.state, paused=run.paused_at is not None, wanted=wanted)
    return (
        verdict
        if verdict is not Verdict.DONE
        else await _tell(client, told, identifiers.PAUSE if wanted else identifiers.RESUME)
    )


async def set_budget(client: Client, op: SetBudget) -> Verdict:
    """Give a run another budget, and let those ask again that were refused."""
    told = await find_run(client, op.run_id)
    if told is None:
        return Verdict.UNKNOWN_RUN
    run = await row_of(client, told, whole=False)
    return await budgets.set_budget(client, run, budget_in(told.head), op.budget)


async def answer(client: Client, histories: Histories, run_id: str, op: AnswerApproval) -> Verdict:
    """Answer a question of this run."""
    told = await find_run(client, run_id)
    if told is None:
        return Verdict.UNKNOWN_APPROVAL
    asked = next((one for one in await all_questions(histories, told) if one.id == op.id), None)
    if asked is None:
        is_open = any(str(one["id"]) == op.id for one in told.questions)
        return await _answer(client, told, op) if is_open else Verdict.UNKNOWN_APPROVAL
    if asked.state is ApprovalState.ANSWERED:
        return Verdict.DUPLICATE
    return Verdict.ENDED if asked.state is ApprovalState.WITHDRAWN else await _answer(client, told, op)


async def _answer(client: Client, told: Described, op: AnswerApproval) -> Verdict:
    return await _tell(client, told, identifiers.ANSWER, op.id, raw(op.payload))
