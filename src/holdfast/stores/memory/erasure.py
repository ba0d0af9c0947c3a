# pyright: reportPrivateUsage=false
"""Erasing what runs have recorded, in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from holdfast.codec import ERASED
from holdfast.core.records import Record, RecordKind
from holdfast.stores.erasure import (
    ERASED_REQUEST,
    ERASED_RETURN,
    ErasedMember,
    EraseGroups,
    EraseRequest,
    EraseResult,
    Erasure,
    is_erased,
    make_audit_events,
)
from holdfast.stores.live_events import RETURNED
from holdfast.stores.memory.queue_operations import MemoryCapability
from holdfast.stores.operations import Run


class MemoryErasure(MemoryCapability, Erasure):
    """Erasing runs."""

    async def erase(self, request: EraseRequest) -> EraseResult:
        tables = self._tables
        with tables._lock:
            asked = {id: tables._runs[tables._keys_by_id[id]] for id in request.run_ids if id in tables._keys_by_id}
            groups = EraseGroups(_to_member(run, run.id) for run in asked.values())
            while groups.new_ids:
                groups.add(self._list_related(groups.new_ids))
            waiters = [
                (link_key, tables._runs[link.child_key].id)
                for link_key, link in tables._links.items()
                if tables._runs[link.child_key].id in groups.members
            ]
            unfinished = [id for (key, _), id in waiters if not tables._runs[key].state.is_terminal]
            members, refusals = groups.choose((), unfinished)
            keys = [member.key for member in members]
            ids = tuple(member.id for member in members)
            result = EraseResult(
                ids,
                sum(len(tables._records.get(key, ())) for key in keys),
                sum(len(tables._mailboxes.get(key, ())) for key in keys),
                sum(approval.run_id in ids for approval in tables._approvals.values()),
                refusals,
            )
            if not request.dry_run:
                for key in keys:
                    self._erase_run(key, request.tag)
                self._erase_ends([link_key for link_key, id in waiters if id in ids])
                for event in make_audit_events(ids, request.actor, tables._clock()):
                    tables._last_audit_id += 1
                    tables._audit_events[tables._last_audit_id] = event
        return result

    async def scrub(self) -> None:
        """Does nothing: nothing is on a disk."""

    def _list_related(self, ids: Collection[str]) -> list[ErasedMember]:
        runs = self._tables._runs.values()
        children = [_to_member(run, run.parent) for run in runs if run.parent in ids]
        return children + [_to_member(run, run.forked_from) for run in runs if run.forked_from in ids]

    def _erase_run(self, key: int, tag: str) -> None:
        tables = self._tables
        run = tables._runs[key]
        tables._save_run(
            replace(
                run, inputs=ERASED, output=run.output and ERASED, error=run.error and ERASED, digest=b"", queue_key="",
                tags=tuple(each for each in run.tags if each != tag),
            )
        )  # fmt: skip
        tables._records[key] = [_erase_record(record) for record in tables._records.get(key, [])]
        for position, attempt in tables._attempts.get(key, {}).items():
            tables._attempts[key][position] = attempt._replace(progress=None, error="", outcome=None)
        for id, signal in tables._mailboxes.get(key, {}).items():
            tables._mailboxes[key][id] = signal._replace(payload=ERASED)
        tables._signal_dedup_keys = {each for each in tables._signal_dedup_keys if each[0] != key}
        for id, event in tables._live_events.get(key, {}).items():
            if event.kind == RETURNED:
                tables._live_events[key][id] = event._replace(data=ERASED_RETURN)
        for approval in [each for each in tables._approvals.values() if each.run_id == run.id]:
            tables._approvals[approval.id] = replace(
                approval, request=ERASED_REQUEST, answer=None if approval.answer is None else ERASED
            )

    def _erase_ends(self, link_keys: Collection[tuple[int, int]]) -> None:
        """Erase the ends of runs in the records and mailboxes of those that waited for them."""
        tables = self._tables
        for key, position in link_keys:
            tables._records[key] = [
                record._replace(payload=ERASED)
                if record.kind is RecordKind.CHILD and record.position == position
                else record
                for record in tables._records.get(key, [])
            ]
            for id, signal in tables._mailboxes.get(key, {}).items():
                if signal.position == position:
                    tables._mailboxes[key][id] = signal._replace(payload=ERASED)


def _to_member(run: Run, source: str) -> ErasedMember:
    return ErasedMember(run.key, run.id, not run.state.is_terminal, is_erased(run), source)


def _erase_record(record: Record) -> Record:
    has_run = record.kind in (RecordKind.CHILD, RecordKind.START)
    keeps_payload = record.payload is None or record.kind is RecordKind.START
    return record._replace(
        payload=record.payload if keeps_payload else ERASED, preview=record.preview if has_run else ""
    )
