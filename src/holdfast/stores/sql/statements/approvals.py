"""Approvals that runs wait for, and live events."""

from __future__ import annotations

from holdfast.stores.sql.templates import (
    Catalog,
    Delete,
    Group,
    Insert,
    NamedQuery,
    Query,
    Write,
    assign,
    get_names,
    get_placeholders,
    replace_on_conflict,
)

_MAX_INT64 = 2**63 - 1
_OLDEST_FIRST = "ORDER BY a.requested_at, a.number"
_NEWEST_FIRST = "ORDER BY a.requested_at DESC, a.number DESC"
_CURSOR = "(SELECT number FROM @approvals WHERE id = :id AND requested_at = :same_asked_at)"
_REQUEST = "id:t run:i position:i requested_at:f expires_at:f assignee:t request:t form_schema:b arguments:b"
_REMINDER = "reminder_count:i assignee:t reminded_at:f expires_at:f"
_ANSWER = "answer:b answered_by:t answered_at:f"
_EVENT = "run:i position:i stream:t number:i is_permanent:i kind:t at:f data:b"


def _list(condition: str, order: str) -> Query:
    # The page is selected first, so that only its runs are looked up.
    chosen = f"(SELECT * FROM @approvals a WHERE {{conditions}}{condition} {order} LIMIT :max_rows) a"
    return Query(
        "max_rows:i",
        "SELECT a.id, r.id, r.workflow, a.position, a.state, a.requested_at, a.expires_at, a.assignee, "
        "a.reminder_count, a.reminded_at, a.answer, a.answered_by, a.answered_at, a.request, a.form_schema, "
        f"a.arguments FROM {chosen} CROSS JOIN @runs r ON r.key = a.run {order}",
    )


class ApprovalStatements(Catalog):
    """Statements about approvals."""

    APPROVAL = Query(
        "id:t", "SELECT run, position, state, reminder_count, withdrawn_epoch FROM @approvals WHERE id = :id"
    )
    OTHER_APPROVALS = Query(
        "run:i position:i id:t",
        "SELECT id FROM @approvals WHERE run = :run AND position = :position AND id <> :id "
        "AND state <> 'withdrawn' ORDER BY number",
    )
    PUT_APPROVAL = Query(
        _REQUEST,
        f"INSERT INTO @approvals ({get_names(_REQUEST)}, state) VALUES ({get_placeholders(_REQUEST)}, 'open')"
        f"{replace_on_conflict(get_names(_REQUEST).split(', '), 'id')}, state = 'open', reminder_count = 0, "
        "reminded_at = NULL, answered_by = '', answered_at = NULL, withdrawn_epoch = 0, answer = NULL",
    )
    REMIND_APPROVAL = Query(f"{_REMINDER} id:t", f"UPDATE @approvals SET {assign(_REMINDER)} WHERE id = :id")
    WITHDRAW_APPROVAL = Query(
        "withdrawn_epoch:i id:t",
        "UPDATE @approvals SET state = 'withdrawn', withdrawn_epoch = :withdrawn_epoch WHERE id = :id",
    )
    WITHDRAW_ALL_APPROVALS = Write(
        "run:i",
        sqlite="UPDATE @approvals SET state = 'withdrawn' WHERE run = :run AND state = 'open'",
        postgres="UPDATE @approvals SET state = 'withdrawn' WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM @rows "
        "CROSS JOIN LATERAL (SELECT ctid FROM @approvals WHERE run = :run AND state || '' = 'open' OFFSET 0) t))",
    )
    ANSWER_APPROVAL = Query(
        f"{_ANSWER} id:t", f"UPDATE @approvals SET state = 'answered', {assign(_ANSWER)} WHERE id = :id"
    )
    LIST_APPROVALS = _list("", _OLDEST_FIRST)
    LIST_CLOSED_APPROVALS = _list(" AND a.state <> 'open'", _NEWEST_FIRST)
    APPROVAL_CONDITIONS = Group(
        {
            "only_open": Query("", "a.state = 'open'"),
            "run_id": Query("run_id:t", "a.run = (SELECT key FROM @runs WHERE id = :run_id)"),
            "workflow": Query("workflow:t", "(SELECT workflow FROM @runs WHERE key = a.run) = :workflow"),
            "assignee": Query("assignee:t", "a.assignee = :assignee"),
            "id_prefix": Query("first:t last:t", "a.id >= :first AND a.id < :last"),
            "after": Query(
                "requested_at:f id:t same_asked_at:f",
                f"(a.requested_at, a.number) > (:requested_at, coalesce({_CURSOR}, 0))",
            ),
            "after_closed": Query(
                "requested_at:f id:t same_asked_at:f",
                f"(a.requested_at, a.number) < (:requested_at, coalesce({_CURSOR}, {_MAX_INT64}))",
            ),
        }
    )
    RESTORE_APPROVAL = Insert(
        "approvals",
        "id:t run:i position:i state:t requested_at:f expires_at:f assignee:t reminder_count:i reminded_at:f "
        "answered_by:t answered_at:f request:t form_schema:b arguments:b answer:b",
        order="n",
    )


class LiveEventStatements(Catalog):
    """Statements about live events."""

    ADD_LIVE_EVENT = Insert("live_events", _EVENT, " ON CONFLICT (run, position, stream, number) DO NOTHING")
    ADD_LASTING_EVENT = NamedQuery(
        "run:i position:i kind:t at:f data:b",
        f"INSERT INTO @live_events ({get_names(_EVENT)}) SELECT :run, :position, '', coalesce(max(number), 0) + 1, 1, "
        ":kind, :at, :data FROM @live_events WHERE run = :run AND position = :position AND stream = ''",
    )
    CLEAR_LIVE_EVENTS = Delete(
        "live_events", "run:i position:i", "run = :run AND position = :position AND is_permanent = 0"
    )
    CLEAR_ALL_LIVE_EVENTS = Delete("live_events", "run:i", "run = :run AND is_permanent = 0")
    # Whether an ended run could leave anything to clean up. On PostgreSQL, cleaning up is one more statement in a
    # pipeline, and checking whether it is needed would be a round trip.
    HAS_LEFTOVERS = Query(
        "",
        sqlite="SELECT EXISTS (SELECT 1 FROM @live_events WHERE is_permanent = 0), "
        "EXISTS (SELECT 1 FROM @approvals WHERE state = 'open')",
        postgres="SELECT 1, 1",
    )
    NEW_LIVE_EVENTS = Query(
        "run:i id:i max_rows:i",
        "SELECT id, position, stream, number, kind, data, at FROM @live_events WHERE run = :run AND id > :id "
        "ORDER BY id LIMIT :max_rows",
    )
