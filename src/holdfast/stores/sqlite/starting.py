"""Creating runs in a SQLite transaction, finding those that are there, and forking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.errors import StoreCorrupt
from holdfast.stores import rules
from holdfast.stores.operations import AwaitRun, ForkRun, Link, NewRun, Op, Run, Started, StartRun, Verdict
from holdfast.stores.rules import Told
from holdfast.stores.sqlite import statements as sql
from holdfast.stores.sqlite.rows import Reader, Row, record_row, run_row
from holdfast.stores.sqlite.transaction import Fence, Transaction


class Starting(Transaction):
    """How runs come to be, and how others come to wait for them."""

    _reader: Reader
    _ops: Sequence[Op] = ()
    _live: dict[int, bool]
    _switched_off: frozenset[str] | None = None
    _links: dict[tuple[int, int], tuple[int, Told]] | None = None
    """The links of the commands that want one in this transaction, by their place."""

    def _start(self, op: StartRun) -> Started | Verdict:
        new = op.run
        if op.link is not None and self._held(op.link.parent, op.link.epoch) is None:
            return Verdict.FENCED
        self._flush("runs")
        if op.join_orphan and (joined := self._join(new)) is not None:
            return self._found(joined, False, op.link)
        if new.workflow in self._off():
            present = self._present(new.id)
            return Verdict.SWITCHED_OFF if present is None else self._found(present, present.seed == new.seed, op.link)
        inherits = op.link is not None and self._by_key[op.link.parent].has_budget
        run = self._create(new, op.claim_as, inherits)
        if run is None:
            present = self._present(new.id)
            assert present is not None
            return self._found(present, present.seed == new.seed, op.link)
        return self._found(run, True, op.link)

    def _await(self, op: AwaitRun) -> Started | Verdict:
        if self._held(op.link.parent, op.link.epoch) is None:
            return Verdict.FENCED
        self._flush("runs")
        run = self._present(op.run_id)
        return Verdict.UNKNOWN_RUN if run is None else self._found(run, False, op.link)

    def _fork(self, op: ForkRun) -> Started | Verdict:
        self._flush("runs")
        present = self._present(op.run.id)
        if present is not None:
            return Started(present, created=present.seed == op.run.seed)
        source = self._by_id.get(op.source)
        if source is None:
            return Verdict.UNKNOWN_RUN
        if op.run.workflow in self._off():
            return Verdict.SWITCHED_OFF
        run = self._create(op.run, None, inherits=False)
        assert run is not None
        self._flush("records")
        self._connection.execute(sql.COPY_JOURNAL, (run.key, source.key, op.keep))
        if op.record is not None:
            self._later("records", sql.APPEND, record_row(run.key, op.record, self._stored(op.record.payload)))
        return Started(run, created=True)

    def _create(self, new: NewRun, claim_as: int | None, inherits: bool) -> Run | None:
        """Insert a run; ``None``: there is one under this id.

        It ``inherits`` if the one that starts it has a budget to heed.
        """
        owner = claim_as if claim_as is not None and self._is_live(claim_as) else None
        previous, has_budget = new.previous, rules.has_budget(new, inherits)
        if new.session:
            newest = self._one(sql.NEWEST_OF_SESSION, new.workflow, new.session)
            previous = "" if newest is None else newest[0]
        row = run_row(new, owner, self._now, self._stored(new.inputs), previous, has_budget)
        cursor = self._connection.execute(sql.START_RUN, row)
        if cursor.rowcount == 0:
            return None
        assert cursor.lastrowid is not None
        run = rules.new_row(new, cursor.lastrowid, owner, self._now, previous, has_budget)
        for tag in run.tags:
            self._later("tags", sql.TAG_RUN, (tag, run.key))
        self._by_key[run.key] = self._by_id[run.id] = Fence(run.key, run.epoch, run.state, has_budget=has_budget)
        if new.budget is not None:
            self._accounts.give_budget(run.key, new.budget)
        return run

    def _join(self, new: NewRun) -> Run | None:
        """An orphan, unless there is a run under this id: then this start may be a repeat."""
        if self._one(sql.GET_RUN, new.id):
            return None
        row = self._one(sql.FIND_ORPHAN, new.workflow, new.digest)
        if row is None:
            return None
        orphan = self._reader.run(row)
        self._connection.execute(sql.ADOPT_ORPHAN, (new.starter, orphan.key))
        return replace(orphan, starter=new.starter)

    def _present(self, run_id: str) -> Run | None:
        row: Row | None = self._one(sql.GET_RUN, run_id)
        if row is None:
            return None
        try:
            return self._reader.run(row)
        except StoreCorrupt as problem:  # an answer like any other: the rest of the transaction is not affected
            return self._reader.failed_run(row, problem)

    def _is_live(self, worker: int) -> bool:
        """Whether a worker may hold runs: nobody would ever free those of a dead one."""
        live = self._live.get(worker)
        if live is None:
            live = self._live[worker] = self._one(sql.IS_LIVE, worker) is not None
        return live

    def _off(self) -> frozenset[str]:
        if self._switched_off is None:
            self._switched_off = frozenset(row[0] for row in self._connection.execute(sql.SWITCHES))
        return self._switched_off

    # Links

    def _found(self, run: Run, created: bool, link: Link | None) -> Started:
        """The answer for a run that is there now, once whoever waits for it has its link."""
        if link is None or not link.awaited:
            return Started(run, created)
        place = (link.parent, link.position)
        child, told = self._known_links().get(place, (None, None))
        if child is not None and child != run.key:  # of a command that a retry has taken back
            self._later("signals", sql.DROP_END, place)
            self._waiting.clear()
            told = None
        linked = rules.becomes_linked(told, run.state)
        if not linked:
            self._note_link(*place, run.key, Told.LATE)
        elif told in (None, Told.LATE):
            self._note_link(*place, run.key, Told.NOT_YET)
            if run.key in self._waiting:
                self._waiting[run.key].append(place)
        return Started(run, created, linked)

    def _known_links(self) -> dict[tuple[int, int], tuple[int, Told]]:
        if self._links is None:
            self._flush("links")
            places: dict[int, list[int]] = {}
            for op in self._ops:
                if isinstance(op, StartRun | AwaitRun) and op.link is not None and op.link.awaited:
                    places.setdefault(op.link.parent, []).append(op.link.position)
            self._links = {}
            for parent, positions in places.items():
                for position, child, told in self._connection.execute(
                    sql.LINKS, (parent, min(positions), max(positions))
                ):
                    self._links[parent, position] = (child, Told(told))
        return self._links

    def _note_link(self, parent: int, position: int, child: int, told: Told) -> None:
        super()._note_link(parent, position, child, told)
        if self._links is not None:
            self._links[parent, position] = (child, told)

    def _forget(self, key: int) -> None:
        super()._forget(key)
        self._links = None
