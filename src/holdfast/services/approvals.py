"""Approvals: listing and answering the questions that runs ask people.

An answer is checked before it is recorded: against the choices, the form's schema, or the schema of the tool's
arguments. An invalid answer raises ``InputError``, and the approval stays open. An approval is answered once. A second
answer raises an error that says who answered first and how, unless both are the same.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from holdfast.codec import (
    DEFAULT_MAX_VALUE_BYTES,
    ERASED,
    EncodedValue,
    check_decrypted,
    check_decrypted_text,
    decode_plain,
    validate_size,
)
from holdfast.core.states import RunState
from holdfast.errors import ApprovalClosed, ApprovalError, InputError, UndecryptableValue, UnknownApproval
from holdfast.services.json_form import Timestamp, UserValue, UtcDatetime
from holdfast.services.json_schemas import SchemaViolation, find_violations
from holdfast.services.store_provider import StoreProvider
from holdfast.services.thread_offload import LARGE_BYTES, estimate_size, run_off_loop
from holdfast.services.timestamps import to_datetime
from holdfast.stores.approvals import AnswerApproval, Approval, ApprovalFilter, ApprovalRequest, ApprovalState
from holdfast.stores.operations import OpStatus

log = logging.getLogger("holdfast.client")

APPROVAL_START_STEP = "approval start"
APPROVAL_REMINDER_STEP = "approval reminder"
APPROVAL_TIMEOUT_STEP = "approval timeout"
"""The steps of an approval: at its start, at each reminder, and at its end if it is not answered in time."""

MAX_LISTED = 5
"""Maximum number of approvals that an error message names."""
MAX_VIOLATIONS = 50
"""Maximum number of violations that an error lists."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer, as it is recorded."""

    approved: bool
    value: UserValue = None
    """The choice, or the content of the form."""
    arguments: dict[str, Any] | None = None
    """For a tool call: the arguments to use instead of those that were shown, if the person edited them."""
    reason: str = ""
    answered_by: str = ""
    answered_at: Timestamp = 0.0

    def encode(self) -> bytes:
        """The payload of its record."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode()

    @classmethod
    def from_payload(cls, payload: bytes) -> Answer:
        """The answer in the payload of a record."""
        recorded: dict[str, Any] = json.loads(payload)
        return cls(**{field.name: recorded[field.name] for field in dataclasses.fields(cls) if field.name in recorded})

    @classmethod
    def from_value(cls, value: Any, answered_by: str, answered_at: float) -> Answer:
        """The answer from which workflow code gets this value: a yes, a no, a choice, or the content of a form."""
        plain = to_json_data(value, "the answer")
        return cls(
            value is not False,
            None if value is True or value is False else plain,
            answered_by=answered_by,
            answered_at=answered_at,
        )

    def is_same(self, other: Answer) -> bool:
        """Whether the same person gave the same answer, at any time."""
        return replace(self, answered_at=0.0) == replace(other, answered_at=0.0)

    def describe(self) -> str:
        """The answer in a few words."""
        if not self.approved:
            text = "no"
        elif self.arguments is not None:
            text = f"yes, with {json.dumps(self.arguments, ensure_ascii=False)}"
        elif self.value is None:
            text = "yes"
        else:
            text = self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)
        return f"{text} ({self.reason})" if self.reason else text


@dataclass(frozen=True, slots=True)
class ApprovalInfo:
    """A question to people, with its state and its answer."""

    id: str
    run_id: str
    workflow: str
    step_number: int
    """Its number among the steps of its run, as in ``holdfast show``."""
    question: str
    choices: tuple[str, ...]
    """The possible answers; empty for yes or no, and for a form."""
    form: dict[str, Any] | None
    """The JSON schema of the form; for a tool call, that of its arguments."""
    tool: str
    """The tool to be called; empty if the workflow asks on its own behalf."""
    arguments: dict[str, Any] | None
    """All arguments of that call."""
    reason: str
    """Why the call needs an approval."""
    requested_at: UtcDatetime
    assignee: str
    """Who is asked now; empty: anyone."""
    expires_at: UtcDatetime | None
    """When the run asks the next person, or continues without an answer."""
    reminder_count: int
    state: ApprovalState
    answered_by: str
    answered_at: UtcDatetime | None
    answer: Answer | None

    @classmethod
    def from_row(cls, row: Approval) -> ApprovalInfo:
        """The approval in a row. Raises ``UndecryptableValue``."""
        request = row.request
        _check_decrypted(row)
        return cls(
            id=row.id,
            run_id=row.run_id,
            workflow=row.workflow,
            step_number=row.position + 1,
            question=request.question,
            choices=request.choices,
            form=json.loads(request.form_schema) if request.form_schema else None,
            tool=request.tool,
            arguments=json.loads(request.arguments) if request.arguments else None,
            reason=request.reason,
            requested_at=to_datetime(row.requested_at),
            assignee=row.assignee,
            expires_at=to_datetime(row.expires_at),
            reminder_count=row.reminder_count,
            state=row.state,
            answered_by=row.answered_by,
            answered_at=to_datetime(row.answered_at),
            answer=None if row.answer in (None, ERASED) else Answer.from_payload(row.answer),
        )


def _check_decrypted(row: Approval) -> None:
    """Raise ``UndecryptableValue`` for an encrypted question: people must not answer what they cannot read."""
    request, subject = row.request, f"approval {row.id!r} of run {row.run_id!r}"
    for text in (request.question, *request.choices, request.reason):
        check_decrypted_text(text, subject)
    for data in (request.form_schema, request.arguments, row.answer or b""):
        check_decrypted(data, subject)


# Listing


async def list_approvals(
    provider: StoreProvider,
    run_id: str | None = None,
    *,
    workflow: str | None = None,
    assignee: str | None = None,
    all: bool = False,
    limit: int = 1000,
) -> list[ApprovalInfo]:
    """At most ``limit`` approvals that match, oldest first: open ones, or ``all``."""
    approval_filter = ApprovalFilter(run_id, only_open=not all, workflow=workflow, assignee=assignee)
    rows = await (await provider.store()).list_approvals(approval_filter, limit)
    return decode_readable_rows(rows) if run_id is None else [ApprovalInfo.from_row(row) for row in rows]


def decode_readable_rows(rows: Iterable[Approval]) -> list[ApprovalInfo]:
    """The approvals in these rows. One that is encrypted with an unknown key is left out, and logged."""
    found: list[ApprovalInfo] = []
    for row in rows:
        try:
            found.append(ApprovalInfo.from_row(row))
        except UndecryptableValue as problem:
            log.warning("an approval is left out of a list: %s", problem)
    return found


async def find_approval(provider: StoreProvider, id: str) -> Approval:
    """The approval with this id, or with the only id that begins with it."""
    store = await provider.store()
    wanted = id.strip().lower()
    found = await store.list_approvals(ApprovalFilter(only_open=False, id_prefix=wanted)) if wanted else []
    for one in found:
        if len(found) == 1 or one.id == wanted:
            return one
    if found:
        listed = ", ".join(f"{one.id} ({one.request.question!r} of run {one.run_id!r})" for one in found[:MAX_LISTED])
        raise UnknownApproval(f"{len(found)} approvals begin with {id!r}: {listed}. Give more of the id.", id)
    still_open = await store.list_approvals(ApprovalFilter(), limit=MAX_LISTED)
    listed = ", ".join(f"{one.id} (run {one.run_id!r})" for one in still_open)
    raise UnknownApproval(
        f"there is no approval {id!r} in {store.url}: {f'open are {listed}' if listed else 'none is open'}. "
        f"`holdfast approvals --all` lists them all.",
        id,
    )


# Answering


async def approve(
    provider: StoreProvider,
    id: str,
    value: Any = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    by: str | None = None,
    reason: str = "",
    run_id: str | None = None,
    max_value: int = DEFAULT_MAX_VALUE_BYTES,
) -> bool:
    """Answer yes; false if the same person gave the same answer before. ``run_id``: the run that must have asked."""
    row = await _find_run_approval(provider, id, run_id)
    size = estimate_size([value, arguments])
    plain = await run_off_loop(size, lambda: to_json_data(value, f"the answer to approval {row.id}"))
    edited = await run_off_loop(size, lambda: _validate_arguments(row, arguments))
    answer = Answer(True, plain, edited, reason, get_os_user() if by is None else by, await _read_time(provider))
    if row.state is ApprovalState.OPEN:
        # The run's author may have written a form that takes a while to check.
        await run_off_loop(LARGE_BYTES + 1 if row.request.form_schema else size, lambda: _check_answer(row, answer))
    return await _submit_answer(provider, row, answer, max_value)


async def deny(
    provider: StoreProvider,
    id: str,
    *,
    by: str | None = None,
    reason: str = "",
    run_id: str | None = None,
    max_value: int = DEFAULT_MAX_VALUE_BYTES,
) -> bool:
    """Answer no; false if the same person gave the same answer before."""
    row = await _find_run_approval(provider, id, run_id)
    by = get_os_user() if by is None else by
    answer = Answer(False, reason=reason, answered_by=by, answered_at=await _read_time(provider))
    return await _submit_answer(provider, row, answer, max_value)


async def _read_time(provider: StoreProvider) -> float:
    return round(await provider.now(), 6)  # the precision of its JSON form


def get_os_user() -> str:
    """The user of the operating system; empty where that is not known."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may have no name for its user
        return ""


async def _find_run_approval(provider: StoreProvider, id: str, run_id: str | None) -> Approval:
    row = await find_approval(provider, id)
    _check_decrypted(row)
    if run_id is not None and row.run_id != run_id:
        raise UnknownApproval(f"approval {row.id} was asked for by run {row.run_id!r}, not by run {run_id!r}", row.id)
    return row


async def _submit_answer(provider: StoreProvider, row: Approval, answer: Answer, max_value: int) -> bool:
    payload = validate_size(answer.encode(), f"the answer to approval {row.id}", max_value)
    status = await provider.change(AnswerApproval(row.id, payload, answer.answered_by, answer.answered_at))
    if status is OpStatus.DONE:
        return True
    current = await find_approval(provider, row.id)
    if current.answer is not None and current.state is ApprovalState.ANSWERED:
        first = Answer.from_payload(current.answer)
        if first.is_same(answer):
            return False
        raise _make_already_answered_error(current, first)
    raise await _make_closed_error(provider, current)


def _make_already_answered_error(row: Approval, first: Answer) -> ApprovalError:
    at = f"{to_datetime(row.answered_at or 0.0):%Y-%m-%d %H:%M:%S} UTC"
    return ApprovalClosed(
        f"approval {row.id} ({row.request.question!r}) is closed: {first.answered_by or 'somebody'} answered it at "
        f"{at}: "
        f"{first.describe()}. That answer counts; `holdfast show {row.run_id}` tells what came of it.",
        row.id,
    )


async def _make_closed_error(provider: StoreProvider, row: Approval) -> ApprovalError:
    run = await provider.read(row.run_id)
    closed = f"approval {row.id} ({row.request.question!r}) is closed"
    if run.state.is_terminal:
        ended = {RunState.CANCELLED: "was cancelled", RunState.DEAD: "is dead"}.get(run.state, f"has {run.state}")
        why = f"run {run.id!r} {ended}"
    elif (other := await _find_replacement(provider, row)) is not None:
        return ApprovalClosed(
            f"{closed}: run {run.id!r} asks something else in its place now: {other.request.question!r}. If you mean "
            f"that, answer approval {other.id}.",
            row.id,
        )
    elif row.expires_at is not None and row.expires_at <= await provider.now():
        why = f"its time was over at {to_datetime(row.expires_at):%Y-%m-%d %H:%M:%S} UTC, and run {run.id!r} went on"
    else:
        why = f"run {run.id!r} does not wait for it any more"
    return ApprovalClosed(f"{closed}: {why}. Nobody waits for the answer.", row.id)


async def _find_replacement(provider: StoreProvider, row: Approval) -> Approval | None:
    """The approval that the run asks for now instead, because its code changed while this one was open."""
    still_open = await (await provider.store()).list_approvals(ApprovalFilter(row.run_id))
    return next((one for one in still_open if one.position == row.position and one.id != row.id), None)


# Checking an answer


def to_json_data(value: Any, subject: str) -> Any:
    """The value as JSON data. Raises ``InputError``."""
    from pydantic_core import from_json, to_json

    try:
        if type(value) is EncodedValue:
            value = decode_plain(value.data)
        return from_json(to_json(value, inf_nan_mode="constants"), allow_inf_nan=False)
    except ValueError as unfit:
        raise InputError(f"{subject} cannot be written as JSON: {unfit}") from None


def _validate_arguments(row: Approval, arguments: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if arguments is None:
        return None
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"the arguments for approval {row.id} are an object, with a value for each, not {arguments!r}")
    return cast("dict[str, Any]", to_json_data(dict(arguments), f"the arguments for approval {row.id}"))


def _check_answer(row: Approval, answer: Answer) -> None:
    """Raise ``InputError`` unless this yes answers the question."""
    request = row.request
    label = f"approval {row.id} ({request.question!r})"
    if answer.arguments is not None:
        if not request.tool:
            raise InputError(f"{label} is no call of a tool: it has no arguments to edit")
        unfit = f"the arguments for {label} do not fit tool {request.tool!r}"
        _check_schema(request, answer.arguments, unfit, "arguments")
    if request.tool:
        if answer.value is not None:
            raise InputError(
                f"{label} is a call of tool {request.tool!r}: approve of it without a value, or with other arguments="
            )
    elif request.choices:
        if answer.value not in request.choices:
            problem = "needs a choice" if answer.value is None else f"cannot be answered with {answer.value!r}"
            raise InputError(f"{label} {problem}: choose one of {', '.join(request.choices)}")
    elif request.form_schema:
        if answer.value is None and _find_violations(request, None):
            raise InputError(f"{label} needs a value: {describe_form(json.loads(request.form_schema))}")
        _check_schema(request, answer.value, f"the value for {label} does not fit its form")
    elif answer.value not in (None, True):
        raise InputError(f"{label} is answered with yes or no: approve of it without a value, or deny it")


def _check_schema(request: ApprovalRequest, value: Any, subject: str, location: str = "value") -> None:
    if not request.form_schema:
        return
    violations = _find_violations(request, value)
    if violations:
        summary = "; ".join(f"{one.json_path}: {one.message}" for one in violations[:MAX_LISTED])
        details = [{"path": ".".join([location, *map(str, one.path)]), "message": one.message} for one in violations]
        raise InputError(f"{subject}: {summary}. The question is still open.", details)


def _find_violations(request: ApprovalRequest, value: Any) -> list[SchemaViolation]:
    return find_violations(
        json.loads(request.form_schema), value, f"the form of question {request.question[:60]!r}", MAX_VIOLATIONS
    )


def describe_form(schema: Mapping[str, Any]) -> str:
    """The fields of a form, as a part of a sentence."""
    fields = describe_form_fields(schema)
    return f"an object with {', '.join(fields)}" if schema.get("properties") else fields[0]


def describe_form_fields(schema: Mapping[str, Any]) -> list[str]:
    """The fields of a form, in a few words each; the type of the form itself if it has none."""
    fields: Mapping[str, Any] | None = schema.get("properties")
    if not fields:
        kind = _describe_type(schema)
        return ["any JSON value" if kind == "anything" else f"a value of type {kind}"]
    needed = schema.get("required", ())
    return [
        f"{name} ({_describe_type(field)}{'' if name in needed else ', may be left out'})"
        + (f": {field['description']}" if isinstance(field, dict) and "description" in field else "")
        for name, field in fields.items()
    ]


def _describe_type(schema: Mapping[str, Any] | bool) -> str:
    if isinstance(schema, bool):  # a schema that everything or nothing matches
        return "anything" if schema else "nothing"
    if "enum" in schema:
        return " or ".join(json.dumps(one, ensure_ascii=False) for one in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "anyOf" in schema:
        return " or ".join(_describe_type(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    named = schema.get("type", "anything")
    kind = " or ".join(map(str, cast("list[object]", named))) if isinstance(named, list) else str(named)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_describe_type(schema['items'])}"
    return f"{kind}, {schema['format']}" if "format" in schema else kind
