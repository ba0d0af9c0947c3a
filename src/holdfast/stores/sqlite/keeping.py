"""The SQL of what servers keep, and of what was used on which day: see ``sql.keeping``."""

from __future__ import annotations

from typing import Final

_DOCUMENT = "kind, name, data, version, created_at, updated_at"
_ADD = "INSERT INTO documents (kind, name, created_at, updated_at, data, version) VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT"
_AUDIT = "at, who, name, action, target, outcome, remote"
_SUMS = ("calls", "input_tokens", "output_tokens", "cached_tokens", "nano_usd", "unpriced")

KEEPING: Final[dict[str, str]] = {
    "PUT_DOCUMENT": (
        f"{_ADD} (kind, name) DO UPDATE SET data = excluded.data, version = version + 1, "
        f"updated_at = excluded.updated_at RETURNING {_DOCUMENT}"
    ),
    "ADD_DOCUMENT": f"{_ADD} DO NOTHING RETURNING {_DOCUMENT}",
    "CHANGE_DOCUMENT": (
        "UPDATE documents SET data = ?, version = version + 1, updated_at = ? WHERE kind = ? AND name = ? "
        f"AND version = ? RETURNING {_DOCUMENT}"
    ),
    "DOCUMENTS": f"SELECT {_DOCUMENT} FROM documents WHERE kind = ? AND name > ? ORDER BY name LIMIT ?",
    "DOCUMENTS_NAMED": (
        f"SELECT {_DOCUMENT} FROM documents WHERE kind = ? AND name > ? "
        "AND name IN (SELECT value FROM json_each(?)) ORDER BY name LIMIT ?"
    ),
    "DELETE_DOCUMENT": "DELETE FROM documents WHERE kind = ? AND name = ?",
    "NOTE_AUDIT": f"INSERT INTO audit ({_AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?)",
    "AUDIT": f"SELECT id, {_AUDIT} FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?",
    "TRIM_AUDIT": "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < ? ORDER BY at, id LIMIT ?)",
    "SPEND": (
        f"INSERT INTO spending (day, model, {', '.join(_SUMS)}, workflow) SELECT ?, ?, ?, ?, ?, ?, ?, ?, workflow "
        "FROM runs WHERE key = ? ON CONFLICT (day, workflow, model) DO UPDATE SET "
        f"{', '.join(f'{name} = {name} + excluded.{name}' for name in _SUMS)}"
    ),
    "SPENDING": (
        f"SELECT day, workflow, model, {', '.join(_SUMS)} FROM spending "
        "WHERE day >= ? AND day <= ? AND (? IS NULL OR workflow = ?) ORDER BY day, workflow, model"
    ),
    # Each of the two is the end of an index; together in one SELECT they would be a look at all there is.
    "FIRST_AND_LAST_CREATED": "SELECT (SELECT min(created_at) FROM runs), (SELECT max(created_at) FROM runs)",
    "CREATED_ON": ("SELECT workflow, count(*) FROM runs WHERE created_at >= ? AND created_at < ? GROUP BY workflow"),
}
