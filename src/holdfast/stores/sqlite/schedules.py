"""The SQL about schedules: see ``sql.schedules``."""

from __future__ import annotations

from typing import Final

_ADD = (
    "INSERT INTO schedules (name, workflow, timing, catch_up, most, overlap, by_code, options, inputs, created_at, "
    "fired_up_to) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT"
)
_SCHEDULES = (
    "SELECT name, workflow, timing, catch_up, most, overlap, by_code, options, inputs, created_at, fired_up_to, "
    "paused_at, last_run, skipped, EXISTS (SELECT 1 FROM announcements a JOIN workers w ON w.id = a.worker "
    "WHERE a.schedule = schedules.name AND w.state = 'live' AND w.lease_until >= ?) FROM schedules"
)

SCHEDULING: Final[dict[str, str]] = {
    "ADD_SCHEDULE": f"{_ADD} DO NOTHING",
    "PUT_SCHEDULE": (
        f"{_ADD} (name) DO UPDATE SET workflow = excluded.workflow, timing = excluded.timing, "
        "catch_up = excluded.catch_up, most = excluded.most, overlap = excluded.overlap, by_code = excluded.by_code, "
        "options = excluded.options, inputs = excluded.inputs, fired_up_to = max(fired_up_to, excluded.fired_up_to)"
    ),
    "ANNOUNCE_SCHEDULE": "INSERT INTO announcements (schedule, worker) VALUES (?, ?) ON CONFLICT DO NOTHING",
    "DROP_ANNOUNCEMENTS": "DELETE FROM announcements WHERE worker NOT IN (SELECT id FROM workers WHERE state = 'live')",
    "FORGET_ANNOUNCEMENTS": "DELETE FROM announcements WHERE schedule = ?",
    "SCHEDULES": f"{_SCHEDULES} ORDER BY name",
    "SCHEDULES_NAMED": f"{_SCHEDULES} WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name",
    "SETTLE_SCHEDULE": (
        "UPDATE schedules SET fired_up_to = ?, last_run = CASE WHEN ? = '' THEN last_run ELSE ? END, "
        "skipped = coalesce(?, skipped) WHERE name = ? AND fired_up_to = ?"
    ),
    "PAUSE_SCHEDULE": "UPDATE schedules SET paused_at = ? WHERE name = ? AND paused_at IS NULL",
    "RESUME_SCHEDULE": "UPDATE schedules SET paused_at = NULL WHERE name = ? AND paused_at IS NOT NULL",
    "DELETE_SCHEDULE": "DELETE FROM schedules WHERE name = ?",
}
