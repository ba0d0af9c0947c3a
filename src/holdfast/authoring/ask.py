"""``ask``: a question to a person, in workflow code."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from holdfast.admission.durations import Duration
from holdfast.authoring.approval_requests import RAISE, ApprovalPolicy, Decided, Notify, OnTimeout, put_question
from holdfast.core.compensations import mark_origin
from holdfast.core.execution import Execution, current_execution
from holdfast.errors import ApprovalDenied, ApprovalTimedOut, DefinitionError, UnreadableRecord, UsageError
from holdfast.services.approvals import Answer
from holdfast.stores.approvals import Question

T = TypeVar("T")


@overload
async def ask(
    question: str,
    *,
    to: str = "",
    timeout: Duration | None = None,
    on_timeout: bool | OnTimeout = RAISE,
    remind_every: Duration | None = None,
    escalate_to: str | Sequence[str] = (),
    notify: Notify | None = None,
) -> bool: ...
@overload
async def ask(
    question: str,
    *,
    choices: Sequence[str],
    to: str = "",
    timeout: Duration | None = None,
    on_timeout: str | OnTimeout = RAISE,
    remind_every: Duration | None = None,
    escalate_to: str | Sequence[str] = (),
    notify: Notify | None = None,
) -> str: ...
@overload
async def ask(
    question: str,
    *,
    form: type[T],
    to: str = "",
    timeout: Duration | None = None,
    on_timeout: T | OnTimeout = RAISE,
    remind_every: Duration | None = None,
    escalate_to: str | Sequence[str] = (),
    notify: Notify | None = None,
) -> T: ...
async def ask(
    question: str,
    *,
    choices: Sequence[str] | None = None,
    form: Any = None,
    to: str = "",
    timeout: Duration | None = None,
    on_timeout: Any = RAISE,
    remind_every: Duration | None = None,
    escalate_to: str | Sequence[str] = (),
    notify: Notify | None = None,
) -> Any:
    """Ask a person, and wait for the answer, whether that takes a second or a month: a run that waits needs no process.

    People see the question with ``holdfast approvals``, and answer with ``holdfast approve`` and ``holdfast deny``, or
    by ``Client.approve`` and ``Client.deny``.

    Args:
        question: what people are shown.
        choices: what can be answered; the one that is chosen is returned. Without ``choices`` and ``form`` the answer
            is yes or no: ``True`` or ``False``.
        form: a type, such as a pydantic model, that people fill in; an instance of it is returned.
        to: who is asked, for people to read, and for ``holdfast approvals --for``.
        timeout: seconds after which the next of ``escalate_to`` is asked, and has as long. Then ``on_timeout`` holds.
        on_timeout: what is returned when nobody has answered. Unless given, ``ApprovalTimedOut`` is raised.
        remind_every: seconds after which people are reminded, again and again.
        escalate_to: who is asked when the time is over: a name, or several, one after the other.
        notify: a function or a step that is called with an ``ApprovalNotice`` when the question is asked, and for every
            reminder and escalation. It is recorded like a step. If it fails, the question stays open.

    A no to a question with ``choices`` or a ``form`` raises ``ApprovalDenied``.
    """
    execution = current_execution()
    if execution is None:
        raise UsageError(
            "ask() can be called only in workflow code, not in a step and not outside a run: a step cannot wait for a "
            "person. Ask in the workflow, and hand the answer to the step that needs it."
        )
    try:
        policy = ApprovalPolicy(to, timeout, on_timeout, remind_every, escalate_to, notify)
        reading = _reading(question, choices, form)
        instead = on_timeout if on_timeout is RAISE else reading.check(on_timeout)
    except DefinitionError as wrong:
        raise UsageError(f"ask(): {wrong}") from None
    asked = reading.question
    while True:
        decided = await put_question(execution, asked, policy)
        answer = decided.answer
        if answer is None:
            if instead is RAISE:
                raise _timed_out(execution, question, policy, decided)
            return copy.deepcopy(instead)  # whoever changes it must not change it for the next one
        try:
            if answer.approved:
                return reading.read(answer.value)
        except ValidationError as unfit:
            # The schema cannot tell everything that the type's own validators can.
            complaint = "; ".join(_fault(error) for error in unfit.errors(include_url=False))
            if not execution.patched(f"the answer to approval {decided.id} does not fit its form"):
                with execution.decoding():
                    raise _unfit_by_now(execution, question, decided, complaint) from unfit
            asked = reading.question._replace(
                text=f"{question}\n\nThe answer of {answer.by or 'somebody'} was not accepted: {complaint}"
            )
        else:
            if not (choices or reading.form):
                return False
            raise _denied(execution, question, answer, decided)


class _Reading:
    """What is asked, and how an answer is read."""

    def __init__(self, question: Question, form: TypeAdapter[Any] | None) -> None:
        self.question = question
        self.form = form

    def read(self, value: Any) -> Any:
        """What a person has answered, as workflow code gets it; raises ``ValidationError`` if it does not fit."""
        if self.form is not None:
            return self.form.validate_json(json.dumps(value))
        return value if self.question.choices else True

    def check(self, on_timeout: Any) -> Any:
        """``on_timeout``, as if it were an answer, which it must fit."""
        if self.form is not None:
            try:
                return self.form.validate_python(on_timeout, strict=True)
            except ValidationError as unfit:
                complaint = "; ".join(_fault(error) for error in unfit.errors(include_url=False))
                raise DefinitionError(f"on_timeout={on_timeout!r} does not fit the form: {complaint}") from None
        if self.question.choices:
            if on_timeout not in self.question.choices:
                raise DefinitionError(f"on_timeout={on_timeout!r} is none of the choices {self.question.choices}")
        elif not isinstance(on_timeout, bool):
            raise DefinitionError(f"on_timeout={on_timeout!r} must be True or False, as the answer is yes or no")
        return on_timeout


def _reading(question: str, choices: Sequence[str] | None, form: Any) -> _Reading:
    if not isinstance(question, str) or not question.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"the question is a text that people can answer, not {question!r}")
    if form is not None:
        if choices is not None:
            raise DefinitionError("choices= and form= exclude each other: put the choices into the form, as a Literal")
        adapter, schema = _form(form)
        return _Reading(Question(question, form=schema), adapter)
    if choices is None:
        return _Reading(Question(question), None)
    given: tuple[Any, ...] = () if isinstance(choices, str) else tuple(choices)
    if not given or len(set(given)) < len(given) or any(not isinstance(one, str) or not one.strip() for one in given):
        raise DefinitionError(f"choices= are different texts, such as ['staging', 'production'], not {choices!r}")
    return _Reading(Question(question, choices=given), None)


def _form(form: Any) -> tuple[TypeAdapter[Any], bytes]:
    try:
        return _known_form(form)
    except TypeError:  # ``Annotated`` with something unhashable
        return _known_form.__wrapped__(form)


@lru_cache(maxsize=256)
def _known_form(form: Any) -> tuple[TypeAdapter[Any], bytes]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(form)
        return adapter, json.dumps(adapter.json_schema()).encode()
    except PydanticUserError as unfit:
        raise DefinitionError(
            f"form={form!r} cannot be filled in by people: it has no JSON schema ({unfit.message})"
        ) from None


def _fault(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    return f"{where}: {error['msg']}" if where else str(error["msg"])


def _unfit_by_now(execution: Execution, question: str, decided: Decided, complaint: str) -> UnreadableRecord:
    return UnreadableRecord(
        f"The answer to {question!r} (approval {decided.id} of run {execution.run_id!r}) fitted its form when the run "
        f"accepted it, and does not fit the form of today: {complaint}. Make the form accept the older answer too, for "
        f"example by giving new fields a default."
    )


def _denied(execution: Execution, question: str, answer: Answer, decided: Decided) -> ApprovalDenied:
    why = f": {answer.reason}" if answer.reason else ""
    error = ApprovalDenied(
        f"{answer.by or 'somebody'} said no to {question!r} (approval {decided.id} of run {execution.run_id!r}){why}",
        decided.id,
        by=answer.by,
        reason=answer.reason,
    )
    mark_origin(error, decided.outcome.origin)
    return error


def _timed_out(execution: Execution, question: str, policy: ApprovalPolicy, decided: Decided) -> ApprovalTimedOut:
    whom = [who for who in policy.people if who]
    asked = f" (asked: {', '.join(whom)})" if whom else ""
    each = " each" if len(whom) > 1 else ""
    error = ApprovalTimedOut(
        f"nobody answered {question!r} (approval {decided.id} of run {execution.run_id!r}) within "
        f"{policy.timeout:g} s{each}{asked}. Catch ApprovalTimedOut, or say on_timeout=, to go on without an answer; "
        f"`holdfast retry {execution.run_id}` asks again.",
        decided.id,
    )
    mark_origin(error, decided.outcome.origin)
    return error
