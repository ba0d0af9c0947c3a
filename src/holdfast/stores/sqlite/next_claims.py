"""Claims that are part of a commit: see ``Store.commit_and_claim``.

A listener that ends a run gets its next one in the same transaction, which saves a sync of the disk, and the search for
work in between. Only ordinary runs are claimed here. If there is a limited queue, a suspect, or a workflow that is
disabled, if a timer is due, or if a row is damaged or has large values, an ordinary claim decides
(``stores.sql.claims``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt
from holdfast.stores.claims import ClaimedRun, ClaimNext
from holdfast.stores.live_events import LASTING_KINDS
from holdfast.stores.operations import Op, OpResult, OpStatus, Run
from holdfast.stores.served_versions import split_served_name
from holdfast.stores.sql import payloads
from holdfast.stores.sql.approval_operations import live_event_to_row
from holdfast.stores.sql.database import Database, InvalidText
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sqlite import statements as sql


class NextClaims:
    """The claims of one commit."""

    def __init__(self, items: Sequence[Op | ClaimNext], reader: RowReader) -> None:
        self._reader = reader
        self._items = items
        self.ops: list[Op] = []
        self._requests: list[tuple[ClaimNext, int]] = []
        """Each with the number of operations before it."""
        for item in items:
            if isinstance(item, ClaimNext):
                self._requests.append((item, len(self.ops)))
            else:
                self.ops.append(item)
        self._claimed: dict[int, deque[ClaimedRun]] = {}
        """By worker."""

    def claim(self, db: Database, answers: Sequence[OpResult], now: float) -> None:
        """Claim runs for the requests whose operations have these answers. The caller commits."""
        self._claimed.clear()
        by_workflow: dict[str, list[ClaimNext]] = {}
        for request, count in self._requests:
            if count and answers[count - 1] is OpStatus.DONE:
                by_workflow.setdefault(request.workflow, []).append(request)
        for workflow, requests in by_workflow.items():
            self._claim_each(db, workflow, requests, now)

    def merge_answers(self, answers: Sequence[OpResult]) -> list[OpResult | ClaimedRun | None]:
        """The answers to all items, in order."""
        others = iter(answers)
        return [self._take(item.worker) if isinstance(item, ClaimNext) else next(others) for item in self._items]

    def _take(self, worker: int) -> ClaimedRun | None:
        claimed = self._claimed.get(worker)
        return claimed.popleft() if claimed else None

    def _claim_each(self, db: Database, workflow: str, requests: Sequence[ClaimNext], now: float) -> None:
        name, version = split_served_name(workflow)
        values = {"workflow": name, "version": version, "now": now, "limit": len(requests)}
        [(is_extraordinary,)] = db.query(sql.IS_CLAIM_EXTRAORDINARY, values)
        if is_extraordinary:
            return
        due = self._read_due(db, values)
        if not due:
            return
        workers = db.to_list_parameter({request.worker for request in requests})
        live = {worker for (worker,) in db.query(sql.LIVE_AMONG_WORKERS, (workers,))}
        claimants = [request for request in requests if request.worker in live]
        claimed = [
            (request, _mark_claimed(run, request.worker), is_begun)
            for request, (run, is_begun) in zip(claimants, due, strict=False)
        ]
        db.write(db.sql.CLAIM_RUN, [(run.owner, run.key) for _, run, _ in claimed])
        events = [(run.key, request.make_event(run)) for request, run, _ in claimed]
        rows = [live_event_to_row(key, event, int(event.kind in LASTING_KINDS)) for key, event in events]
        db.write(db.sql.ADD_LIVE_EVENT, rows)
        for request, run, is_begun in claimed:
            self._claimed.setdefault(request.worker, deque()).append(ClaimedRun(run, is_new=not is_begun))

    def _read_due(self, db: Database, values: Mapping[str, Any]) -> list[tuple[Run, bool]]:
        """Due runs, the first ones first, and whether each has a history."""
        try:
            rows = db.query(sql.FIRST_DUE_RUNS, values)
            found = [(self._reader.read_run(row[1:]), row[0] == 1) for row in rows]
        except (InvalidText, StoreCorrupt):
            return []
        return [(run, is_begun) for run, is_begun in found if not payloads.has_references(run)]


def _mark_claimed(run: Run, worker: int) -> Run:
    """The row as ``CLAIM_RUN`` leaves it."""
    return replace(run, state=RunState.RUNNING, epoch=run.epoch + 1, owner=worker, wake_at=None, waits_for="")
