"""Questions to people, notices and memories: operations in a transaction, and reading approvals.

Asking, answering and remembering are rare, so they may ask the database one thing after the other. Notices are
gathered like records.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from holdfast.stores import rules
from holdfast.stores.approvals import (
    AnswerApproval,
    Approval,
    ApprovalFilter,
    ApprovalRequest,
    ApprovalState,
    RemindApproval,
    RequestApproval,
    WithdrawApproval,
    make_answer_name,
)
from holdfast.stores.live_events import LASTING_KINDS
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import AppendLiveEvents, OpStatus
from holdfast.stores.sql import blobs
from holdfast.stores.sql.blobs import PayloadDamage, is_reference
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.rows import RowReader, read_each
from holdfast.stores.sql.transaction import Transaction
from holdfast.stores.utf8 import is_encodable, replace_surrogates

_STATES = {state.value: state for state in ApprovalState}


class _ApprovalRow(NamedTuple):
    """What a transaction needs to know of a question that is there."""

    run_key: int
    position: int
    state: ApprovalState
    reminder_count: int
    withdrawn_epoch: int


class ApprovalOperations(Transaction):
    """What runs ask people and tell those who follow them, and what outlives them."""

    _reader: RowReader

    def _request_approval(self, op: RequestApproval) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        present = self._get_approval_row(op.id)
        if present is not None and present.run_key != op.key:
            return OpStatus.REFUSED
        if present is not None and not rules.should_request_again(present.state, present.withdrawn_epoch, op.epoch):
            return OpStatus.DONE
        self._withdraw_others(op)
        form, arguments = self._to_column(op.request.form_schema), self._to_column(op.request.arguments)
        self._db.execute(
            self._sql.PUT_APPROVAL,
            (op.id, op.key, op.position, op.at, op.expires_at, replace_surrogates(op.request.assignee),
             request_to_json(op.request), form, arguments),
        )  # fmt: skip
        self._add_lasting_event(op.key, op.position, op.at, *rules.make_requested_event(op))
        self._mark_leftovers()
        return OpStatus.DONE

    def _withdraw_others(self, op: RequestApproval) -> None:
        """Withdraw what was asked at this place before; nobody waits for its answer any more."""
        for (other,) in self._db.query(self._sql.OTHER_APPROVALS, (op.key, op.position, op.id)):
            self._db.execute(self._sql.WITHDRAW_APPROVAL, (op.epoch, other))
            self._add_lasting_event(op.key, op.position, op.at, *rules.make_withdrawn_event(other))
        self._delete_signal(self._sql.DELETE_ANSWER_SIGNAL, op.key, (op.key, op.position))

    def _remind_approval(self, op: RemindApproval) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        asked = self._get_approval_row(op.id)
        if asked is None or asked.run_key != op.key:
            return OpStatus.UNKNOWN_APPROVAL
        answer, is_new = rules.decide_reminder(asked.state, asked.reminder_count, op)
        if is_new:
            row = (op.reminder_count, replace_surrogates(op.assignee), op.at, op.expires_at, op.id)
            self._db.execute(self._sql.REMIND_APPROVAL, row)
            self._add_lasting_event(op.key, asked.position, op.at, *rules.make_reminded_event(op))
        return answer

    def _withdraw_approval(self, op: WithdrawApproval) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        asked = self._get_approval_row(op.id)
        if asked is None or asked.run_key != op.key:
            return OpStatus.UNKNOWN_APPROVAL
        answer, is_new = rules.decide_withdrawal(asked.state)
        if is_new:
            self._db.execute(self._sql.WITHDRAW_APPROVAL, (op.epoch, op.id))
            self._add_lasting_event(op.key, asked.position, op.at, *rules.make_withdrawn_event(op.id))
        return answer

    def _answer_approval(self, op: AnswerApproval) -> OpStatus:
        asked = self._get_approval_row(op.id) if is_encodable(op.id) else None
        if asked is None:
            return OpStatus.UNKNOWN_APPROVAL
        self.read_fences([asked.run_key])
        asked = self._get_approval_row(op.id) or asked  # somebody else may have answered while we waited for the run
        fence = self._fences_by_key[asked.run_key]
        answer = rules.decide_answer(asked.state, fence.state)
        if answer is OpStatus.DONE:
            payload = self._to_column(op.payload)
            self._db.execute(self._sql.ANSWER_APPROVAL, (payload, replace_surrogates(op.answered_by), op.at, op.id))
            self._add_signal(fence.key, make_answer_name(op.id), op.at, payload, asked.position)
            self._wake(fence)
        return answer

    def _get_approval_row(self, approval: str) -> _ApprovalRow | None:
        self._flush_table("approvals")
        row = self._db.query_one(self._sql.APPROVAL, approval)
        if row is None:
            return None
        return _ApprovalRow(row[0], row[1], _read_state(self._reader, row[2], f"approval {approval!r}"), row[3], row[4])

    # Notices

    def _append_live_events(self, op: AppendLiveEvents) -> OpStatus:
        if self._get_claimed(op.key, op.epoch) is None:
            return OpStatus.FENCED
        for n in op.events:
            stays = 1 if n.kind in LASTING_KINDS else 0
            row = (op.key, n.position, n.stream, n.number, stays, n.kind, n.at, n.data)
            self._buffer_write("live_events", self._sql.ADD_LIVE_EVENT, op.key, row)
        self._mark_leftovers()
        return OpStatus.DONE

    # Memories

    def _change_memory(self, op: MemoryChange) -> OpStatus:
        self._db.change_memory(op)
        return OpStatus.DONE


# Reading


def list_approvals(db: Database, reader: RowReader, where: ApprovalFilter, limit: int) -> list[Approval]:
    """Approvals that match, the longest open first; of closed ones alone, the one that was asked last."""
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
    db.begin_snapshot()  # one moment
    rows = db.query(statement.format(conditions=" AND ".join(conditions)), (*values, limit))
    found = blobs.fetch_payloads(db, [value for row in rows for value in _get_payloads(row) if is_reference(value)])
    db.commit()
    if len(rows) == 1:  # whoever asks for this one is told why it cannot be read
        return [_read_approval(reader, rows[0], found)]
    return read_each(rows, lambda row: _read_approval(reader, row, found))


def _get_payloads(row: Row) -> Row:
    return (row[10], row[14], row[15])


def _read_approval(reader: RowReader, row: Row, found: dict[bytes, bytes | PayloadDamage]) -> Approval:
    where = f"approval {row[0]!r} of run {row[1]!r}"

    def whole(value: Any) -> Any:
        content = found.get(value, value) if is_reference(value) else value
        if isinstance(content, PayloadDamage):
            raise reader.make_unreadable_error(where, content.problem)
        return content

    question = _read_request(reader, row[13:], where)
    return Approval(
        id=row[0], run_id=row[1], workflow=row[2], position=row[3],
        request=question._replace(form_schema=whole(question.form_schema), arguments=whole(question.arguments)),
        state=_read_state(reader, row[4], where), requested_at=row[5], expires_at=row[6], assignee=row[7],
        reminder_count=row[8], reminded_at=row[9], answer=whole(row[10]), answered_by=row[11], answered_at=row[12],
    )  # fmt: skip


def _read_state(reader: RowReader, text: Any, row_name: str) -> ApprovalState:
    state = _STATES.get(text)
    if state is None:
        raise reader.make_unreadable_error(row_name, f"unknown state {text!r}")
    return state


def request_to_json(question: ApprovalRequest) -> str:
    """The short fields of a question, as they are kept in a column."""
    return json.dumps([question.question, question.assignee, question.choices, question.tool, question.reason])


def _read_request(reader: RowReader, row: Row, row_name: str) -> ApprovalRequest:
    """A question, from the columns ``question, form, arguments``; with references where its payloads are large."""
    try:
        text, asked_of, choices, tool, reason = json.loads(row[0])
        return ApprovalRequest(text, asked_of, tuple(choices), row[1], tool, row[2], reason)
    except (TypeError, ValueError):
        raise reader.make_unreadable_error(row_name, f"{row[0]!r} is not a question") from None
