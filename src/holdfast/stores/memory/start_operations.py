"""Creating runs in memory, finding those that are there, and forking."""

from __future__ import annotations

from dataclasses import replace

from holdfast.stores import rules
from holdfast.stores.memory.queue_operations import QueueOperations
from holdfast.stores.operations import AwaitRun, ForkRun, NewRun, OpStatus, Run, RunLink, StartResult, StartRun
from holdfast.stores.rules import LinkState


class StartOperations(QueueOperations):
    """How runs come to be, and how others come to wait for them."""

    def _start(self, op: StartRun) -> StartResult | OpStatus:
        new = op.run
        if op.link is not None and self._get_claimed(op.link.parent_key, op.link.epoch) is None:
            return OpStatus.FENCED
        present = self._get_by_id(new.id)
        if present is not None and present.seed == new.seed:
            return self._link_and_answer(present, True, op.link)
        if present is not None:
            return self._link_and_answer(present, False, op.link)._replace(is_deduplicated=rules.can_inputs_differ(new))
        if new.dedup_key and (known := self._dedup_runs.get((new.queue, new.dedup_key))) is not None:
            return self._link_and_answer(self._debounce(self._runs[known], new), False, op.link)._replace(
                is_deduplicated=True
            )
        if op.join_orphan and (orphan := self._find_orphan(new)) is not None:
            joined = replace(orphan, starter=new.starter)
            self._save_run(joined)
            return self._link_and_answer(joined, False, op.link)
        if new.workflow in self._disabled_workflows:
            return OpStatus.WORKFLOW_DISABLED
        inherits = op.link is not None and self._runs[op.link.parent_key].has_budget
        return self._link_and_answer(self._create(new, op.claim_as, inherits), True, op.link)

    def _await(self, op: AwaitRun) -> StartResult | OpStatus:
        if self._get_claimed(op.link.parent_key, op.link.epoch) is None:
            return OpStatus.FENCED
        run = self._get_by_id(op.run_id)
        return OpStatus.UNKNOWN_RUN if run is None else self._link_and_answer(run, False, op.link)

    def _fork(self, op: ForkRun) -> StartResult | OpStatus:
        present = self._get_by_id(op.run.id)
        if present is not None:
            return StartResult(present, is_new=present.seed == op.run.seed)
        source = self._get_by_id(op.source_run)
        if source is None:
            return OpStatus.UNKNOWN_RUN
        if op.run.workflow in self._disabled_workflows:
            return OpStatus.WORKFLOW_DISABLED
        run = self._create(op.run, None, inherits=False)
        journal = [record for record in self._records.get(source.key, []) if record.seq < op.before_seq]
        self._records[run.key] = journal if op.record is None else [*journal, op.record]
        return StartResult(run, is_new=True)

    def _create(self, new: NewRun, claim_as: int | None, inherits: bool) -> Run:
        """Keep a new run; it ``inherits`` if the one that starts it has a budget to heed."""
        limited = new.queue in self._queues
        owner = claim_as if claim_as is not None and self._is_live(claim_as) and not limited else None
        place = (new.workflow, new.session)
        previous = self._newest_by_session.get(place, "") if new.session else new.previous_run
        has_budget = rules.has_budget(new, inherits)
        self._last_key += 1
        run = rules.make_run(new, self._last_key, owner, self._clock(), previous, has_budget, limited)
        self._keys_by_id[run.id] = run.key
        if new.has_generated_id:
            self._with_generated_id.add(run.key)
            self._with_unclaimed_result.add(run.key)
        self._save_run(run)
        if limited:
            self._assign_turn(run)
        if new.dedup_key:
            self._save_dedup_key(run, new)
        if new.session:
            self._newest_by_session[place] = run.id
        if new.budget is not None:
            self._accounts.set_budget(run.key, new.budget)
        return run

    def _save_dedup_key(self, run: Run, new: NewRun) -> None:
        if new.max_debounce_s is not None:
            if run.epoch:  # a start that claims it, and so there is nothing to be put off
                return
            self._debounced.add(run.key)
        self._dedup_runs[run.queue, new.dedup_key] = run.key
        self._dedup_keys[run.key] = (run.queue, new.dedup_key)

    def _debounce(self, run: Run, new: NewRun) -> Run:
        """The run that a start joins, after what that changes of it."""
        if new.max_debounce_s is None or run.key not in self._debounced or run.workflow != new.workflow:
            return run
        until = rules.get_debounced_wake_at(new, run.created_at, self._clock())
        changed = replace(
            run, inputs=new.inputs, digest=new.digest, version=new.version, wake_at=until, deadline=new.deadline
        )
        self._save_run(changed)
        return changed

    def _find_orphan(self, new: NewRun) -> Run | None:
        for key in sorted(self._with_unclaimed_result):
            run = self._runs[key]
            if (run.workflow, run.version, run.digest) != (new.workflow, new.version, new.digest):
                continue
            if run.starter is not None and not self._is_live(run.starter):
                return run
        return None

    def _link_and_answer(self, run: Run, created: bool, link: RunLink | None) -> StartResult:
        """The answer for a run that is there now, once whoever waits for it has its link."""
        if link is None or not link.is_awaited:
            return StartResult(run, created)
        place = (link.parent_key, link.position)
        known = self._links.get(place)
        if known is not None and known.child_key != run.key:  # of a command that a retry has taken back
            self._delete_end_signal(place)
            known = None
        linked = rules.is_linked(None if known is None else known.state, run.state)
        if not linked:
            self._put_link(place, run.key, LinkState.LATE)
        elif known is None or known.state is LinkState.LATE:
            self._put_link(place, run.key, LinkState.PENDING)
        return StartResult(run, created, linked)
