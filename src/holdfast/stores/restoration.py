"""What a store that was restored from a backup knows about that.

A restored database lacks everything that happened between the backup and the restore. Nothing in it says so, and a run
that continues would repeat what it did in that time. For most steps that is the same as a crash: what has no record is
done again. A ``once`` step must not be. Its intent may be missing as well, so three marks take its place:

- Each run that had not completed gets an attempt at ``core.records.RESTORED_POSITION``: the intent of all its ``once``
  steps. Failed, cancelled, and dead runs get one, too: a retry may have continued them after the backup.
- A run that such a run starts gets one as well, if it does not exist: see ``NewRun.restored_from``. So does the run of
  a schedule's tick from before the restore, which may have fired after the backup. For those, the store has a document.

The marks are made before any worker may claim a run. Making them again is harmless.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast.stores.contract import Store

_KIND, _NAME = "restoration", "last"
"""The kind and name of the document."""


class Restoration(NamedTuple):
    """The last time that a store was restored."""

    restored_at: float
    backup_at: float | None
    """When the backup was made, if that is known."""

    @property
    def source(self) -> str:
        """The backup, as text."""
        if self.backup_at is None:
            return "a backup"
        return f"the backup of {datetime.fromtimestamp(self.backup_at, UTC):%Y-%m-%d %H:%M:%S} UTC"


async def mark_restored(store: Store, backup_at: float | None) -> int:
    """Mark the store as restored, now. Returns the number of marked runs."""
    restoration = Restoration(store.now(), backup_at)
    await store.documents.put(_KIND, _NAME, json.dumps(restoration).encode())
    return await store.archives.mark_restored(restoration.source)


async def read_restoration(store: Store) -> Restoration | None:
    """The last time that the store was restored; ``None``: never."""
    if not store.supports(Store.documents):
        return None
    found = await store.documents.list(_KIND, [_NAME])
    return Restoration(*found[0].load_json()) if found else None
