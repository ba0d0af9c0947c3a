"""``ask``: a question to a person, in workflow code."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar, cast, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from holdfast.admission.durations import Duration
from holdfast.authoring import program_calls
from holdfast.authoring.approval_requests import (
    RAISE,
    ApprovalPolicy,
    ApprovalResult,
    Notifier,
    OnTimeout,
    request_approval,
)
from holdfast.core.execution import Execution, get_current_execution
from holdfast.core.failure_origin import mark_origin
from holdfast.engine.program_context import find_program
from holdfast.errors import ApprovalDenied, ApprovalTimedOut, DefinitionError, UnreadableRecord, UsageError
from holdfast.services.approvals import Answer
from holdfast.stores.approvals import ApprovalRequest

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
    notify: Notifier | None = None,
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
    notify: Notifier | None = None,
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
    notify: Notifier | None = None,
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
    notify: Notifier | None = None,
) -> Any:
    """Ask a person, and wait for the answer, whether that takes a second or a month: a run that waits needs no process.

    People see the question with ``holdfast approvals``, and answer with ``holdfast approve`` and ``holdfast deny``, or
    with ``Client.approve`` and ``Client.deny``.

    Args:
        question: the text that people see.
        choices: the possible answers; the chosen one is returned. Without ``choices`` and ``form`` the answer is yes or
            no: ``True`` or ``False``.
        form: a type, such as a pydantic model, that people fill in; an instance of it is returned.
        to: who is asked, for people to read, and for ``holdfast approvals --for``.
        timeout: seconds after which the next of ``escalate_to`` is asked, for as long. After the last, ``on_timeout``
            applies.
        on_timeout: the value to return when no one has answered (default: raise ``ApprovalTimedOut``).
        remind_every: seconds between reminders.
        escalate_to: who is asked when the time is up: a name, or several, one after the other.
        notify: a function or a step that is called with an ``ApprovalNotification`` when the question is asked, and for
            every reminder and escalation. It is recorded like a step. If it fails, the question stays open.

    If a question with ``choices`` or a ``form`` is denied, ``ApprovalDenied`` is raised.
    """
    execution = get_current_execution()
    if execution is None:
        if (program := find_program()) is not None:
            asking = partial(
                cast(Any, ask), question, choices=choices, form=form, to=to, timeout=timeout, on_timeout=on_timeout,
                remind_every=remind_every, escalate_to=escalate_to, notify=notify,
            )  # fmt: skip
            return await program_calls.call_workflow_api(program, asking, "ask", question, choices, to)
        raise UsageError(
            "ask() can be called only in workflow or program code, not in a step and not outside a run: a step cannot "
            "wait for a person. Ask in the workflow, and hand the answer to the step that needs it."
        )
    try:
        policy = ApprovalPolicy(to, timeout, on_timeout, remind_every, escalate_to, notify)
        parser = _make_parser(question, choices, form)
        default = on_timeout if on_timeout is RAISE else parser.validate_default(on_timeout)
    except DefinitionError as wrong:
        raise UsageError(f"ask(): {wrong}") from None
    request = parser.request
    while True:
        result = await request_approval(execution, request, policy)
        answer = result.answer
        if answer is None:
            if default is RAISE:
                raise _make_timeout_error(execution, question, policy, result)
            return copy.deepcopy(default)  # a caller that changes it must not change the next answer
        try:
            if answer.approved:
                return parser.parse(answer.value)
        except ValidationError as invalid:
            # The type's own validators may reject a value that fits the schema.
            problem = _format_errors(invalid)
            if not execution.is_patched(f"the answer to approval {result.id} does not fit its form"):
                with execution.guard_decoding():
                    raise _make_unreadable_error(execution, question, result, problem) from invalid
            request = parser.request._replace(
                question=f"{question}\n\nThe answer of {answer.answered_by or 'somebody'} was not accepted: {problem}"
            )
        else:
            if not (choices or parser.form_adapter):
                return False
            raise _make_denied_error(execution, question, answer, result)


class _AnswerParser:
    """The request, and the parser of its answers."""

    def __init__(self, request: ApprovalRequest, form_adapter: TypeAdapter[Any] | None) -> None:
        self.request = request
        self.form_adapter = form_adapter

    def parse(self, value: Any) -> Any:
        """A person's answer, as workflow code gets it; raises ``ValidationError`` if it does not fit."""
        if self.form_adapter is not None:
            return self.form_adapter.validate_json(json.dumps(value))
        return value if self.request.choices else True

    def validate_default(self, on_timeout: Any) -> Any:
        """``on_timeout``, which must be a possible answer."""
        if self.form_adapter is not None:
            try:
                return self.form_adapter.validate_python(on_timeout, strict=True)
            except ValidationError as invalid:
                problem = _format_errors(invalid)
                raise DefinitionError(f"on_timeout={on_timeout!r} does not fit the form: {problem}") from None
        if self.request.choices:
            if on_timeout not in self.request.choices:
                raise DefinitionError(f"on_timeout={on_timeout!r} is none of the choices {self.request.choices}")
        elif not isinstance(on_timeout, bool):
            raise DefinitionError(f"on_timeout={on_timeout!r} must be True or False, as the answer is yes or no")
        return on_timeout


def _make_parser(question: str, choices: Sequence[str] | None, form: Any) -> _AnswerParser:
    if not isinstance(question, str) or not question.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"the question is a text that people can answer, not {question!r}")
    if form is not None:
        if choices is not None:
            raise DefinitionError("choices= and form= exclude each other: put the choices into the form, as a Literal")
        adapter, schema = _get_form_adapter(form)
        return _AnswerParser(ApprovalRequest(question, form_schema=schema), adapter)
    if choices is None:
        return _AnswerParser(ApprovalRequest(question), None)
    given: tuple[Any, ...] = () if isinstance(choices, str) else tuple(choices)
    is_valid = all(isinstance(choice, str) and choice.strip() for choice in given)
    if not given or not is_valid or len(set(given)) < len(given):
        raise DefinitionError(f"choices= are different texts, such as ['staging', 'production'], not {choices!r}")
    return _AnswerParser(ApprovalRequest(question, choices=given), None)


def _get_form_adapter(form: Any) -> tuple[TypeAdapter[Any], bytes]:
    try:
        return _build_form_adapter(form)
    except TypeError:  # ``Annotated`` with something unhashable
        return _build_form_adapter.__wrapped__(form)


@lru_cache(maxsize=256)
def _build_form_adapter(form: Any) -> tuple[TypeAdapter[Any], bytes]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(form)
        return adapter, json.dumps(adapter.json_schema()).encode()
    except PydanticUserError as unfit:
        raise DefinitionError(
            f"form={form!r} cannot be filled in by people: it has no JSON schema ({unfit.message})"
        ) from None


def _format_errors(invalid: ValidationError) -> str:
    problems: list[str] = []
    for error in invalid.errors(include_url=False):
        field = ".".join(str(part) for part in error["loc"])
        problems.append(f"{field}: {error['msg']}" if field else error["msg"])
    return "; ".join(problems)


def _make_unreadable_error(
    execution: Execution, question: str, result: ApprovalResult, problem: str
) -> UnreadableRecord:
    return UnreadableRecord(
        f"The answer to {question!r} (approval {result.id} of run {execution.run_id!r}) fitted its form when the run "
        f"accepted it, and does not fit the form of today: {problem}. Make the form accept the older answer too, for "
        f"example by giving new fields a default."
    )


def _make_denied_error(execution: Execution, question: str, answer: Answer, result: ApprovalResult) -> ApprovalDenied:
    why = f": {answer.reason}" if answer.reason else ""
    error = ApprovalDenied(
        f"{answer.answered_by or 'somebody'} said no to {question!r} (approval {result.id} of run "
        f"{execution.run_id!r}){why}",
        result.id,
        by=answer.answered_by,
        reason=answer.reason,
    )
    mark_origin(error, result.origin)
    return error


def _make_timeout_error(
    execution: Execution, question: str, policy: ApprovalPolicy, result: ApprovalResult
) -> ApprovalTimedOut:
    names = [name for name in policy.assignees if name]
    asked = f" (asked: {', '.join(names)})" if names else ""
    each = " each" if len(names) > 1 else ""
    error = ApprovalTimedOut(
        f"nobody answered {question!r} (approval {result.id} of run {execution.run_id!r}) within "
        f"{policy.timeout:g} s{each}{asked}. Catch ApprovalTimedOut, or say on_timeout=, to go on without an answer; "
        f"`holdfast retry {execution.run_id}` asks again.",
        result.id,
    )
    mark_origin(error, result.origin)
    return error
