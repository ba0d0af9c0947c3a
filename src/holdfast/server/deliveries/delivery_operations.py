"""What a listener can do with a delivery: record steps, send heartbeats, end the run, or release it.

**Steps are identified by name**, and the first outcome of a name counts. The server that appends a record chooses its
number. The store takes a number that exists under the same epoch for a repeat, even if another server has written it.
So the server then reads what is recorded under the name, and tries again with another number if it is not its own
record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
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
    find_held_run,
    get_delivery_id,
    lost_delivery_problem,
)
from holdfast.server.http.problems import Problem
from holdfast.stores.contract import Store
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
    SaveAttempt,
)

MAX_STEP_NAME_CHARS = 200
MAX_PREVIEW_CHARS = 512
"""Characters of a step's arguments that are stored, for people to read."""
MAX_APPEND_TRIES = 5
"""How often a step is recorded anew if another server appended to the same run at the same moment."""
_value_codec = codec_for(Any)


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
    usage: Usage | None = None,
    model: str = "",
) -> tuple[RecordedStep, bool]:
    """Record a step, unless one is recorded under this name. Returns what is recorded, and whether it is new."""
    name = validate_step_name(name)
    payload = _encode_value(call, output, f"the output of step {name!r}")
    preview = arguments[:MAX_PREVIEW_CHARS]

    def make_record(held: ClaimedDelivery, now: float) -> Record:
        return held.make_record(
            name, RecordKind.STEP, payload, now, attempts=attempts, preview=preview, started_at=started_at
        )

    record, is_new = await append_record(call, id, name, make_record, usage=usage, model=model)
    return await build_step(call, record), is_new


async def append_record(
    call: Call,
    id: str,
    name: str,
    make_record: Callable[[ClaimedDelivery, float], Record],
    *,
    consumed_signal_id: int | None = None,
    usage: Usage | None = None,
    model: str = "",
) -> tuple[Record, bool]:
    """Append a record under a name, unless there is one. Returns the record that counts, and whether it is new.

    Raises the ``Problem`` of a delivery that is lost.
    """
    store, listeners = call.store, call.tenant.listeners
    for _ in range(MAX_APPEND_TRIES):
        held = await find_claimed_delivery(call, id)
        async with held.lock:
            present = held.records.get(name)
            if present is not None:
                await listeners.keep_holder_alive(held.run)
                return present, False
            record = make_record(held, store.now())
            op = AppendRecord(
                held.run.key,
                record,
                consumed_signal_id=consumed_signal_id,
                clear_attempt=name in held.attempts,
                reset_delivery_count=held.run.has_worker_deaths,
                used=usage,
                clear_live_events=name in held.attempts,
                model=model,
            )
            [status] = await store.commit([op])
            if status is not OpStatus.DONE:
                _forget_delivery(call, id)
                raise await read_lost_problem(store, held.run)
            # The store takes an existing number of the same epoch for a repeat, but another server may have written it.
            stored = await store.get_last_record(held.run.id, name)
            if stored is not None and stored.seq == record.seq and stored.payload == record.payload:
                held.add_record(record)
                await listeners.keep_holder_alive(held.run)
                return record, True
        _forget_delivery(call, id)
    raise Problem(
        503,
        "recorded-at-once",
        "Several steps were recorded at the same moment",
        f"Step {name!r} was not recorded, since others of the same run were: send it again.",
        headers={"Retry-After": "1"},
    )


async def note_attempt(call: Call, id: str, name: str, *, attempt: int, once: bool, error: str, progress: Any) -> None:
    """Note that a step begins, so that the next listener knows about it if this one dies meanwhile."""
    store = call.store
    held = await find_claimed_delivery(call, id)
    name = validate_step_name(name)
    encoded = None if progress is None else _encode_value(call, progress, f"the progress of step {name!r}")
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
            progress=encoded,
            error=error[:500],
            at=store.now(),
            name=name,
        )
        [status] = await store.commit([SaveAttempt(held.run.key, held.run.epoch, noted)])
        if status is not OpStatus.DONE:
            _forget_delivery(call, id)
            raise await read_lost_problem(store, held.run)
        held.attempts[name] = noted
    await call.tenant.listeners.keep_holder_alive(held.run)


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
    elif await call.tenant.disabled_workflows.is_disabled(call.store, run.workflow):
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


async def complete(call: Call, id: str, output: Any) -> RunState:
    """End the run with a result. A repeat has the same response."""
    return await _finish(call, id, RunState.COMPLETED, output=_encode_value(call, output, "the output of the run"))


async def fail(call: Call, id: str, type: str, message: str, *, retry: bool, delay: float | None) -> RunState:
    """End the run with an error; with ``retry``, deliver it again until its deliveries are used up."""
    error = encode_error(type, message)
    if not retry:
        return await _finish(call, id, RunState.FAILED, error=error)
    run, epoch = await find_delivery(call, id)
    delay_s = _get_redelivery_delay(run.delivery_count) if delay is None else delay
    release_op = ReleaseRun(run.key, epoch, call.store.now() + delay_s, error)
    state = await _return_run(call, id, run, release_op, reason="failed", error=f"{type}: {message}"[:500])
    run_log = RunLog.from_store(call.store)
    if state is RunState.DEAD:
        run_log.log_end(replace(run, state=state, error=error))
    else:
        run_log.log_redelivery(run, delay_s, error)
    return state


async def release(call: Call, id: str, reason: str, delay: float) -> RunState:
    """Give the run back, to be delivered again. That does not count as a failure."""
    run, epoch = await find_delivery(call, id)
    wake_at = call.store.now() + delay if delay > 0 else None
    return await _return_run(call, id, run, ReleaseRun(run.key, epoch, wake_at), reason=reason[:500] or "released")


async def _finish(
    call: Call, id: str, state: RunState, *, output: bytes | None = None, error: bytes | None = None
) -> RunState:
    known = call.platform.delivery_cache.get((call.tenant.namespace, id))
    if known is None:
        run, epoch = await find_delivery(call, id)
    else:  # the fence decides whether it is still held
        call.check_listen_scope(known.run.workflow)
        run, epoch = known.run, known.run.epoch
    store = call.store
    [status] = await store.commit([FinishRun(run.key, epoch, state, output, error, store.now())])
    if status not in (OpStatus.DONE, OpStatus.DONE_NOTIFIED):
        raise await read_lost_problem(store, run, epoch)
    RunLog.from_store(store).log_end(replace(run, state=state, error=error))
    end_delivery(call, id, run)
    return state


async def _return_run(call: Call, id: str, run: Run, op: ReleaseRun, **reason: str) -> RunState:
    """Release a run, with a live event that says why. Returns the state of the run after that."""
    store = call.store
    data = json.dumps(reason, ensure_ascii=False).encode()
    event = LiveEvent(-1, "returned", op.epoch, RETURNED, data, store.now())
    _, status = await store.commit([AppendLiveEvents(run.key, op.epoch, (event,)), op])
    if status is not OpStatus.DONE:
        raise await read_lost_problem(store, run, op.epoch)
    end_delivery(call, id, run)
    current = await store.get_run(run.id)
    return RunState.PENDING if current is None else current.state


def end_delivery(call: Call, id: str, run: Run) -> None:
    """The delivery has ended: its listener may get the next one, and other listeners this run, if it continues."""
    _forget_delivery(call, id)
    dispatcher = call.tenant.dispatcher
    dispatcher.watcher.mark_ended(id)
    dispatcher.notify(run.workflow)


def _forget_delivery(call: Call, id: str) -> None:
    call.platform.delivery_cache.pop((call.tenant.namespace, id), None)


def _get_redelivery_delay(failure_count: int) -> float:
    """Seconds until a run with so many consecutive failures is delivered again."""
    return min(2.0**failure_count, 300.0)


async def read_lost_problem(store: Store, run: Run, epoch: int | None = None) -> Problem:
    """The problem of a delivery that has just turned out to be lost."""
    return lost_delivery_problem(await store.get_run(run.id) or run, run.epoch if epoch is None else epoch)


def _encode_value(call: Call, value: Any, label: str) -> bytes:
    return validate_size(_value_codec.encode(value, label), label, call.client.max_value)


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
