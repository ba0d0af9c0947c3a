"""Creating runs in memory, finding those that are there, and forking."""

from __future__ import annotations

from dataclasses import replace

from holdfast.stores import rules
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import AwaitRun, ForkRun, Link, NewRun, Run, Started, StartRun, Verdict
from holdfast.stores.rules import Told


class Starting(Tables):
    """How runs come to be, and how others come to wait for them."""

    def _start(self, op: StartRun) -> Started | Verdict:
        new = op.run
        if op.link is not None and self._held(op.link.parent, op.link.epoch) is None:
            return Verdict.FENCED
        present = self._by_id(new.id)
        if present is not None:
            return self._found(present, present.seed == new.seed, op.link)
        if op.join_orphan and (orphan := self._orphan(new)) is not None:
            joined = replace(orphan, starter=new.starter)
            self._put(joined)
            return self._found(joined, False, op.link)
        if new.workflow in self._switches:
            return Verdict.SWITCHED_OFF
        inherits = op.link is not None and self._runs[op.link.parent].has_budget
        return self._found(self._create(new, op.claim_as, inherits), True, op.link)

    def _await(self, op: AwaitRun) -> Started | Verdict:
        if self._held(op.link.parent, op.link.epoch) is None:
            return Verdict.FENCED
        run = self._by_id(op.run_id)
        return Verdict.UNKNOWN_RUN if run is None else self._found(run, False, op.link)

    def _fork(self, op: ForkRun) -> Started | Verdict:
        present = self._by_id(op.run.id)
        if present is not None:
            return Started(present, created=present.seed == op.run.seed)
        source = self._by_id(op.source)
        if source is None:
            return Verdict.UNKNOWN_RUN
        if op.run.workflow in self._switches:
            return Verdict.SWITCHED_OFF
        run = self._create(op.run, None, inherits=False)
        journal = [record for record in self._records.get(source.key, []) if record.seq < op.keep]
        self._records[run.key] = journal if op.record is None else [*journal, op.record]
        return Started(run, created=True)

    def _create(self, new: NewRun, claim_as: int | None, inherits: bool) -> Run:
        """Keep a new run; it ``inherits`` if the one that starts it has a budget to heed."""
        owner = claim_as if claim_as is not None and self._is_live(claim_as) else None
        place = (new.workflow, new.session)
        previous = self._sessions.get(place, "") if new.session else new.previous
        has_budget = rules.has_budget(new, inherits)
        self._last_key += 1
        run = rules.new_row(new, self._last_key, owner, self._clock(), previous, has_budget)
        self._keys[run.id] = run.key
        if new.generated_id:
            self._generated.add(run.key)
            self._unclaimed.add(run.key)
        self._put(run)
        if new.session:
            self._sessions[place] = run.id
        if new.budget is not None:
            self._accounts.give_budget(run.key, new.budget)
        return run

    def _orphan(self, new: NewRun) -> Run | None:
        for key in sorted(self._unclaimed):
            run = self._runs[key]
            if (run.workflow, run.version, run.digest) != (new.workflow, new.version, new.digest):
                continue
            if run.starter is not None and not self._is_live(run.starter):
                return run
        return None

    def _found(self, run: Run, created: bool, link: Link | None) -> Started:
        """The answer for a run that is there now, once whoever waits for it has its link."""
        if link is None or not link.awaited:
            return Started(run, created)
        place = (link.parent, link.position)
        known = self._links.get(place)
        if known is not None and known.child != run.key:  # of a command that a retry has taken back
            self._drop_end(place)
            known = None
        linked = rules.becomes_linked(None if known is None else known.told, run.state)
        if not linked:
            self._link(place, run.key, Told.LATE)
        elif known is None or known.told is Told.LATE:
            self._link(place, run.key, Told.NOT_YET)
        return Started(run, created, linked)
