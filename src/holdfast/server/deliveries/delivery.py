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

from holdfast.codec import describe_error, to_plain
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.errors import CodecError
from holdfast.server.calls import Call
from holdfast.server.http.problems import Problem
from holdfast.services.addresses import PAYLOAD
from holdfast.services.timestamps import moment
from holdfast.stores import rules
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import Run


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """An outcome that is recorded, under the name by which the next listener finds it."""

    name: str
    kind: str
    """``step``, ``approval`` or ``signal``."""
    output: Any
    at: datetime


@dataclass(frozen=True, slots=True)
class StepBegun:
    """A step that an earlier listener has begun, and of which nothing was recorded."""

    name: str
    attempt: int
    once: bool
    """It was to happen at most once: it may have happened, and must not be done again unseen."""
    at: datetime
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
    failures: int
    """Deliveries that count against the run since its last step: those that failed, and those whose listener died while
    it held nothing else."""
    listener: str
    """Who holds it: to be handed in with the next take, as long as the process lives."""
    lease: float
    """Seconds within which the listener must be heard of again."""
    deadline: datetime | None
    created_at: datetime
    tags: tuple[str, ...]
    steps: tuple[RecordedStep, ...]
    in_flight: tuple[StepBegun, ...]


_NAMED = {Kind.STEP: "step", Kind.APPROVAL: "approval", Kind.SIGNAL: "signal"}


class Held:
    """A delivery, as far as this server knows it: the fence tells whether it still is what it was."""

    def __init__(self, run: Run, history: History) -> None:
        self.run = run
        self.next_seq = history.records[-1].seq + 1 if history.records else 0
        """The number of the next record."""
        self.records = {one.name: one for one in reversed(history.records) if one.kind in _NAMED}
        """The first one of each name."""
        self.attempts = {one.name: one for one in history.attempts.values()}
        self.signals = history.signals
        self._is_isolated = rules.is_isolated(run.suspicion)
        """Listeners that held it died, and nothing was recorded since, as far as this server knows."""
        self._isolated_since: float | None = None
        self.lock = asyncio.Lock()
        """Whoever records something has it: listeners may record steps side by side."""

    @property
    def next_position(self) -> int:
        """The position of the next step that begins."""
        return max([self.next_seq, *(one.position + 1 for one in self.attempts.values())])

    def is_tried_alone(self, now: float, lease: float) -> bool:
        """Whether its listener is handed nothing else now, because others that held this run died."""
        if self._isolated_since is None:
            self._isolated_since = now
        bound = rules.isolation_leases(self.run.suspicion) * lease
        return self._is_isolated and now < self._isolated_since + bound

    def keep(self, record: Record) -> None:
        """This was recorded."""
        self._is_isolated = False
        self.records.setdefault(record.name, record)
        self.attempts.pop(record.name, None)
        self.next_seq = record.seq + 1


class HeldNow:
    """Deliveries that this server has seen lately, so that a step need not read the journal.

    Others may write to the same journal through another server, which the next append finds out.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Held] = OrderedDict()
        """By namespace and id of the delivery."""

    def get(self, namespace: str, id: str) -> Held | None:
        """What is known of a delivery."""
        return self._known.get((namespace, id))

    def put(self, namespace: str, id: str, held: Held) -> None:
        """Remember it."""
        self._known[namespace, id] = held
        self._known.move_to_end((namespace, id))
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def forget(self, namespace: str, id: str) -> None:
        """It is over, or may be another one than it was."""
        self._known.pop((namespace, id), None)


MOST_KNOWN = 10_000


# Names


def delivery_id(run: Run) -> str:
    """What a run in the hands of its present holder is called."""
    return f"{run.epoch}.{base64.urlsafe_b64encode(run.id.encode()).decode().rstrip('=')}"


def _parts(id: str) -> tuple[str, int]:
    epoch, _, name = id.partition(".")
    try:
        run_id = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        if not epoch.isascii() or not epoch.isdigit() or len(epoch) > 15 or not run_id:
            raise ValueError(epoch)
    except (ValueError, binascii.Error):
        raise unknown_delivery(id) from None
    return run_id, int(epoch)


# Finding


async def find(call: Call, id: str) -> tuple[Store, Run, int]:
    """The run of a delivery, which the caller may listen for, and the epoch that was handed out."""
    run_id, epoch = _parts(id)
    store = await call.store()
    run = await store.get(run_id)
    if run is None or not run.by_delivery:
        raise unknown_delivery(id)
    call.need_to_listen(run.workflow)
    if epoch > run.epoch or epoch == 0:
        raise unknown_delivery(id)
    return store, run, epoch


async def find_held(call: Call, id: str, *, anew: bool = False) -> tuple[Store, Held]:
    """A delivery that is still held, as far as this server knows, or as the store tells it (``anew``).

    Raises ``Problem``: 404 if there was none, 409 if it is over.
    """
    known = None if anew else call.platform.held.get(call.caller.namespace, id)
    if known is not None:
        call.need_to_listen(known.run.workflow)
        return await call.store(), known
    store, run, epoch = await find(call, id)
    if run.state is not RunState.RUNNING or run.epoch != epoch:
        raise lost(run, epoch)
    [history] = await store.histories([run.key])
    held = Held(run, history)
    call.platform.held.put(call.caller.namespace, id, held)
    return store, held


def unknown_delivery(id: str) -> Problem:
    """The problem of an id that names no delivery here."""
    return Problem(404, "delivery-not-found", "There is no such delivery", f"{id[:200]!r} was not handed out here.")


def lost(run: Run, epoch: int) -> Problem:
    """The problem of a delivery that is over: why, and what to do."""
    reason, words = _why_lost(run, epoch)
    return Problem(
        409,
        "delivery-lost",
        "The delivery is over",
        f"Delivery {epoch} of run {run.id!r} to address {run.workflow!r} is over: {words} Stop working on it.",
        run_id=run.id,
        reason=reason,
    )


def _why_lost(run: Run, epoch: int) -> tuple[str, str]:
    if run.state is RunState.CANCELLED:
        return "cancelled", "the run was cancelled."
    if run.state is RunState.FAILED and _is_deadline(run.error):
        return "expired", "the deadline of the run has passed."
    if run.state.is_terminal:
        return "ended", f"the run is {run.state}."
    if run.epoch != epoch or run.state is RunState.PENDING:
        return "taken-over", "its listener was not heard of for longer than its lease, or has given it back."
    return "parked", "the run waits, and will be delivered again."


def _is_deadline(error: bytes | None) -> bool:
    try:
        return error is not None and describe_error(error).type.endswith("RunTimedOut")
    except CodecError:
        return False


# What is told


async def told(call: Call, held: Held, listener: str, lease: float) -> Delivery:
    """The delivery as its listener gets it."""
    payloads = (one.payload for one in held.records.values())
    size = len(held.run.inputs) + sum(len(one) for one in payloads if one is not None)
    return await call.off_loop(size, lambda: _told(call, held, listener, lease))


def _told(call: Call, held: Held, listener: str, lease: float) -> Delivery:
    run = held.run
    inputs: Any = to_plain(run.inputs)
    return Delivery(
        id=delivery_id(run),
        run_id=run.id,
        address=run.workflow,
        payload=call.out(inputs.get(PAYLOAD) if isinstance(inputs, dict) else None),  # pyright: ignore[reportUnknownMemberType]
        number=run.epoch,
        failures=run.deliveries,
        listener=listener,
        lease=lease,
        deadline=moment(run.deadline),
        created_at=moment(run.created_at),
        tags=run.tags,
        steps=tuple(_step(call, one) for one in sorted(held.records.values(), key=lambda one: one.seq)),
        in_flight=tuple(
            StepBegun(
                name=one.name,
                attempt=one.attempt,
                once=one.intent,
                at=moment(one.at),
                progress=None if one.progress is None else call.out(to_plain(one.progress)),
            )
            for one in held.attempts.values()
            if one.name not in held.records and not is_wait(one.progress)
        ),
    )


async def step_of(call: Call, record: Record) -> RecordedStep:
    """A record as it is told."""
    return await call.off_loop(len(record.payload or b""), lambda: _step(call, record))


def _step(call: Call, record: Record) -> RecordedStep:
    payload = record.payload or b"null"
    output = json.loads(payload) if record.kind is Kind.APPROVAL else call.out(to_plain(payload))
    return RecordedStep(record.name, _NAMED[record.kind], output, moment(record.at))


WAITS_UNTIL = b'{"$holdfast:until":'
"""How what is noted of a wait begins, where steps note their progress."""


def is_wait(progress: bytes | None) -> bool:
    """Whether this is the note of a wait, not of a step."""
    return progress is not None and progress.startswith(WAITS_UNTIL)
