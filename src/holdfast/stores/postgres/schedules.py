"""The SQL about schedules: see ``sql.schedules``."""

from __future__ import annotations

from typing import Final

_COLUMNS = "name, workflow, timing, catch_up, most, overlap, by_code, options, inputs, created_at, fired_up_to"
_SCHEDULES = (
    f"SELECT {_COLUMNS}, paused_at, last_run, skipped, EXISTS (SELECT 1 FROM {{s}}.announcements a "
    "JOIN {s}.workers w ON w.id = a.worker WHERE a.schedule = o.name AND w.state = 'live' "
    "AND w.lease_until >= %s::float8) FROM {s}.schedules o"
)

_ADD = f"INSERT INTO {{s}}.schedules AS o ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT"

SCHEDULING: Final[dict[str, str]] = {
    "ADD_SCHEDULE": f"{_ADD} DO NOTHING",
    "PUT_SCHEDULE": (
        f"{_ADD} (name) DO UPDATE SET workflow = excluded.workflow, timing = excluded.timing, "
        "catch_up = excluded.catch_up, most = excluded.most, overlap = excluded.overlap, by_code = excluded.by_code, "
        "options = excluded.options, inputs = excluded.inputs, "
        "fired_up_to = greatest(o.fired_up_to, excluded.fired_up_to)"
    ),
    "ANNOUNCE_SCHEDULE": "INSERT INTO {s}.announcements (schedule, worker) VALUES (%s, %s) ON CONFLICT DO NOTHING",
    "DROP_ANNOUNCEMENTS": (
        "DELETE FROM {s}.announcements WHERE (schedule, worker) IN (SELECT a.schedule, a.worker "
        "FROM {s}.announcements a WHERE NOT EXISTS (SELECT 1 FROM {s}.workers w WHERE w.id = a.worker "
        "AND w.state = 'live') ORDER BY a.schedule, a.worker FOR UPDATE OF a SKIP LOCKED)"
    ),
    "FORGET_ANNOUNCEMENTS": "DELETE FROM {s}.announcements WHERE schedule = %s",
    "SCHEDULES": f"{_SCHEDULES} ORDER BY name",
    "SCHEDULES_NAMED": f"{_SCHEDULES} WHERE name = ANY(%s::text[]) ORDER BY name",
    "SETTLE_SCHEDULE": (
        "UPDATE {s}.schedules SET fired_up_to = %s::float8, "
        "last_run = CASE WHEN %s::text = '' THEN last_run ELSE %s::text END, skipped = coalesce(%s::float8, skipped) "
        "WHERE name = %s AND fired_up_to = %s::float8"
    ),
    "PAUSE_SCHEDULE": "UPDATE {s}.schedules SET paused_at = %s::float8 WHERE name = %s AND paused_at IS NULL",
    "RESUME_SCHEDULE": "UPDATE {s}.schedules SET paused_at = NULL WHERE name = %s AND paused_at IS NOT NULL",
    "DELETE_SCHEDULE": "DELETE FROM {s}.schedules WHERE name = %s",
}
