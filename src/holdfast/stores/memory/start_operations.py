"""Creating runs in memory, finding those that exist, and forking."""

from __future__ import annotations

from dataclasses import replace

from holdfast.stores import rules
from holdfast.stores.erasure import is_erased
from holdfast.stores.memory.queue_operations import QueueOperations
from holdfast.stores.operations import NewRun, Run


class StartOperations(QueueOperations):
    """How runs are created, and how starts join existing runs."""

    def _is_disabled(self, workflow: str) -> bool:
        return workflow in self._disabled_workflows

    def _create(self, new: NewRun, claim_as: int | None, inherits_budget: bool) -> Run:
        is_limited = new.queue in self._queues
        owner = claim_as if claim_as is not None and self._is_live(claim_as) and not is_limited else None
        session = (new.workflow, new.session)
        previous = self._newest_by_session.get(session, "") if new.session else new.previous_run
        has_budget = rules.has_budget(new, inherits_budget)
        self._last_key += 1
        run = rules.make_run(new, self._last_key, owner, self._clock(), previous, has_budget, is_limited)
        self._keys_by_id[run.id] = run.key
        if new.has_generated_id:
            self._with_generated_id.add(run.key)
            self._with_unclaimed_result.add(run.key)
        self._save_run(run)
        if is_limited:
            self._assign_turn(run)
        if new.dedup_key:
            self._save_dedup_key(run, new)
        if new.session:
            self._newest_by_session[session] = run.id
        if new.budget is not None:
            self._accounts.set_budget(run.key, new.budget)
        return run

    def _save_dedup_key(self, run: Run, new: NewRun) -> None:
        if new.max_debounce_s is not None:
            if run.epoch:  # the start claims the run, so there is nothing to delay
                return
            self._debounced.add(run.key)
        self._dedup_runs[run.queue, new.dedup_key] = run.key
        self._dedup_keys[run.key] = (run.queue, new.dedup_key)

    def _join_dedup_owner(self, new: NewRun) -> Run | None:
        key = self._dedup_runs.get((new.queue, new.dedup_key))
        if key is None:
            return None
        run = self._runs[key]
        if new.max_debounce_s is not None and key in self._debounced and run.workflow == new.workflow:
            wake_at = rules.get_debounced_wake_at(new, run.created_at, self._clock())
            run = replace(
                run, inputs=new.inputs, digest=new.digest, version=new.version, wake_at=wake_at, deadline=new.deadline
            )
            self._save_run(run)
        return run

    def _join_orphan(self, new: NewRun) -> Run | None:
        for key in sorted(self._with_unclaimed_result):
            run = self._runs[key]
            if (run.workflow, run.version, run.digest) != (new.workflow, new.version, new.digest):
                continue
            if run.starter is not None and not self._is_live(run.starter):
                joined = replace(run, starter=new.starter)
                self._save_run(joined)
                return joined
        return None

    def _is_erased(self, key: int) -> bool:
        return is_erased(self._runs[key])

    def _copy_journal(self, source_key: int, key: int, before_seq: int) -> None:
        self._records[key] = [record for record in self._records.get(source_key, []) if record.seq < before_seq]
