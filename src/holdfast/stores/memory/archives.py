"""Reading what belongs to a run, and restoring runs from elsewhere, in memory."""

from __future__ import annotations

from dataclasses import replace

from holdfast.stores.archives import HELD_BACK, Archived, ArchivedLink, Belongings, as_new, as_restored
from holdfast.stores.memory.queue_operations import Queueing
from holdfast.stores.rules import Told


class Restoring(Queueing):
    """How runs leave the store as they are, and come into it."""

    async def belongings(self, key: int) -> Belongings:
        """What belongs to a run."""
        with self._lock:
            links = tuple(
                ArchivedLink(position, self._runs[link.child].id, link.told is Told.LATE)
                for position in sorted(self._places.get(key, ()))
                if (link := self._links[key, position]).child in self._runs
            )
            keys = tuple(sorted(dedup for run, dedup in self._signal_keys if run == key))
            short = self._accounts.of(key).short
            return Belongings(key in self._generated, key in self._unclaimed, keys, links, short)

    async def restore(self, archived: Archived) -> bool:
        """Put a run into the store; false: there is one under its id."""
        told = archived.belongings
        with self._lock:
            if archived.run.id in self._keys:
                return False
            self._last_key += 1
            key = self._last_key
            limited = archived.run.queue in self._queues
            run = as_restored(archived.run, key, self._clock())
            run = replace(run, starter=as_new(archived).starter, limited=limited)
            self._keys[run.id] = key
            if told.is_generated:
                self._generated.add(key)
            self._put(run if run.state.is_terminal else replace(run, paused_at=HELD_BACK))
            if limited:
                self._give_turn(run)
            (self._unclaimed.add if told.is_unclaimed else self._unclaimed.discard)(key)
            if run.session:
                self._sessions[run.workflow, run.session] = run.id
            self._records[key] = list(archived.records)
            self._attempts[key] = {attempt.position: attempt for attempt in archived.attempts}
            for signal in archived.signals:
                self._post(key, signal.name, signal.payload, signal.sent_at, signal.position)
            self._signal_keys.update((key, dedup) for dedup in told.signal_keys)
            for notice in archived.notices:
                self._note(key, notice)
            self._approvals.update({approval.id: approval for approval in archived.approvals})
            account = self._accounts.of(key)
            account.used, account.budget, account.short = archived.usage.used, archived.usage.budget, told.short
        return True

    async def set_going(self, archived: Archived) -> None:
        """Make the links of a run that was restored, and hold it back no more."""
        with self._lock:
            held = self._by_id(archived.run.id)
            if held is None:
                return
            for link in archived.belongings.links:
                child = self._by_id(link.child)
                if child is not None:
                    self._link((held.key, link.position), child.key, link.told(child.state))
            if held.paused_at == HELD_BACK:
                self._put(replace(held, paused_at=archived.run.paused_at))
