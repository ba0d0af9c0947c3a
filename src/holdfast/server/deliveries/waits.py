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

from holdfast.core.records import Attempt, Kind, Record, Signal
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import WAITS_UNTIL, Held, RecordedStep, find_held, is_wait, step_of
from holdfast.server.deliveries.delivery_operations import append, checked_name, heed_requests, now_lost
from holdfast.server.http.problems import Problem
from holdfast.stores.approvals import AskApproval, Question, WithdrawApproval, answer_name
from holdfast.stores.contract import Store
from holdfast.stores.operations import NoteAttempt, Op, ParkRun, Run, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of a wait."""

    step: RecordedStep | None
    """``None``: the run is parked, and the delivery is over."""


async def ask(call: Call, id: str, name: str, question: Question, timeout: float | None) -> Outcome:
    """Wait for a person's answer. When nobody has answered in time, the answer is ``None``."""
    checked_name(name)
    store, held = await find_held(call, id, anew=True)
    if (done := held.records.get(name)) is not None:
        return Outcome(await step_of(call, done))
    await heed_requests(call, store, held.run)
    approval = _approval_id(held.run, name, question)
    answer = next((one for one in held.signals if one.name == answer_name(approval)), None)
    until = _until(held, name, store.now(), timeout)
    run, now = held.run, store.now()
    if answer is None and until is not None and until <= now:
        [verdict] = await store.commit([WithdrawApproval(run.key, run.epoch, approval, now)])
        if verdict is not Verdict.REFUSED:  # else somebody has answered at this very moment
            return Outcome(await _recorded(call, id, name, Kind.STEP, b"null"))
        store, held = await find_held(call, id, anew=True)
        answer = next((one for one in held.signals if one.name == answer_name(approval)), None)
    if answer is not None:
        return Outcome(await _recorded(call, id, name, Kind.APPROVAL, answer.payload, answer, approval))
    position = held.next_seq
    noted = held.attempts.get(name) or _wait_note(position, name, until, now)
    ops: list[Op] = [
        NoteAttempt(run.key, run.epoch, noted),
        AskApproval(run.key, run.epoch, noted.position, approval, question, now, until),
    ]
    park = ParkRun(
        run.key, run.epoch, until, waits_for=f"answer: {question.text[:100]}", next_seq=position, answers=(approval,)
    )
    await _park(call, id, store, run, ops, park)
    return Outcome(None)


async def wait(call: Call, id: str, name: str, signal: str | None, seconds: float | None) -> Outcome:
    """Wait for a signal, for a time, or for whichever comes first; without the signal, the outcome is ``None``."""
    if signal is None and seconds is None:
        raise Problem(422, "bad-input", "The values do not fit", "What is to be waited for? Give signal or seconds.")
    checked_name(name)
    store, held = await find_held(call, id, anew=True)
    if (done := held.records.get(name)) is not None:
        return Outcome(await step_of(call, done))
    await heed_requests(call, store, held.run)
    found = next((one for one in held.signals if signal is not None and _is_signal(one, signal)), None)
    if found is not None:
        return Outcome(await _recorded(call, id, name, Kind.SIGNAL, found.payload, found, signal or ""))
    run, now = held.run, store.now()
    until = _until(held, name, now, seconds)
    if until is not None and until <= now:
        return Outcome(await _recorded(call, id, name, Kind.STEP, b"null"))
    noted = held.attempts.get(name) or _wait_note(held.next_seq, name, until, now)
    words = f"signal {signal!r}" if signal is not None else f"{seconds:g} s"
    signals = () if signal is None else (signal,)
    park = ParkRun(run.key, run.epoch, until, signals=signals, waits_for=words, next_seq=held.next_seq)
    await _park(call, id, store, run, [NoteAttempt(run.key, run.epoch, noted)], park)
    return Outcome(None)


async def _park(call: Call, id: str, store: Store, run: Run, ops: list[Op], park: ParkRun) -> None:
    *_, verdict = await store.commit([*ops, park])
    call.platform.held.forget(call.caller.namespace, id)
    if verdict is Verdict.REFUSED:  # what it waits for has come at this very moment
        raise Problem(
            503, "just-arrived", "What is waited for has just come", "Ask again.", headers={"Retry-After": "0"}
        )
    if verdict is not Verdict.DONE:
        raise await now_lost(store, run)
    desk = call.platform.desks.of(call.tenant)
    desk.holders.settled(id)
    desk.nudge(run.workflow)


async def _recorded(
    call: Call, id: str, name: str, kind: Kind, payload: bytes, came: Signal | None = None, preview: str = ""
) -> RecordedStep:
    def outcome(held: Held, now: float) -> Record:
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

    record, _ = await append(call, id, name, outcome, consume=None if came is None else came.id)
    return await step_of(call, record)


# When it began


def _until(held: Held, name: str, now: float, seconds: float | None) -> float | None:
    """When the time is over: as it was said when the wait began, whatever is said now."""
    begun = held.attempts.get(name)
    if begun is not None and is_wait(begun.progress):
        until = json.loads(begun.progress or b"{}")["$holdfast:until"]
        return None if until is None else float(until)
    return None if seconds is None else now + seconds


def _wait_note(position: int, name: str, until: float | None, now: float) -> Attempt:
    progress = WAITS_UNTIL + json.dumps(until).encode() + b"}"
    return Attempt(position=position, attempt=1, progress=progress, at=now, name=name)


def _is_signal(one: Signal, name: str) -> bool:
    return one.position is None and one.name == name


def _approval_id(run: Run, name: str, question: Question) -> str:
    """Whoever asks the same again does so under the same id; whoever asks something else, under another."""
    told = [run.seed.hex(), run.id, name, question.text, list(question.choices), question.form.decode()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
