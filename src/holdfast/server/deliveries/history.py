"""The history of a run's deliveries: who has had it, when, and how that ended.

It is read from what is kept anyway: the notice that every handing out leaves, the notice of whoever gave it back, the
journal, and the run's end.
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
"""Behind this number there are no records."""

DeliveryState = Literal["claimed", "parked", "returned", "lost", "completed", "failed", "cancelled", "dead"]


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One delivery of a run."""

    number: int
    listener_name: str
    """What the listener is called by people."""
    remote_address: str
    delivered_at: datetime
    state: DeliveryState
    """``held``: it is under way; ``lost``: its listener was not heard of any more; the others are how it ended."""
    reason: str
    """Why it was given back."""
    steps: tuple[str, ...]
    """The steps that were recorded in it."""


async def read_deliveries(provider: StoreProvider, run_id: str) -> list[DeliveryRecord]:
    """The deliveries of a run, the first one first. Raises ``RunNotFound``."""
    run = await provider.read(run_id)
    store = await provider.store()
    notices = await _read_live_events(store, run_id)
    given = {one.number: one for one in notices if one.kind == DELIVERED}
    back = {one.number: one for one in notices if one.kind == RETURNED}
    [history] = await store.get_histories([run.key])
    last = max(given, default=0)
    found: list[DeliveryRecord] = []
    for number, notice in sorted(given.items()):
        told = _parse_event(notice, run_id)
        returned = None if number not in back else _parse_event(back[number], run_id)
        found.append(
            DeliveryRecord(
                number=number,
                listener_name=told.get("listener", ""),
                remote_address=told.get("remote_address", ""),
                delivered_at=to_datetime(notice.at),
                state=_derive_state(run, number, number == last, returned is not None),
                reason="" if returned is None else _format_reason(returned),
                steps=tuple(record.name for record in history.records if record.epoch == number),
            )
        )
    return found


async def _read_live_events(store: Store, run_id: str) -> list[LiveEvent]:
    found: list[LiveEvent] = []
    after = 0
    while (feed := await store.get_run_updates(run_id, MAX_SEQ, after)) is not None and feed.live_events:
        found += [notice for _, notice in feed.live_events]
        after = feed.live_events[-1][0]
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
