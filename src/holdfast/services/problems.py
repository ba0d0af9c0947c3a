"""Problems: errors as HTTP describes them, in the form ``application/problem+json`` (RFC 9457).

A problem has a ``type`` that programs can rely on, a ``detail`` that says what happened and what to do, and the run or
approval that it is about. Holdfast's errors keep their messages, which are written for the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from holdfast import errors

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
"""Seconds after which to try again if the store cannot be reached."""


class Problem(Exception):
    """A response that reports an error."""

    def __init__(
        self,
        status: int,
        type: str,
        title: str,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        **extensions: Any,
    ) -> None:
        super().__init__(detail or title)
        self.status = status
        self.type = type
        self.title = title
        self.detail = detail
        self.headers = dict(headers or {})
        self.extensions = {name: value for name, value in extensions.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """The body of the response, without the id of the request."""
        detail = {"detail": self.detail} if self.detail else {}
        return {"type": self.type, "title": self.title, "status": self.status, **detail, **self.extensions}


_PROBLEMS_BY_ERROR: Final[Mapping[type[errors.HoldfastError], tuple[int, str, str]]] = {
    errors.RunNotFound: (404, "run-not-found", "There is no such run"),
    errors.UnknownWorkflow: (404, "unknown-workflow", "No worker has announced such a workflow"),
    errors.UnknownSchedule: (404, "unknown-schedule", "There is no such schedule"),
    errors.UnknownQueue: (404, "unknown-queue", "There is no such queue"),
    errors.UnknownApproval: (404, "unknown-approval", "There is no such question"),
    errors.RunConflict: (409, "run-conflict", "The id belongs to another run"),
    errors.RunEnded: (409, "run-ended", "The run has ended"),
    errors.RunUnsuccessful: (409, "run-unsuccessful", "The run under this id has ended without a result"),
    errors.RetryRefused: (409, "retry-refused", "The run cannot be retried"),
    errors.RunErased: (409, "run-erased", "What the run recorded was erased"),
    errors.SettleRefused: (409, "settle-refused", "The step cannot be settled"),
    errors.ApprovalClosed: (409, "approval-closed", "The question takes no answer any more"),
    errors.WorkflowDisabled: (409, "workflow-disabled", "The workflow is disabled"),
    errors.ValueTooLarge: (413, "value-too-large", "A value is too large"),
    errors.InputError: (422, "bad-input", "The values do not fit"),
    errors.UsageError: (422, "bad-request", "That cannot be done in this way"),
    errors.ValueErased: (410, "value-erased", "The value was erased"),
    errors.UndecryptableValue: (500, "undecryptable-value", "A value is encrypted, and the server cannot decrypt it"),
    errors.CodecError: (422, "bad-value", "A value cannot be recorded"),
    errors.StoreUnavailable: (503, "store-unavailable", "The store cannot be reached at the moment"),
    errors.StoreReadOnly: (503, "store-read-only", "The store cannot be written"),
    errors.SchemaTooNew: (
        503,
        "server-outdated",
        "A newer release has migrated the store",
    ),
}
"""Status, type, and title by error. An error without an entry has that of its nearest base class."""
_ERROR_FIELDS = ("run_id", "approval_id", "state", "error", "needs_run_again")
_STORE_URL: Final = re.compile(r"\b(?:sqlite|postgres|postgresql|temporal|memory)://(?:[^\s'\"`]*[^\s'\"`.,:;)])?")
_REVEALING_ERRORS = (
    errors.RunConflict,
    errors.RunUnsuccessful,
    errors.UnknownQueue,
    errors.UnknownSchedule,
    errors.UnknownWorkflow,
)
"""Errors with messages that describe other callers' runs, or list what exists."""


def problem_from_error(error: errors.HoldfastError, *, hidden_detail: str | None = None) -> Problem | None:
    """One of Holdfast's errors as a problem; ``None``: it is an error inside the server.

    If an error describes other callers' runs, ``hidden_detail`` replaces what it says; default: nothing is hidden.
    """
    for kind in type(error).__mro__:
        if kind in _PROBLEMS_BY_ERROR:
            status, name, title = _PROBLEMS_BY_ERROR[kind]
            headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
            # Messages about the store, and its URL, are for the operator of the server.
            detail = "" if status == 503 else _STORE_URL.sub("this server's store", str(error))
            extensions = {field: getattr(error, field, None) or None for field in _ERROR_FIELDS}
            if isinstance(error, errors.RunUnsuccessful) and error.error:
                type_, _, message = error.error.partition(": ")
                extensions["error"] = {"type": type_, "message": message}
            if hidden_detail is not None and isinstance(error, _REVEALING_ERRORS):
                detail = hidden_detail
                extensions["error"] = None
            if isinstance(error, errors.InputError):
                extensions["violations"] = error.violations or None
            return Problem(status, name, title, detail, headers=headers, **extensions)
    return None
