"""Approvals of a delivery: the question, and how its answer is decoded. They work like a workflow's ``ask``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from holdfast.errors import ApprovalDenied, ApprovalTimedOut, UsageError
from holdfast.services.approvals import Answer


class InvalidAnswer(Exception):
    """The form's own validators reject the answer; the message says why."""


class DeliveryApproval:
    """A question to people, with its choices or its form."""

    def __init__(
        self, run_id: str, question: str, choices: Sequence[str], form: Any, assignee: str, timeout: float | None
    ) -> None:
        if not isinstance(question, str) or not question.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"ask(): the question is a text that people can answer, not {question!r}")
        if form is not None and choices:
            raise UsageError(
                "ask(): choices= and form= exclude each other: put the choices into the form, as a Literal"
            )
        if isinstance(choices, str):
            raise UsageError(f"ask(): choices= are different texts, such as ['staging', 'production'], not {choices!r}")
        self._run_id = run_id
        self._question = question
        self._choices = list(choices)
        self._assignee = assignee
        self._timeout = timeout
        self._schema: dict[str, Any] | None = None
        self._adapter: TypeAdapter[Any] | None = None
        if isinstance(form, dict):
            self._schema = cast("dict[str, Any]", form)
        elif form is not None:
            try:
                self._adapter = TypeAdapter(form)
                self._schema = self._adapter.json_schema()
            except PydanticUserError as error:
                raise UsageError(f"ask(): form={form!r} cannot be filled in by people: {error.message}") from None

    def to_json(self, name: str, rejection: str = "") -> dict[str, Any]:
        """The request to the server."""
        required = {"name": name, "question": f"{self._question}\n\n{rejection}" if rejection else self._question}
        optional = {
            "choices": self._choices,
            "form": self._schema,
            "assignee": self._assignee,
            "timeout": self._timeout,
        }
        return required | {key: value for key, value in optional.items() if value not in (None, "", [])}

    def decode_answer(self, output: Any) -> Any:
        """The person's answer. Raises ``InvalidAnswer``, ``ApprovalDenied``, and ``ApprovalTimedOut``."""
        if output is None:
            raise ApprovalTimedOut(
                f"nobody answered {self._question!r} of run {self._run_id!r} within {self._timeout or 0:g} s. Catch "
                f"ApprovalTimedOut to go on without an answer"
            )
        answer = Answer.from_payload(json.dumps(output).encode())
        has_value = bool(self._choices) or self._schema is not None
        if not answer.approved:
            if not has_value:
                return False
            reason = f": {answer.reason}" if answer.reason else ""
            raise ApprovalDenied(
                f"{answer.answered_by or 'somebody'} said no to {self._question!r} of run {self._run_id!r}{reason}",
                by=answer.answered_by,
                reason=answer.reason,
            )
        if self._adapter is None:
            return answer.value if has_value else True
        try:
            return self._adapter.validate_json(json.dumps(answer.value))
        except ValidationError as invalid:
            # The server checks the answer against the schema, which cannot express all checks of the type's validators.
            errors = "; ".join(_format_error(error) for error in invalid.errors(include_url=False))
            raise InvalidAnswer(
                f"The answer of {answer.answered_by or 'somebody'} was not accepted: {errors}"
            ) from None


def _format_error(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    return f"{path}: {error['msg']}" if path else str(error["msg"])
