"""Creating runs in a transaction, finding those that are there, and forking.

The ids of the runs to be started are among those whose fences are read first: so a transaction knows which of them are
there, and writes the rows of all the others at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from holdfast.errors import StoreCorrupt
from holdfast.stores import rules
from holdfast.stores.operations import AwaitRun, ForkRun, NewRun, Op, OpStatus, Run, RunLink, StartResult, StartRun
from holdfast.stores.rules import LinkState
from holdfast.stores.sql.database import Row
from holdfast.stores.sql.queue_placement import PlacementOperations
from holdfast.stores.sql.rows import RowReader, record_to_row, run_to_row
from holdfast.stores.sql.transaction import Fence


class StartOperations(PlacementOperations):
    """How runs come to be, and how others come to wait for them."""

    _reader: RowReader
    _ops: Sequence[Op] = ()
    _live_workers: dict[int, bool]
    _free_keys: deque[int]
    """Keys for the runs that are still to be created."""
    _newest_by_session: dict[tuple[str, str], str]
    """The newest run that this transaction has created in a session."""
    _disabled_workflows: frozenset[str] | None = None
    _links: dict[tuple[int, int], tuple[int, LinkState]] | None = None
    """The links of the commands that want one in this transaction, by their place."""

    def _start(self, op: StartRun) -> StartResult | OpStatus:
        new = op.run
        if op.link is not None and self._get_claimed(op.link.parent_key, op.link.epoch) is None:
            return OpStatus.FENCED
        present = self._get_existing(new.id)
        if present is not None and present.seed == new.seed:
            return self._link_and_answer(present, True, op.link)
        if present is not None:
            return self._link_and_answer(present, False, op.link)._replace(is_deduplicated=rules.can_inputs_differ(new))
        if (
            new.dedup_key
            and (known := self._join_dedup_owner(new)) is not None
            and (run := self._get_existing(known)) is not None
        ):
            return self._link_and_answer(run, False, op.link)._replace(is_deduplicated=True)
        if op.join_orphan and (joined := self._join_orphan(new)) is not None:
            return self._link_and_answer(joined, False, op.link)
        if new.workflow in self._get_disabled_workflows():
            return OpStatus.WORKFLOW_DISABLED
        inherits = op.link is not None and self._fences_by_key[op.link.parent_key].has_budget
        return self._link_and_answer(self._create(new, op.claim_as, inherits), True, op.link)

    def _await(self, op: AwaitRun) -> StartResult | OpStatus:
        if self._get_claimed(op.link.parent_key, op.link.epoch) is None:
            return OpStatus.FENCED
        run = self._get_existing(op.run_id)
        return OpStatus.UNKNOWN_RUN if run is None else self._link_and_answer(run, False, op.link)

    def _fork(self, op: ForkRun) -> StartResult | OpStatus:
        present = self._get_existing(op.run.id)
        if present is not None:
            return StartResult(present, is_new=present.seed == op.run.seed)
        source = self._fences_by_id.get(op.source_run)
        if source is None:
            return OpStatus.UNKNOWN_RUN
        if op.run.workflow in self._get_disabled_workflows():
            return OpStatus.WORKFLOW_DISABLED
        run = self._create(op.run, None, inherits_budget=False)
        self._flush_table("records")
        self._db.execute(self._sql.COPY_JOURNAL, (run.key, source.key, op.before_seq))
        if op.record is not None:
            row = record_to_row(run.key, op.record, self._to_column(op.record.payload))
            self._append_row(run.key, op.record.seq, op.record.epoch, row)
        return StartResult(run, is_new=True)

    def _create(self, new: NewRun, claim_as: int | None, inherits_budget: bool) -> Run:
        """A new run. ``inherits_budget``: the run that starts it has a budget to heed."""
        place = self._allocate_position(new)
        owner = claim_as if claim_as is not None and place.due_state == 1 and self._is_live(claim_as) else None
        if owner is not None and place.is_debounced:  # it begins at once, so there is nothing to be put off
            place = place._replace(dedup_key="", is_debounced=False)
        previous, has_budget = new.previous_run, rules.has_budget(new, inherits_budget)
        if new.session:
            previous = self._get_newest_in_session(new.workflow, new.session)
            self._newest_by_session[new.workflow, new.session] = new.id
        key = self._allocate_key()
        row = run_to_row(new, owner, self._now, self._to_column(new.inputs), previous, has_budget, place)
        self._buffer_write("runs", self._sql.START_RUN, key, (key, *row))
        run = rules.make_run(new, key, owner, self._now, previous, has_budget, place.due_state > 1)
        for tag in run.tags:
            self._buffer_write("tags", self._sql.TAG_RUN, key, (tag, key))
        fence = Fence(
            key, run.epoch, run.state, has_budget=has_budget, is_limited=run.is_limited, is_delivery=run.is_delivery
        )
        self._fences_by_key[key] = self._fences_by_id[run.id] = fence
        if place.dedup_key:
            self._add_dedup_owner(new, place, run)
        if new.budget is not None:
            self._flush_table("runs")  # an account is found by the run's row
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

    def _join_orphan(self, new: NewRun) -> Run | None:
        """An orphan, if there is one."""
        self._flush_table("runs")
        row = self._db.query_one(self._sql.FIND_ORPHAN, new.workflow, new.digest, new.version)
        if row is None:
            return None
        orphan = self._reader.read_run(row)
        self.read_fences([orphan.key])
        self._db.execute(self._sql.ADOPT_ORPHAN, (new.starter, orphan.key))
        return replace(orphan, starter=new.starter)

    def _get_existing(self, run_id: str) -> Run | None:
        if run_id not in self._fences_by_id:
            return None
        self._flush_table("runs")
        row = self._db.query_one(self._sql.GET_RUN, run_id)
        if row is None:
            return None
        try:
            return self._reader.read_run(row)
        except StoreCorrupt as problem:  # an answer like any other: the rest of the transaction is not affected
            return self._reader.read_as_failed(row, problem)

    def _is_live(self, worker: int) -> bool:
        """Whether a worker may hold runs: nobody would ever free those of a dead one."""
        live = self._live_workers.get(worker)
        if live is None:
            live = self._live_workers[worker] = bool(self._db.lookup(self._sql.IS_WORKER_LIVE, worker))
        return live

    def _get_disabled_workflows(self) -> frozenset[str]:
        if self._disabled_workflows is None:
            self._disabled_workflows = frozenset(row[0] for row in self._db.lookup(self._sql.DISABLED_WORKFLOWS))
        return self._disabled_workflows

    # Links

    def _link_and_answer(self, run: Run, is_new: bool, link: RunLink | None) -> StartResult:
        """The answer for a run that is there now, once whoever waits for it has its link."""
        if link is None or not link.is_awaited:
            return StartResult(run, is_new)
        place = (link.parent_key, link.position)
        child, told = self._get_links().get(place, (None, None))
        if child is not None and child != run.key:  # of a command that a retry has taken back
            self._delete_signal(self._sql.DELETE_END_SIGNAL, link.parent_key, place)
            self._waiters.clear()
            told = None
        linked = rules.is_linked(told, run.state)
        if not linked:
            self._put_link(*place, run.key, LinkState.LATE)
        elif told in (None, LinkState.LATE):
            self._put_link(*place, run.key, LinkState.PENDING)
            if run.key in self._waiters:
                self._waiters[run.key].append(place)
        return StartResult(run, is_new, linked)

    def _get_links(self) -> dict[tuple[int, int], tuple[int, LinkState]]:
        if self._links is None:
            self._flush_table("links")
            self._links = {}
            for parent, low, high in list_needed_links(self._ops):
                for position, child, told in self._db.lookup(self._sql.LINKS, parent, low, high):
                    self._links[parent, position] = (child, LinkState(told))
        return self._links

    def _put_link(self, parent: int, position: int, child: int, state: LinkState) -> None:
        super()._put_link(parent, position, child, state)
        if self._links is not None:
            self._links[parent, position] = (child, state)

    def _reload_run(self, key: int) -> None:
        super()._reload_run(key)
        self._links = None


def list_needed_links(ops: Sequence[Op]) -> list[Row]:
    """The links that these operations ask about: for each run that waits, the first and the last of the positions."""
    places: dict[int, list[int]] = {}
    for op in ops:
        if isinstance(op, StartRun | AwaitRun) and op.link is not None and op.link.is_awaited:
            places.setdefault(op.link.parent_key, []).append(op.link.position)
    return [(parent, min(positions), max(positions)) for parent, positions in places.items()]
