# pyright: reportPrivateUsage=false
"""Deleting ended runs, in memory: completely and at once, so that nothing is left to sweep."""

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
    """The relations between runs. Looking at all runs is quick enough in memory."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._runs = tables._runs
        self._keys = tables._keys_by_id
        self._by_parent = _group_by(self._runs.values(), "parent")
        self._by_previous = _group_by(self._runs.values(), "previous_run")
        self._by_session = _group_by([run for run in self._runs.values() if run.session], "session")
        self._sessions: set[tuple[str, str]] = set()
        """Sessions that have been read: one run of a session finds all the others."""

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
    """Deleting runs."""

    async def prune(self, request: PruneRequest, cursor: PruneCursor = PRUNE_START, limit: int = 100) -> PruneResult:
        tables = self._tables
        with tables._lock:
            progress = cursor.progress or PruneProgress()
            if request.run_ids is not None:
                keys = map(tables._keys_by_id.get, dict.fromkeys(request.run_ids))
                found, next_cursor = [key for key in keys if key is not None], None
            else:
                found, next_cursor = self._find_next(request, cursor, limit)
            undecided, keep_reasons = progress.split_decided(found)
            min_kept_keys = self._find_min_kept_keys(request)
            deleted, kept = decide_groups(_MemoryRelationReader(tables), undecided, request, min_kept_keys)
            for group, reason in [*((group, None) for group in deleted), *kept]:
                progress.add_decision(group, reason)
            keep_reasons.update(get_keep_reasons(kept, found))
            records = size = 0
            if request.dry_run:
                journals = [tables._records.get(key, []) for group in deleted for key in group.keys]
                records = sum(map(len, journals))
                size = sum(len(record.payload or b"") for journal in journals for record in journal)
                runs = [tables._runs[key] for group in deleted for key in group.keys]
                size += sum(len(run.inputs) + len(run.output or b"") + len(run.error or b"") for run in runs)
            else:
                for member in [member for group in deleted for member in group.members]:
                    self._delete_run(member)
        if next_cursor is not None:
            next_cursor = next_cursor._replace(progress=progress)
        return PruneResult(list_ids(deleted), keep_reasons, records, size, next_cursor)

    async def sweep(self, limit: int = 2000) -> SweepResult:
        tables = self._tables
        with tables._lock:
            oldest_delivery = min((run.created_at for run in tables._runs.values() if run.is_delivery), default=None)
            oldest = min((run.created_at for run in tables._runs.values()), default=None)
            listener_cutoff = get_listener_cutoff(oldest_delivery, tables._clock())
            worker_cutoff = get_worker_cutoff(oldest, tables._clock())
            starters = {tables._runs[key].starter for key in tables._unfinished}
            for worker in [*tables._workers.values()]:
                cutoff = listener_cutoff if worker.is_listener else worker_cutoff
                if worker.state != "live" and worker.lease_expires_at < cutoff and worker.id not in starters:
                    del tables._workers[worker.id]
        return SweepResult()

    def _find_next(self, request: PruneRequest, after: PruneCursor, limit: int) -> tuple[list[int], PruneCursor | None]:
        matching = sorted(
            PruneCursor(run.workflow, run.state, run.key)
            for run in self._tables._runs.values()
            if run.state in request.states
            and request.workflow in (None, run.workflow)
            and run.finished_at is not None
            and run.finished_at < request.finished_before
        )
        found = [cursor for cursor in matching if cursor[:3] > after[:3]][:limit]
        return [cursor.key for cursor in found], found[-1] if len(found) == limit else None

    def _find_min_kept_keys(self, request: PruneRequest) -> dict[str, int]:
        """The lowest key of the newest runs that are kept, for each workflow."""
        if not request.keep_newest:
            return {}
        keys: dict[str, list[int]] = {}
        for run in self._tables._runs.values():
            if run.state in request.states:
                keys.setdefault(run.workflow, []).append(run.key)
        return {workflow: sorted(found, reverse=True)[: request.keep_newest][-1] for workflow, found in keys.items()}

    def _delete_run(self, run: GroupMember) -> None:
        tables = self._tables
        for link_key in [key for key, link in tables._links.items() if run.key in (key[0], link.child_key)]:
            tables._delete_link(link_key)
        for rows in (
            tables._runs, tables._records, tables._attempts, tables._mailboxes, tables._live_events,
            tables._link_positions, tables._pending_links, tables._turns, tables._parked_by,
        ):  # fmt: skip
            rows.pop(run.key, None)
        tables._keys_by_id.pop(run.id, None)
        tables._with_generated_id.discard(run.key)
        tables._with_unclaimed_result.discard(run.key)
        tables._signal_dedup_keys = {key for key in tables._signal_dedup_keys if key[0] != run.key}
        for approval_id in [approval.id for approval in tables._approvals.values() if approval.run_id == run.id]:
            del tables._approvals[approval_id]
            tables._withdrawn_epochs.pop(approval_id, None)
        if tables._newest_by_session.get((run.workflow, run.session)) == run.id:
            del tables._newest_by_session[run.workflow, run.session]
        tables._accounts.delete(run.key)


def _group_by(runs: Collection[Run], field: str) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(getattr(run, field), []).append(run)
    return found
