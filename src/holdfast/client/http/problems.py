"""Error responses, as the exceptions that a client over a store raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.services.api_keys import UnknownApiKey

_ERRORS_BY_STATE: Final[Mapping[str, type[errors.RunUnsuccessful]]] = {
    "failed": errors.RunFailed,
    "cancelled": errors.RunCancelled,
    "dead": errors.RunDead,
}

_INPUTS_PATH: Final = re.compile(r"^(calls\.\d+\.)?kwargs\.")
"""The path to the inputs of a run in a request."""


ERRORS_BY_TYPE: Final[Mapping[str, type[HoldfastError]]] = {
    "run-not-found": errors.RunNotFound,
    "unknown-workflow": errors.UnknownWorkflow,
    "unknown-schedule": errors.UnknownSchedule,
    "unknown-queue": errors.UnknownQueue,
    "unknown-approval": errors.UnknownApproval,
    "run-conflict": errors.RunConflict,
    "run-ended": errors.RunEnded,
    "run-unsuccessful": errors.RunUnsuccessful,
    "delivery-lost": errors.DeliveryLost,
    "delivery-not-found": errors.DeliveryLost,
    "retry-refused": errors.RetryRefused,
    "run-erased": errors.RunErased,
    "settle-refused": errors.SettleRefused,
    "outcome-unknown": errors.StepOutcomeUnknown,
    "approval-closed": errors.ApprovalClosed,
    "workflow-disabled": errors.WorkflowDisabled,
    "value-too-large": errors.ValueTooLarge,
    "too-large": errors.ValueTooLarge,
    "too-deep": errors.UnrecordableValue,
    "too-many-values": errors.UnrecordableValue,
    "key-not-found": UnknownApiKey,
    "bad-input": errors.InputError,
    "bad-request": errors.UsageError,
    "bad-value": errors.CodecError,
    "value-erased": errors.ValueErased,
    "undecryptable-value": errors.UndecryptableValue,
    "store-unavailable": errors.StoreUnavailable,
    "store-read-only": errors.StoreReadOnly,
    "server-outdated": errors.StoreUnavailable,  # another server may be a newer one
}
"""The exception for each type of problem."""


def error_from_problem(kind: type[HoldfastError], message: str, problem: Mapping[str, Any]) -> HoldfastError:
    """An exception of this kind, with the details of a problem."""
    run_id = str(problem.get("run_id", ""))
    if issubclass(kind, errors.RunUnsuccessful):
        state, failure = str(problem.get("state", "")), problem.get("error")
        reason = ": ".join(map(str, cast("dict[str, Any]", failure).values())) if isinstance(failure, dict) else ""
        return _ERRORS_BY_STATE.get(state, kind)(message, run_id, state=state, error=reason)
    if issubclass(kind, errors.DeliveryLost):
        return kind(message, run_id, reason=str(problem.get("reason", "unknown")))
    if issubclass(kind, errors.RetryRefused):
        return kind(message, run_id, needs_run_again=problem.get("needs_run_again") is True)
    if issubclass(kind, errors.RunError):
        return kind(message, run_id)
    if issubclass(kind, errors.ApprovalError):
        return kind(message, str(problem.get("approval_id", "")))
    if issubclass(kind, errors.InputError):
        found = cast("list[Any]", problem["violations"]) if isinstance(problem.get("violations"), list) else []
        violations = [cast("dict[str, str]", one) for one in found if isinstance(one, dict)]
        return kind(message, [{**one, "path": _INPUTS_PATH.sub("", str(one.get("path")))} for one in violations])
    return kind(message)


def error_from_response(status: int, body: Any, url: str, request_line: str) -> HoldfastError:
    """The exception for an error response.

    Args:
        status: its status.
        body: its body, if it was JSON.
        url: of the server.
        request_line: of the request, such as ``GET /v1/runs``.
    """
    problem: Mapping[str, Any] = body if isinstance(body, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
    type_, title = str(problem.get("type", "")), str(problem.get("title", ""))
    words = str(problem.get("detail", "") or title)
    if type_ in ERRORS_BY_TYPE:
        return error_from_problem(ERRORS_BY_TYPE[type_], words, problem)
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
            f"the address that the server has",
            status,
        )
    return errors.ServerError(
        f"{url} has answered {request_line} with {status}, and not as a Holdfast server does. Is it one, of a version "
        f"that knows this? GET {url}/v1/health tells",
        status,
    )
