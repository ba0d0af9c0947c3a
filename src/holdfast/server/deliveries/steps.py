"""Recording the steps of a delivery.

**Steps are identified by name**, and the first outcome of a name counts. The server that appends a record chooses its
number. If the number already exists under the same epoch, another server has written it, or an earlier request whose
response was lost. Then the server reads the journal anew, and tries again with another number if nothing is recorded
under the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from holdfast.admission.usage import NANO_PER_USD, Usage
from holdfast.core.records import Attempt, Record, RecordKind
from holdfast.server.calls import Call
from holdfast.server.deliveries.delivery import (
    ClaimedDelivery,
    find_claimed_delivery,
    forget_delivery,
    read_lost_problem,
)
from holdfast.server.http.models import MAX_INT, AssumedUtcDatetime
from holdfast.server.http.router import RequestModel
from holdfast.services.problems import Problem
from holdfast.stores.operations import AppendRecord, OpStatus, SaveAttempt
from holdfast.stores.run_errors import make_unknown_outcome_error

MAX_STEP_NAME_CHARS = 200
MAX_PREVIEW_CHARS = 512
"""Characters of a step's arguments that are stored, for people to read."""
MAX_APPEND_TRIES = 5
"""Maximum number of attempts to append a record, if other servers append to the same run at the same moment."""


class UsageBody(RequestModel):
    """What the model calls of a step used."""

    calls: int = Field(1, ge=0, le=MAX_INT)
    input_tokens: int = Field(0, ge=0, le=MAX_INT)
    output_tokens: int = Field(0, ge=0, le=MAX_INT)
    cached_tokens: int = Field(0, ge=0, le=MAX_INT)
    usd: float | None = Field(None, ge=0, le=1_000_000)
    """What they cost; left out if unknown."""
    model: str = Field("", max_length=200)

    def to_usage(self) -> Usage:
        """The usage as the journal stores it."""
        return Usage(
            calls=self.calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            nano_usd=0 if self.usd is None else round(self.usd * NANO_PER_USD),
            unpriced=self.calls if self.usd is None else 0,
        )


class StepBody(RequestModel):
    """The outcome of a step."""

    name: str = Field(min_length=1, max_length=MAX_STEP_NAME_CHARS)
    output: Any = None
    started_at: AssumedUtcDatetime | None = None
    attempts: int = Field(1, ge=1, le=10_000)
    arguments: str = Field("", max_length=10_000)
    """Its arguments, shortened, for people to read."""
    usage: UsageBody | None = None


class AttemptBody(RequestModel):
    """A step that begins."""

    name: str = Field(min_length=1, max_length=MAX_STEP_NAME_CHARS)
    attempt: int = Field(1, ge=1, le=10_000)
    once: bool = False
    """It must happen at most once: if this listener dies meanwhile, the next one learns that it may have happened."""
    error: str = Field("", max_length=10_000)
    """Why the previous attempt failed."""
    progress: Any = None


async def record_step(call: Call, id: str, body: StepBody) -> tuple[Record, bool]:
    """Record a step, unless one is recorded under its name. Returns the record, and whether it is new."""
    name, payload = await _encode_step(call, body)
    return await append_record(
        call,
        id,
        name,
        RecordKind.STEP,
        payload,
        started_at=body.started_at,
        attempts=body.attempts,
        preview=body.arguments[:MAX_PREVIEW_CHARS],
        usage=body.usage,
    )


async def _encode_step(call: Call, body: StepBody) -> tuple[str, bytes]:
    """The name and the recorded outcome of a step. Raises ``Problem`` and ``ValueTooLarge``."""
    label = f"the output of step {body.name!r}"
    return validate_step_name(body.name), call.encode_stored_value(await call.prepare_value(body.output, label), label)


async def make_step_ops(call: Call, held: ClaimedDelivery, bodies: Sequence[StepBody]) -> list[AppendRecord]:
    """The operations that record steps, without those that are recorded. The caller holds the lock of the delivery.

    The delivery counts them as recorded: the caller forgets it if they cannot be committed.
    """
    ops: list[AppendRecord] = []
    for body in bodies:
        name, payload = await _encode_step(call, body)
        if name in held.records:
            continue
        record = held.make_record(
            name, RecordKind.STEP, payload, call.store.now(), started_at=body.started_at, attempts=body.attempts,
            preview=body.arguments[:MAX_PREVIEW_CHARS],
        )  # fmt: skip
        ops.append(_make_append_op(held, record, body.usage))
        held.add_record(record)
    return ops


def _make_append_op(held: ClaimedDelivery, record: Record, usage: UsageBody | None) -> AppendRecord:
    return AppendRecord(
        held.run.key,
        record,
        clear_attempt=record.name in held.attempts,
        reset_delivery_count=held.run.has_worker_deaths,
        used=None if usage is None else usage.to_usage(),
        clear_live_events=record.name in held.attempts,
        model="" if usage is None else usage.model,
    )


async def append_record(
    call: Call,
    id: str,
    name: str,
    kind: RecordKind,
    payload: bytes,
    *,
    started_at: datetime | None = None,
    attempts: int = 1,
    preview: str = "",
    consumed_signal_id: int | None = None,
    usage: UsageBody | None = None,
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
            record = held.make_record(
                name, kind, payload, store.now(), started_at=started_at, attempts=attempts, preview=preview
            )
            op = _make_append_op(held, record, usage)._replace(consumed_signal_id=consumed_signal_id, must_be_new=True)
            [status] = await call.commit([op])
            if status is OpStatus.DONE:
                held.add_record(record)
                await listeners.keep_holder_alive(held.run)
                return record, True
        forget_delivery(call, id)
        if status is not OpStatus.DUPLICATE:
            raise await read_lost_problem(call, held.run)
    raise Problem(
        503,
        "concurrent-record",
        "Several steps were recorded at the same moment",
        f"Step {name!r} was not recorded, since others of the same run were: send it again.",
        headers={"Retry-After": "1"},
    )


async def note_attempt(call: Call, id: str, body: AttemptBody) -> None:
    """Note that a step begins, so that the next listener knows about it if this one dies meanwhile."""
    store, name, label = call.store, validate_step_name(body.name), f"the progress of step {body.name!r}"
    progress = await call.prepare_value(body.progress, label)
    held = await find_claimed_delivery(call, id)
    encoded = None if progress is None else call.encode_stored_value(progress, label)
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
        if body.once and held.restored is not None and held.restored.may_have_begun(name, begun):
            raise Problem(
                409,
                "outcome-unknown",
                "The step may have happened",
                f"{make_unknown_outcome_error(held.run.id, name, held.restored.name)} Then record its outcome.",
                run_id=held.run.id,
            )
        noted = Attempt(
            position=held.next_position if begun is None else begun.position,
            attempt=body.attempt,
            intent=body.once,
            progress=encoded,
            error=body.error[:500],
            at=store.now(),
            name=name,
        )
        [status] = await call.commit([SaveAttempt(held.run.key, held.run.epoch, noted)])
        if status is not OpStatus.DONE:
            forget_delivery(call, id)
            raise await read_lost_problem(call, held.run)
        held.attempts[name] = noted
    await call.tenant.listeners.keep_holder_alive(held.run)


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
