"""Answers that are errors, as the exceptions that a client over a store would raise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.services.api_keys import UnknownApiKey

MEDIA_TYPE = "application/problem+json"

_ERRORS_BY_STATE: Final[Mapping[str, type[errors.RunUnsuccessful]]] = {
    "failed": errors.RunFailed,
    "cancelled": errors.RunCancelled,
    "dead": errors.RunDead,
}

_INPUTS_PATH: Final = re.compile(r"^(calls\.\d+\.)?kwargs\.")
"""Where the inputs of a run are in a request."""


def _run_error_parser(kind: type[errors.RunError]) -> Callable[[str, Mapping[str, Any]], HoldfastError]:
    return lambda message, told: kind(message, str(told.get("run_id", "")))


def _approval_error_parser(kind: type[errors.ApprovalError]) -> Callable[[str, Mapping[str, Any]], HoldfastError]:
    return lambda message, told: kind(message, str(told.get("approval_id", "")))


def _parse_run_unsuccessful(message: str, problem: Mapping[str, Any]) -> HoldfastError:
    state = str(problem.get("state", ""))
    kind = _ERRORS_BY_STATE.get(state, errors.RunUnsuccessful)
    failure = problem.get("error")
    reason = ": ".join(map(str, cast("dict[str, Any]", failure).values())) if isinstance(failure, dict) else ""
    return kind(message, str(problem.get("run_id", "")), state=state, error=reason)


def _parse_delivery_lost(message: str, problem: Mapping[str, Any]) -> HoldfastError:
    return errors.DeliveryLost(message, str(problem.get("run_id", "")), reason=str(problem.get("reason", "unknown")))


def _parse_retry_refused(message: str, problem: Mapping[str, Any]) -> HoldfastError:
    needed = problem.get("needs_run_again") is True
    return errors.RetryRefused(message, str(problem.get("run_id", "")), needs_run_again=needed)


def _parse_input_error(message: str, problem: Mapping[str, Any]) -> HoldfastError:
    found = cast("list[Any]", problem["violations"]) if isinstance(problem.get("violations"), list) else []
    violations = [cast("dict[str, str]", one) for one in found if isinstance(one, dict)]
    return errors.InputError(
        message, [{**one, "path": _INPUTS_PATH.sub("", str(one.get("path")))} for one in violations]
    )


def _plain_error_parser(kind: type[HoldfastError]) -> Callable[[str, Mapping[str, Any]], HoldfastError]:
    return lambda message, told: kind(message)


PARSERS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], HoldfastError]]] = {
    "run-not-found": _run_error_parser(errors.RunNotFound),
    "unknown-workflow": _plain_error_parser(errors.UnknownWorkflow),
    "unknown-schedule": _plain_error_parser(errors.UnknownSchedule),
    "unknown-queue": _plain_error_parser(errors.UnknownQueue),
    "unknown-approval": _approval_error_parser(errors.UnknownApproval),
    "run-conflict": _run_error_parser(errors.RunConflict),
    "run-ended": _run_error_parser(errors.RunEnded),
    "run-unsuccessful": _parse_run_unsuccessful,
    "delivery-lost": _parse_delivery_lost,
    "delivery-not-found": _parse_delivery_lost,
    "retry-refused": _parse_retry_refused,
    "settle-refused": _run_error_parser(errors.SettleRefused),
    "approval-closed": _approval_error_parser(errors.ApprovalClosed),
    "workflow-disabled": _plain_error_parser(errors.WorkflowDisabled),
    "value-too-large": _plain_error_parser(errors.ValueTooLarge),
    "too-large": _plain_error_parser(errors.ValueTooLarge),
    "too-deep": _plain_error_parser(errors.UnrecordableValue),
    "too-many-values": _plain_error_parser(errors.UnrecordableValue),
    "unknown-key": _plain_error_parser(UnknownApiKey),
    "bad-input": _parse_input_error,
    "bad-request": _plain_error_parser(errors.UsageError),
    "bad-value": _plain_error_parser(errors.CodecError),
    "undecryptable-value": _plain_error_parser(errors.UndecryptableValue),
    "store-unavailable": _plain_error_parser(errors.StoreUnavailable),
    "store-read-only": _plain_error_parser(errors.StoreReadOnly),
}
"""By the type of the problem."""


def error_from_response(status: int, body: Any, url: str, request_line: str) -> HoldfastError:
    """The exception for an answer.

    Args:
        status: its status.
        body: its body, if it was JSON.
        url: the server's.
        request_line: what was asked for, such as ``GET /v1/runs``.
    """
    problem: Mapping[str, Any] = body if isinstance(body, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
    type_, title = str(problem.get("type", "")), str(problem.get("title", ""))
    words = str(problem.get("detail", "") or title)
    if type_ in PARSERS:
        return PARSERS[type_](words, problem)
    if status == 401:
        return errors.Unauthenticated(
            f"{url} does not know the caller: {words or 'it asks for an API key.'} A key is given as "
            f"Client(..., api_key=...) or HOLDFAST_API_KEY",
            status,
        )
    if status == 403:
        scope = str(problem.get("scope", ""))
        return errors.NotAllowed(
            f"{url} refuses {request_line}: {words or 'the key may not do that'}", status, scope=scope
        )
    if type_ == "policy-limit":
        return errors.PolicyLimitReached(words, status)
    if status == 429:
        return errors.TooManyRequests(f"{url} is asked too often: {words or 'try again later'}", status)
    if type_:
        return errors.ServerError(f"{url} refuses {request_line}: {words} ({type_})", status)
    if 300 <= status < 400:
        return errors.ServerError(
            f"{url} redirects {request_line} elsewhere, which is not followed, so that the key goes nowhere else: give "
            "the "
            f"address that the server has",
            status,
        )
    return errors.ServerError(
        f"{url} has answered {request_line} with {status}, and not as a Holdfast server does. Is it one, of a version "
        "that "
        f"knows this? GET {url}/v1/health tells",
        status,
    )
