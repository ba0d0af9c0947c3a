"""Erasing one person's data: what runs have recorded, and memories. See ``stores.erasure``.

Runs are erased in batches, each in a transaction. If that is interrupted, the next call continues: runs that were
erased no longer have the tag, or are found to be erased. At the end, the store removes what the changes left in its
files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

from holdfast.errors import UsageError
from holdfast.services.lookup import make_run_not_found
from holdfast.services.memories import MAX_LIMIT
from holdfast.stores.contract import RunFilter, Store
from holdfast.stores.erasure import EraseRequest
from holdfast.stores.memories import DeleteMemory

BATCH_SIZE = 100
"""Runs per transaction, besides those that belong to them."""


@dataclass(slots=True)
class EraseReport:
    """What was erased, or would be."""

    run_count: int = 0
    """With the runs that they started, and with forks."""
    record_count: int = 0
    signal_count: int = 0
    """Signals that no code had received."""
    approval_count: int = 0
    memory_count: int = 0
    """Memories that were deleted."""
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Why runs were not erased, by id."""
    dry_run: bool = False


async def erase_data(
    store: Store,
    run_ids: Collection[str] = (),
    *,
    tag: str = "",
    memories: Collection[str] = (),
    actor: str = "",
    dry_run: bool = False,
) -> EraseReport:
    """Erase what these runs and those with a tag have recorded, and the memories of these namespaces.

    Raises ``UsageError`` and ``RunNotFound`` before anything is erased.
    """
    if not (run_ids or tag or memories):
        raise UsageError("erase: say what: runs by their ids, a tag, or namespaces of memories")
    erasure, report = store.erasure, EraseReport(dry_run=dry_run)
    known = {run.id for run in await store.get_runs([*run_ids])}
    for run_id in run_ids:
        if run_id not in known:
            raise make_run_not_found(store, run_id)
    async for batch in _iter_batches(store, [*run_ids], tag):
        result = await erasure.erase(EraseRequest(batch, tag, actor, dry_run))
        report.run_count += len(result.run_ids)
        report.record_count += result.record_count
        report.signal_count += result.signal_count
        report.approval_count += result.approval_count
        report.refused.update({run_id: str(why) for run_id, why in result.refusals.items()})
    for namespace in memories:
        report.memory_count += await _delete_memories(store, namespace, dry_run=dry_run)
    if not dry_run:
        await erasure.scrub()
    return report


async def _iter_batches(store: Store, run_ids: Sequence[str], tag: str) -> AsyncIterator[Sequence[str]]:
    for start in range(0, len(run_ids), BATCH_SIZE):
        yield run_ids[start : start + BATCH_SIZE]
    before_key = None
    while tag and (page := await store.list_runs(RunFilter(tag=tag), limit=BATCH_SIZE, before_key=before_key)):
        before_key = page[-1].key
        yield [run.id for run in page]


async def _delete_memories(store: Store, namespace: str, *, dry_run: bool) -> int:
    """Delete all memories of a namespace, and return their number."""
    count, after = 0, ""
    while page := await store.memories.list(namespace, after=after, limit=MAX_LIMIT):
        after = page[-1].key
        count += len(page)
        if not dry_run:
            await store.commit([DeleteMemory(namespace, memory.key) for memory in page])
    return count
