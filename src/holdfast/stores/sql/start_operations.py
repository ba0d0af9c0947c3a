"""Creating runs in a transaction, finding those that exist, and forking.

A transaction first reads the fences of all runs that it starts, by id. So it knows which of them exist, and writes the
rows of all the others together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from holdfast.errors import StoreCorrupt
from holdfast.stores import rules
from holdfast.stores.operations import AwaitRun, ForkRun, NewRun, Op, Run, StartRun
from holdfast.stores.row_access import LinkKey
from holdfast.stores.rules import LinkState
from holdfast.stores.sql.database import Row
from holdfast.stores.sql.queue_placement import PlacementOperations
from holdfast.stores.sql.rows import RowReader, run_to_row
from holdfast.stores.sql.transaction import FencedRun


class StartOperations(PlacementOperations):
    """How runs are created, and how starts join existing runs."""

    _reader: RowReader
    _ops: Sequence[Op] = ()
    _live_workers: dict[int, bool]
    _free_keys: deque[int]
    """Allocated keys that no run has yet."""
    _newest_by_session: dict[tuple[str, str], str]
    """The newest run that this transaction has created in each session."""
    _disabled_workflows: frozenset[str] | None = None
    _links: dict[LinkKey, tuple[int, LinkState]] | None = None
    """The links of the commands that need one in this transaction."""

    def _is_disabled(self, workflow: str) -> bool:
        if self._disabled_workflows is None:
            self._disabled_workflows = frozenset(row[0] for row in self._db.lookup(self._sql.DISABLED_WORKFLOWS))
        return workflow in self._disabled_workflows

    def _is_erased(self, key: int) -> bool:
        return self._db.query_one(self._sql.IS_ERASED, key) is not None

    def _copy_journal(self, source_key: int, key: int, before_seq: int) -> None:
        self._flush_table("records")
        self._db.execute(self._sql.COPY_JOURNAL, (key, source_key, before_seq))

    def _create(self, new: NewRun, claim_as: int | None, inherits_budget: bool) -> Run:
        position = self._allocate_position(new)
        owner = claim_as if claim_as is not None and not position.is_limited and self._is_live(claim_as) else None
        if owner is not None and position.is_debounced:  # it begins at once, so there is nothing to delay
            position = position._replace(dedup_key="", is_debounced=False)
        previous, has_budget = new.previous_run, rules.has_budget(new, inherits_budget)
        if new.session:
            previous = self._get_newest_in_session(new.workflow, new.session)
            self._newest_by_session[new.workflow, new.session] = new.id
        key = self._allocate_key()
        row = run_to_row(new, owner, self._now, self._to_column(new.inputs), previous, has_budget, position)
        self._buffer_write("runs", self._sql.START_RUN, key, (key, *row))
        run = rules.make_run(new, key, owner, self._now, previous, has_budget, position.is_limited)
        for tag in run.tags:
            self._buffer_write("tags", self._sql.TAG_RUN, key, (tag, key))
        self._runs_by_key[key] = self._runs_by_id[run.id] = FencedRun(
            key, run.epoch, run.state, has_budget=has_budget, is_limited=run.is_limited, is_delivery=run.is_delivery
        )
        if position.dedup_key:
            self._add_dedup_owner(new, position, run)
        if new.budget is not None:
            self._flush_table("runs")  # an account is looked up by the run's row
            self._accounts.set_budget(key, new.budget)
        return run

    def _allocate_key(self) -> int:
        if not self._free_keys:
            count = sum(isinstance(op, StartRun | ForkRun) for op in self._ops)
            self._free_keys.extend(self._db.allocate_keys(max(1, count)))
        return self._free_keys.popleft()

    def _get_newest_in_session(self, workflow: str, session: str) -> str:
        """The id of the newest run of a session, or ``""``."""
        newest = self._newest_by_session.get((workflow, session))
        if newest is None:
            rows = self._db.lookup(self._sql.NEWEST_IN_SESSION, workflow, session)
            newest = rows[0][0] if rows else ""
        return newest

    def _join_dedup_owner(self, new: NewRun) -> Run | None:
        run_id = self._debounce_owner(new)
        return None if run_id is None else self._read_run(run_id)

    def _join_orphan(self, new: NewRun) -> Run | None:
        self._flush_table("runs")
        row = self._db.query_one(self._sql.FIND_ORPHAN, new.workflow, new.digest, new.version)
        if row is None:
            return None
        orphan = self._reader.read_run(row)
        self.read_fences([orphan.key])
        self._db.execute(self._sql.ADOPT_ORPHAN, (new.starter, orphan.key))
        return replace(orphan, starter=new.starter)

    def _read_run(self, run_id: str) -> Run | None:
        if run_id not in self._runs_by_id:
            return None
        self._flush_table("runs")
        row = self._db.query_one(self._sql.GET_RUN, run_id)
        if row is None:
            return None
        try:
            return self._reader.read_run(row)
        except StoreCorrupt as problem:  # it must not fail the rest of the transaction
            return self._reader.read_as_failed(row, problem)

    def _is_live(self, worker: int) -> bool:
        """Whether a worker may hold runs: those of a dead worker would never be released."""
        live = self._live_workers.get(worker)
        if live is None:
            live = self._live_workers[worker] = bool(self._db.lookup(self._sql.IS_WORKER_LIVE, worker))
        return live

    # Links

    def _get_link(self, link_key: LinkKey) -> tuple[int, LinkState] | None:
        return self._get_links().get(link_key)

    def _get_links(self) -> dict[LinkKey, tuple[int, LinkState]]:
        if self._links is None:
            self._flush_table("links")
            self._links = {}
            for waiter_key, low, high in list_needed_links(self._ops):
                for position, awaited_key, state in self._db.lookup(self._sql.LINKS, waiter_key, low, high):
                    self._links[waiter_key, position] = (awaited_key, LinkState(state))
        return self._links

    def _put_link(self, link_key: LinkKey, awaited_key: int, state: LinkState) -> None:
        super()._put_link(link_key, awaited_key, state)
        if self._links is not None:
            self._links[link_key] = (awaited_key, state)

    def _reload_run(self, key: int) -> None:
        super()._reload_run(key)
        self._links = None


def list_needed_links(ops: Sequence[Op]) -> list[Row]:
    """The links that these operations read: for each waiting run, the first and the last position."""
    positions: dict[int, list[int]] = {}
    for op in ops:
        if isinstance(op, StartRun | AwaitRun) and op.link is not None and op.link.is_awaited:
            positions.setdefault(op.link.parent_key, []).append(op.link.position)
    return [(parent, min(found), max(found)) for parent, found in positions.items()]
