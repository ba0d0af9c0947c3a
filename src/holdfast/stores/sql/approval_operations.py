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
    ApprovalState,
    AskApproval,
    Question,
    RemindApproval,
    WithdrawApproval,
    answer_name,
)
from holdfast.stores.live_events import STAYING
from holdfast.stores.memories import MemoryChange
from holdfast.stores.operations import TellNotices, Verdict
from holdfast.stores.sql import blobs
from holdfast.stores.sql.blobs import Damage, is_reference
from holdfast.stores.sql.database import Database, Row
from holdfast.stores.sql.rows import Reader, read_each
from holdfast.stores.sql.transaction import Transaction
from holdfast.stores.utf8 import is_proper, proper

_STATES = {state.value: state for state in ApprovalState}


class _Asked(NamedTuple):
    """What a transaction needs to know of a question that is there."""

    run: int
    position: int
    state: ApprovalState
    reminders: int
    withdrawn_in: int


class Asking(Transaction):
    """What runs ask people and tell those who follow them, and what outlives them."""

    _reader: Reader

    def _ask(self, op: AskApproval) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        present = self._asked(op.id)
        if present is not None and present.run != op.key:
            return Verdict.REFUSED
        if present is not None and not rules.asks_anew(present.state, present.withdrawn_in, op.epoch):
            return Verdict.DONE
        self._make_way(op)
        form, arguments = self._stored(op.question.form), self._stored(op.question.arguments)
        self._db.change(
            self._sql.ASK,
            (op.id, op.key, op.position, op.at, op.expires_at, proper(op.question.asked_of),
             question_text(op.question), form, arguments),
        )  # fmt: skip
        self._leave(op.key, op.position, op.at, *rules.asked_notice(op))
        self._leaves_something()
        return Verdict.DONE

    def _make_way(self, op: AskApproval) -> None:
        """Withdraw what was asked at this place before; nobody waits for its answer any more."""
        for (other,) in self._db.ask(self._sql.OTHERS_ASKED, (op.key, op.position, op.id)):
            self._db.change(self._sql.WITHDRAW, (op.epoch, other))
            self._leave(op.key, op.position, op.at, *rules.withdrawn_notice(other))
        self._take_out(self._sql.DROP_ANSWER, op.key, (op.key, op.position))

    def _remind(self, op: RemindApproval) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        asked = self._asked(op.id)
        if asked is None or asked.run != op.key:
            return Verdict.UNKNOWN_APPROVAL
        answer, is_new = rules.answer_to_reminder(asked.state, asked.reminders, op)
        if is_new:
            row = (op.reminders, proper(op.asked_of), op.at, op.expires_at, op.id)
            self._db.change(self._sql.REMIND, row)
            self._leave(op.key, asked.position, op.at, *rules.reminded_notice(op))
        return answer

    def _withdraw(self, op: WithdrawApproval) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        asked = self._asked(op.id)
        if asked is None or asked.run != op.key:
            return Verdict.UNKNOWN_APPROVAL
        answer, is_new = rules.answer_to_withdrawal(asked.state)
        if is_new:
            self._db.change(self._sql.WITHDRAW, (op.epoch, op.id))
            self._leave(op.key, asked.position, op.at, *rules.withdrawn_notice(op.id))
        return answer

    def _answer(self, op: AnswerApproval) -> Verdict:
        asked = self._asked(op.id) if is_proper(op.id) else None
        if asked is None:
            return Verdict.UNKNOWN_APPROVAL
        self.read_fences([asked.run])
        asked = self._asked(op.id) or asked  # somebody else may have answered while we waited for the run
        fence = self._by_key[asked.run]
        answer = rules.answer_to_answer(asked.state, fence.state)
        if answer is Verdict.DONE:
            payload = self._stored(op.payload)
            self._db.change(self._sql.ANSWER, (payload, proper(op.by), op.at, op.id))
            self._put(fence.key, answer_name(op.id), op.at, payload, asked.position)
            self._wake(fence)
        return answer

    def _asked(self, approval: str) -> _Asked | None:
        self._flush("approvals")
        row = self._db.one(self._sql.APPROVAL, approval)
        if row is None:
            return None
        return _Asked(row[0], row[1], _state(self._reader, row[2], f"approval {approval!r}"), row[3], row[4])

    # Notices

    def _tell(self, op: TellNotices) -> Verdict:
        if self._held(op.key, op.epoch) is None:
            return Verdict.FENCED
        for n in op.notices:
            stays = 1 if n.kind in STAYING else 0
            row = (op.key, n.position, n.part, n.number, stays, n.kind, n.at, n.data)
            self._later("notices", self._sql.TELL, op.key, row)
        self._leaves_something()
        return Verdict.DONE

    # Memories

    def _remember(self, op: MemoryChange) -> Verdict:
        self._db.change_memory(op)
        return Verdict.DONE


# Reading


def approvals(db: Database, reader: Reader, where: ApprovalFilter, limit: int) -> list[Approval]:
    """Approvals that match, the longest open first; of closed ones alone, the one that was asked last."""
    statement, conditions = db.sql.LIST_APPROVALS, ["1 = 1"]
    if where.only_closed:
        statement = db.sql.CLOSED_APPROVALS
    elif where.only_open:
        conditions = [db.sql.APPROVAL_CONDITIONS["only_open"]]
    values: list[Any] = []
    for name in ("run_id", "workflow", "asked_of", "id_prefix"):
        value = getattr(where, name)
        if value is None:
            continue
        if not is_proper(value):
            return []
        conditions.append(db.sql.APPROVAL_CONDITIONS[name])
        values += [value, value + chr(0x10FFFF)] if name == "id_prefix" else [value]
    if where.after is not None:
        at, id = where.after
        conditions.append(db.sql.APPROVAL_CONDITIONS["after_closed" if where.only_closed else "after"])
        values += [at, id if is_proper(id) else "", at]
    db.begin_reading()  # one moment
    rows = db.ask(statement.format(conditions=" AND ".join(conditions)), (*values, limit))
    found = blobs.fetch(db, [value for row in rows for value in _payloads(row) if is_reference(value)])
    db.commit()
    if len(rows) == 1:  # whoever asks for this one is told why it cannot be read
        return [_approval(reader, rows[0], found)]
    return read_each(rows, lambda row: _approval(reader, row, found))


def _payloads(row: Row) -> Row:
    return (row[10], row[14], row[15])


def _approval(reader: Reader, row: Row, found: dict[bytes, bytes | Damage]) -> Approval:
    where = f"approval {row[0]!r} of run {row[1]!r}"

    def whole(value: Any) -> Any:
        content = found.get(value, value) if is_reference(value) else value
        if isinstance(content, Damage):
            raise reader.unreadable(where, content.problem)
        return content

    question = _question(reader, row[13:], where)
    return Approval(
        id=row[0], run_id=row[1], workflow=row[2], position=row[3],
        question=question._replace(form=whole(question.form), arguments=whole(question.arguments)),
        state=_state(reader, row[4], where), asked_at=row[5], expires_at=row[6], asked_of=row[7], reminders=row[8],
        reminded_at=row[9], answer=whole(row[10]), answered_by=row[11], answered_at=row[12],
    )  # fmt: skip


def _state(reader: Reader, text: Any, where: str) -> ApprovalState:
    state = _STATES.get(text)
    if state is None:
        raise reader.unreadable(where, f"unknown state {text!r}")
    return state


def question_text(question: Question) -> str:
    """The short fields of a question, as they are kept in a column."""
    return json.dumps([question.text, question.asked_of, question.choices, question.tool, question.reason])


def _question(reader: Reader, row: Row, where: str) -> Question:
    """A question, from the columns ``question, form, arguments``; with references where its payloads are large."""
    try:
        text, asked_of, choices, tool, reason = json.loads(row[0])
        return Question(text, asked_of, tuple(choices), row[1], tool, row[2], reason)
    except (TypeError, ValueError):
        raise reader.unreadable(where, f"{row[0]!r} is not a question") from None
