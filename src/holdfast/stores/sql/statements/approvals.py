"""Approvals that runs wait for, and live events."""

from __future__ import annotations

from holdfast.stores.sql.templates import Catalog, Delete, Group, Insert, NamedQuery, Query, Write

_LAST = 2**63 - 1
_FIRST_COME = "ORDER BY a.asked_at, a.number"
_NEWEST = "ORDER BY a.asked_at DESC, a.number DESC"
_CURSOR = "(SELECT number FROM @approvals WHERE id = :id AND asked_at = :same_asked_at)"
_EVENT_COLUMNS = "run, position, part, number, stays, kind, at, data"


def _list(condition: str, order: str) -> Query:
    # Chosen first, so that the runs of all the others need not be looked up.
    chosen = f"(SELECT * FROM @approvals a WHERE {{conditions}}{condition} {order} LIMIT :max_rows) a"
    return Query(
        "max_rows:i",
        "SELECT a.id, r.id, r.workflow, a.position, a.state, a.asked_at, a.expires_at, a.asked_of, a.reminders, "
        "a.reminded_at, a.answer, a.answered_by, a.answered_at, a.question, a.form, a.arguments "
        f"FROM {chosen} CROSS JOIN @runs r ON r.key = a.run {order}",
    )


class ApprovalStatements(Catalog):
    """Statements about approvals."""

    APPROVAL = Query("id:t", "SELECT run, position, state, reminders, withdrawn_in FROM @approvals WHERE id = :id")
    OTHERS_ASKED = Query(
        "run:i position:i id:t",
        "SELECT id FROM @approvals WHERE run = :run AND position = :position AND id <> :id "
        "AND state <> 'withdrawn' ORDER BY number",
    )
    ASK = Query(
        "id:t run:i position:i asked_at:f expires_at:f asked_of:t question:t form:b arguments:b",
        "INSERT INTO @approvals (id, run, position, state, asked_at, expires_at, asked_of, question, form, arguments) "
        "VALUES (:id, :run, :position, 'open', :asked_at, :expires_at, :asked_of, :question, :form, :arguments) "
        "ON CONFLICT (id) DO UPDATE SET position = excluded.position, state = 'open', asked_at = excluded.asked_at, "
        "expires_at = excluded.expires_at, asked_of = excluded.asked_of, reminders = 0, reminded_at = NULL, "
        "answered_by = '', answered_at = NULL, withdrawn_in = 0, question = excluded.question, form = excluded.form, "
        "arguments = excluded.arguments, answer = NULL",
    )
    REMIND = Query(
        "reminders:i asked_of:t reminded_at:f expires_at:f id:t",
        "UPDATE @approvals SET reminders = :reminders, asked_of = :asked_of, reminded_at = :reminded_at, "
        "expires_at = :expires_at WHERE id = :id",
    )
    WITHDRAW = Query(
        "withdrawn_in:i id:t",
        "UPDATE @approvals SET state = 'withdrawn', withdrawn_in = :withdrawn_in WHERE id = :id",
    )
    WITHDRAW_ALL = Write(
        "run:i",
        sqlite="UPDATE @approvals SET state = 'withdrawn' WHERE run = :run AND state = 'open'",
        postgres="UPDATE @approvals SET state = 'withdrawn' WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM @rows "
        "CROSS JOIN LATERAL (SELECT ctid FROM @approvals WHERE run = :run AND state || '' = 'open' OFFSET 0) t))",
    )
    ANSWER = Query(
        "answer:b answered_by:t answered_at:f id:t",
        "UPDATE @approvals SET state = 'answered', answer = :answer, answered_by = :answered_by, "
        "answered_at = :answered_at WHERE id = :id",
    )
    LIST_APPROVALS = _list("", _FIRST_COME)
    CLOSED_APPROVALS = _list(" AND a.state <> 'open'", _NEWEST)
    APPROVAL_CONDITIONS = Group(
        {
            "only_open": Query("", "a.state = 'open'"),
            "run_id": Query("run_id:t", "a.run = (SELECT key FROM @runs WHERE id = :run_id)"),
            "workflow": Query("workflow:t", "(SELECT workflow FROM @runs WHERE key = a.run) = :workflow"),
            "asked_of": Query("asked_of:t", "a.asked_of = :asked_of"),
            "id_prefix": Query("first:t last:t", "a.id >= :first AND a.id < :last"),
            "after": Query(
                "asked_at:f id:t same_asked_at:f", f"(a.asked_at, a.number) > (:asked_at, coalesce({_CURSOR}, 0))"
            ),
            "after_closed": Query(
                "asked_at:f id:t same_asked_at:f", f"(a.asked_at, a.number) < (:asked_at, coalesce({_CURSOR}, {_LAST}))"
            ),
        }
    )
    RESTORE_APPROVAL = Insert(
        "approvals",
        "id:t run:i position:i state:t asked_at:f expires_at:f asked_of:t reminders:i reminded_at:f answered_by:t "
        "answered_at:f question:t form:b arguments:b answer:b",
        order="n",
    )


class LiveEventStatements(Catalog):
    """Statements about live events."""

    TELL = Insert(
        "notices",
        "run:i position:i part:t number:i stays:i kind:t at:f data:b",
        " ON CONFLICT (run, position, part, number) DO NOTHING",
    )
    LEAVE_NOTICE = NamedQuery(
        "run:i position:i kind:t at:f data:b",
        f"INSERT INTO @notices ({_EVENT_COLUMNS}) SELECT :run, :position, '', coalesce(max(number), 0) + 1, 1, :kind, "
        ":at, :data FROM @notices WHERE run = :run AND position = :position AND part = ''",
    )
    CLEAR_NOTICES = Delete("notices", "run:i position:i", "run = :run AND position = :position AND stays = 0")
    CLEAR_ALL_NOTICES = Delete("notices", "run:i", "run = :run AND stays = 0")
    # Whether there is anything that a run could leave behind when it ends. Cleaning up is one statement more in a
    # pipeline, and to ask whether it is needed would be a round trip.
    LEFTOVERS = Query(
        "",
        sqlite="SELECT EXISTS (SELECT 1 FROM @notices WHERE stays = 0), "
        "EXISTS (SELECT 1 FROM @approvals WHERE state = 'open')",
        postgres="SELECT 1, 1",
    )
    NEW_NOTICES = Query(
        "run:i id:i max_rows:i",
        "SELECT id, position, part, number, kind, data, at FROM @notices WHERE run = :run AND id > :id "
        "ORDER BY id LIMIT :max_rows",
    )
