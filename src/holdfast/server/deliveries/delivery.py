"""A delivery: what its listener is told, and how it is named.

Its id names the run and the epoch, and thus says all that it takes to find and to fence it: no server needs to remember
what it has handed out.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.codec import decode_plain, read_error_info
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.errors import CodecError
from holdfast.server.calls import Call
from holdfast.server.http.problems import Problem
from holdfast.services.addresses import PAYLOAD_PARAMETER
from holdfast.services.timestamps import to_datetime
from holdfast.stores import worker_deaths
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import Run


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """An outcome that is recorded, under the name by which the next listener finds it."""

    name: str
    kind: str
    """``step``, ``approval`` or ``signal``."""
    output: Any
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class UnfinishedStep:
    """A step that an earlier listener has begun, and of which nothing was recorded."""

    name: str
    attempt: int
    once: bool
    """It was to happen at most once: it may have happened, and must not be done again unseen."""
    started_at: datetime
    progress: Any
    """What the listener has said about it last."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A run in the hands of a listener."""

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
    """Who holds it: to be passed with the next claim, as long as the process lives."""
    lease: float
    """Seconds within which the listener must be heard of again."""
    deadline: datetime | None
    created_at: datetime
    tags: tuple[str, ...]
    steps: tuple[RecordedStep, ...]
    in_flight: tuple[UnfinishedStep, ...]


_KIND_NAMES = {RecordKind.STEP: "step", RecordKind.APPROVAL: "approval", RecordKind.SIGNAL: "signal"}


class ClaimedDelivery:
    """A delivery, as far as this server knows it: the fence tells whether it still is what it was."""

    def __init__(self, run: Run, history: History) -> None:
        self.run = run
        self.next_seq = history.records[-1].seq + 1 if history.records else 0
        """The number of the next record."""
        self.records = {one.name: one for one in reversed(history.records) if one.kind in _KIND_NAMES}
        """The first one of each name."""
        self.attempts = {one.name: one for one in history.attempts.values()}
        self.signals = history.signals
        self._is_isolated = worker_deaths.is_isolated(run.suspicion)
        """Listeners that held it died, and nothing was recorded since, as far as this server knows."""
        self._isolated_since: float | None = None
        self.lock = asyncio.Lock()
        """Whoever records something has it: listeners may record steps side by side."""

    @property
    def next_position(self) -> int:
        """The position of the next step that begins."""
        return max([self.next_seq, *(one.position + 1 for one in self.attempts.values())])

    def is_isolated(self, now: float, lease: float) -> bool:
        """Whether its listener is handed nothing else now, because others that held this run died."""
        if self._isolated_since is None:
            self._isolated_since = now
        bound = worker_deaths.get_isolation_leases(self.run.suspicion) * lease
        return self._is_isolated and now < self._isolated_since + bound

    def add_record(self, record: Record) -> None:
        """This was recorded."""
        self._is_isolated = False
        self.records.setdefault(record.name, record)
        self.attempts.pop(record.name, None)
        self.next_seq = record.seq + 1


class DeliveryCache:
    """Deliveries that this server has seen lately, so that a step need not read the journal.

    Others may write to the same journal through another server, which the next append finds out.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str], ClaimedDelivery] = OrderedDict()
        """By namespace and id of the delivery."""

    def get(self, namespace: str, id: str) -> ClaimedDelivery | None:
        """What is known of a delivery."""
        return self._entries.get((namespace, id))

    def put(self, namespace: str, id: str, delivery: ClaimedDelivery) -> None:
        """Remember it."""
        self._entries[namespace, id] = delivery
        self._entries.move_to_end((namespace, id))
        if len(self._entries) > MAX_CACHED_DELIVERIES:
            self._entries.popitem(last=False)

    def remove(self, namespace: str, id: str) -> None:
        """It is over, or may be another one than it was."""
        self._entries.pop((namespace, id), None)


MAX_CACHED_DELIVERIES = 10_000


# Names


def get_delivery_id(run: Run) -> str:
    """What a run in the hands of its present holder is called."""
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


async def find_delivery(call: Call, id: str) -> tuple[Store, Run, int]:
    """The run of a delivery, which the caller may listen for, and the epoch that was handed out."""
    run_id, epoch = _parse_delivery_id(id)
    store = await call.store()
    run = await store.get_run(run_id)
    if run is None or not run.is_delivery:
        raise unknown_delivery_problem(id)
    call.check_listen_scope(run.workflow)
    if epoch > run.epoch or epoch == 0:
        raise unknown_delivery_problem(id)
    return store, run, epoch


async def find_claimed_delivery(call: Call, id: str, *, refresh: bool = False) -> tuple[Store, ClaimedDelivery]:
    """A delivery that is still held, as far as this server knows, or as the store says (``refresh``).

    Raises ``Problem``: 404 if there was none, 409 if it is over.
    """
    known = None if refresh else call.platform.delivery_cache.get(call.caller.namespace, id)
    if known is not None:
        call.check_listen_scope(known.run.workflow)
        return await call.store(), known
    store, run, epoch = await find_delivery(call, id)
    if run.state is not RunState.RUNNING or run.epoch != epoch:
        raise lost_delivery_problem(run, epoch)
    [history] = await store.get_histories([run.key])
    held = ClaimedDelivery(run, history)
    call.platform.delivery_cache.put(call.caller.namespace, id, held)
    return store, held


def unknown_delivery_problem(id: str) -> Problem:
    """The problem of an id that names no delivery here."""
    return Problem(404, "delivery-not-found", "There is no such delivery", f"{id[:200]!r} was not handed out here.")


def lost_delivery_problem(run: Run, epoch: int) -> Problem:
    """The problem of a delivery that is over: why, and what to do."""
    reason, words = _explain_loss(run, epoch)
    return Problem(
        409,
        "delivery-lost",
        "The delivery is over",
        f"Delivery {epoch} of run {run.id!r} to address {run.workflow!r} is over: {words} Stop working on it.",
        run_id=run.id,
        reason=reason,
    )


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


# What is told


async def build_delivery(call: Call, claimed: ClaimedDelivery, listener_id: str, lease: float) -> Delivery:
    """The delivery as its listener gets it."""
    payloads = (one.payload for one in claimed.records.values())
    size = len(claimed.run.inputs) + sum(len(one) for one in payloads if one is not None)
    return await call.run_body_work(size, lambda: _build_delivery(call, claimed, listener_id, lease))


def _build_delivery(call: Call, claimed: ClaimedDelivery, listener_id: str, lease: float) -> Delivery:
    run = claimed.run
    inputs: Any = decode_plain(run.inputs)
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
        steps=tuple(_build_step(call, one) for one in sorted(claimed.records.values(), key=lambda one: one.seq)),
        in_flight=tuple(
            UnfinishedStep(
                name=one.name,
                attempt=one.attempt,
                once=one.intent,
                started_at=to_datetime(one.at),
                progress=None if one.progress is None else call.encode_value(decode_plain(one.progress)),
            )
            for one in claimed.attempts.values()
            if one.name not in claimed.records and not is_wait(one.progress)
        ),
    )


async def build_step(call: Call, record: Record) -> RecordedStep:
    """A record as it is told."""
    return await call.run_body_work(len(record.payload or b""), lambda: _build_step(call, record))


def _build_step(call: Call, record: Record) -> RecordedStep:
    payload = record.payload or b"null"
    output = json.loads(payload) if record.kind is RecordKind.APPROVAL else call.encode_value(decode_plain(payload))
    return RecordedStep(record.name, _KIND_NAMES[record.kind], output, to_datetime(record.at))


WAIT_PREFIX = b'{"$holdfast:until":'
"""How what is noted of a wait begins, where steps note their progress."""


def is_wait(progress: bytes | None) -> bool:
    """Whether this is the note of a wait, not of a step."""
    return progress is not None and progress.startswith(WAIT_PREFIX)
