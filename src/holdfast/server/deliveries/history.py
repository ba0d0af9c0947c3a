"""The history of a run's deliveries: who has had it, when, and how that ended.

It is read from what is kept anyway: the notice that every handing out leaves, the notice of whoever gave it back, the
journal, and the run's end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from holdfast.codec import refuse_sealed
from holdfast.core.states import RunState
from holdfast.services.timestamps import moment
from holdfast.stores.contract import Store
from holdfast.stores.live_events import DELIVERED, RETURNED
from holdfast.stores.operations import Notice, Run

LAST = 2**62
"""Behind this number there are no records."""

DeliveryState = Literal["held", "parked", "returned", "lost", "completed", "failed", "cancelled", "dead"]


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One delivery of a run."""

    number: int
    listener: str
    """What the listener is called by people."""
    remote: str
    delivered_at: datetime
    state: DeliveryState
    """``held``: it is under way; ``lost``: its listener was not heard of any more; the others are how it ended."""
    reason: str
    """Why it was given back."""
    steps: tuple[str, ...]
    """The steps that were recorded in it."""


class Reading(Protocol):
    """Where it is read from."""

    async def read(self, run_id: str) -> Run:
        """The run's row; ``RunNotFound`` if there is none."""
        ...

    async def store(self) -> Store:
        """The store, open."""
        ...


async def read_deliveries(reading: Reading, run_id: str) -> list[DeliveryRecord]:
    """The deliveries of a run, the first one first. Raises ``RunNotFound``."""
    run = await reading.read(run_id)
    store = await reading.store()
    notices = await _notices(store, run_id)
    given = {one.number: one for one in notices if one.kind == DELIVERED}
    back = {one.number: one for one in notices if one.kind == RETURNED}
    [history] = await store.histories([run.key])
    last = max(given, default=0)
    found: list[DeliveryRecord] = []
    for number, notice in sorted(given.items()):
        told = _content(notice, run_id)
        returned = None if number not in back else _content(back[number], run_id)
        found.append(
            DeliveryRecord(
                number=number,
                listener=told.get("listener", ""),
                remote=told.get("remote", ""),
                delivered_at=moment(notice.at),
                state=_state(run, number, number == last, returned is not None),
                reason="" if returned is None else _reason(returned),
                steps=tuple(record.name for record in history.records if record.epoch == number),
            )
        )
    return found


async def _notices(store: Store, run_id: str) -> list[Notice]:
    found: list[Notice] = []
    after = 0
    while (feed := await store.feed(run_id, LAST, after)) is not None and feed.notices:
        found += [notice for _, notice in feed.notices]
        after = feed.notices[-1][0]
    return found


def _content(notice: Notice, run_id: str) -> dict[str, Any]:
    refuse_sealed(notice.data, f"what is told of a delivery of run {run_id!r}")
    return json.loads(notice.data)


def _state(run: Run, number: int, is_last: bool, is_returned: bool) -> DeliveryState:
    if is_returned:
        return "returned"
    if not is_last or run.epoch != number:
        return "lost"
    match run.state:
        case RunState.RUNNING:
            return "held"
        case RunState.WAITING:
            return "parked"
        case RunState.PENDING:
            return "lost"
        case _:
            return run.state.value


def _reason(told: dict[str, Any]) -> str:
    return f"{told['reason']}: {told['error']}" if told.get("error") else str(told.get("reason", ""))
