"""The SQL of questions to people, and of notices: see ``sql.asking``."""

from __future__ import annotations

from typing import Final

from holdfast.stores.postgres.bulk import changes, delete, insert

_SOME_APPROVALS: Final = (
    "SELECT a.id, r.id, r.workflow, a.position, a.state, a.asked_at, a.expires_at, a.asked_of, a.reminders, "
    "a.reminded_at, a.answer, a.answered_by, a.answered_at, a.question, a.form, a.arguments "
    # Chosen first, so that the runs of all the others need not be looked up.
    "FROM (SELECT * FROM {s}.approvals a WHERE {conditions}"
)
_ASKED_FIRST: Final = "ORDER BY a.asked_at, a.number"
_ASKED_LAST: Final = "ORDER BY a.asked_at DESC, a.number DESC"
_WITH_RUNS: Final = "LIMIT %s) a CROSS JOIN LATERAL (SELECT id, workflow FROM {s}.runs WHERE key = a.run OFFSET 0) r"

_PLACE: Final = "(SELECT number FROM {s}.approvals WHERE id = %s AND asked_at = %s)"

APPROVAL_CONDITIONS: Final[dict[str, str]] = {
    "only_open": "a.state = 'open'",
    "run_id": "a.run = (SELECT key FROM {s}.runs WHERE id = %s)",
    "workflow": "(SELECT workflow FROM {s}.runs WHERE key = a.run) = %s",
    "asked_of": "a.asked_of = %s",
    "id_prefix": "a.id >= %s AND a.id < %s",
    "after": f"(a.asked_at, a.number) > (%s, coalesce({_PLACE}, 0))",
    "after_closed": f"(a.asked_at, a.number) < (%s, coalesce({_PLACE}, {2**63 - 1}))",
}

ASKING: Final[dict[str, str]] = {
    # Approvals
    "APPROVAL": "SELECT run, position, state, reminders, withdrawn_in FROM {s}.approvals WHERE id = %s",
    "OTHERS_ASKED": (
        "SELECT id FROM {s}.approvals WHERE run = %s AND position = %s AND id <> %s AND state <> 'withdrawn' "
        "ORDER BY number"
    ),
    "ASK": (
        "INSERT INTO {s}.approvals (id, run, position, state, asked_at, expires_at, asked_of, reminders, answered_by, "
        "withdrawn_in, question, form, arguments) VALUES (%s, %s, %s, 'open', %s, %s, %s, 0, '', 0, %s, %s, %s) "
        "ON CONFLICT (id) DO UPDATE SET position = excluded.position, state = 'open', asked_at = excluded.asked_at, "
        "expires_at = excluded.expires_at, asked_of = excluded.asked_of, reminders = 0, reminded_at = NULL, "
        "answered_by = '', answered_at = NULL, withdrawn_in = 0, question = excluded.question, form = excluded.form, "
        "arguments = excluded.arguments, answer = NULL"
    ),
    "REMIND": (
        "UPDATE {s}.approvals SET reminders = %s, asked_of = %s, reminded_at = %s, expires_at = %s WHERE id = %s"
    ),
    "WITHDRAW": "UPDATE {s}.approvals SET state = 'withdrawn', withdrawn_in = %s WHERE id = %s",
    "ANSWER": (
        "UPDATE {s}.approvals SET state = 'answered', answer = %s, answered_by = %s, answered_at = %s WHERE id = %s"
    ),
    "WITHDRAW_ALL": changes(
        "run:i",
        "UPDATE {s}.approvals SET state = 'withdrawn' WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM {q} CROSS JOIN LATERAL "
        "(SELECT ctid FROM {s}.approvals WHERE run = q.run AND state || '' = 'open' OFFSET 0) t))",
    ),
    "LIST_APPROVALS": f"{_SOME_APPROVALS} {_ASKED_FIRST} {_WITH_RUNS} {_ASKED_FIRST}",
    "CLOSED_APPROVALS": f"{_SOME_APPROVALS} AND a.state <> 'open' {_ASKED_LAST} {_WITH_RUNS} {_ASKED_LAST}",
    # Notices
    "TELL": insert(
        "notices",
        "run:i position:i part:t number:i stays:i kind:t at:f data:b",
        " ON CONFLICT (run, position, part, number) DO NOTHING",
    ),
    "LEAVE_NOTICE": (
        "INSERT INTO {s}.notices (run, position, part, number, stays, kind, at, data) "
        "SELECT %(run)s::bigint, %(position)s::bigint, '', coalesce(max(number), 0) + 1, 1, %(kind)s::text, "
        "%(at)s::float8, %(data)s::bytea "
        "FROM {s}.notices WHERE run = %(run)s AND position = %(position)s AND part = ''"
    ),
    "CLEAR_NOTICES": delete("notices", "run:i position:i", "run = q.run AND position = q.position AND stays = 0"),
    "CLEAR_ALL_NOTICES": delete("notices", "run:i", "run = q.run AND stays = 0"),
    # Cleaning up behind a run is one statement more in a pipeline; to ask whether it is needed is a round trip.
    "LEFTOVERS": "SELECT 1, 1",
    "NEW_NOTICES": (
        "SELECT id, position, part, number, kind, data, at FROM {s}.notices WHERE run = %s AND id > %s "
        "ORDER BY id LIMIT %s"
    ),
}
