"""The history of a run's deliveries: to which listener, when, and how each ended.

It is read from what is stored anyway: the live event of each delivery, the live event of each return, the journal, and
the run's end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from holdfast.codec import check_decrypted
from holdfast.core.states import RunState
from holdfast.services.store_provider import StoreProvider
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store
from holdfast.stores.live_events import DELIVERED, RETURNED
from holdfast.stores.operations import LiveEvent, Run

MAX_SEQ = 2**62
"""Larger than the number of any record."""

DeliveryState = Literal["claimed", "parked", "returned", "lost", "completed", "failed", "cancelled", "dead"]


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One delivery of a run."""

    number: int
    listener_name: str
    """The listener's name, for people to read."""
    remote_address: str
    delivered_at: datetime
    state: DeliveryState
    """``claimed``: its listener has it; ``lost``: its listener was silent for too long; the others are how it ended."""
    reason: str
    """Why it was returned."""
    steps: tuple[str, ...]
    """The steps that were recorded during it."""


async def read_deliveries(provider: StoreProvider, run_id: str) -> list[DeliveryRecord]:
    """The deliveries of a run, the first one first. Raises ``RunNotFound``."""
    run = await provider.read(run_id)
    store = await provider.store()
    events = await _read_live_events(store, run_id)
    delivered = {event.number: event for event in events if event.kind == DELIVERED}
    returned = {event.number: event for event in events if event.kind == RETURNED}
    [history] = await store.get_histories([run.key])
    last = max(delivered, default=0)
    deliveries: list[DeliveryRecord] = []
    for number, event in sorted(delivered.items()):
        delivery = _parse_event(event, run_id)
        reason = _parse_event(returned[number], run_id) if number in returned else None
        deliveries.append(
            DeliveryRecord(
                number=number,
                listener_name=delivery.get("listener", ""),
                remote_address=delivery.get("remote_address", ""),
                delivered_at=to_datetime(event.at),
                state=_derive_state(run, number, number == last, reason is not None),
                reason="" if reason is None else _format_reason(reason),
                steps=tuple(record.name for record in history.records if record.epoch == number),
            )
        )
    return deliveries


async def _read_live_events(store: Store, run_id: str) -> list[LiveEvent]:
    found: list[LiveEvent] = []
    after = 0
    while (updates := await store.get_run_updates(run_id, MAX_SEQ, after)) is not None and updates.live_events:
        found += [event for _, event in updates.live_events]
        after = updates.live_events[-1][0]
    return found


def _parse_event(event: LiveEvent, run_id: str) -> dict[str, Any]:
    check_decrypted(event.data, f"what is told of a delivery of run {run_id!r}")
    return json.loads(event.data)


def _derive_state(run: Run, number: int, is_last: bool, is_returned: bool) -> DeliveryState:
    if is_returned:
        return "returned"
    if not is_last or run.epoch != number:
        return "lost"
    match run.state:
        case RunState.RUNNING:
            return "claimed"
        case RunState.WAITING:
            return "parked"
        case RunState.PENDING:
            return "lost"
        case _:
            return run.state.value


def _format_reason(data: dict[str, Any]) -> str:
    return f"{data['reason']}: {data['error']}" if data.get("error") else str(data.get("reason", ""))
