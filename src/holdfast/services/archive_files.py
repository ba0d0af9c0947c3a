"""Archives: many runs in a file, with everything that belongs to them (``holdfast export --all``, ``import``).

JSON lines. The first says what the file is, and the last how many runs there are, so that a truncated file is noticed.
Each of the others is a run: an ``ArchivedRun`` in the form that ``file_format`` has for it. A run comes before those
that it started. **Recorded values are in the file as the store returns them**: encrypted or decrypted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import IO

from holdfast.errors import UsageError
from holdfast.services.file_format import FileFormat, encode, to_json_line
from holdfast.services.journal_files import read_journal, read_unchanged
from holdfast.stores.approvals import ApprovalFilter
from holdfast.stores.archives import ArchivedRun
from holdfast.stores.contract import RunUsage, Store
from holdfast.stores.encrypted import check_archive_decrypted
from holdfast.stores.live_events import LASTING_KINDS
from holdfast.stores.operations import Run

ARCHIVE_FORMAT = FileFormat("holdfast-archive", 1, "an archive of runs", "`holdfast export --all` writes such files.")
_MAX_ROWS = 100_000
"""Maximum number of approvals and of live events of one run."""


async def archive_run(store: Store, run_id: str) -> ArchivedRun:
    """A run and everything that belongs to it, as it is now. Raises ``RunNotFound``."""

    async def read(run: Run) -> ArchivedRun:
        journal = await read_journal(store, run)
        updates = await store.get_run_updates(run_id, len(journal.records), 0, _MAX_ROWS)
        live_events = () if updates is None else updates.live_events
        return ArchivedRun(
            journal.run,
            journal.records,
            journal.attempts,
            # Another store numbers them again; only their order matters.
            tuple(signal._replace(id=number) for number, signal in enumerate(journal.signals, 1)),
            (await store.get_usages([run_id])).get(run_id, RunUsage()),
            tuple(await store.list_approvals(ApprovalFilter(run_id=run_id, only_open=False), _MAX_ROWS)),
            tuple(event for _, event in live_events if event.kind in LASTING_KINDS),
            await store.archives.get_extras(run.key),
        )

    return await read_unchanged(store, run_id, read)


async def iter_archive_lines(store: Store, run_ids: list[str], *, decrypted: bool = False) -> AsyncIterator[str]:
    """The lines of a file with these runs, which are oldest first.

    ``decrypted``: raises ``UndecryptableValue`` if something in them is encrypted.
    """
    yield to_json_line(ARCHIVE_FORMAT.header)
    for run_id in run_ids:
        archived = await archive_run(store, run_id)
        if decrypted:
            check_archive_decrypted(archived)
        yield to_json_line(encode(archived))
    yield to_json_line({"runs": len(run_ids)})


def read_archive(file: IO[str], name: str) -> Iterator[ArchivedRun]:
    """The runs of a file, one after the other. Raises ``UsageError`` if it is not a complete archive."""
    ARCHIVE_FORMAT.check_header(ARCHIVE_FORMAT.parse_object(file.readline(), name), name)
    count = 0
    for number, line in enumerate(file, 2):
        source = f"{name}, line {number},"
        data = ARCHIVE_FORMAT.parse_object(line, source)
        if "run" not in data:
            if data.get("runs") != count:
                raise UsageError(f"{source} says that there are {data.get('runs')} runs, and there are {count}.")
            return
        yield ARCHIVE_FORMAT.decode(ArchivedRun, data, source)
        count += 1
    raise UsageError(f"{name} was cut off after {count} runs: its last line is missing. Export it again.")
