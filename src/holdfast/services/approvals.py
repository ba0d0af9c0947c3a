"""Questions that runs ask people, and the answers: listing them, and answering.

An answer is checked before it is given: against the choices, the form's schema, or the schema of the tool's arguments.
One that does not fit raises ``InputError``, and the question stays open. A question is answered once. Who comes second
is told who was first and what the answer was, unless both have said the very same.
"""

from __future__ import annotations

import getpass
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, cast

from holdfast.codec import LARGEST, Encoded, check_size, refuse_sealed, refuse_sealed_text, to_plain
from holdfast.core.states import RunState
from holdfast.errors import ApprovalClosed, ApprovalError, InputError, UndecryptableValue, UnknownApproval
from holdfast.services.json_schemas import Fault, find_faults
from holdfast.services.run_control import Reach
from holdfast.services.thread_offload import LARGE, off_loop, rough_size
from holdfast.services.timestamps import moment
from holdfast.stores.approvals import AnswerApproval, Approval, ApprovalFilter, ApprovalState, Question
from holdfast.stores.contract import Store
from holdfast.stores.operations import Verdict

log = logging.getLogger("holdfast.client")

BEGINS = "approval begins"
REMINDER = "approval reminder"
TIME_OUT = "approval time-out"
"""The steps of a question: at its beginning, at each reminder, and at its end if it is not answered in time."""

MOST_NAMED = 5
"""How many questions an error message names."""
MOST_FAULTS = 50
"""How many faults of an answer an error has."""


class Storing(Protocol):
    """What it takes to see questions."""

    async def store(self) -> Store:
        """The store, open."""
        ...


class ApprovalReach(Storing, Reach, Protocol):
    """What it takes to answer them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person answered, as it is recorded."""

    approved: bool
    value: Any = None
    """The choice, or what was filled into the form."""
    arguments: dict[str, Any] | None = None
    """For a call: the arguments in place of those that were shown, if the person has edited them."""
    reason: str = ""
    by: str = ""
    at: float = 0.0

    def payload(self) -> bytes:
        """As it is recorded."""
        return json.dumps(
            {
                "approved": self.approved,
                "value": self.value,
                "arguments": self.arguments,
                "reason": self.reason,
                "by": self.by,
                "at": self.at,
            },
            ensure_ascii=False,
        ).encode()

    @classmethod
    def of(cls, payload: bytes) -> Answer:
        """From a record."""
        told: dict[str, Any] = json.loads(payload)
        return cls(**{name: told[name] for name in cls.__slots__ if name in told})

    @classmethod
    def like(cls, value: Any, by: str, at: float) -> Answer:
        """The answer of which workflow code makes this value: a yes, a no, a choice, or what is in a form."""
        plain = json_data(value, "the answer")
        return cls(value is not False, None if value is True or value is False else plain, by=by, at=at)

    def is_same(self, other: Answer) -> bool:
        """Whether the same person has said the same, at whatever time."""
        return replace(self, at=0.0) == replace(other, at=0.0)

    def in_words(self) -> str:
        """What was said, in a few words."""
        if not self.approved:
            said = "no"
        elif self.arguments is not None:
            said = f"yes, with {json.dumps(self.arguments, ensure_ascii=False)}"
        elif self.value is None:
            said = "yes"
        else:
            said = self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)
        return f"{said} ({self.reason})" if self.reason else said


@dataclass(frozen=True, slots=True)
class ApprovalInfo:
    """A question to people, and what has become of it."""

    id: str
    run_id: str
    workflow: str
    number: int
    """Its number among the steps of its run: the one in ``holdfast show``."""
    question: str
    choices: tuple[str, ...]
    """What can be answered; empty for yes or no, and for a form."""
    form: dict[str, Any] | None
    """The JSON schema of what is to be filled in; for a call, that of its arguments."""
    tool: str
    """The tool whose call is to be approved; empty if the workflow asks for itself."""
    arguments: dict[str, Any] | None
    """The arguments of that call, all of them."""
    reason: str
    """Why the call needs an approval."""
    asked_at: datetime
    asked_of: str
    """Who is asked now; empty: whoever sees it."""
    expires_at: datetime | None
    """When the run asks somebody else, or goes on without an answer."""
    reminders: int
    state: ApprovalState
    answered_by: str
    answered_at: datetime | None
    answer: Answer | None

    @classmethod
    def of(cls, row: Approval) -> ApprovalInfo:
        """From a row. Raises ``UndecryptableValue``."""
        question = row.question
        _check_that_it_is_open(row)
        return cls(
            id=row.id,
            run_id=row.run_id,
            workflow=row.workflow,
            number=row.position + 1,
            question=question.text,
            choices=question.choices,
            form=json.loads(question.form) if question.form else None,
            tool=question.tool,
            arguments=json.loads(question.arguments) if question.arguments else None,
            reason=question.reason,
            asked_at=moment(row.asked_at),
            asked_of=row.asked_of,
            expires_at=moment(row.expires_at),
            reminders=row.reminders,
            state=row.state,
            answered_by=row.answered_by,
            answered_at=moment(row.answered_at),
            answer=None if row.answer is None else Answer.of(row.answer),
        )


def _check_that_it_is_open(row: Approval) -> None:
    """Raises ``UndecryptableValue`` for a sealed question: nobody is to answer what they cannot read."""
    question, what = row.question, f"approval {row.id!r} of run {row.run_id!r}"
    for text in (question.text, *question.choices, question.reason):
        refuse_sealed_text(text, what)
    for data in (question.form, question.arguments, row.answer or b""):
        refuse_sealed(data, what)


# Seeing questions


async def list_approvals(
    reach: Storing,
    run_id: str | None = None,
    *,
    workflow: str | None = None,
    asked_of: str | None = None,
    all: bool = False,
    limit: int = 1000,
) -> list[ApprovalInfo]:
    """Questions that match, the longest open first, at most ``limit``: those that are open, or ``all``."""
    where = ApprovalFilter(run_id, only_open=not all, workflow=workflow, asked_of=asked_of)
    rows = await (await reach.store()).approvals(where, limit)
    return readable(rows) if run_id is None else [ApprovalInfo.of(row) for row in rows]


def readable(rows: Iterable[Approval]) -> list[ApprovalInfo]:
    """Those that can be read here; what is sealed with a key that is not here is left out, and named in the log."""
    found: list[ApprovalInfo] = []
    for row in rows:
        try:
            found.append(ApprovalInfo.of(row))
        except UndecryptableValue as problem:
            log.warning("an approval is left out of a list: %s", problem)
    return found


async def find_approval(reach: Storing, id: str) -> Approval:
    """The question of this id, which may be shortened as long as it names one."""
    store = await reach.store()
    wanted = id.strip().lower()
    found = await store.approvals(ApprovalFilter(only_open=False, id_prefix=wanted)) if wanted else []
    for one in found:
        if len(found) == 1 or one.id == wanted:
            return one
    if found:
        few = ", ".join(f"{one.id} ({one.question.text!r} of run {one.run_id!r})" for one in found[:MOST_NAMED])
        raise UnknownApproval(f"{len(found)} approvals begin with {id!r}: {few}. Give more of the id.", id)
    still_open = await store.approvals(ApprovalFilter(), limit=MOST_NAMED)
    few = ", ".join(f"{one.id} (run {one.run_id!r})" for one in still_open)
    raise UnknownApproval(
        f"there is no approval {id!r} in {store.url}: {f'open are {few}' if few else 'none is open'}. "
        f"`holdfast approvals --all` lists them all.",
        id,
    )


# Answering


async def approve(
    reach: ApprovalReach,
    id: str,
    value: Any = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    by: str | None = None,
    reason: str = "",
    of: str | None = None,
    max_value: int = LARGEST,
) -> bool:
    """Say yes; false when the same person has said the very same before. ``of`` is the run that must be the asker."""
    row = await _of_run(reach, id, of)
    size = rough_size([value, arguments])
    plain = await off_loop(size, lambda: json_data(value, f"the answer to approval {row.id}"))
    edited = await off_loop(size, lambda: _edited(row, arguments))
    given = Answer(True, plain, edited, reason, user() if by is None else by, await reach.now())
    if row.state is ApprovalState.OPEN:
        # Whoever has asked may have written a form that takes a while to check.
        await off_loop(LARGE + 1 if row.question.form else size, lambda: _check(row, given))
    return await _give(reach, row, given, max_value)


async def deny(
    reach: ApprovalReach,
    id: str,
    *,
    by: str | None = None,
    reason: str = "",
    of: str | None = None,
    max_value: int = LARGEST,
) -> bool:
    """Say no; false when the same person has said the very same before."""
    row = await _of_run(reach, id, of)
    given = Answer(False, reason=reason, by=user() if by is None else by, at=await reach.now())
    return await _give(reach, row, given, max_value)


def user() -> str:
    """Who is at the keyboard; empty where that cannot be told."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may have no name for its user
        return ""


async def _of_run(reach: ApprovalReach, id: str, run_id: str | None) -> Approval:
    row = await find_approval(reach, id)
    _check_that_it_is_open(row)
    if run_id is not None and row.run_id != run_id:
        raise UnknownApproval(f"approval {row.id} was asked for by run {row.run_id!r}, not by run {run_id!r}", row.id)
    return row


async def _give(reach: ApprovalReach, row: Approval, given: Answer, max_value: int) -> bool:
    payload = check_size(given.payload(), f"the answer to approval {row.id}", max_value)
    verdict = await reach.change(AnswerApproval(row.id, payload, given.by, given.at))
    if verdict is Verdict.DONE:
        return True
    now = await find_approval(reach, row.id)
    if now.answer is not None and now.state is ApprovalState.ANSWERED:
        first = Answer.of(now.answer)
        if first.is_same(given):
            return False
        raise _answered_before(now, first)
    raise await _not_awaited(reach, now)


def _answered_before(row: Approval, first: Answer) -> ApprovalError:
    at = f"{moment(row.answered_at or 0.0):%Y-%m-%d %H:%M:%S} UTC"
    return ApprovalClosed(
        f"approval {row.id} ({row.question.text!r}) is closed: {first.by or 'somebody'} answered it at {at}: "
        f"{first.in_words()}. That answer counts; `holdfast show {row.run_id}` tells what came of it.",
        row.id,
    )


async def _not_awaited(reach: ApprovalReach, row: Approval) -> ApprovalError:
    run = await reach.read(row.run_id)
    closed = f"approval {row.id} ({row.question.text!r}) is closed"
    if run.state.is_terminal:
        ended = {RunState.CANCELLED: "was cancelled", RunState.DEAD: "is dead"}.get(run.state, f"has {run.state}")
        why = f"run {run.id!r} {ended}"
    elif (other := await _in_its_place(reach, row)) is not None:
        return ApprovalClosed(
            f"{closed}: run {run.id!r} asks something else in its place now: {other.question.text!r}. If you mean "
            f"that, answer approval {other.id}.",
            row.id,
        )
    elif row.expires_at is not None and row.expires_at <= await reach.now():
        why = f"its time was over at {moment(row.expires_at):%Y-%m-%d %H:%M:%S} UTC, and run {run.id!r} went on"
    else:
        why = f"run {run.id!r} does not wait for it any more"
    return ApprovalClosed(f"{closed}: {why}. Nobody waits for the answer.", row.id)


async def _in_its_place(reach: ApprovalReach, row: Approval) -> Approval | None:
    """What the run asks now instead: its code was changed while the question was open."""
    still_open = await (await reach.store()).approvals(ApprovalFilter(row.run_id))
    return next((one for one in still_open if one.position == row.position and one.id != row.id), None)


# Whether an answer fits


def json_data(value: Any, what: str) -> Any:
    """What was given as JSON would say it. Raises ``InputError``."""
    from pydantic_core import from_json, to_json

    try:
        if type(value) is Encoded:
            value = to_plain(value.data)
        return from_json(to_json(value, inf_nan_mode="constants"), allow_inf_nan=False)
    except ValueError as unfit:
        raise InputError(f"{what} cannot be written as JSON: {unfit}") from None


def _edited(row: Approval, arguments: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if arguments is None:
        return None
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"the arguments for approval {row.id} are an object, with a value for each, not {arguments!r}")
    return cast("dict[str, Any]", json_data(dict(arguments), f"the arguments for approval {row.id}"))


def _check(row: Approval, given: Answer) -> None:
    """Whether this yes is an answer to the question."""
    question = row.question
    what = f"approval {row.id} ({question.text!r})"
    if given.arguments is not None:
        if not question.tool:
            raise InputError(f"{what} is no call of a tool: it has no arguments to edit")
        unfit = f"the arguments for {what} do not fit tool {question.tool!r}"
        _check_schema(question, given.arguments, unfit, "arguments")
    if question.tool:
        if given.value is not None:
            raise InputError(
                f"{what} is a call of tool {question.tool!r}: approve of it without a value, or with other arguments="
            )
    elif question.choices:
        if given.value not in question.choices:
            said = "needs a choice" if given.value is None else f"cannot be answered with {given.value!r}"
            raise InputError(f"{what} {said}: choose one of {', '.join(question.choices)}")
    elif question.form:
        if given.value is None and not _allows_null(question):
            raise InputError(f"{what} needs a value: {form_in_words(json.loads(question.form))}")
        _check_schema(question, given.value, f"the value for {what} does not fit its form")
    elif given.value not in (None, True):
        raise InputError(f"{what} is answered with yes or no: approve of it without a value, or deny it")


def _allows_null(question: Question) -> bool:
    return not _faults(question, None)


def _check_schema(question: Question, value: Any, what: str, place: str = "value") -> None:
    if not question.form:
        return
    faults = _faults(question, value)
    if faults:
        told = "; ".join(f"{fault.json_path}: {fault.message}" for fault in faults[:MOST_NAMED])
        each = [{"where": ".".join([place, *map(str, fault.path)]), "why": fault.message} for fault in faults]
        raise InputError(f"{what}: {told}. The question is still open.", each)


def _faults(question: Question, value: Any) -> list[Fault]:
    return find_faults(json.loads(question.form), value, f"the form of question {question.text[:60]!r}", MOST_FAULTS)


def form_in_words(schema: Mapping[str, Any]) -> str:
    """What a form asks for, in a sentence."""
    fields = form_fields(schema)
    return f"an object with {', '.join(fields)}" if schema.get("properties") else fields[0]


def form_fields(schema: Mapping[str, Any]) -> list[str]:
    """The fields of a form, for people, in a few words each; the form itself if it has none."""
    fields: Mapping[str, Any] | None = schema.get("properties")
    if not fields:
        return [f"a value of type {_type_in_words(schema)}"]
    needed = schema.get("required", ())
    return [
        f"{name} ({_type_in_words(field)}{'' if name in needed else ', may be left out'})"
        + (f": {field['description']}" if isinstance(field, dict) and "description" in field else "")
        for name, field in fields.items()
    ]


def _type_in_words(schema: Mapping[str, Any] | bool) -> str:
    if isinstance(schema, bool):  # a schema as well, which everything or nothing fits
        return "anything" if schema else "nothing"
    if "enum" in schema:
        return " or ".join(json.dumps(one, ensure_ascii=False) for one in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "anyOf" in schema:
        return " or ".join(_type_in_words(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    named = schema.get("type", "anything")
    kind = " or ".join(map(str, cast("list[object]", named))) if isinstance(named, list) else str(named)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_type_in_words(schema['items'])}"
    return f"{kind}, {schema['format']}" if "format" in schema else kind
