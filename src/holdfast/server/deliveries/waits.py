"""Waiting for a person's answer, a signal, or a time, without a process.

A wait has a name, like a step, and its outcome is a record under that name. If the outcome is there, it is recorded and
returned at once. If not, the run is parked, and the delivery ends. When the outcome is there, the run is delivered
again, its listener comes to the same place, waits under the same name, and gets it. So a listener needs to remember
nothing about waiting.
"""

from __future__ import annotations

import hashlib
import json

from holdfast.core.records import Attempt, RecordKind, Signal
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import (
    WAIT_PREFIX,
    ClaimedDelivery,
    RecordedStep,
    build_step,
    find_claimed_delivery,
    forget_delivery,
    is_wait,
    read_lost_problem,
)
from holdfast.server.deliveries.delivery_operations import end_delivery, revoke_if_stopped
from holdfast.server.deliveries.steps import append_record, validate_step_name
from holdfast.services.problems import Problem
from holdfast.stores.approvals import ApprovalRequest, RequestApproval, WithdrawApproval, make_answer_name
from holdfast.stores.operations import Op, OpStatus, ParkRun, Run, SaveAttempt


async def wait_for_approval(
    call: Call, id: str, name: str, request: ApprovalRequest, timeout: float | None
) -> RecordedStep | None:
    """Wait for a person's answer. If there is none in time, the outcome is ``None``.

    Returns the recorded outcome, or ``None`` if the run is parked, which ends the delivery.
    """
    store = call.store
    held, recorded = await _begin_wait(call, id, name)
    if recorded is not None:
        return recorded
    run, now = held.run, store.now()
    approval_id = _make_approval_id(run, name, request)
    answer = _find_answer(held, approval_id)
    until = _get_deadline(held, name, now, timeout)
    if answer is None and until is not None and until <= now:
        [status] = await store.commit([WithdrawApproval(run.key, run.epoch, approval_id, now)])
        if status is not OpStatus.REFUSED:
            return await _record_outcome(call, id, name, RecordKind.STEP, b"null")
        # A person answered at this moment.
        held = await find_claimed_delivery(call, id, refresh=True)
        answer = _find_answer(held, approval_id)
    if answer is not None:
        return await _record_outcome(call, id, name, RecordKind.APPROVAL, answer.payload, answer, approval_id)
    attempt = held.attempts.get(name) or _make_wait_attempt(held, name, until, now)
    park = ParkRun(
        run.key,
        run.epoch,
        until,
        waits_for=f"answer: {request.question[:100]}",
        next_seq=held.next_seq,
        approval_ids=(approval_id,),
    )
    ask = RequestApproval(run.key, run.epoch, attempt.position, approval_id, request, now, until)
    await _park(call, id, run, [SaveAttempt(run.key, run.epoch, attempt), ask, park])
    return None


async def wait_for_signal_or_time(
    call: Call, id: str, name: str, signal: str | None, wait_s: float | None
) -> RecordedStep | None:
    """Wait for a signal, for a time, or for whichever comes first. Without the signal, the outcome is ``None``.

    Returns the recorded outcome, or ``None`` if the run is parked, which ends the delivery.
    """
    if signal is None and wait_s is None:
        raise Problem(422, "bad-input", "The values do not fit", "What is to be waited for? Give signal or seconds.")
    held, recorded = await _begin_wait(call, id, name)
    if recorded is not None:
        return recorded
    arrived = (one for one in held.signals if one.position is None and one.name == signal)
    if signal is not None and (found := next(arrived, None)) is not None:
        return await _record_outcome(call, id, name, RecordKind.SIGNAL, found.payload, found, signal)
    run, now = held.run, call.store.now()
    until = _get_deadline(held, name, now, wait_s)
    if until is not None and until <= now:
        return await _record_outcome(call, id, name, RecordKind.STEP, b"null")
    attempt = held.attempts.get(name) or _make_wait_attempt(held, name, until, now)
    waits_for = f"signal {signal!r}" if signal is not None else f"{wait_s:g} s"
    signal_names = () if signal is None else (signal,)
    park = ParkRun(run.key, run.epoch, until, signal_names=signal_names, waits_for=waits_for, next_seq=held.next_seq)
    await _park(call, id, run, [SaveAttempt(run.key, run.epoch, attempt), park])
    return None


async def _begin_wait(call: Call, id: str, name: str) -> tuple[ClaimedDelivery, RecordedStep | None]:
    """The delivery, and the outcome that an earlier delivery recorded under the name, if any."""
    validate_step_name(name)
    held = await find_claimed_delivery(call, id, refresh=True)
    if (record := held.records.get(name)) is not None:
        return held, await build_step(call, record)
    await revoke_if_stopped(call, held.run)
    return held, None


async def _park(call: Call, id: str, run: Run, ops: list[Op]) -> None:
    """Commit operations, the last of which parks the run."""
    *_, status = await call.store.commit(ops)
    if status is OpStatus.DONE:
        end_delivery(call, id, run)
        return
    forget_delivery(call, id)
    if status is OpStatus.REFUSED:  # the answer or the signal arrived at this moment
        raise Problem(
            503, "just-arrived", "What is waited for has just come", "Ask again.", headers={"Retry-After": "0"}
        )
    raise await read_lost_problem(call, run)


async def _record_outcome(
    call: Call, id: str, name: str, kind: RecordKind, payload: bytes, signal: Signal | None = None, preview: str = ""
) -> RecordedStep:
    signal_id = None if signal is None else signal.id
    record, _ = await append_record(call, id, name, kind, payload, preview=preview, consumed_signal_id=signal_id)
    return await build_step(call, record)


def _get_deadline(held: ClaimedDelivery, name: str, now: float, wait_s: float | None) -> float | None:
    """When the wait ends: as it was declared when the wait began, whatever this request says."""
    begun = held.attempts.get(name)
    if begun is not None and is_wait(begun.progress):
        until = json.loads(begun.progress or b"{}")["$holdfast:until"]
        return None if until is None else float(until)
    return None if wait_s is None else now + wait_s


def _make_wait_attempt(held: ClaimedDelivery, name: str, until: float | None, now: float) -> Attempt:
    progress = WAIT_PREFIX + json.dumps(until).encode() + b"}"
    return Attempt(position=held.next_position, attempt=1, progress=progress, at=now, name=name)


def _find_answer(held: ClaimedDelivery, approval_id: str) -> Signal | None:
    return next((signal for signal in held.signals if signal.name == make_answer_name(approval_id)), None)


def _make_approval_id(run: Run, name: str, request: ApprovalRequest) -> str:
    """An id that is the same for the same question, and another one for another question."""
    parts = [run.seed.hex(), run.id, name, request.question, list(request.choices), request.form_schema.decode()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
