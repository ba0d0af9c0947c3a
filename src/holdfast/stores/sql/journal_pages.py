"""A run with a page of its journal, in one snapshot: see ``stores.journal_pages``."""

from __future__ import annotations

from holdfast.core.records import Record
from holdfast.stores.journal_pages import JournalPage
from holdfast.stores.sql import blobs, queries
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.payloads import fill_records
from holdfast.stores.sql.rows import RowReader
from holdfast.stores.sql.run_updates import fill_run
from holdfast.stores.sql.statements import MAX_INT64


def read_journal_page(
    db: Database, reader: RowReader, run_id: str, after_seq: int, limit: int | None, *, include_large_payloads: bool
) -> JournalPage | None:
    """A run with a page of its journal."""
    db.begin_snapshot()
    run = queries.get_run(db, reader, run_id)
    page = None
    if run is not None:
        records = queries.read_new_records(db, reader, run, after_seq, MAX_INT64 if limit is None else limit)
        omitted = {} if include_large_payloads else _fetch_payload_sizes(db, records)
        short = [record._replace(payload=None) if record.seq in omitted else record for record in records]
        page = JournalPage(
            fill_run(db, reader, run, include_large_payloads=include_large_payloads),
            fill_records(db, reader, short, lambda: run_id),
            omitted,
            [reader.read_segment(row, run_id) for row in db.query(db.sql.JOURNAL_SEGMENTS, (run.key,))],
            reader.read_attempts(db.lookup(db.sql.ATTEMPTS, run.key)),
            queries.read_mailbox(db, reader, run.key),
        )
    db.commit()
    return page


def _fetch_payload_sizes(db: Database, records: list[Record]) -> dict[int, int]:
    """The sizes of payloads that are kept apart, by ``seq``. A missing one is left out: reading it raises."""
    references = {record.seq: record.payload for record in records if blobs.is_reference(record.payload)}
    sizes = blobs.fetch_sizes(db, [reference for reference in references.values() if reference is not None])
    return {seq: sizes[reference] for seq, reference in references.items() if reference in sizes}
