"""Problems as responses. An error inside the server has only a number to look for in the server's log."""

from __future__ import annotations

from holdfast.server.http.response import Response
from holdfast.services.json_form import to_json_bytes
from holdfast.services.problems import MEDIA_TYPE, Problem


def make_problem_response(problem: Problem, request_id: str) -> Response:
    """The response to a request."""
    content = to_json_bytes({**problem.to_json(), "request_id": request_id})
    return Response(content, problem.status, media_type=MEDIA_TYPE, headers=problem.headers)


def server_error_problem(error_id: str) -> Problem:
    """The problem of an error inside the server, with only its number in the log."""
    return Problem(
        500, "server-error", "The server failed", f"Look for {error_id} in the server's log.", error_id=error_id
    )
