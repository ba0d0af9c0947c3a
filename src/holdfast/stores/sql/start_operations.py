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
from holdfast.stores.operations import AwaitRun, ForkRun, Link, NewRun, Op, Run, Started, StartRun, Verdict
from holdfast.stores.rules import Told
from holdfast.stores.sql.database import Row
from holdfast.stores.sql.queue_placement import Placing
from holdfast.stores.sql.rows import Reader, record_row, run_row
from holdfast.stores.sql.transaction import Fence


class Starting(Placing):
    """How runs come to be, and how others come to wait for them."""

    _reader: Reader
    _ops: Sequence[Op] = ()
    _live: dict[int, bool]
    _keys: deque[int]
    """Keys for the runs that are still to be created."""
    _newest_of: dict[tuple[str, str], str]
    """The newest run that this transaction has created in a session."""
    _switched_off: frozenset[str] | None = None
    _links: dict[tuple[int, int], tuple[int, Told]] | None = None
    """The links of the commands that want one in this transaction, by their place."""

    def _start(self, op: StartRun) -> Started | Verdict:
        new = op.run
        if op.link is not None and self._held(op.link.parent, op.link.epoch) is None:
            return Verdict.FENCED
        present = self._present(new.id)
        if present is not None and present.seed == new.seed:
            return self._found(present, True, op.link)
        if present is not None:
            return self._found(present, False, op.link)._replace(deduplicated=rules.inputs_may_differ(new))
        if new.dedup and (known := self._joined(new)) is not None and (run := self._present(known)) is not None:
            return self._found(run, False, op.link)._replace(deduplicated=True)
        if op.join_orphan and (joined := self._join(new)) is not None:
            return self._found(joined, False, op.link)
        if new.workflow in self._off():
            return Verdict.SWITCHED_OFF
        inherits = op.link is not None and self._by_key[op.link.parent].has_budget
        return self._found(self._create(new, op.claim_as, inherits), True, op.link)

    def _await(self, op: AwaitRun) -> Started | Verdict:
        if self._held(op.link.parent, op.link.epoch) is None:
            return Verdict.FENCED
        run = self._present(op.run_id)
        return Verdict.UNKNOWN_RUN if run is None else self._found(run, False, op.link)

    def _fork(self, op: ForkRun) -> Started | Verdict:
        present = self._present(op.run.id)
        if present is not None:
            return Started(present, created=present.seed == op.run.seed)
        source = self._by_id.get(op.source)
        if source is None:
            return Verdict.UNKNOWN_RUN
        if op.run.workflow in self._off():
            return Verdict.SWITCHED_OFF
        run = self._create(op.run, None, inherits=False)
        self._flush("records")
        self._db.change(self._sql.COPY_JOURNAL, (run.key, source.key, op.keep))
        if op.record is not None:
            row = record_row(run.key, op.record, self._stored(op.record.payload))
            self._append_row(run.key, op.record.seq, op.record.epoch, row)
        return Started(run, created=True)

    def _create(self, new: NewRun, claim_as: int | None, inherits: bool) -> Run:
        """A new run. It ``inherits`` if the one that starts it has a budget to heed."""
        place = self._place_of(new)
        owner = claim_as if claim_as is not None and place.due_as == 1 and self._is_live(claim_as) else None
        if owner is not None and place.is_debounced:  # it begins at once, so there is nothing to be put off
            place = place._replace(dedup="", is_debounced=False)
        previous, has_budget = new.previous, rules.has_budget(new, inherits)
        if new.session:
            previous = self._newest(new.workflow, new.session)
            self._newest_of[new.workflow, new.session] = new.id
        key = self._next_key()
        row = run_row(new, owner, self._now, self._stored(new.inputs), previous, has_budget, place)
        self._later("runs", self._sql.START_RUN, key, (key, *row))
        run = rules.new_row(new, key, owner, self._now, previous, has_budget, place.due_as > 1)
        for tag in run.tags:
            self._later("tags", self._sql.TAG_RUN, key, (tag, key))
        fence = Fence(
            key, run.epoch, run.state, has_budget=has_budget, limited=run.limited, by_delivery=run.by_delivery
        )
        self._by_key[key] = self._by_id[run.id] = fence
        if place.dedup:
            self._note_dedup(new, place, run)
        if new.budget is not None:
            self._flush("runs")  # an account is found by the run's row
            self._accounts.give_budget(key, new.budget)
        return run

    def _next_key(self) -> int:
        if not self._keys:
            count = sum(isinstance(op, StartRun | ForkRun) for op in self._ops)
            self._keys.extend(self._db.new_keys(max(1, count)))
        return self._keys.popleft()

    def _newest(self, workflow: str, session: str) -> str:
        """The id of the newest run of a session, or ``""``."""
        newest = self._newest_of.get((workflow, session))
        if newest is None:
            rows = self._db.lookup(self._sql.NEWEST_OF_SESSION, workflow, session)
            newest = rows[0][0] if rows else ""
        return newest

    def _join(self, new: NewRun) -> Run | None:
        """An orphan, if there is one."""
        self._flush("runs")
        row = self._db.one(self._sql.FIND_ORPHAN, new.workflow, new.digest, new.version)
        if row is None:
            return None
        orphan = self._reader.run(row)
        self.read_fences([orphan.key])
        self._db.change(self._sql.ADOPT_ORPHAN, (new.starter, orphan.key))
        return replace(orphan, starter=new.starter)

    def _present(self, run_id: str) -> Run | None:
        if run_id not in self._by_id:
            return None
        self._flush("runs")
        row = self._db.one(self._sql.GET_RUN, run_id)
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
            live = self._live[worker] = bool(self._db.lookup(self._sql.IS_LIVE, worker))
        return live

    def _off(self) -> frozenset[str]:
        if self._switched_off is None:
            self._switched_off = frozenset(row[0] for row in self._db.lookup(self._sql.SWITCHES))
        return self._switched_off

    # Links

    def _found(self, run: Run, created: bool, link: Link | None) -> Started:
        """The answer for a run that is there now, once whoever waits for it has its link."""
        if link is None or not link.awaited:
            return Started(run, created)
        place = (link.parent, link.position)
        child, told = self._known_links().get(place, (None, None))
        if child is not None and child != run.key:  # of a command that a retry has taken back
            self._take_out(self._sql.DROP_END, link.parent, place)
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
            self._links = {}
            for parent, low, high in links_wanted(self._ops):
                for position, child, told in self._db.lookup(self._sql.LINKS, parent, low, high):
                    self._links[parent, position] = (child, Told(told))
        return self._links

    def _note_link(self, parent: int, position: int, child: int, told: Told) -> None:
        super()._note_link(parent, position, child, told)
        if self._links is not None:
            self._links[parent, position] = (child, told)

    def _forget(self, key: int) -> None:
        super()._forget(key)
        self._links = None


def links_wanted(ops: Sequence[Op]) -> list[Row]:
    """The links that these operations ask about: for each run that waits, the first and the last of the positions."""
    places: dict[int, list[int]] = {}
    for op in ops:
        if isinstance(op, StartRun | AwaitRun) and op.link is not None and op.link.awaited:
            places.setdefault(op.link.parent, []).append(op.link.position)
    return [(parent, min(positions), max(positions)) for parent, positions in places.items()]
