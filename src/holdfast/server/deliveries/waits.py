"""Waiting: for a person's answer, for a signal, or for a time, without a process.

What is waited for has a name, like a step, and its outcome is a record under that name. If the outcome is there, it is
recorded and told at once. If not, the run is parked, and the delivery is over: when it is there, the run is delivered
again, its listener comes to the same place, asks for the same under the same name, and is told. So a listener needs to
remember nothing about waiting.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from holdfast.core.records import Attempt, Record, RecordKind, Signal
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import (
    WAIT_PREFIX,
    ClaimedDelivery,
    RecordedStep,
    build_step,
    find_claimed_delivery,
    is_wait,
)
from holdfast.server.deliveries.delivery_operations import (
    append_record,
    read_lost_problem,
    revoke_if_stopped,
    validate_step_name,
)
from holdfast.server.http.problems import Problem
from holdfast.stores.approvals import ApprovalRequest, RequestApproval, WithdrawApproval, make_answer_name
from holdfast.stores.contract import Store
from holdfast.stores.operations import Op, OpStatus, ParkRun, Run, SaveAttempt


@dataclass(frozen=True, slots=True)
class WaitResult:
    """What has become of a wait."""

    step: RecordedStep | None
    """``None``: the run is parked, and the delivery is over."""


async def wait_for_approval(
    call: Call, id: str, name: str, question: ApprovalRequest, timeout: float | None
) -> WaitResult:
    """Wait for a person's answer. When nobody has answered in time, the answer is ``None``."""
    validate_step_name(name)
    store, held = await find_claimed_delivery(call, id, refresh=True)
    if (done := held.records.get(name)) is not None:
        return WaitResult(await build_step(call, done))
    await revoke_if_stopped(call, store, held.run)
    approval = _make_approval_id(held.run, name, question)
    answer = next((one for one in held.signals if one.name == make_answer_name(approval)), None)
    until = _get_deadline(held, name, store.now(), timeout)
    run, now = held.run, store.now()
    if answer is None and until is not None and until <= now:
        [verdict] = await store.commit([WithdrawApproval(run.key, run.epoch, approval, now)])
        if verdict is not OpStatus.REFUSED:  # else somebody has answered at this very moment
            return WaitResult(await _record_outcome(call, id, name, RecordKind.STEP, b"null"))
        store, held = await find_claimed_delivery(call, id, refresh=True)
        answer = next((one for one in held.signals if one.name == make_answer_name(approval)), None)
    if answer is not None:
        return WaitResult(await _record_outcome(call, id, name, RecordKind.APPROVAL, answer.payload, answer, approval))
    position = held.next_seq
    noted = held.attempts.get(name) or _make_wait_attempt(position, name, until, now)
    ops: list[Op] = [
        SaveAttempt(run.key, run.epoch, noted),
        RequestApproval(run.key, run.epoch, noted.position, approval, question, now, until),
    ]
    park = ParkRun(
        run.key,
        run.epoch,
        until,
        waits_for=f"answer: {question.question[:100]}",
        next_seq=position,
        approval_ids=(approval,),
    )
    await _park(call, id, store, run, ops, park)
    return WaitResult(None)


async def wait_for_signal_or_time(
    call: Call, id: str, name: str, signal: str | None, wait_s: float | None
) -> WaitResult:
    """Wait for a signal, for a time, or for whichever comes first; without the signal, the outcome is ``None``."""
    if signal is None and wait_s is None:
        raise Problem(422, "bad-input", "The values do not fit", "What is to be waited for? Give signal or seconds.")
    validate_step_name(name)
    store, held = await find_claimed_delivery(call, id, refresh=True)
    if (done := held.records.get(name)) is not None:
        return WaitResult(await build_step(call, done))
    await revoke_if_stopped(call, store, held.run)
    found = next((one for one in held.signals if signal is not None and _is_pending_signal(one, signal)), None)
    if found is not None:
        return WaitResult(await _record_outcome(call, id, name, RecordKind.SIGNAL, found.payload, found, signal or ""))
    run, now = held.run, store.now()
    until = _get_deadline(held, name, now, wait_s)
    if until is not None and until <= now:
        return WaitResult(await _record_outcome(call, id, name, RecordKind.STEP, b"null"))
    noted = held.attempts.get(name) or _make_wait_attempt(held.next_seq, name, until, now)
    words = f"signal {signal!r}" if signal is not None else f"{wait_s:g} s"
    signals = () if signal is None else (signal,)
    park = ParkRun(run.key, run.epoch, until, signal_names=signals, waits_for=words, next_seq=held.next_seq)
    await _park(call, id, store, run, [SaveAttempt(run.key, run.epoch, noted)], park)
    return WaitResult(None)


async def _park(call: Call, id: str, store: Store, run: Run, ops: list[Op], park: ParkRun) -> None:
    *_, verdict = await store.commit([*ops, park])
    call.platform.delivery_cache.remove(call.caller.namespace, id)
    if verdict is OpStatus.REFUSED:  # what it waits for has come at this very moment
        raise Problem(
            503, "just-arrived", "What is waited for has just come", "Ask again.", headers={"Retry-After": "0"}
        )
    if verdict is not OpStatus.DONE:
        raise await read_lost_problem(store, run)
    desk = call.platform.dispatchers.get(call.tenant)
    desk.watcher.mark_ended(id)
    desk.notify(run.workflow)


async def _record_outcome(
    call: Call, id: str, name: str, kind: RecordKind, payload: bytes, signal: Signal | None = None, preview: str = ""
) -> RecordedStep:
    def outcome(held: ClaimedDelivery, now: float) -> Record:
        begun = held.attempts.get(name)
        return Record(
            seq=held.next_seq,
            kind=kind,
            position=held.next_seq if begun is None else begun.position,
            name=name,
            ok=True,
            payload=payload,
            at=now,
            started_at=now if begun is None else begun.at,
            worker=held.run.owner or 0,
            epoch=held.run.epoch,
            preview=preview,
        )

    record, _ = await append_record(call, id, name, outcome, consumed_signal_id=None if signal is None else signal.id)
    return await build_step(call, record)


# When it began


def _get_deadline(held: ClaimedDelivery, name: str, now: float, wait_s: float | None) -> float | None:
    """When the time is over: as it was said when the wait began, whatever is said now."""
    begun = held.attempts.get(name)
    if begun is not None and is_wait(begun.progress):
        until = json.loads(begun.progress or b"{}")["$holdfast:until"]
        return None if until is None else float(until)
    return None if wait_s is None else now + wait_s


def _make_wait_attempt(position: int, name: str, until: float | None, now: float) -> Attempt:
    progress = WAIT_PREFIX + json.dumps(until).encode() + b"}"
    return Attempt(position=position, attempt=1, progress=progress, at=now, name=name)


def _is_pending_signal(signal: Signal, name: str) -> bool:
    return signal.position is None and signal.name == name


def _make_approval_id(run: Run, name: str, question: ApprovalRequest) -> str:
    """Whoever asks the same again does so under the same id; whoever asks something else, under another."""
    told = [run.seed.hex(), run.id, name, question.question, list(question.choices), question.form_schema.decode()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
