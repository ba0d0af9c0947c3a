"""What goes wrong, as HTTP tells it: ``application/problem+json`` (RFC 9457).

A problem has a ``type`` that programs can rely on, a ``detail`` that says what happened and what to do, and the run or
question that it is about. Errors of Holdfast are told as they are: they are written for whoever asked. Anything else is
a fault of the server's, of which the outside learns nothing but a number to look for in its log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse

from holdfast import errors

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 1
"""Seconds after which a store that cannot be reached is worth another try."""


class Json(JSONResponse):
    """An answer in JSON. Halves of characters, which a model may have said, become question marks."""

    def render(self, content: Any) -> bytes:
        """As it is sent."""
        return to_text(content)


def to_text(content: Any) -> bytes:
    """JSON as it is sent."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        type: str,
        title: str,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail or title)
        self.status = status
        self.type = type
        self.title = title
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = {name: value for name, value in more.items() if value is not None}

    def as_json(self) -> dict[str, Any]:
        """The body."""
        detail = {"detail": self.detail} if self.detail else {}
        return {"type": self.type, "title": self.title, "status": self.status, **detail, **self.more}

    def response(self, request_id: str = "") -> Json:
        """The answer to a request."""
        named = {"request_id": request_id} if request_id else {}
        return Json(self.as_json() | named, self.status, headers=self.headers, media_type=MEDIA_TYPE)


_KINDS: Final[Mapping[type[errors.HoldfastError], tuple[int, str, str]]] = {
    errors.RunNotFound: (404, "run-not-found", "There is no such run"),
    errors.UnknownWorkflow: (404, "unknown-workflow", "No worker has announced such a workflow"),
    errors.UnknownSchedule: (404, "unknown-schedule", "There is no such schedule"),
    errors.UnknownQueue: (404, "unknown-queue", "There is no such queue that has limits"),
    errors.UnknownApproval: (404, "unknown-approval", "There is no such question"),
    errors.RunConflict: (409, "run-conflict", "The id belongs to another run"),
    errors.RunEnded: (409, "run-ended", "The run has ended"),
    errors.RunUnsuccessful: (409, "run-unsuccessful", "The run under this id has ended without a result"),
    errors.RetryRefused: (409, "retry-refused", "The run cannot be retried"),
    errors.SettleRefused: (409, "settle-refused", "The step cannot be settled"),
    errors.ApprovalClosed: (409, "approval-closed", "The question takes no answer any more"),
    errors.WorkflowSwitchedOff: (409, "workflow-switched-off", "The workflow is switched off"),
    errors.ValueTooLarge: (413, "value-too-large", "A value is too large"),
    errors.InputError: (422, "bad-input", "The values do not fit"),
    errors.UsageError: (422, "bad-request", "That cannot be done in this way"),
    errors.UndecryptableValue: (500, "value-sealed", "A value is sealed, and the server cannot open it"),
    errors.CodecError: (422, "bad-value", "A value cannot be recorded"),
    errors.StoreUnavailable: (503, "store-unavailable", "The store cannot be reached at the moment"),
    errors.StoreReadOnly: (503, "store-read-only", "The store cannot be written"),
}
"""By the nearest class above an error's own."""
_ABOUT = ("run_id", "approval_id", "state", "error", "needs_run_again")
"""What errors tell beside their words."""


_STORE_URL: Final = re.compile(r"\b(?:sqlite|postgres|postgresql|temporal|memory)://(?:[^\s'\"`]*[^\s'\"`.,:;)])?")


_REVEALING = (
    errors.RunConflict,
    errors.RunUnsuccessful,
    errors.UnknownQueue,
    errors.UnknownSchedule,
    errors.UnknownWorkflow,
)
"""Errors whose words describe other callers' runs, or list what there is."""


def problem_of(error: errors.HoldfastError, *, may_read: bool = True) -> Problem | None:
    """An error of Holdfast's as a problem; ``None``: it is a fault of the server's.

    A caller that may not read gets only the kind of an error that describes other callers' runs.
    """
    for kind in type(error).__mro__:
        if kind in _KINDS:
            status, name, title = _KINDS[kind]
            headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else {}
            # What a store says of itself, and where it is, is for those who run it.
            detail = "" if status == 503 else _STORE_URL.sub("this server's store", str(error))
            more = {about: getattr(error, about, None) or None for about in _ABOUT}
            if isinstance(error, errors.RunUnsuccessful) and error.error:
                type_, _, message = error.error.partition(": ")
                more["error"] = {"type": type_, "message": message}
            if not may_read and isinstance(error, _REVEALING):
                detail = "A key with the scope 'read' is told more."
                more["error"] = None
            if isinstance(error, errors.InputError):  # what they are about has come in the body
                faults = [{**fault, "where": f"body.{fault['where']}"} for fault in error.faults]
                more["faults"] = faults or None
            return Problem(status, name, title, detail, headers=headers, **more)
    return None


def server_fault(number: str) -> Problem:
    """What the outside learns of a fault."""
    return Problem(500, "server-fault", "The server failed", f"Look for {number} in the server's log.", fault=number)
