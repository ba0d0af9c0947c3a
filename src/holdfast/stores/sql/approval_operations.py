"""Approvals, live events, and memories: operations in a transaction, and reading approvals.

Approvals and memories change rarely, so their operations may query the database step by step. Live events are
collected like records.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.stores.approvals import (
    AnswerApproval,
    Approval,
    ApprovalFilter,
    ApprovalRequest,
    ApprovalState,
    RemindApproval,
    RequestApproval,
)
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.live_events import LASTING_KINDS
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import AppendLiveEvents, LiveEvent, OpStatus
from holdfast.stores.row_access import ApprovalRow
from holdfast.stores.sql import blobs
from holdfast.stores.sql.blobs import PayloadDamage, is_reference
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.rows import RowReader, read_each
from holdfast.stores.sql.server_data import audit_to_row
from holdfast.stores.sql.transaction import Transaction
from holdfast.stores.utf8 import is_encodable, replace_surrogates

_STATES = {state.value: state for state in ApprovalState}


class ApprovalOperations(Transaction):
    """Approvals, live events, and memories."""

    _reader: RowReader

    def _get_approval(self, approval_id: str) -> ApprovalRow | None:
        self._flush_table("approvals")
        row = self._db.query_one(self._sql.APPROVAL, approval_id)
        if row is None:
            return None
        run_key, position, state, reminder_count, withdrawn_epoch = row
        known_state = _read_state(self._reader, state, f"approval {approval_id!r}")
        return ApprovalRow(run_key, position, known_state, reminder_count, withdrawn_epoch)

    def _put_approval(self, op: RequestApproval) -> None:
        request = op.request
        self._db.execute(
            self._sql.PUT_APPROVAL,
            (op.id, op.key, op.position, op.at, op.expires_at, replace_surrogates(request.assignee),
             request_to_json(request), self._to_column(request.form_schema), self._to_column(request.arguments)),
        )  # fmt: skip
        self._mark_leftovers()

    def _list_other_approvals(self, op: RequestApproval) -> list[str]:
        return [row[0] for row in self._db.query(self._sql.OTHER_APPROVALS, (op.key, op.position, op.id))]

    def _set_withdrawn(self, approval_id: str, epoch: int) -> None:
        self._db.execute(self._sql.WITHDRAW_APPROVAL, (epoch, approval_id))

    def _save_reminder(self, op: RemindApproval) -> None:
        row = (op.reminder_count, replace_surrogates(op.assignee), op.at, op.expires_at, op.id)
        self._db.execute(self._sql.REMIND_APPROVAL, row)

    def _save_answer(self, op: AnswerApproval, payload: bytes) -> None:
        self._db.execute(self._sql.ANSWER_APPROVAL, (payload, replace_surrogates(op.answered_by), op.at, op.id))

    def _delete_answers_at(self, key: int, position: int) -> None:
        self._delete_signal(self._sql.DELETE_ANSWER_SIGNAL, key, (key, position))

    # Live events

    def _append_live_events(self, op: AppendLiveEvents) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        for event in op.events:
            is_permanent = 1 if event.kind in LASTING_KINDS else 0
            row = live_event_to_row(op.key, event, is_permanent)
            self._buffer_write("live_events", self._sql.ADD_LIVE_EVENT, op.key, row)
            if not is_permanent:
                self._mark_leftovers()
        return OpStatus.DONE

    # Memories

    def _log_request(self, op: AuditEvent) -> OpStatus:
        self._buffer_write("audit", self._sql.APPEND_AUDIT, 0, audit_to_row(op))
        return OpStatus.DONE

    def _change_memory(self, op: MemoryChange) -> OpStatus:
        self._db.change_memory(op)
        return OpStatus.DONE


def live_event_to_row(key: int, event: LiveEvent, is_permanent: int) -> Row:
    """The columns of ``statements.ADD_LIVE_EVENT``."""
    return (key, event.position, event.stream, event.number, is_permanent, event.kind, event.at, event.data)


# Reading


def list_approvals(db: Database, reader: RowReader, where: ApprovalFilter, limit: int) -> list[Approval]:
    """Approvals that match, oldest first; newest first if only closed ones are listed."""
    statement, conditions = db.sql.LIST_APPROVALS, ["1 = 1"]
    if where.only_closed:
        statement = db.sql.LIST_CLOSED_APPROVALS
    elif where.only_open:
        conditions = [db.sql.APPROVAL_CONDITIONS["only_open"]]
    values: list[Any] = []
    for name in ("run_id", "workflow", "assignee", "id_prefix"):
        value = getattr(where, name)
        if value is None:
            continue
        if not is_encodable(value):
            return []
        conditions.append(db.sql.APPROVAL_CONDITIONS[name])
        values += [value, value + chr(0x10FFFF)] if name == "id_prefix" else [value]
    if where.after is not None:
        at, id = where.after
        conditions.append(db.sql.APPROVAL_CONDITIONS["after_closed" if where.only_closed else "after"])
        values += [at, id if is_encodable(id) else "", at]
    db.begin_snapshot()
    rows = db.query(statement.format(conditions=" AND ".join(conditions)), (*values, limit))
    found = blobs.fetch_payloads(db, [value for row in rows for value in _get_payloads(row) if is_reference(value)])
    db.commit()
    if len(rows) == 1:  # a caller that reads this one gets the error if it cannot be read
        return [_read_approval(reader, rows[0], found)]
    return read_each(rows, lambda row: _read_approval(reader, row, found))


def _get_payloads(row: Row) -> Row:
    return (row[10], row[14], row[15])


def _read_approval(reader: RowReader, row: Row, found: dict[bytes, bytes | PayloadDamage]) -> Approval:
    row_name = f"approval {row[0]!r} of run {row[1]!r}"

    def fill(value: Any) -> Any:
        content = found.get(value, value) if is_reference(value) else value
        if isinstance(content, PayloadDamage):
            raise reader.make_unreadable_error(row_name, content.problem)
        return content

    request = _read_request(reader, row[13:], row_name)
    return Approval(
        id=row[0], run_id=row[1], workflow=row[2], position=row[3],
        request=request._replace(form_schema=fill(request.form_schema), arguments=fill(request.arguments)),
        state=_read_state(reader, row[4], row_name), requested_at=row[5], expires_at=row[6], assignee=row[7],
        reminder_count=row[8], reminded_at=row[9], answer=fill(row[10]), answered_by=row[11], answered_at=row[12],
    )  # fmt: skip


def _read_state(reader: RowReader, text: Any, row_name: str) -> ApprovalState:
    state = _STATES.get(text)
    if state is None:
        raise reader.make_unreadable_error(row_name, f"unknown state {text!r}")
    return state


def request_to_json(request: ApprovalRequest) -> str:
    """The stored form of a request's short fields."""
    return json.dumps([request.question, request.assignee, request.choices, request.tool, request.reason])


def _read_request(reader: RowReader, row: Row, row_name: str) -> ApprovalRequest:
    """A request, from the columns ``request, form_schema, arguments``. Large payloads stay references."""
    try:
        question, assignee, choices, tool, reason = json.loads(row[0])
        return ApprovalRequest(question, assignee, tuple(choices), row[1], tool, row[2], reason)
    except (TypeError, ValueError):
        raise reader.make_unreadable_error(row_name, f"{row[0]!r} is not a question") from None
