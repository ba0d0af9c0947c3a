"""The SQL by which runs are read for an archive, and restored from one: see ``stores.archives``."""

from __future__ import annotations

from typing import Final

ARCHIVES: Final[dict[str, str]] = {
    "UNCLAIMED": "SELECT unclaimed FROM runs WHERE key = ?",
    "SIGNAL_KEYS": "SELECT dedup FROM signal_keys WHERE run = ? ORDER BY dedup",
    "LINKS_OF": (
        "SELECT l.position, c.id, l.awaited FROM links l CROSS JOIN runs c ON c.key = l.child WHERE l.parent = ? "
        "ORDER BY l.position"
    ),
    "RESTORE_RUN": (
        "UPDATE runs SET state = ?, epoch = ?, deliveries = ?, ready = NULL, wake_at = ?, waits_for = ?, cancel = ?, "
        "paused_at = ?, finished_at = ?, rewind = ?, output = ?, error = ?, unclaimed = ? WHERE key = ?"
    ),
    "RESTORE_ATTEMPT": (
        "INSERT INTO attempts (run, position, attempt, intent, progress, error, at, name, retry_at, failing_since, "
        "outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    ),
    "RESTORE_APPROVAL": (
        "INSERT INTO approvals (id, run, position, state, asked_at, expires_at, asked_of, reminders, reminded_at, "
        "answered_by, answered_at, question, form, arguments, answer) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    ),
    "SET_GOING": "UPDATE runs SET ready = ?, paused_at = ? WHERE key = ? AND paused_at = 0",
}
