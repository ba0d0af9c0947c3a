"""A run with a page of its journal, all read at one moment: see ``stores.journal_pages``."""

from __future__ import annotations

from holdfast.core.records import Record
from holdfast.stores.journal_pages import Outline
from holdfast.stores.sql import blobs, queries
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.payloads import fill_records
from holdfast.stores.sql.rows import Reader
from holdfast.stores.sql.run_updates import readable
from holdfast.stores.sql.statements import NO_END


def outline(
    db: Database, reader: Reader, run_id: str, after_seq: int, limit: int | None, *, whole: bool
) -> Outline | None:
    """A run with a page of its journal."""
    db.begin_reading()
    run = queries.get(db, reader, run_id)
    found = None
    if run is not None:
        records = queries.new_records(db, reader, run, after_seq, NO_END if limit is None else limit)
        left_out = {} if whole else _sizes(db, records)
        short = [record._replace(payload=None) if record.seq in left_out else record for record in records]
        found = Outline(
            readable(db, reader, run, whole=whole),
            fill_records(db, reader, short, lambda: run_id),
            left_out,
            [reader.part(row, run_id) for row in db.ask(db.sql.JOURNAL_PARTS, (run.key,))],
            reader.attempts(db.lookup(db.sql.ATTEMPTS, run.key)),
            queries.mailbox(db, reader, run.key),
        )
    db.commit()
    return found


def _sizes(db: Database, records: list[Record]) -> dict[int, int]:
    """The sizes of payloads that are kept apart; of one that is missing, what reads it will say so."""
    apart = {record.seq: record.payload for record in records if blobs.is_reference(record.payload)}
    sizes = blobs.sizes(db, [reference for reference in apart.values() if reference is not None])
    return {seq: sizes[reference] for seq, reference in apart.items() if reference in sizes}
