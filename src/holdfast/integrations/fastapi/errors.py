"""Holdfast's errors as responses: ``FastAPI(exception_handlers=error_handlers)``.

A response has the same status and type as that of a Holdfast server (see ``services.problems``). But the callers of an
app are not trusted: they do not learn what belongs to other runs. And errors that a caller cannot have caused are
errors of the app: the handler raises them again, and the app answers with status 500.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import CodecError, HoldfastError, UsageError, ValueTooLarge
from holdfast.services.json_form import to_json_bytes
from holdfast.services.problems import MEDIA_TYPE, Problem, problem_from_error


async def handle_error(request: Request, error: Exception) -> Response:
    """The response to a request whose route raised one of Holdfast's errors."""
    problem = _find_problem(error)
    if problem is None:
        raise error
    return make_problem_response(problem)


error_handlers: Final[dict[Any, Any]] = {HoldfastError: handle_error}
"""Exception handlers for ``FastAPI(exception_handlers=...)``."""


def make_problem_response(problem: Problem) -> Response:
    """A problem as a response."""
    return Response(
        to_json_bytes(problem.to_json()), problem.status, media_type=MEDIA_TYPE, headers=dict(problem.headers)
    )


def _find_problem(error: Exception) -> Problem | None:
    is_app_error = isinstance(error, UsageError | CodecError) and not isinstance(error, ValueTooLarge)
    if is_app_error or not isinstance(error, HoldfastError):
        return None
    return problem_from_error(error, hidden_detail="")
