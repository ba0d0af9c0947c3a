"""What the workflow of a program has in place of a driver: the driver itself is in the activity (``program_host``)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from temporalio.api.common.v1 import Payload

from holdfast.core.states import RunState
from holdfast.stores.claims import RunRequests
from holdfast.stores.operations import Run
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.outcomes import encode_step_failure
from holdfast.stores.temporal.payloads import from_payload, get_note
from holdfast.stores.temporal.run_events import EndStatus, ProgramStopped
from holdfast.temporal.task_results import read_end

if TYPE_CHECKING:
    from holdfast.temporal.live_program import LiveProgram


class RemoteDriver:
    """The part of a driver that the workflow of a program needs; the driver itself is in the activity."""

    has_fatal_error = False

    def __init__(self, program: LiveProgram, run: Run) -> None:
        self.run = run
        self.is_started = self.is_closed = False
        self._program = program

    def handle_request(self, request: RunRequests) -> None:
        """Tell the program of the request."""
        self._program.post_request(request)

    def fail(self, error: BaseException) -> None:
        """End the run."""
        self._program.fail(error)

    def unload(self) -> None:
        """Leave memory."""
        self.is_closed = True


def read_stop(task: Any, run_id: str) -> ProgramStopped:
    """Why an activity ended."""
    end = read_end(task)
    if end.status is not EndStatus.COMPLETED:
        # Failures of the program are results: the activity was stopped from outside, or has a bug.
        return ProgramStopped(RunState.FAILED, encode_step_failure(end, identifiers.PROGRAM_ACTIVITY, run_id))
    payload: Payload = task.result().payload
    rewind = get_note(payload, identifiers.REWIND_NOTE)
    return ProgramStopped(
        get_note(payload, identifiers.STOP_NOTE), from_payload(payload), json.loads(rewind) if rewind else None
    )
