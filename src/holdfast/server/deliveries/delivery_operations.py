"""What a listener can do with a delivery: record steps, send heartbeats, end the run, or release it.

**Steps are identified by name**, and the first outcome of a name counts. The server that appends a record chooses its
number. The store takes a number that exists under the same epoch for a repeat, even if another server has written it.
So the server then reads what is recorded under the name, and tries again with another number if it is not its own
record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from holdfast.admission.usage import Usage
from holdfast.codec import codec_for, validate_size
from holdfast.core.records import Attempt, Record, RecordKind
from holdfast.core.states import RunState
from holdfast.run_log import RunLog
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import (
    ClaimedDelivery,
    RecordedStep,
    build_step,
    find_claimed_delivery,
    find_delivery,
    get_delivery_id,
    lost_delivery_problem,
)
from holdfast.server.deliveries.listener_registry import renew_listener_lease
from holdfast.server.http.problems import Problem
from holdfast.stores.contract import Store
from holdfast.stores.live_events import RETURNED
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    FinishRun,
    LiveEvent,
    Op,
    OpStatus,
    ParkRun,
    ReleaseRun,
    Run,
    SaveAttempt,
)

MAX_STEP_NAME_CHARS = 200
MAX_PREVIEW_CHARS = 512
"""Characters of what is kept of a step's arguments, for people to read."""
MAX_APPEND_TRIES = 5
"""So often is a step recorded anew when another server was quicker with the next one of the same run."""
_value_codec = codec_for(Any)


@dataclass(frozen=True, slots=True)
class StepUsage:
    """What the model calls of a step have used."""

    usage: Usage
    model: str


# Steps


async def record_step(
    call: Call,
    id: str,
    name: str,
    output: Any,
    *,
    started_at: datetime | None = None,
    attempts: int = 1,
    arguments: str = "",
    usage: StepUsage | None = None,
) -> tuple[RecordedStep, bool]:
    """Record a step; one that is there stays as it is (false)."""
    name = validate_step_name(name)
    what = f"the output of step {name!r}"
    payload = validate_size(_value_codec.encode(output, what), what, call.client.max_value)

    def outcome(held: ClaimedDelivery, now: float) -> Record:
        begun = held.attempts.get(name)
        return Record(
            seq=held.next_seq,
            kind=RecordKind.STEP,
            position=held.next_position if begun is None else begun.position,
            name=name,
            ok=True,
            payload=payload,
            at=now,
            started_at=(now if begun is None else begun.at) if started_at is None else started_at.timestamp(),
            attempts=attempts if begun is None else max(attempts, begun.attempt),
            worker=held.run.owner or 0,
            epoch=held.run.epoch,
            preview=arguments[:MAX_PREVIEW_CHARS],
        )

    record, is_new = await append_record(call, id, name, outcome, usage=usage)
    return await build_step(call, record), is_new


async def append_record(
    call: Call,
    id: str,
    name: str,
    make_record: Callable[[ClaimedDelivery, float], Record],
    *,
    consumed_signal_id: int | None = None,
    usage: StepUsage | None = None,
) -> tuple[Record, bool]:
    """Append a record under a name, unless there is one: then that counts, and is told (false).

    Raises the ``Problem`` of a delivery that is lost.
    """
    for _ in range(MAX_APPEND_TRIES):
        store, held = await find_claimed_delivery(call, id)
        async with held.lock:
            present = held.records.get(name)
            if present is not None:
                await renew_listener_lease(call, held.run)
                return present, False
            record = make_record(held, store.now())
            op = AppendRecord(
                held.run.key,
                record,
                consumed_signal_id=consumed_signal_id,
                clear_attempt=name in held.attempts,
                reset_delivery_count=held.run.has_worker_deaths,
                used=None if usage is None else usage.usage,
                clear_live_events=name in held.attempts,
                model="" if usage is None else usage.model,
            )
            [verdict] = await store.commit([op])
            if verdict is not OpStatus.DONE:
                call.platform.delivery_cache.remove(call.caller.namespace, id)
                raise await read_lost_problem(store, held.run)
            # A number that is there under the same epoch counts as a repeat, whoever wrote it. Another server may have.
            kept = await store.get_last_record(held.run.id, name)
            if kept is not None and kept.seq == record.seq and kept.payload == record.payload:
                held.add_record(record)
                await renew_listener_lease(call, held.run)
                return record, True
        call.platform.delivery_cache.remove(call.caller.namespace, id)
    raise Problem(
        503,
        "recorded-at-once",
        "Several steps were recorded at the same moment",
        f"Step {name!r} was not recorded, since others of the same run were: send it again.",
        headers={"Retry-After": "1"},
    )


async def note_attempt(call: Call, id: str, name: str, *, attempt: int, once: bool, error: str, progress: Any) -> None:
    """Note that a step begins, so that the next listener knows if this one dies over it."""
    store, held = await find_claimed_delivery(call, id)
    name = validate_step_name(name)
    what = f"the progress of step {name!r}"
    kept = None if progress is None else validate_size(_value_codec.encode(progress, what), what, call.client.max_value)
    async with held.lock:
        if name in held.records:
            raise Problem(
                409,
                "step-recorded",
                "The step is recorded",
                f"Step {name!r} of run {held.run.id!r} has an outcome: it is not to be done again.",
                run_id=held.run.id,
            )
        begun = held.attempts.get(name)
        noted = Attempt(
            position=held.next_position if begun is None else begun.position,
            attempt=attempt,
            intent=once,
            progress=kept,
            error=error[:500],
            at=store.now(),
            name=name,
        )
        [verdict] = await store.commit([SaveAttempt(held.run.key, held.run.epoch, noted)])
        if verdict is not OpStatus.DONE:
            call.platform.delivery_cache.remove(call.caller.namespace, id)
            raise await read_lost_problem(store, held.run)
        held.attempts[name] = noted
    await renew_listener_lease(call, held.run)


# Life


async def record_heartbeat(call: Call, id: str) -> float:
    """The listener lives: how long that is believed. Raises the ``Problem`` of a delivery that is lost."""
    store, run, epoch = await find_delivery(call, id)
    if run.state is not RunState.RUNNING or run.epoch != epoch:
        raise lost_delivery_problem(run, epoch)
    lease = await renew_listener_lease(call, run)
    await revoke_if_stopped(call, store, run)
    return lease


async def revoke_if_stopped(call: Call, store: Store, run: Run) -> None:
    """Take a delivery back whose run was paused, or whose address was disabled. Raises ``Problem`` if so."""
    if run.paused_at is not None:
        park = ParkRun(run.key, run.epoch, None, is_pause=True)
        [verdict] = await store.commit([park])
        if verdict is OpStatus.DONE:
            raise _revoke(call, run, "paused", "the run is paused.")
    elif await call.platform.disabled_workflows.is_disabled(call.tenant, run.workflow):
        [verdict] = await store.commit([ReleaseRun(run.key, run.epoch)])
        if verdict is OpStatus.DONE:
            raise _revoke(call, run, "disabled", f"address {run.workflow!r} is disabled.")


def _revoke(call: Call, run: Run, reason: str, detail: str) -> Problem:
    _end_delivery(call, get_delivery_id(run), run)
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


async def complete(call: Call, id: str, output: Any) -> RunState:
    """End the run with a result. Repeated, it is answered the same."""
    what = "the output of the run"
    payload = validate_size(_value_codec.encode(output, what), what, call.client.max_value)
    return await _finish(call, id, RunState.COMPLETED, payload, None)


async def fail(call: Call, id: str, type: str, message: str, *, retry: bool, delay: float | None) -> RunState:
    """End the run with an error; or, with ``retry``, let it be delivered again, as often as it may be."""
    error = encode_error(type, message)
    if not retry:
        return await _finish(call, id, RunState.FAILED, None, error)
    store, run, epoch = await find_delivery(call, id)
    wait = _get_redelivery_delay(run.delivery_count) if delay is None else delay
    told = {"reason": "failed", "error": f"{type}: {message}"[:500]}
    ops: list[Op] = [_make_return_event(store, run, epoch, told), ReleaseRun(run.key, epoch, store.now() + wait, error)]
    state = await _commit_release(call, id, store, run, epoch, ops)
    run_log = RunLog.from_store(store)
    if state is RunState.DEAD:
        run_log.log_end(replace(run, state=state, error=error))
    else:
        run_log.log_redelivery(run, wait, error)
    return state


async def release(call: Call, id: str, reason: str, delay: float) -> RunState:
    """Give the run back, to be delivered again: that counts for nothing."""
    store, run, epoch = await find_delivery(call, id)
    wake_at = store.now() + delay if delay > 0 else None
    told = {"reason": reason[:500] or "released"}
    ops: list[Op] = [_make_return_event(store, run, epoch, told), ReleaseRun(run.key, epoch, wake_at)]
    return await _commit_release(call, id, store, run, epoch, ops)


async def _finish(call: Call, id: str, state: RunState, output: bytes | None, error: bytes | None) -> RunState:
    known = call.platform.delivery_cache.get(call.caller.namespace, id)
    if known is None:
        store, run, epoch = await find_delivery(call, id)
    else:  # the fence tells whether it still is what it was
        call.check_listen_scope(known.run.workflow)
        store, run, epoch = await call.store(), known.run, known.run.epoch
    [verdict] = await store.commit([FinishRun(run.key, epoch, state, output, error, store.now())])
    if verdict not in (OpStatus.DONE, OpStatus.DONE_NOTIFIED):
        raise await read_lost_problem(store, run, epoch)
    RunLog.from_store(store).log_end(replace(run, state=state, error=error))
    _end_delivery(call, id, run)
    return state


async def _commit_release(call: Call, id: str, store: Store, run: Run, epoch: int, ops: list[Op]) -> RunState:
    *_, verdict = await store.commit(ops)
    if verdict is not OpStatus.DONE:
        raise await read_lost_problem(store, run, epoch)
    _end_delivery(call, id, run)
    now = await store.get_run(run.id)
    return RunState.PENDING if now is None else now.state


def _end_delivery(call: Call, id: str, run: Run) -> None:
    """The delivery is over: its listener may have the next one, and others this one, if it goes on."""
    call.platform.delivery_cache.remove(call.caller.namespace, id)
    desk = call.platform.dispatchers.get(call.tenant)
    desk.watcher.mark_ended(id)
    desk.notify(run.workflow)


def _get_redelivery_delay(failure_count: int) -> float:
    """Seconds until a run that has failed so often in a row is delivered again."""
    return min(2.0**failure_count, 300.0)


def _make_return_event(store: Store, run: Run, epoch: int, content: dict[str, Any]) -> AppendLiveEvents:
    data = json.dumps(content, ensure_ascii=False).encode()
    return AppendLiveEvents(run.key, epoch, (LiveEvent(-1, "returned", epoch, RETURNED, data, store.now()),))


async def read_lost_problem(store: Store, run: Run, epoch: int | None = None) -> Problem:
    """The problem of a delivery that has just turned out to be over."""
    return lost_delivery_problem(await store.get_run(run.id) or run, run.epoch if epoch is None else epoch)


def encode_error(type: str, message: str) -> bytes:
    """An error that was told over HTTP, in the shape that the journal has for errors."""
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


def validate_step_name(name: str) -> str:
    """A name that a step may have. Raises ``Problem``."""
    if not name.strip() or len(name) > MAX_STEP_NAME_CHARS or not name.isprintable():
        raise Problem(
            422,
            "bad-input",
            "The values do not fit",
            f"A step's name has 1 to {MAX_STEP_NAME_CHARS} printable characters.",
        )
    return name
