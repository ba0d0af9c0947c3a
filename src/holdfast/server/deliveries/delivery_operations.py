"""What a listener can do with a delivery besides recording steps: send heartbeats, end the run, or release it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.core.states import RunState
from holdfast.run_log import RunLog
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import (
    ClaimedDelivery,
    find_claimed_delivery,
    find_delivery,
    find_held_run,
    forget_delivery,
    get_delivery_id,
    read_lost_problem,
)
from holdfast.server.deliveries.steps import StepBody, make_step_ops
from holdfast.services.problems import Problem
from holdfast.stores.claims import ClaimedRun, ClaimNext
from holdfast.stores.live_events import RETURNED
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    FinishRun,
    LiveEvent,
    OpStatus,
    ParkRun,
    ReleaseRun,
    Run,
)

# Heartbeats


async def record_heartbeat(call: Call, id: str) -> float:
    """The listener is alive. Returns its lease. Raises the ``Problem`` of a delivery that is lost."""
    run = await find_held_run(call, id)
    lease = await call.tenant.listeners.keep_holder_alive(run)
    await revoke_if_stopped(call, run)
    return lease


async def revoke_if_stopped(call: Call, run: Run) -> None:
    """Take a delivery back if its run was paused, or its address disabled, and raise ``Problem``."""
    if run.paused_at is not None:
        [status] = await call.store.commit([ParkRun(run.key, run.epoch, None, is_pause=True)])
        if status is OpStatus.DONE:
            raise _revoke(call, run, "paused", "the run is paused.")
    elif await call.tenant.disabled_workflows.has(run.workflow):
        [status] = await call.store.commit([ReleaseRun(run.key, run.epoch)])
        if status is OpStatus.DONE:
            raise _revoke(call, run, "disabled", f"address {run.workflow!r} is disabled.")


def _revoke(call: Call, run: Run, reason: str, detail: str) -> Problem:
    end_delivery(call, get_delivery_id(run), run)
    return Problem(
        409,
        "delivery-lost",
        "The delivery is over",
        f"Delivery {run.epoch} of run {run.id!r} is over: {detail} What is recorded stays, and it will be delivered "
        f"again when that ends. Stop working on it.",
        run_id=run.id,
        reason=reason,
    )


# Ends


async def complete(
    call: Call, id: str, output: Any, steps: Sequence[StepBody] = (), claim: ClaimNext | None = None
) -> tuple[Run, ClaimedRun | None]:
    """End the run with a result, and record its last steps in the same commit. A repeat has the same response.

    Returns the run as it was delivered, and what was claimed in the same commit.
    """
    encoded = call.encode_stored_value(output, "the output of the run")
    finish = partial(_finish, call, id, RunState.COMPLETED, output=encoded, claim=claim)
    if not steps:
        return await finish()
    try:
        held = await find_claimed_delivery(call, id)
    except Problem as problem:
        if problem.status != 409:
            raise
        return await finish()  # a repeat, or the delivery is lost
    async with held.lock:
        try:
            return await finish(step_ops=await make_step_ops(call, held, steps))
        finally:
            forget_delivery(call, id)


async def fail(call: Call, id: str, type: str, message: str, *, retry: bool, delay: float | None) -> RunState:
    """End the run with an error; with ``retry``, deliver it again until its deliveries are used up."""
    error = encode_error(type, message)
    if not retry:
        await _finish(call, id, RunState.FAILED, error=error)
        return RunState.FAILED
    run, epoch = await find_delivery(call, id)
    delay_s = _get_redelivery_delay(run.delivery_count) if delay is None else delay
    release_op = ReleaseRun(run.key, epoch, call.store.now() + delay_s, error)
    known = call.platform.delivery_cache.get((call.tenant.namespace, id))
    state = await _return_run(call, id, run, release_op, reason="failed", error=f"{type}: {message}"[:500])
    run_log = RunLog.from_store(call.store)
    if state is RunState.DEAD:
        ended = replace(run, state=state, error=error, finished_at=call.store.now())
        run_log.log_end(ended)
        _observe_end(call, run, "failed", known, ended)
    else:
        _observe_end(call, run, "failed", known)
        run_log.log_redelivery(run, delay_s, error)
    return state


async def release(call: Call, id: str, reason: str, delay: float) -> RunState:
    """Give the run back, to be delivered again. That does not count as a failure."""
    run, epoch = await find_delivery(call, id)
    wake_at = call.store.now() + delay if delay > 0 else None
    return await _return_run(call, id, run, ReleaseRun(run.key, epoch, wake_at), reason=reason[:500] or "released")


async def _finish(
    call: Call,
    id: str,
    state: RunState,
    *,
    output: bytes | None = None,
    error: bytes | None = None,
    step_ops: Sequence[AppendRecord] = (),
    claim: ClaimNext | None = None,
) -> tuple[Run, ClaimedRun | None]:
    known = call.platform.delivery_cache.get((call.tenant.namespace, id))
    if known is None:
        run, epoch = await find_delivery(call, id)
    else:  # the fence decides whether it is still held
        call.check_listen_scope(known.run.workflow)
        run, epoch = known.run, known.run.epoch
    store = call.store
    now = store.now()
    finish = FinishRun(run.key, epoch, state, output, error, now)
    answers = await call.commit_and_claim([*step_ops, finish, *([] if claim is None else [claim])])
    status, claimed = answers[len(step_ops)], None if claim is None else answers[-1]
    if status not in (OpStatus.DONE, OpStatus.DONE_NOTIFIED):
        raise await read_lost_problem(call, run, epoch)
    ended = replace(run, state=state, output=output, error=error, finished_at=now, owner=None)
    RunLog.from_store(store).log_end(ended)
    _observe_end(call, run, str(state), known, ended)
    end_delivery(call, id, run, frees_run=run.is_limited)  # else there is nothing for other listeners
    if status is OpStatus.DONE_NOTIFIED:  # perhaps a repeat, with another result than the one that counts
        ended = await store.get_run(run.id) or ended
    call.tenant.connections.note_end(ended)
    return run, claimed if isinstance(claimed, ClaimedRun) else None


def _observe_end(call: Call, run: Run, outcome: str, known: ClaimedDelivery | None, ended: Run | None = None) -> None:
    """Let operators see the end of a delivery, and of its run if it has ended."""
    telemetry = call.platform.telemetry
    if telemetry is None:
        return
    seen, now = telemetry.find_run(run, is_agent=True), call.store.now()
    handed_over_at = None if known is None else known.handed_over_at
    seen.end_delivery(outcome, now if handed_over_at is None else handed_over_at, now)
    if ended is not None:
        seen.end_run(ended)


async def _return_run(call: Call, id: str, run: Run, op: ReleaseRun, **reason: str) -> RunState:
    """Release a run, with a live event that says why. Returns the state of the run after that."""
    store = call.store
    data = json.dumps(reason, ensure_ascii=False).encode()
    event = LiveEvent(-1, "returned", op.epoch, RETURNED, data, store.now())
    _, status = await store.commit([AppendLiveEvents(run.key, op.epoch, (event,)), op])
    if status is not OpStatus.DONE:
        raise await read_lost_problem(call, run, op.epoch)
    end_delivery(call, id, run)
    current = await store.get_run(run.id)
    return RunState.PENDING if current is None else current.state


def end_delivery(call: Call, id: str, run: Run, *, frees_run: bool = True) -> None:
    """The delivery has ended: its listener may get the next one, and others (``frees_run``) this run or another one."""
    forget_delivery(call, id)
    dispatcher = call.tenant.dispatcher
    dispatcher.watcher.mark_ended(id, is_expected=True)
    if frees_run:
        dispatcher.notify(run.workflow)


def _get_redelivery_delay(failure_count: int) -> float:
    """Seconds until a run is delivered again after ``failure_count`` consecutive failures."""
    return min(2.0**failure_count, 300.0)


def encode_error(type: str, message: str) -> bytes:
    """An error that was reported over HTTP, as the journal stores errors."""
    name = type.strip()[:200] or "Error"
    return json.dumps(
        {
            "type": name,
            "qualname": name.rpartition(".")[2],
            "message": message,
            "args": [message],
            "attributes": {},
            "traceback": "",
            "cause": None,
        },
        ensure_ascii=False,
    ).encode()
