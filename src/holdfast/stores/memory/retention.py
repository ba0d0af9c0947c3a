"""Deleting runs that have ended, in memory: all at once, so that nothing is left to be swept away."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from holdfast.stores import rules
from holdfast.stores.memory.tables import Tables
from holdfast.stores.operations import Run
from holdfast.stores.retention import (
    START,
    Family,
    Findings,
    Kin,
    Kinship,
    Place,
    Pruned,
    Pruning,
    Swept,
    families,
    why_kept,
)


class _MemoryKinship(Kinship):
    """Who is related to whom; everybody is looked at, which is quick enough where all of it is in memory."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._runs = tables._runs  # pyright: ignore[reportPrivateUsage]
        self._keys = tables._keys  # pyright: ignore[reportPrivateUsage]
        self._by_parent = _by(self._runs.values(), "parent")
        self._by_previous = _by(self._runs.values(), "previous")
        self._by_session = _by([run for run in self._runs.values() if run.session], "session")
        self._sessions: set[tuple[str, str]] = set()
        """Those whose runs are known: the first one that is met stands for all of them."""

    def read(self, keys: Collection[int]) -> Iterator[Kin]:
        """What is known of these runs."""
        unclaimed = self._tables._unclaimed  # pyright: ignore[reportPrivateUsage]
        for run in (self._runs[key] for key in keys):
            yield Kin(
                run.key, run.id, run.workflow, run.state, run.finished_at, run.parent, run.session, run.previous,
                1 if run.key in unclaimed else 0,
            )  # fmt: skip

    def relatives(self, runs: Sequence[Kin]) -> Iterator[tuple[int, int]]:
        """Those next to each in its family."""
        for run in runs:
            for other in (run.parent, run.previous):
                key = self._keys.get(other) if other else None
                if key is not None and rules.is_above(key, run.key):
                    yield run.key, key
            for younger in (*self._by_parent.get(run.id, ()), *self._by_previous.get(run.id, ())):
                if rules.is_above(run.key, younger.key):
                    yield run.key, younger.key
            if (run.workflow, run.session) in self._sessions:
                continue
            self._sessions.add((run.workflow, run.session))
            for mate in self._by_session.get(run.session, ()):
                if mate.workflow == run.workflow:
                    yield run.key, mate.key

    def awaited(self, keys: Collection[int]) -> set[int]:
        """Those to which an unfinished run has a link."""
        links = self._tables._links  # pyright: ignore[reportPrivateUsage]
        found = {link.child for (parent, _), link in links.items() if not self._has_ended(parent)}
        return found.intersection(keys)

    def waited_for(self, keys: Collection[int]) -> set[tuple[int, int]]:
        """Links from these runs."""
        links = self._tables._links  # pyright: ignore[reportPrivateUsage]
        return {(parent, link.child) for (parent, _), link in links.items() if parent in keys}

    def _has_ended(self, key: int) -> bool:
        return key not in self._runs or self._runs[key].state.is_terminal


class Prunable(Tables):
    """How runs are deleted."""

    async def prune(self, what: Pruning, after: Place = START, limit: int = 100) -> Pruned:
        """Delete the next runs that match, with their families."""
        with self._lock:
            findings = after.findings or Findings()
            if what.run_ids is not None:
                found = [self._keys[run_id] for run_id in dict.fromkeys(what.run_ids) if run_id in self._keys]
                place = None
            else:
                found, place = self._next(what, after, limit)
            new, kept = findings.split(found)
            kinship = _MemoryKinship(self)
            newest = self._newest(what)
            going: list[Family] = []
            for family in families(kinship, new):
                keys = set(family.keys)
                why = why_kept(family, what, newest, kinship.awaited(keys), kinship.waited_for(keys))
                findings.note(family, why)
                if why is None:
                    going.append(family)
                else:
                    kept.update({one.id: why for one in family.members if one.key in found})
            records = size = 0
            if what.dry_run:
                journals = [self._records.get(key, []) for family in going for key in family.keys]
                records = sum(map(len, journals))
                size = sum(len(record.payload or b"") for journal in journals for record in journal)
                runs = [self._runs[key] for family in going for key in family.keys]
                size += sum(len(run.inputs) + len(run.output or b"") + len(run.error or b"") for run in runs)
            else:
                for member in [member for family in going for member in family.members]:
                    self._delete(member)
        gone = tuple(one.id for family in going for one in family.members)
        return Pruned(gone, kept, records, size, None if place is None else place._replace(findings=findings))

    async def sweep(self, limit: int = 2000) -> Swept:
        """Of runs there is nothing left."""
        with self._lock:
            delivered = min((run.created_at for run in self._runs.values() if run.by_delivery), default=None)
            oldest = min((run.created_at for run in self._runs.values()), default=None)
            listeners_from = rules.listeners_kept_from(delivered, self._clock())
            workers_from = rules.workers_kept_from(oldest, self._clock())
            starters = {self._runs[key].starter for key in self._unfinished}
            for worker in [*self._workers.values()]:
                before = listeners_from if worker.by_lease else workers_from
                if worker.state != "live" and worker.lease_until < before and worker.id not in starters:
                    del self._workers[worker.id]
        return Swept()

    def _next(self, what: Pruning, after: Place, limit: int) -> tuple[list[int], Place | None]:
        places = sorted(
            Place(run.workflow, run.state, run.key)
            for run in self._runs.values()
            if run.state in what.states
            and what.workflow in (None, run.workflow)
            and run.finished_at is not None
            and run.finished_at < what.before
        )
        found = [place for place in places if place[:3] > after[:3]][:limit]
        return [place.key for place in found], found[-1] if len(found) == limit else None

    def _newest(self, what: Pruning) -> dict[str, int]:
        """The lowest key that is kept, of each workflow that has any to keep."""
        if not what.keep:
            return {}
        keys: dict[str, list[int]] = {}
        for run in self._runs.values():
            if run.state in what.states:
                keys.setdefault(run.workflow, []).append(run.key)
        return {workflow: sorted(mine, reverse=True)[: what.keep][-1] for workflow, mine in keys.items()}

    def _delete(self, run: Kin) -> None:
        for place in [(run.key, position) for position in self._places.pop(run.key, {})]:
            link = self._links.pop(place)
            self._awaited.get(link.child, {}).pop(place, None)
        for place in [place for place, link in self._links.items() if link.child == run.key]:
            self._unlink(place)
        for rows in (self._runs, self._records, self._attempts, self._mailboxes, self._notices, self._awaited):
            rows.pop(run.key, None)
        self._turns.pop(run.key, None)
        self._parked_by.pop(run.key, None)
        self._keys.pop(run.id, None)
        self._generated.discard(run.key)
        self._unclaimed.discard(run.key)
        self._signal_keys = {place for place in self._signal_keys if place[0] != run.key}
        for approval in [one.id for one in self._approvals.values() if one.run_id == run.id]:
            del self._approvals[approval]
            self._withdrawn_in.pop(approval, None)
        if self._sessions.get((run.workflow, run.session)) == run.id:
            del self._sessions[run.workflow, run.session]
        self._accounts.forget(run.key)


def _by(runs: Collection[Run], field: str) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(getattr(run, field), []).append(run)
    return found
