"""How the run of a program is kept in Temporal: the updates between its activity and its workflow.

An activity executes the program of a run (``holdfast.temporal.program_activity``), with the driver of the journal
engine. What this driver writes to a store elsewhere, it sends to the run's workflow here, in a ``RECORD_UPDATE``: the
records are in the history before the program continues. What others send to the run (signals, answers of people, ends
of other runs, requests to cancel or pause it), the activity asks for with a ``MESSAGES_UPDATE``, which is answered when
there is something.

**The fence.** If the worker of the activity dies, another one executes it again. Each execution has a ``Fence``, which
rises. The first update with a higher fence closes the run to all lower ones: what they send changes nothing, though it
is in the history. ``program_journal`` follows the same rule when it reads a history.

**Repeats.** An activity that does not know whether an update has arrived sends its content again in another one. A
record with a ``seq`` that exists changes nothing; the other operations may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple, cast

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from holdfast.admission.usage import BudgetLimits
from holdfast.core.records import Attempt, Record, RecordKind, RewindPoint, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import ApprovalRequest, RemindApproval, RequestApproval, WithdrawApproval
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    CancelRun,
    NewRun,
    Op,
    ReleaseRun,
    RunLink,
    SaveAttempt,
    StartRun,
)
from holdfast.stores.temporal.budgets import usage_from_json
from holdfast.stores.temporal.payloads import from_payload, load_json, to_raw_value


class Fence(NamedTuple):
    """Which execution of a program an update comes from; a later one is greater."""

    activity: int
    """The number of the activity: a run that was paused has another one when it continues."""
    attempt: int
    """Temporal's number of the delivery of this activity."""


NO_FENCE = Fence(0, 0)
"""The program has not been executed yet."""


class ProgramSender(NamedTuple):
    """Who sends an update."""

    fence: Fence
    worker: int
    """The number of the worker."""
    epoch: int
    """How often the program has been executed, for the records."""
    is_again: bool = False
    """Whether an earlier attempt of the activity has begun to execute the program."""


# Operations


def encode_operations(sender: ProgramSender, ops: Sequence[Op]) -> list[RawValue]:
    """The arguments of a ``RECORD_UPDATE``: the operations, and a payload for each value in them."""
    rows: list[dict[str, Any]] = []
    values: list[bytes] = []
    for op in ops:
        row, value = _encode_operation(op)
        if value is not None:
            row["value"] = len(values)
            values.append(value)
        rows.append(row)
    head = {**_encode_sender(sender), "ops": rows}
    return [to_raw_value(_dump(head)), *map(to_raw_value, values)]


def decode_operations(payloads: Sequence[Payload]) -> tuple[ProgramSender, list[Op]]:
    """The operations in these arguments, and who has sent them."""
    head: dict[str, Any] = load_json(payloads[0])
    sender = _decode_sender(head)
    values = payloads[1:]
    ops: list[Op] = []
    for row in head["ops"]:
        index: int | None = row.pop("value", None)
        ops.append(_decode_operation(row, None if index is None else from_payload(values[index]), sender))
    return sender, ops


def encode_request(sender: ProgramSender, after: int, *, should_wait: bool) -> list[RawValue]:
    """The arguments of a ``MESSAGES_UPDATE``: it asks for the messages after this number."""
    return [to_raw_value(_dump({**_encode_sender(sender), "after": after, "wait": should_wait}))]


class MessagesRequest(NamedTuple):
    """What a ``MESSAGES_UPDATE`` asks for."""

    sender: ProgramSender
    after: int
    should_wait: bool
    """Whether it is answered only when there are messages."""


def decode_request(payloads: Sequence[Payload]) -> MessagesRequest:
    """What these arguments ask for."""
    head = load_json(payloads[0])
    return MessagesRequest(_decode_sender(head), head["after"], head["wait"])


def _encode_sender(sender: ProgramSender) -> dict[str, Any]:
    return {"fence": list(sender.fence), "worker": sender.worker, "epoch": sender.epoch, "again": sender.is_again}


def _decode_sender(head: dict[str, Any]) -> ProgramSender:
    return ProgramSender(Fence(*head["fence"]), head["worker"], head["epoch"], head["again"])


def _encode_operation(op: Op) -> tuple[dict[str, Any], bytes | None]:
    """An operation as JSON, and the value in it, if it has one."""
    match op:
        case AppendRecord():
            return _encode_record(op), op.record.payload
        case SaveAttempt():
            return {"op": "attempt", **op.attempt._replace(progress=None)._asdict()}, op.attempt.progress
        case RequestApproval():
            request = op.request._replace(form_schema=b"", arguments=b"")._asdict()
            del request["form_schema"], request["arguments"]
            form = _dump([op.request.form_schema.decode(), op.request.arguments.decode()])
            row = {"op": "ask", "position": op.position, "id": op.id, "at": op.at, "expires_at": op.expires_at}
            return {**row, "request": request}, form
        case RemindApproval():
            names = ("reminder_count", "assignee", "at", "expires_at")
            return {"op": "remind", "id": op.id, **{name: getattr(op, name) for name in names}}, None
        case WithdrawApproval():
            return {"op": "withdraw", "id": op.id, "at": op.at}, None
        case StartRun():
            assert op.link is not None
            row = {"op": "start", "position": op.link.position, "is_awaited": op.link.is_awaited}
            return {**row, "run": _encode_new_run(op.run)}, op.run.inputs
        case AwaitRun():
            return {
                "op": "await", "run_id": op.run_id, "position": op.link.position, "is_awaited": op.link.is_awaited,
            }, None  # fmt: skip
        case CancelRun():
            return {"op": "cancel", "run_id": op.run_id, "at": op.at}, None
        case ReleaseRun():
            return {"op": "release"}, None
        case _:
            raise NotImplementedError(type(op).__name__)


def _encode_record(op: AppendRecord) -> dict[str, Any]:
    record = op.record
    row: dict[str, Any] = {
        "op": "record", "seq": record.seq, "kind": int(record.kind), "position": record.position,
        "name": record.name, "ok": record.ok, "at": record.at, "started_at": record.started_at,
        "attempts": record.attempts, "preview": record.preview, "consumed": op.consumed_signal_id,
        "clear": op.clear_attempt, "used": None if op.used is None else asdict(op.used), "model": op.model,
    }  # fmt: skip
    defaults = {
        "started_at": 0.0,
        "attempts": 1,
        "preview": "",
        "consumed": None,
        "clear": False,
        "used": None,
        "model": "",
    }
    return {name: value for name, value in row.items() if name not in defaults or value != defaults[name]}


def _decode_operation(row: dict[str, Any], value: bytes | None, sender: ProgramSender) -> Op:
    kind = row.pop("op")
    if kind == "record":
        return _decode_record(row, value, sender)
    if kind == "attempt":
        attempt: dict[str, Any] = {**row, "progress": value}
        return SaveAttempt(0, sender.epoch, Attempt(**attempt))
    if kind == "ask":
        form_schema, arguments = json.loads(value or b'["", ""]')
        request: dict[str, Any] = {**row["request"], "choices": tuple(row["request"]["choices"])}
        asked = ApprovalRequest(**request, form_schema=form_schema.encode(), arguments=arguments.encode())
        return RequestApproval(0, sender.epoch, row["position"], row["id"], asked, row["at"], row["expires_at"])
    if kind == "remind":
        return RemindApproval(
            0, sender.epoch, row["id"], row["reminder_count"], row["assignee"], row["at"], row["expires_at"]
        )
    if kind == "withdraw":
        return WithdrawApproval(0, sender.epoch, row["id"], row["at"])
    if kind == "cancel":
        return CancelRun(row["run_id"], row["at"])
    if kind == "release":
        return ReleaseRun(0, sender.epoch)
    link = RunLink(0, sender.epoch, row["position"], row["is_awaited"])
    if kind == "await":
        return AwaitRun(row["run_id"], link)
    return StartRun(_decode_new_run(row["run"], value or b""), link=link)


def _decode_record(row: dict[str, Any], value: bytes | None, sender: ProgramSender) -> AppendRecord:
    used = row.get("used")
    record = Record(
        row["seq"], RecordKind(row["kind"]), row["position"], row["name"], row["ok"], value, row["at"],
        row.get("started_at", 0.0), row.get("attempts", 1), sender.worker, sender.epoch, row.get("preview", ""),
    )  # fmt: skip
    return AppendRecord(
        0,
        record,
        row.get("consumed"),
        row.get("clear", False),
        used=None if used is None else usage_from_json(used),
        model=row.get("model", ""),
    )


def _encode_new_run(new: NewRun) -> dict[str, Any]:
    names = (one.name for one in fields(cast(Any, new)) if one.name != "inputs")
    row: dict[str, Any] = {name: getattr(new, name) for name in names}
    return {**row, "digest": new.digest.hex(), "seed": new.seed.hex()}


def _decode_new_run(row: dict[str, Any], inputs: bytes) -> NewRun:
    budget: list[Any] | None = row["budget"]
    values: dict[str, Any] = {
        **row,
        "inputs": inputs,
        "digest": bytes.fromhex(row["digest"]),
        "seed": bytes.fromhex(row["seed"]),
        "tags": tuple(row["tags"]),
        "rewind_points": tuple(RewindPoint(*point) for point in row["rewind_points"]),
        "budget": None if budget is None else BudgetLimits(*budget),
    }
    return NewRun(**values)


# Messages


class RunStarted(NamedTuple):
    """The answer to a ``StartRun`` or an ``AwaitRun`` of the program."""

    position: int
    is_found: bool = False
    """Whether there is such a run."""
    workflow: str = ""
    digest: bytes = b""
    state: RunState = RunState.RUNNING
    is_new: bool = False
    is_linked: bool = False
    payload: bytes | None = None
    """The output or the error of a run that has ended."""


class RequestNotice(NamedTuple):
    """The run was requested to be cancelled, paused, or resumed."""

    kind: str


Message = Signal | RunStarted | RequestNotice

CANCEL_NOTICE = RequestNotice("cancel")
PAUSE_NOTICE = RequestNotice("pause")
RESUME_NOTICE = RequestNotice("resume")


class MessagesAnswer(NamedTuple):
    """The answer to a ``MESSAGES_UPDATE``."""

    messages: Sequence[Message] = ()
    is_fenced: bool = False

    def encode(self) -> Payload:
        """The stored form: a line of JSON, and then the values."""
        values: list[bytes] = []
        rows = [_encode_message(message, values) for message in self.messages]
        head = _dump({"fenced": self.is_fenced, "messages": rows})
        return Payload(metadata={"encoding": b"binary/plain"}, data=b"\n".join([head, b"".join(values)]))

    @classmethod
    def decode(cls, payload: Payload) -> MessagesAnswer:
        """Read the stored form. A run that has ended answers nothing."""
        head, _, rest = payload.data.partition(b"\n")
        if not head:
            return cls(is_fenced=True)
        data = json.loads(head)
        messages: list[Message] = []
        for row in data["messages"]:
            size = row.pop("size", None)
            value = None if size is None else rest[:size]
            rest = rest[size or 0 :]
            messages.append(_decode_message(row, value))
        return cls(messages, data["fenced"])


def _encode_message(message: Message, values: list[bytes]) -> dict[str, Any]:
    row: dict[str, Any]
    if isinstance(message, RequestNotice):
        return {"request": message.kind}
    if isinstance(message, RunStarted):
        row = {**message._asdict(), "digest": message.digest.hex()}
    else:
        row = message._asdict()
    value = row.pop("payload")
    if value is not None:
        row["size"] = len(value)
        values.append(value)
    return row


def _decode_message(row: dict[str, Any], value: bytes | None) -> Message:
    if "request" in row:
        return RequestNotice(row["request"])
    if "digest" in row:
        values: dict[str, Any] = {
            **row, "digest": bytes.fromhex(row["digest"]), "state": RunState(row["state"]), "payload": value,
        }  # fmt: skip
        return RunStarted(**values)
    return Signal(**row, payload=value or b"null")


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# Heartbeats

STARTED_KEY, STEPS_KEY = "started", "steps"
"""The details of the activity's heartbeats: whether the program has begun, and its steps in flight."""


class StepInFlight(NamedTuple):
    """A step of a program that has no outcome yet."""

    position: int
    name: str
    attempt: int
    started_at: float
    preview: str
    """Its arguments, shortened."""
