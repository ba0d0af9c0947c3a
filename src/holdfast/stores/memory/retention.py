# pyright: reportPrivateUsage=false
"""Deleting runs that have ended, in memory: all at once, so that nothing is left to be swept away."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from holdfast.stores import rules
from holdfast.stores.memory.queue_operations import MemoryCapability
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import Run
from holdfast.stores.retention import (
    PRUNE_START,
    GroupMember,
    PruneCursor,
    PruneProgress,
    PruneRequest,
    PruneResult,
    RelationReader,
    Retention,
    SweepResult,
    decide_groups,
    get_keep_reasons,
    list_ids,
)
from holdfast.stores.workers import get_listener_cutoff, get_worker_cutoff


class _MemoryRelationReader(RelationReader):
    """Who is related to whom; everybody is looked at, which is quick enough where all of it is in memory."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._runs = tables._runs
        self._keys = tables._keys_by_id
        self._by_parent = _group_by(self._runs.values(), "parent")
        self._by_previous = _group_by(self._runs.values(), "previous_run")
        self._by_session = _group_by([run for run in self._runs.values() if run.session], "session")
        self._sessions: set[tuple[str, str]] = set()
        """Those whose runs are known: the first one that is met stands for all of them."""

    def read_members(self, keys: Collection[int]) -> Iterator[GroupMember]:
        unclaimed = self._tables._with_unclaimed_result
        for run in (self._runs[key] for key in keys):
            yield GroupMember(
                run.key, run.id, run.workflow, run.state, run.finished_at, run.parent, run.session, run.previous_run,
                1 if run.key in unclaimed else 0,
            )  # fmt: skip

    def read_neighbors(self, runs: Sequence[GroupMember]) -> Iterator[tuple[int, int]]:
        for run in runs:
            for other in (run.parent, run.previous_run):
                key = self._keys.get(other) if other else None
                if key is not None and rules.can_be_parent(key, run.key):
                    yield run.key, key
            for younger in (*self._by_parent.get(run.id, ()), *self._by_previous.get(run.id, ())):
                if rules.can_be_parent(run.key, younger.key):
                    yield run.key, younger.key
            if (run.workflow, run.session) in self._sessions:
                continue
            self._sessions.add((run.workflow, run.session))
            for mate in self._by_session.get(run.session, ()):
                if mate.workflow == run.workflow:
                    yield run.key, mate.key

    def find_awaited(self, keys: Collection[int]) -> set[int]:
        links = self._tables._links
        found = {link.child_key for (parent, _), link in links.items() if not self._has_ended(parent)}
        return found.intersection(keys)

    def read_links(self, keys: Collection[int]) -> set[tuple[int, int]]:
        links = self._tables._links
        return {(parent, link.child_key) for (parent, _), link in links.items() if parent in keys}

    def _has_ended(self, key: int) -> bool:
        return key not in self._runs or self._runs[key].state.is_terminal


class MemoryRetention(MemoryCapability, Retention):
    """How runs are deleted."""

    async def prune(self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100) -> PruneResult:
        tables = self._tables
        with tables._lock:
            findings = cursor.progress or PruneProgress()
            if request.run_ids is not None:
                found = [
                    tables._keys_by_id[run_id]
                    for run_id in dict.fromkeys(request.run_ids)
                    if run_id in tables._keys_by_id
                ]
                place = None
            else:
                found, place = self._find_next(request, cursor, limit)
            new, kept = findings.split_decided(found)
            relations, newest = _MemoryRelationReader(tables), self._find_min_kept_keys(request)
            going, staying = decide_groups(relations, new, request, newest)
            for family, why in [*((family, None) for family in going), *staying]:
                findings.add_decision(family, why)
            kept.update(get_keep_reasons(staying, found))
            records = size = 0
            if request.dry_run:
                journals = [tables._records.get(key, []) for family in going for key in family.keys]
                records = sum(map(len, journals))
                size = sum(len(record.payload or b"") for journal in journals for record in journal)
                runs = [tables._runs[key] for family in going for key in family.keys]
                size += sum(len(run.inputs) + len(run.output or b"") + len(run.error or b"") for run in runs)
            else:
                for member in [member for family in going for member in family.members]:
                    self._delete_run(member)
        return PruneResult(
            list_ids(going), kept, records, size, None if place is None else place._replace(progress=findings)
        )

    async def sweep(self, limit: int = 2000) -> SweepResult:
        """Of runs there is nothing left."""
        tables = self._tables
        with tables._lock:
            delivered = min((run.created_at for run in tables._runs.values() if run.is_delivery), default=None)
            oldest = min((run.created_at for run in tables._runs.values()), default=None)
            listeners_from = get_listener_cutoff(delivered, tables._clock())
            workers_from = get_worker_cutoff(oldest, tables._clock())
            starters = {tables._runs[key].starter for key in tables._unfinished}
            for worker in [*tables._workers.values()]:
                before = listeners_from if worker.is_listener else workers_from
                if worker.state != "live" and worker.lease_expires_at < before and worker.id not in starters:
                    del tables._workers[worker.id]
        return SweepResult()

    def _find_next(self, what: PruneRequest, after: PruneCursor, limit: int) -> tuple[list[int], PruneCursor | None]:
        places = sorted(
            PruneCursor(run.workflow, run.state, run.key)
            for run in self._tables._runs.values()
            if run.state in what.states
            and what.workflow in (None, run.workflow)
            and run.finished_at is not None
            and run.finished_at < what.finished_before
        )
        found = [place for place in places if place[:3] > after[:3]][:limit]
        return [place.key for place in found], found[-1] if len(found) == limit else None

    def _find_min_kept_keys(self, what: PruneRequest) -> dict[str, int]:
        """The lowest key that is kept, of each workflow that has any to keep."""
        if not what.keep_newest:
            return {}
        keys: dict[str, list[int]] = {}
        for run in self._tables._runs.values():
            if run.state in what.states:
                keys.setdefault(run.workflow, []).append(run.key)
        return {workflow: sorted(mine, reverse=True)[: what.keep_newest][-1] for workflow, mine in keys.items()}

    def _delete_run(self, run: GroupMember) -> None:
        tables = self._tables
        for place in [(run.key, position) for position in tables._link_positions.pop(run.key, {})]:
            link = tables._links.pop(place)
            tables._pending_links.get(link.child_key, {}).pop(place, None)
        for place in [place for place, link in tables._links.items() if link.child_key == run.key]:
            tables._delete_link(place)
        for rows in (
            tables._runs,
            tables._records,
            tables._attempts,
            tables._mailboxes,
            tables._live_events,
            tables._pending_links,
        ):
            rows.pop(run.key, None)
        tables._turns.pop(run.key, None)
        tables._parked_by.pop(run.key, None)
        tables._keys_by_id.pop(run.id, None)
        tables._with_generated_id.discard(run.key)
        tables._with_unclaimed_result.discard(run.key)
        tables._signal_dedup_keys = {place for place in tables._signal_dedup_keys if place[0] != run.key}
        for approval in [one.id for one in tables._approvals.values() if one.run_id == run.id]:
            del tables._approvals[approval]
            tables._withdrawn_epochs.pop(approval, None)
        if tables._newest_by_session.get((run.workflow, run.session)) == run.id:
            del tables._newest_by_session[run.workflow, run.session]
        tables._accounts.delete(run.key)


def _group_by(runs: Collection[Run], field: str) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(getattr(run, field), []).append(run)
    return found
