"""The SQL by which a person's retry takes back what it takes: see ``sql.requests``."""

from __future__ import annotations

from typing import Final

# As ``Rewind.takes``: what has no position goes, and what was issued after the first failure was seen.
_TAKEN = (
    "run = %(run)s AND seq >= %(first)s AND (seq = ANY(%(failed)s::bigint[]) OR kind IN (4, 8) "
    "OR records.position >= CASE WHEN kind = 2 THEN %(timers)s::bigint ELSE %(positions)s::bigint END)"
)
_ENDS = "SELECT records.position FROM {s}.records WHERE kind = 5 AND"
_IS_CANCELLED = "EXISTS (SELECT 1 FROM {s}.records WHERE run = runs.key AND kind = 8)"
# Whether its queue has limits is decided anew.
_REOPENED_AS = (
    "CASE WHEN EXISTS (SELECT 1 FROM {s}.queues o WHERE o.name = runs.queue) "
    "THEN CASE epoch WHEN 0 THEN 2 ELSE 3 END ELSE 1 END"
)

REOPENING: Final[dict[str, str]] = {
    "REOPENED": "SELECT id, state, rewind FROM {s}.runs WHERE key = %s",
    # The runs that a run waits for, and will have no end of; and whether it had one.
    "OPEN_ENDS": (
        f"SELECT l.position, c.key, c.state, c.parent, l.position IN ({_ENDS} {_TAKEN}) FROM {{s}}.links l "
        "CROSS JOIN LATERAL (SELECT key, state, parent FROM {s}.runs WHERE key = l.child OFFSET 0) c "
        f"WHERE l.parent = %(run)s AND l.position NOT IN ({_ENDS} run = %(run)s AND NOT ({_TAKEN})) ORDER BY l.position"
    ),
    "PUT_BACK": (
        "INSERT INTO {s}.signals (run, name, sent_at, payload) "
        "SELECT run, name, started_at, coalesce(payload, 'null'::bytea) "
        f"FROM {{s}}.records WHERE kind = 3 AND {_TAKEN} ORDER BY seq"
    ),
    "TAKE_BACK": f"DELETE FROM {{s}}.records WHERE {_TAKEN}",
    # What a retry takes back: answers in the journal, and to questions that were asked because of what it takes back.
    "DROP_ANSWERS": (
        "DELETE FROM {s}.signals WHERE run = %(run)s AND position >= %(positions)s AND name LIKE 'answer:%%'"
    ),
    "TAKE_BACK_ANSWERS": (
        "UPDATE {s}.approvals SET state = 'withdrawn' WHERE run = %(run)s AND (approvals.position >= %(positions)s "
        f"OR approvals.position IN (SELECT records.position FROM {{s}}.records WHERE kind = 9 AND {_TAKEN}))"
    ),
    "TAKE_BACK_ATTEMPTS": ("DELETE FROM {s}.attempts WHERE run = %(run)s AND position >= %(positions)s AND intent = 0"),
    "NOTE_REWOUND": (
        "UPDATE {s}.runs SET rewound = CASE rewound WHEN '[]' THEN '[' ELSE left(rewound, -1) || ', ' END "
        "|| %s::bigint || ']' WHERE key = %s"
    ),
    "REOPEN_RUN": (
        "UPDATE {s}.runs SET state = 'pending', owner = NULL, deliveries = 0, suspicion = 0, output = NULL, "
        f"error = NULL, finished_at = NULL, due_as = {_REOPENED_AS}, "
        f"ready = CASE WHEN {_REOPENED_AS} > 1 AND {_IS_CANCELLED} THEN 6 ELSE {_REOPENED_AS} END, "
        f"dedup = '', wake_at = %s, deadline = CASE WHEN deadline > %s THEN deadline END, "
        f"unclaimed = least(unclaimed, 1), cancel = CASE WHEN {_IS_CANCELLED} THEN 'recorded' ELSE '' END, "
        "paused_at = NULL, rewind = NULL WHERE key = %s"
    ),
    "SET_VERSION": "UPDATE {s}.runs SET version = %s WHERE key = %s",
}
