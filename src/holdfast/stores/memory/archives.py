"""Reading what belongs to a run, and restoring runs from elsewhere, in memory."""

from __future__ import annotations

from dataclasses import replace

from holdfast.stores.archives import NOT_ACTIVATED, ArchivedLink, ArchivedRun, RunExtras, to_new_run, to_restored_run
from holdfast.stores.memory.queue_operations import QueueOperations
from holdfast.stores.rules import LinkState


class ArchiveOperations(QueueOperations):
    """How runs leave the store as they are, and come into it."""

    async def get_run_extras(self, key: int) -> RunExtras:
        """What belongs to a run."""
        with self._lock:
            links = tuple(
                ArchivedLink(position, self._runs[link.child_key].id, link.state is LinkState.LATE)
                for position in sorted(self._link_positions.get(key, ()))
                if (link := self._links[key, position]).child_key in self._runs
            )
            keys = tuple(sorted(dedup for run, dedup in self._signal_dedup_keys if run == key))
            short = self._accounts.get(key).short_positions
            return RunExtras(key in self._with_generated_id, key in self._with_unclaimed_result, keys, links, short)

    async def restore_run(self, archived: ArchivedRun) -> bool:
        """Put a run into the store; false: there is one under its id."""
        told = archived.extras
        with self._lock:
            if archived.run.id in self._keys_by_id:
                return False
            self._last_key += 1
            key = self._last_key
            limited = archived.run.queue in self._queues
            run = to_restored_run(archived.run, key, self._clock())
            run = replace(run, starter=to_new_run(archived).starter, is_limited=limited)
            self._keys_by_id[run.id] = key
            if told.has_generated_id:
                self._with_generated_id.add(key)
            self._save_run(run if run.state.is_terminal else replace(run, paused_at=NOT_ACTIVATED))
            if limited:
                self._assign_turn(run)
            (self._with_unclaimed_result.add if told.has_unclaimed_result else self._with_unclaimed_result.discard)(key)
            if run.session:
                self._newest_by_session[run.workflow, run.session] = run.id
            self._records[key] = list(archived.records)
            self._attempts[key] = {attempt.position: attempt for attempt in archived.attempts}
            for signal in archived.signals:
                self._add_signal(key, signal.name, signal.payload, signal.sent_at, signal.position)
            self._signal_dedup_keys.update((key, dedup) for dedup in told.signal_dedup_keys)
            for notice in archived.live_events:
                self._add_live_event(key, notice)
            self._approvals.update({approval.id: approval for approval in archived.approvals})
            account = self._accounts.get(key)
            account.used, account.budget, account.short_positions = (
                archived.usage.used,
                archived.usage.budget,
                told.short_positions,
            )
        return True

    async def activate_run(self, archived: ArchivedRun) -> None:
        """Make the links of a run that was restored, and hold it back no more."""
        with self._lock:
            held = self._get_by_id(archived.run.id)
            if held is None:
                return
            for link in archived.extras.links:
                child = self._get_by_id(link.child_id)
                if child is not None:
                    self._put_link((held.key, link.position), child.key, link.get_link_state(child.state))
            if held.paused_at == NOT_ACTIVATED:
                self._save_run(replace(held, paused_at=archived.run.paused_at))
