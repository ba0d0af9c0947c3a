"""The SQL by which runs are read for an archive, and restored from one: see ``stores.archives``."""

from __future__ import annotations

from typing import Final

from holdfast.stores.postgres.bulk import changes, insert, update

ARCHIVES: Final[dict[str, str]] = {
    "UNCLAIMED": "SELECT unclaimed FROM {s}.runs WHERE key = %s",
    "SIGNAL_KEYS": "SELECT dedup FROM {s}.signal_keys WHERE run = %s ORDER BY run, dedup",
    "LINKS_OF": (
        "SELECT l.position, c.id, l.awaited FROM {s}.links l CROSS JOIN LATERAL "
        "(SELECT id FROM {s}.runs WHERE key = l.child OFFSET 0) c WHERE l.parent = %s ORDER BY l.parent, l.position"
    ),
    "RESTORE_RUN": update(
        "state:t epoch:i deliveries:i wake_at:f waits_for:t cancel:t paused_at:f finished_at:f rewind:t output:b "
        "error:b unclaimed:i key:i",
        "state = q.state, epoch = q.epoch, deliveries = q.deliveries, ready = NULL, wake_at = q.wake_at, "
        "waits_for = q.waits_for, cancel = q.cancel, paused_at = q.paused_at, finished_at = q.finished_at, "
        "rewind = q.rewind, output = q.output, error = q.error, unclaimed = q.unclaimed",
    ),
    "RESTORE_ATTEMPT": insert(
        "attempts",
        "run:i position:i attempt:i intent:i progress:b error:t at:f name:t retry_at:f failing_since:f outcome:b",
    ),
    "RESTORE_APPROVAL": changes(
        "id:t run:i position:i state:t asked_at:f expires_at:f asked_of:t reminders:i reminded_at:f answered_by:t "
        "answered_at:f question:t form:b arguments:b answer:b",
        "INSERT INTO {s}.approvals (id, run, position, state, asked_at, expires_at, asked_of, reminders, reminded_at, "
        "answered_by, answered_at, withdrawn_in, question, form, arguments, answer) SELECT q.id, q.run, q.position, "
        "q.state, q.asked_at, q.expires_at, q.asked_of, q.reminders, q.reminded_at, q.answered_by, q.answered_at, 0, "
        "q.question, q.form, q.arguments, q.answer FROM {q} ORDER BY q.n",
    ),
    "SET_GOING": update(
        "ready:i paused_at:f key:i", "ready = q.ready, paused_at = q.paused_at", " AND runs.paused_at = 0"
    ),
}
