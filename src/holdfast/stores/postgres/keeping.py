"""The SQL of what servers keep, and of what was used on which day: see ``sql.keeping``.

What was used is added up in ``spending``. All runs of a workflow use something of the same model on the same day, so
one row for that would be locked by every worker, each until its commit is on disk. So there are several, by *slots*,
and a transaction writes to the one of its connection, as the server numbers these: two that are open at the same time
have different numbers. Rows are locked in their order, and after everything else that is locked, so that nobody waits
for another in a circle.
"""

from __future__ import annotations

from typing import Final

from holdfast.stores.postgres.bulk import changes, insert, questions

SLOTS = 32
"""In so many rows that which was used on a day, by one workflow and one model, is kept at most."""

_DOCUMENT = "kind, name, data, version, created_at, updated_at"
_ADD = (
    "INSERT INTO {s}.documents AS d (kind, name, created_at, updated_at, data, version) "
    "VALUES (%s, %s, %s, %s, %s, 1) ON CONFLICT"
)
_AUDIT = "at, who, name, action, target, outcome, remote"
_SUMS = ("calls", "input_tokens", "output_tokens", "cached_tokens", "nano_usd", "unpriced")
_SUMMED = ", ".join(f"sum({name})::bigint" for name in _SUMS)

KEEPING: Final[dict[str, str]] = {
    "PUT_DOCUMENT": (
        f"{_ADD} (kind, name) DO UPDATE SET data = excluded.data, version = d.version + 1, "
        f"updated_at = excluded.updated_at RETURNING {_DOCUMENT}"
    ),
    "ADD_DOCUMENT": f"{_ADD} DO NOTHING RETURNING {_DOCUMENT}",
    "CHANGE_DOCUMENT": (
        "UPDATE {s}.documents SET data = %s, version = version + 1, updated_at = %s::float8 "
        f"WHERE kind = %s AND name = %s AND version = %s RETURNING {_DOCUMENT}"
    ),
    "DOCUMENTS": (
        f"SELECT {_DOCUMENT} FROM {{s}}.documents WHERE kind = %s AND name > %s ORDER BY kind, name LIMIT %s"
    ),
    "DOCUMENTS_NAMED": (
        f"SELECT {_DOCUMENT} FROM {{s}}.documents WHERE kind = %s AND name > %s AND name = ANY(%s::text[]) "
        "ORDER BY kind, name LIMIT %s"
    ),
    "DELETE_DOCUMENT": "DELETE FROM {s}.documents WHERE kind = %s AND name = %s",
    "NOTE_AUDIT": insert("audit", "at:f who:t name:t action:t target:t outcome:t remote:t", " ORDER BY q.n"),
    "AUDIT": f"SELECT id, {_AUDIT} FROM {{s}}.audit WHERE id < %s ORDER BY id DESC LIMIT %s",
    "TRIM_AUDIT": (
        "DELETE FROM {s}.audit WHERE id = ANY(ARRAY(SELECT id FROM {s}.audit WHERE at < %s::float8 "
        "ORDER BY at, id LIMIT %s FOR UPDATE SKIP LOCKED))"
    ),
    "SPEND": changes(
        "day:t model:t calls:i input_tokens:i output_tokens:i cached_tokens:i nano_usd:i unpriced:i run:i",
        f"INSERT INTO {{s}}.spending AS t (day, workflow, model, slot, {', '.join(_SUMS)}) "
        f"SELECT q.day, r.workflow, q.model, mod(pg_backend_pid(), {SLOTS}), {_SUMMED} "
        "FROM {q} CROSS JOIN LATERAL (SELECT workflow FROM {s}.runs WHERE key = q.run OFFSET 0) r "
        "GROUP BY q.day, r.workflow, q.model ORDER BY q.day, r.workflow, q.model "
        "ON CONFLICT (day, workflow, model, slot) DO UPDATE SET "
        f"{', '.join(f'{name} = t.{name} + excluded.{name}' for name in _SUMS)}",
    ),
    "SPENDING": (
        f"SELECT day, workflow, model, {_SUMMED} FROM {{s}}.spending "
        "WHERE day >= %s AND day <= %s AND (%s::text IS NULL OR workflow = %s::text) "
        "GROUP BY day, workflow, model ORDER BY day, workflow, model"
    ),
    "FIRST_AND_LAST_CREATED": "SELECT min(created_at), max(created_at) FROM {s}.runs",
    "CREATED_ON": questions(
        "since:f until:f",
        "SELECT workflow, count(*) FROM {s}.runs WHERE created_at >= q.since AND created_at < q.until "
        "GROUP BY workflow",
    ),
}
