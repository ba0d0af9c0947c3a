"""Erasing what runs have recorded: see ``stores.erasure``."""

from __future__ import annotations

from holdfast.codec import ERASED
from holdfast.core.records import RecordKind
from holdfast.stores.live_events import RETURNED
from holdfast.stores.sql.statements.queues import lock_listed
from holdfast.stores.sql.templates import Catalog, Delete, Query, Update, flag

_ERASED = f"utf8('{ERASED.decode()}')"
_MEMBER = f"key, id, {flag('finished_at IS NULL')}, {flag(f'inputs = {_ERASED}')}"


def _erase(column: str) -> str:
    """The assignment that erases a column that may be NULL."""
    return f"{column} = CASE WHEN {column} IS NOT NULL THEN {_ERASED} END"


class ErasureStatements(Catalog):
    """Statements that erase runs. What they replace may be shared, so large values are deleted as by retention."""

    ERASED_MEMBERS = Query("ids:t[]", f"SELECT {_MEMBER}, id FROM @runs WHERE id IN :ids")
    ERASED_CHILDREN = Query("ids:t[]", f"SELECT {_MEMBER}, parent FROM @runs WHERE parent IN :ids AND parent <> ''")
    ERASED_FORKS = Query(
        "ids:t[]", f"SELECT {_MEMBER}, forked_from FROM @runs WHERE forked_from IN :ids AND forked_from <> ''"
    )
    WAITING_RUNS = Query(
        "keys:i[]",
        f"SELECT l.child, l.parent, l.position, {flag('r.finished_at IS NULL')} FROM @links l "
        "CROSS JOIN @runs r ON r.key = l.parent WHERE l.child IN :keys",
    )
    LOCK_TAGS = lock_listed("key, tags", "finished_at IS NOT NULL", "FOR UPDATE SKIP LOCKED")
    IS_ERASED = Query("key:i", f"SELECT 1 FROM @runs WHERE key = :key AND inputs = {_ERASED}")

    COUNT_ERASED_RECORDS = Query("runs:i[]", "SELECT count(*) FROM @records WHERE run IN :runs")
    COUNT_ERASED_SIGNALS = Query("runs:i[]", "SELECT count(*) FROM @signals WHERE run IN :runs")
    COUNT_ERASED_APPROVALS = Query("runs:i[]", "SELECT count(*) FROM @approvals WHERE run IN :runs")
    RUN_REFERENCES = Query(
        "keys:i[]", "SELECT reference(inputs), reference(output), reference(error) FROM @runs WHERE key IN :keys"
    )
    RECORD_REFERENCES = Query(
        "runs:i[]",
        sqlite="SELECT payload FROM @records[records_journal] WHERE run IN :runs AND octet_length(payload) = 33",
        postgres="SELECT t.payload FROM unnest(:runs) q (run) CROSS JOIN LATERAL "
        "(SELECT payload FROM @records WHERE run = q.run OFFSET 0) t WHERE octet_length(t.payload) = 33",
    )

    ERASE_RUN = Update(
        "tags:t key:i",
        f"inputs = {_ERASED}, {_erase('output')}, {_erase('error')}, digest = utf8(''), tags = :tags, queue_key = '', "
        "dedup_key = ''",
    )
    DELETE_TAG = Delete("run_tags", "tag:t run:i")
    ERASE_RECORDS = Query(
        "runs:i[]",
        f"UPDATE @records SET payload = CASE WHEN payload IS NULL OR kind = {RecordKind.START} THEN payload "
        f"ELSE {_ERASED} END, preview = CASE WHEN kind IN ({RecordKind.CHILD}, {RecordKind.START}) THEN preview "
        "ELSE '' END WHERE run IN :runs",
    )
    ERASE_ATTEMPTS = Query(
        "runs:i[]", "UPDATE @attempts SET progress = NULL, error = '', outcome = NULL WHERE run IN :runs"
    )
    ERASE_SIGNALS = Query("runs:i[]", f"UPDATE @signals SET payload = {_ERASED} WHERE run IN :runs")
    ERASE_APPROVALS = Query(
        "request:t runs:i[]",
        f"UPDATE @approvals SET request = :request, form_schema = utf8(''), arguments = utf8(''), {_erase('answer')} "
        "WHERE run IN :runs",
    )
    ERASE_RETURNS = Query(
        "data:b runs:i[]", f"UPDATE @live_events SET data = :data WHERE run IN :runs AND kind = '{RETURNED}'"
    )
    # In the runs that waited, of which nothing else is erased.
    END_REFERENCES = Query(
        "run:i position:i",
        f"SELECT payload FROM @records WHERE run = :run AND position = :position AND kind = {RecordKind.CHILD}",
    )
    ERASE_END = Query(
        "run:i position:i",
        f"UPDATE @records SET payload = {_ERASED} WHERE run = :run AND position = :position "
        f"AND kind = {RecordKind.CHILD}",
    )
    ERASE_END_SIGNAL = Query(
        "run:i position:i", f"UPDATE @signals SET payload = {_ERASED} WHERE run = :run AND position = :position"
    )
