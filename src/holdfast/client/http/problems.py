"""Answers that are errors, as the exceptions that a client over a store would raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.services.api_keys import UnknownKey

MEDIA_TYPE = "application/problem+json"

_ENDS: Final[Mapping[str, type[errors.RunUnsuccessful]]] = {
    "failed": errors.RunFailed,
    "cancelled": errors.RunCancelled,
    "dead": errors.RunDead,
}


def _of_run(kind: type[errors.RunError]) -> Callable[[str, Mapping[str, Any]], HoldfastError]:
    return lambda message, told: kind(message, str(told.get("run_id", "")))


def _of_approval(kind: type[errors.ApprovalError]) -> Callable[[str, Mapping[str, Any]], HoldfastError]:
    return lambda message, told: kind(message, str(told.get("approval_id", "")))


def _unsuccessful(message: str, told: Mapping[str, Any]) -> HoldfastError:
    state = str(told.get("state", ""))
    kind = _ENDS.get(state, errors.RunUnsuccessful)
    failure = told.get("error")
    reason = ": ".join(map(str, cast("dict[str, Any]", failure).values())) if isinstance(failure, dict) else ""
    return kind(message, str(told.get("run_id", "")), state=state, error=reason)


def _lost(message: str, told: Mapping[str, Any]) -> HoldfastError:
    return errors.DeliveryLost(message, str(told.get("run_id", "")), reason=str(told.get("reason", "unknown")))


def _not_retried(message: str, told: Mapping[str, Any]) -> HoldfastError:
    needed = told.get("needs_run_again") is True
    return errors.RetryRefused(message, str(told.get("run_id", "")), needs_run_again=needed)


def _unfit(message: str, told: Mapping[str, Any]) -> HoldfastError:
    faults = cast("list[Any]", told["faults"]) if isinstance(told.get("faults"), list) else []
    fits = [cast("dict[str, str]", one) for one in faults if isinstance(one, dict)]
    return errors.InputError(message, [{**one, "where": str(one.get("where")).removeprefix("body.")} for one in fits])


def _plain(kind: type[HoldfastError]) -> Callable[[str, Mapping[str, Any]], HoldfastError]:
    return lambda message, told: kind(message)


KINDS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], HoldfastError]]] = {
    "run-not-found": _of_run(errors.RunNotFound),
    "unknown-workflow": _plain(errors.UnknownWorkflow),
    "unknown-schedule": _plain(errors.UnknownSchedule),
    "unknown-queue": _plain(errors.UnknownQueue),
    "unknown-approval": _of_approval(errors.UnknownApproval),
    "run-conflict": _of_run(errors.RunConflict),
    "run-ended": _of_run(errors.RunEnded),
    "run-unsuccessful": _unsuccessful,
    "delivery-lost": _lost,
    "delivery-not-found": _lost,
    "retry-refused": _not_retried,
    "settle-refused": _of_run(errors.SettleRefused),
    "approval-closed": _of_approval(errors.ApprovalClosed),
    "workflow-switched-off": _plain(errors.WorkflowSwitchedOff),
    "value-too-large": _plain(errors.ValueTooLarge),
    "too-large": _plain(errors.ValueTooLarge),
    "too-deep": _plain(errors.UnrecordableValue),
    "too-many-values": _plain(errors.UnrecordableValue),
    "unknown-key": _plain(UnknownKey),
    "bad-input": _unfit,
    "bad-request": _plain(errors.UsageError),
    "bad-value": _plain(errors.CodecError),
    "value-sealed": _plain(errors.UndecryptableValue),
    "store-unavailable": _plain(errors.StoreUnavailable),
    "store-read-only": _plain(errors.StoreReadOnly),
}
"""By the type of the problem."""


def error_of(status: int, told: Any, url: str, asked: str) -> HoldfastError:
    """The exception for an answer.

    Args:
        status: its status.
        told: its body, if it was JSON.
        url: the server's.
        asked: what was asked for, as ``GET /v1/runs``.
    """
    problem: Mapping[str, Any] = told if isinstance(told, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
    type_, title = str(problem.get("type", "")), str(problem.get("title", ""))
    words = str(problem.get("detail", "") or title)
    if type_ in KINDS:
        return KINDS[type_](words, problem)
    if status == 401:
        return errors.Unauthenticated(
            f"{url} does not know the caller: {words or 'it asks for an API key.'} A key is given as "
            f"Client(..., api_key=...) or HOLDFAST_API_KEY",
            status,
        )
    if status == 403:
        scope = str(problem.get("scope", ""))
        return errors.NotAllowed(f"{url} refuses {asked}: {words or 'the key may not do that'}", status, scope=scope)
    if type_ == "policy-limit":
        return errors.PolicyLimit(words, status)
    if status == 429:
        return errors.TooManyRequests(f"{url} is asked too often: {words or 'try again later'}", status)
    if type_:
        return errors.ServerError(f"{url} refuses {asked}: {words} ({type_})", status)
    if 300 <= status < 400:
        return errors.ServerError(
            f"{url} redirects {asked} elsewhere, which is not followed, so that the key goes nowhere else: give the "
            f"address that the server has",
            status,
        )
    return errors.ServerError(
        f"{url} has answered {asked} with {status}, and not as a Holdfast server does. Is it one, of a version that "
        f"knows this? GET {url}/v1/health tells",
        status,
    )
