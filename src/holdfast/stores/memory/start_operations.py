"""Creating runs in memory, finding those that are there, and forking."""

from __future__ import annotations

from dataclasses import replace

from holdfast.stores import rules
from holdfast.stores.memory.queue_operations import Queueing
from holdfast.stores.operations import AwaitRun, ForkRun, Link, NewRun, Run, Started, StartRun, Verdict
from holdfast.stores.rules import Told


class Starting(Queueing):
    """How runs come to be, and how others come to wait for them."""

    def _start(self, op: StartRun) -> Started | Verdict:
        new = op.run
        if op.link is not None and self._held(op.link.parent, op.link.epoch) is None:
            return Verdict.FENCED
        present = self._by_id(new.id)
        if present is not None and present.seed == new.seed:
            return self._found(present, True, op.link)
        if present is not None:
            return self._found(present, False, op.link)._replace(deduplicated=rules.inputs_may_differ(new))
        if new.dedup and (known := self._dedups.get((new.queue, new.dedup))) is not None:
            return self._found(self._put_off(self._runs[known], new), False, op.link)._replace(deduplicated=True)
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
        limited = new.queue in self._queues
        owner = claim_as if claim_as is not None and self._is_live(claim_as) and not limited else None
        place = (new.workflow, new.session)
        previous = self._sessions.get(place, "") if new.session else new.previous
        has_budget = rules.has_budget(new, inherits)
        self._last_key += 1
        run = rules.new_row(new, self._last_key, owner, self._clock(), previous, has_budget, limited)
        self._keys[run.id] = run.key
        if new.generated_id:
            self._generated.add(run.key)
            self._unclaimed.add(run.key)
        self._put(run)
        if limited:
            self._give_turn(run)
        if new.dedup:
            self._keep_dedup(run, new)
        if new.session:
            self._sessions[place] = run.id
        if new.budget is not None:
            self._accounts.give_budget(run.key, new.budget)
        return run

    def _keep_dedup(self, run: Run, new: NewRun) -> None:
        if new.put_off_most is not None:
            if run.epoch:  # a start that claims it, and so there is nothing to be put off
                return
            self._debounced.add(run.key)
        self._dedups[run.queue, new.dedup] = run.key
        self._dedup_of[run.key] = (run.queue, new.dedup)

    def _put_off(self, run: Run, new: NewRun) -> Run:
        """The run that a start joins, after what that changes of it."""
        if new.put_off_most is None or run.key not in self._debounced or run.workflow != new.workflow:
            return run
        until = rules.put_off_until(new, run.created_at, self._clock())
        changed = replace(
            run, inputs=new.inputs, digest=new.digest, version=new.version, wake_at=until, deadline=new.deadline
        )
        self._put(changed)
        return changed

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
