"""A delivery: what its listener gets, and its id.

The id names the run and the epoch, which is all it takes to find and fence the delivery. So no server needs to remember
what it has handed out.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.codec import decode_plain, read_error_info
from holdfast.core.records import RESTORED_POSITION, Record, RecordKind
from holdfast.core.states import RunState
from holdfast.errors import CodecError
from holdfast.server.calls import Call
from holdfast.services.addresses import PAYLOAD_PARAMETER
from holdfast.services.problems import Problem
from holdfast.services.timestamps import to_datetime
from holdfast.stores import worker_deaths
from holdfast.stores.contract import History
from holdfast.stores.operations import Run
from holdfast.trace_context import get_trace_parent_of_run


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A recorded outcome, under the name by which the next listener finds it."""

    name: str
    kind: str
    """``step``, ``approval`` or ``signal``."""
    output: Any
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class UnfinishedStep:
    """A step that an earlier listener began without recording an outcome."""

    name: str
    attempt: int
    once: bool
    """It must happen at most once, and may have happened: check before you do it again."""
    started_at: datetime
    progress: Any
    """The last progress that the listener reported."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A run that a listener holds."""

    id: str
    run_id: str
    address: str
    payload: Any
    number: int
    """Which delivery of the run it is: 1 for the first."""
    failure_count: int
    """Deliveries that count against the run since its last step: those that failed, and those whose listener died while
    it held nothing else."""
    listener_id: str
    """The listener that holds it: its process sends this id with its next claim."""
    lease: float
    """Seconds within which the listener must send its next request."""
    deadline: datetime | None
    created_at: datetime
    tags: tuple[str, ...]
    steps: tuple[RecordedStep, ...]
    in_flight: tuple[UnfinishedStep, ...]
    trace_parent: str
    """The W3C ``traceparent`` of the run: spans of the work on it belong below this one."""


_KIND_NAMES = {RecordKind.STEP: "step", RecordKind.APPROVAL: "approval", RecordKind.SIGNAL: "signal"}


class ClaimedDelivery:
    """A delivery, as far as this server knows it: the fence decides whether that is still true."""

    def __init__(self, run: Run, history: History) -> None:
        self.run = run
        self.next_seq = history.records[-1].seq + 1 if history.records else 0
        self.records = {record.name: record for record in reversed(history.records) if record.kind in _KIND_NAMES}
        """The first record of each name."""
        self.attempts = {
            attempt.name: attempt for position, attempt in history.attempts.items() if position != RESTORED_POSITION
        }
        self.restored = history.attempts.get(RESTORED_POSITION)
        """Set for a run that was restored from a backup: its ``once`` steps may have begun after that was made."""
        self.signals = history.signals
        self.handed_over_at: float | None = None
        """When this server gave it to its listener."""
        self._is_isolated = worker_deaths.is_isolated(run.suspicion)
        """Listeners that held the run died, and nothing has been recorded since, as far as this server knows."""
        self._isolated_since: float | None = None
        self.lock = asyncio.Lock()
        """Held while something is recorded: a listener may record several steps concurrently."""

    @property
    def next_position(self) -> int:
        """The position of the next step that begins."""
        return max([self.next_seq, *(attempt.position + 1 for attempt in self.attempts.values())])

    def is_isolated(self, now: float, lease: float) -> bool:
        """Whether its listener gets nothing else now, because other listeners that held this run died."""
        if self._isolated_since is None:
            self._isolated_since = now
        max_isolation_s = worker_deaths.get_isolation_leases(self.run.suspicion) * lease
        return self._is_isolated and now < self._isolated_since + max_isolation_s

    def make_record(
        self, name: str, kind: RecordKind, payload: bytes, now: float, *,
        started_at: datetime | None, attempts: int, preview: str,
    ) -> Record:  # fmt: skip
        """The record of an outcome, at the position of its attempt if there is one."""
        begun = self.attempts.get(name)
        begun_at = now if begun is None else begun.at
        return Record(
            seq=self.next_seq,
            kind=kind,
            position=self.next_position if begun is None else begun.position,
            name=name,
            ok=True,
            payload=payload,
            at=now,
            started_at=begun_at if started_at is None else started_at.timestamp(),
            attempts=attempts if begun is None else max(attempts, begun.attempt),
            worker=self.run.owner or 0,
            epoch=self.run.epoch,
            preview=preview,
        )

    def add_record(self, record: Record) -> None:
        """Remember a record that was appended."""
        self._is_isolated = False
        self.records.setdefault(record.name, record)
        self.attempts.pop(record.name, None)
        self.next_seq = record.seq + 1


# Ids


def get_delivery_id(run: Run) -> str:
    """The id of the delivery of a run to its present holder."""
    return f"{run.epoch}.{base64.urlsafe_b64encode(run.id.encode()).decode().rstrip('=')}"


def _parse_delivery_id(id: str) -> tuple[str, int]:
    epoch, _, name = id.partition(".")
    try:
        run_id = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        if not epoch.isascii() or not epoch.isdigit() or len(epoch) > 15 or not run_id:
            raise ValueError(epoch)
    except (ValueError, binascii.Error):
        raise unknown_delivery_problem(id) from None
    return run_id, int(epoch)


# Finding


async def find_delivery(call: Call, id: str) -> tuple[Run, int]:
    """The run of a delivery, which the caller may listen for, and the epoch that was handed out."""
    run_id, epoch = _parse_delivery_id(id)
    run = await call.store.get_run(run_id)
    if run is None or not run.is_delivery:
        raise unknown_delivery_problem(id)
    call.check_listen_scope(run.workflow)
    if epoch > run.epoch or epoch == 0:
        raise unknown_delivery_problem(id)
    return run, epoch


async def find_held_run(call: Call, id: str) -> Run:
    """The run of a delivery that is still held. Raises ``Problem``: 404 if there was none, 409 if it has ended."""
    run, epoch = await find_delivery(call, id)
    if run.state is not RunState.RUNNING or run.epoch != epoch:
        raise lost_delivery_problem(run, epoch)
    return run


async def find_claimed_delivery(call: Call, id: str, *, refresh: bool = False) -> ClaimedDelivery:
    """A delivery that is still held, as far as this server knows, or according to the store (``refresh``).

    Raises ``Problem`` as ``find_held_run`` does.
    """
    cache, cache_key = call.platform.delivery_cache, (call.tenant.namespace, id)
    known = None if refresh else cache.get(cache_key)
    if known is not None:
        call.check_listen_scope(known.run.workflow)
        return known
    run = await find_held_run(call, id)
    [history] = await call.store.get_histories([run.key])
    claimed = cache[cache_key] = ClaimedDelivery(run, history)
    return claimed


def forget_delivery(call: Call, id: str) -> None:
    """Read the delivery anew next time: it has ended, or another server has written to it."""
    call.platform.delivery_cache.pop((call.tenant.namespace, id), None)


def unknown_delivery_problem(id: str) -> Problem:
    """The problem of an id that names no delivery here."""
    return Problem(404, "delivery-not-found", "There is no such delivery", f"{id[:200]!r} was not handed out here.")


def lost_delivery_problem(run: Run, epoch: int) -> Problem:
    """The problem of a delivery that has ended: why, and what to do."""
    reason, explanation = _explain_loss(run, epoch)
    return Problem(
        409,
        "delivery-lost",
        "The delivery is over",
        f"Delivery {epoch} of run {run.id!r} to address {run.workflow!r} is over: {explanation} Stop working on it.",
        run_id=run.id,
        reason=reason,
    )


async def read_lost_problem(call: Call, run: Run, epoch: int | None = None) -> Problem:
    """The problem of a delivery that has just turned out to be lost."""
    return lost_delivery_problem(await call.store.get_run(run.id) or run, run.epoch if epoch is None else epoch)


def _explain_loss(run: Run, epoch: int) -> tuple[str, str]:
    if run.state is RunState.CANCELLED:
        return "cancelled", "the run was cancelled."
    if run.state is RunState.FAILED and _is_deadline_error(run.error):
        return "expired", "the deadline of the run has passed."
    if run.state.is_terminal:
        return "ended", f"the run is {run.state}."
    if run.epoch != epoch or run.state is RunState.PENDING:
        return "taken-over", "its listener was not heard of for longer than its lease, or has given it back."
    return "parked", "the run waits, and will be delivered again."


def _is_deadline_error(error: bytes | None) -> bool:
    try:
        return error is not None and read_error_info(error).type.endswith("RunTimedOut")
    except CodecError:
        return False


# What a listener gets


async def build_delivery(call: Call, claimed: ClaimedDelivery, listener_id: str, lease: float) -> Delivery:
    """The delivery as its listener gets it."""
    claimed.handed_over_at = call.store.now()
    payloads = (record.payload for record in claimed.records.values())
    size = len(claimed.run.inputs) + sum(len(payload) for payload in payloads if payload is not None)
    return await call.run_body_work(size, lambda: _build_delivery(call, claimed, listener_id, lease))


def _build_delivery(call: Call, claimed: ClaimedDelivery, listener_id: str, lease: float) -> Delivery:
    run = claimed.run
    inputs: Any = decode_plain(run.inputs)
    records = sorted(claimed.records.values(), key=lambda record: record.seq)
    return Delivery(
        id=get_delivery_id(run),
        run_id=run.id,
        address=run.workflow,
        payload=call.encode_value(inputs.get(PAYLOAD_PARAMETER) if isinstance(inputs, dict) else None),  # pyright: ignore[reportUnknownMemberType]
        number=run.epoch,
        failure_count=run.delivery_count,
        listener_id=listener_id,
        lease=lease,
        deadline=to_datetime(run.deadline),
        created_at=to_datetime(run.created_at),
        tags=run.tags,
        steps=tuple(_build_step(call, record) for record in records),
        in_flight=tuple(
            UnfinishedStep(
                name=attempt.name,
                attempt=attempt.attempt,
                once=attempt.intent,
                started_at=to_datetime(attempt.at),
                progress=None if attempt.progress is None else call.encode_value(decode_plain(attempt.progress)),
            )
            for attempt in claimed.attempts.values()
            if attempt.name not in claimed.records and not is_wait(attempt.progress)
        ),
        trace_parent=get_trace_parent_of_run(run.id, run.seed, run.trace_parent, len(run.rewind_points)),
    )


async def build_step(call: Call, record: Record) -> RecordedStep:
    """A record as a listener gets it."""
    return await call.run_body_work(len(record.payload or b""), lambda: _build_step(call, record))


def _build_step(call: Call, record: Record) -> RecordedStep:
    payload = record.payload or b"null"
    output = json.loads(payload) if record.kind is RecordKind.APPROVAL else call.encode_value(decode_plain(payload))
    return RecordedStep(record.name, _KIND_NAMES[record.kind], output, to_datetime(record.at))


WAIT_PREFIX = b'{"$holdfast:until":'
"""How the deadline of a wait begins. It is stored where steps store their progress."""


def is_wait(progress: bytes | None) -> bool:
    """Whether this belongs to a wait, and not to a step."""
    return progress is not None and progress.startswith(WAIT_PREFIX)
