# pyright: reportPrivateUsage=false
"""Reading what belongs to a run, and restoring archived runs, in memory."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.records import make_restored_attempt
from holdfast.core.states import RunState
from holdfast.stores.archives import (
    NOT_ACTIVATED,
    ArchivedLink,
    ArchivedRun,
    Archives,
    RunExtras,
    to_new_run,
    to_restored_run,
)
from holdfast.stores.memory.queue_operations import MemoryCapability
from holdfast.stores.rules import LinkState


class MemoryArchives(MemoryCapability, Archives):
    """Moving runs out of the store and into it."""

    async def get_extras(self, key: int) -> RunExtras:
        tables = self._tables
        with tables._lock:
            links = tuple(
                ArchivedLink(position, tables._runs[link.child_key].id, link.state is LinkState.LATE)
                for position in sorted(tables._link_positions.get(key, ()))
                if (link := tables._links[key, position]).child_key in tables._runs
            )
            keys = tuple(sorted(dedup for run, dedup in tables._signal_dedup_keys if run == key))
            short = tables._accounts.get(key).short_positions
            return RunExtras(key in tables._with_generated_id, key in tables._with_unclaimed_result, keys, links, short)

    async def restore(self, archived: ArchivedRun) -> bool:
        tables, extras = self._tables, archived.extras
        with tables._lock:
            if archived.run.id in tables._keys_by_id:
                return False
            tables._last_key += 1
            key = tables._last_key
            is_limited = archived.run.queue in tables._queues
            run = to_restored_run(archived.run, key, tables._clock())
            run = replace(run, starter=to_new_run(archived).starter, is_limited=is_limited)
            tables._keys_by_id[run.id] = key
            if extras.has_generated_id:
                tables._with_generated_id.add(key)
            tables._save_run(run if run.state.is_terminal else replace(run, paused_at=NOT_ACTIVATED))
            if is_limited:
                tables._assign_turn(run)
            if extras.has_unclaimed_result:
                tables._with_unclaimed_result.add(key)
            if run.session:
                tables._newest_by_session[run.workflow, run.session] = run.id
            tables._records[key] = list(archived.records)
            tables._attempts[key] = {attempt.position: attempt for attempt in archived.attempts}
            for signal in archived.signals:
                tables._add_signal(key, signal.name, signal.sent_at, signal.payload, signal.position)
            tables._signal_dedup_keys.update((key, dedup) for dedup in extras.signal_dedup_keys)
            for event in archived.live_events:
                tables._add_live_event(key, event)
            tables._approvals.update({approval.id: approval for approval in archived.approvals})
            account = tables._accounts.get(key)
            account.used, account.budget = archived.usage.used, archived.usage.budget
            account.short_positions = extras.short_positions
        return True

    async def mark_restored(self, source: str) -> int:
        tables = self._tables
        with tables._lock:
            marked = [key for key, run in tables._runs.items() if run.state is not RunState.COMPLETED]
            known = [attempt.at for attempts in tables._attempts.values() for attempt in attempts.values()]
            attempt = make_restored_attempt(source, max([tables._clock(), *known]))
            for key in marked:
                tables._put_attempt(key, attempt)
        return len(marked)

    async def activate(self, archived: ArchivedRun) -> None:
        tables = self._tables
        with tables._lock:
            run = tables._get_by_id(archived.run.id)
            if run is None:
                return
            for link in archived.extras.links:
                child = tables._get_by_id(link.child_id)
                if child is not None:
                    tables._put_link((run.key, link.position), child.key, link.get_link_state(child.state))
            if run.paused_at == NOT_ACTIVATED:
                tables._save_run(replace(run, paused_at=archived.run.paused_at))
