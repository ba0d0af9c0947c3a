"""The SQL of questions to people, and of notices: see ``sql.asking``."""

from __future__ import annotations

from typing import Final

_QUESTION = "question, form, arguments"
_APPROVALS = (
    f"SELECT a.id, r.id, r.workflow, a.position, a.state, a.asked_at, a.expires_at, a.asked_of, a.reminders, "
    f"a.reminded_at, a.answer, a.answered_by, a.answered_at, {_QUESTION} "
    # Chosen first, so that the runs of all the others need not be looked up.
    "FROM (SELECT *, rowid AS number FROM approvals a WHERE {conditions}"
)
_ASKED_FIRST = "ORDER BY a.asked_at, a.{}"
_ASKED_LAST = "ORDER BY a.asked_at DESC, a.{} DESC"
_WITH_RUNS = "LIMIT ?) a CROSS JOIN runs r ON r.key = a.run"
_PLACE = "(SELECT rowid FROM approvals WHERE id = ? AND asked_at = ?)"
_NOTICE_COLUMNS = "run, position, part, number, stays, kind, at, data"

APPROVAL_CONDITIONS: Final[dict[str, str]] = {
    "only_open": "a.state = 'open'",
    "run_id": "a.run = (SELECT key FROM runs WHERE id = ?)",
    "workflow": "(SELECT workflow FROM runs WHERE key = a.run) = ?",
    "asked_of": "a.asked_of = ?",
    "id_prefix": "a.id >= ? AND a.id < ?",
    "after": f"(a.asked_at, a.rowid) > (?, coalesce({_PLACE}, 0))",
    "after_closed": f"(a.asked_at, a.rowid) < (?, coalesce({_PLACE}, {2**63 - 1}))",
}

ASKING: Final[dict[str, str]] = {
    # Approvals
    "APPROVAL": "SELECT run, position, state, reminders, withdrawn_in FROM approvals WHERE id = ?",
    "OTHERS_ASKED": (
        "SELECT id FROM approvals WHERE run = ? AND position = ? AND id <> ? AND state <> 'withdrawn' ORDER BY rowid"
    ),
    "ASK": (
        f"INSERT INTO approvals (id, run, position, state, asked_at, expires_at, asked_of, reminders, answered_by, "
        f"{_QUESTION}) VALUES (?, ?, ?, 'open', ?, ?, ?, 0, '', ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "position = excluded.position, state = 'open', asked_at = excluded.asked_at, "
        "expires_at = excluded.expires_at, asked_of = excluded.asked_of, reminders = 0, reminded_at = NULL, "
        "answered_by = '', answered_at = NULL, withdrawn_in = 0, "
        "question = excluded.question, form = excluded.form, arguments = excluded.arguments, answer = NULL"
    ),
    "REMIND": "UPDATE approvals SET reminders = ?, asked_of = ?, reminded_at = ?, expires_at = ? WHERE id = ?",
    "WITHDRAW": "UPDATE approvals SET state = 'withdrawn', withdrawn_in = ? WHERE id = ?",
    "WITHDRAW_ALL": "UPDATE approvals SET state = 'withdrawn' WHERE run = ? AND state = 'open'",
    "ANSWER": "UPDATE approvals SET state = 'answered', answer = ?, answered_by = ?, answered_at = ? WHERE id = ?",
    "DROP_ANSWER": "DELETE FROM signals WHERE run = ? AND position = ? AND name GLOB 'answer:*'",
    "LIST_APPROVALS": f"{_APPROVALS} {_ASKED_FIRST.format('rowid')} {_WITH_RUNS} {_ASKED_FIRST.format('number')}",
    "CLOSED_APPROVALS": (
        f"{_APPROVALS} AND a.state != 'open' {_ASKED_LAST.format('rowid')} {_WITH_RUNS} {_ASKED_LAST.format('number')}"
    ),
    # Notices
    "TELL": f"INSERT INTO notices ({_NOTICE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    "LEAVE_NOTICE": (
        f"INSERT INTO notices ({_NOTICE_COLUMNS}) SELECT :run, :position, '', coalesce(max(number), 0) + 1, 1, :kind, "
        ":at, :data FROM notices WHERE run = :run AND position = :position AND part = ''"
    ),
    "CLEAR_NOTICES": "DELETE FROM notices WHERE run = ? AND position = ? AND stays = 0",
    "CLEAR_ALL_NOTICES": "DELETE FROM notices WHERE run = ? AND stays = 0",
    # Whether there is anything that a run could leave behind when it ends.
    "LEFTOVERS": (
        "SELECT EXISTS (SELECT 1 FROM notices WHERE stays = 0), EXISTS (SELECT 1 FROM approvals WHERE state = 'open')"
    ),
    "NEW_NOTICES": (
        "SELECT id, position, part, number, kind, data, at FROM notices WHERE run = ? AND id > ? ORDER BY id LIMIT ?"
    ),
}
