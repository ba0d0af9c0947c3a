"""The other runs that a run starts or waits for.

Temporal reports the end of a child, which goes to each command that waits for it. For a run that is not a child of this
execution, because another caller or an earlier execution started it, an activity waits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.states import RunState
from holdfast.engine.journal_writer import AnswerCallback
from holdfast.stores.operations import NewRun, OpStatus, Run, RunLink, StartResult
from holdfast.stores.temporal.awaited_run import AwaitedRun, found_run_from_json
from holdfast.stores.temporal.outcomes import unpack_child_result
from holdfast.stores.temporal.run_events import ChildEnded, ChildStarted, EndResult, EndStatus, StepEnded
from holdfast.temporal import start_limiter
from holdfast.temporal.start_limiter import StartLimiter

if TYPE_CHECKING:
    from holdfast.temporal.temporal_run import TemporalRun


class LinkedRuns:
    """The links of a run to other runs."""

    def __init__(self, run: TemporalRun) -> None:
        self._run = run
        self._pending: dict[int, tuple[NewRun | None, str, RunLink, AnswerCallback]] = {}
        """Links whose run is not known to exist yet, with its ``NewRun`` if this run starts it, by position."""
        self._child_ids: set[str] = set()
        self._child_endings: dict[str, EndResult] = {}
        self._waiting_positions: dict[str, list[int]] = {}
        """Positions of the commands that wait for a child, by its id."""
        self._await_positions: set[int] = set()
        """Positions with an activity that waits for a run that is not a child."""
        self._start_limiter = StartLimiter(start_limiter.MAX_CHILDREN)

    @property
    def has_pending(self) -> bool:
        """Whether a command waits for the start or the end of another run."""
        return bool(self._pending or self._waiting_positions)

    def start(self, new: NewRun, link: RunLink, on_answer: AnswerCallback) -> None:
        """Start a child."""
        self._pending[link.position] = new, new.id, link, on_answer
        self._start_limiter.start_when_possible(
            link.position,
            partial(self._run.start_child_workflow, new, link.position, is_awaited=link.is_awaited),
            start_limiter.estimate_message_size(new.inputs, external_payloads=self._run.has_external_payloads),
        )

    def cancel(self, run_id: str) -> None:
        """Cancel a child, or do not start it at all."""
        for position, (_, id, _, on_answer) in list(self._pending.items()):
            if id == run_id and self._start_limiter.discard_waiting(position):
                del self._pending[position]
                self._run.call_soon(on_answer, OpStatus.UNKNOWN_RUN)
                return
        if run_id not in self._child_endings:
            self._run.cancel_child(run_id)

    def on_child_started(self, event: ChildStarted) -> None:
        """A child started, or did not because its id is taken."""
        (self._start_limiter.note_accepted if event.is_new else self._start_limiter.note_ended)(event.position)
        pending = self._pending.pop(event.position, None)
        if pending is None:
            return
        new, run_id, link, on_answer = pending
        assert new is not None
        if not event.is_new:
            # There is already a run with this id, which may be the one that is meant.
            self._pending[event.position] = pending
            run = self._run.driver.run
            self._start_await(run_id, link, reopen=bool(run.rewind_points) and new.parent == run.id)
            return
        self._child_ids.add(run_id)
        if link.is_awaited:
            self._waiting_positions.setdefault(run_id, []).append(link.position)
        on_answer(StartResult(make_row(new), is_new=True, is_linked=True))

    def wait_for(self, run_id: str, link: RunLink, on_answer: AnswerCallback) -> None:
        """Wait for the end of a run that was started before."""
        if run_id not in self._child_ids:
            self._pending[link.position] = None, run_id, link, on_answer
            self._start_await(run_id, link)
        elif run_id in self._child_endings:
            state, output, error = unpack_child_result(self._child_endings[run_id])
            self._run.call_soon(on_answer, StartResult(make_row(None, run_id, state, output, error), is_new=False))
        else:
            self._waiting_positions.setdefault(run_id, []).append(link.position)
            self._run.call_soon(on_answer, StartResult(make_row(None, run_id), is_new=False, is_linked=True))

    def cancel_stale_awaits(self) -> None:
        """Cancel the activities that wait for a run that the code no longer waits for."""
        open_commands = self._run.driver.execution.open_commands
        for position in list(self._await_positions):
            if position not in open_commands:
                self._await_positions.discard(position)
                self._pending.pop(position, None)
                self._run.cancel_await(position)

    def _start_await(self, run_id: str, link: RunLink, *, reopen: bool = False) -> None:
        self._await_positions.add(link.position)
        awaited = AwaitedRun(run_id, wait=link.is_awaited, reopen=reopen)
        self._run.activity_limiter.start_when_possible(
            link.position, partial(self._run.start_await, link.position, awaited)
        )

    def on_await_ended(self, event: StepEnded) -> None:
        """An activity found a run, or waited for its end."""
        self._await_positions.discard(event.position)
        pending = self._pending.pop(event.position, None)
        if pending is None:
            return
        _, run_id, _, on_answer = pending
        found = found_run_from_json(event.result.payload) if event.result.status is EndStatus.COMPLETED else None
        if found is None:
            on_answer(OpStatus.UNKNOWN_RUN)
        else:
            row = make_row(None, run_id, found.state, found.output, found.error)
            on_answer(StartResult(replace(row, workflow=found.workflow, digest=found.digest), is_new=False))

    def on_child_ended(self, event: ChildEnded) -> None:
        """A child ended: give its result to the commands that wait for it."""
        self._start_limiter.note_ended(event.position)
        self._child_endings[event.run_id] = event.result
        state, output, error = unpack_child_result(event.result)
        for position in self._waiting_positions.pop(event.run_id, ()):
            self._run.add_signal(state, output or error or b"null", self._run.clock.now(), position)


def make_row(
    new: NewRun | None,
    run_id: str = "",
    state: RunState = RunState.RUNNING,
    output: bytes | None = None,
    error: bytes | None = None,
) -> Run:
    """The part of another run's row that the driver reads."""
    return Run(
        key=0, id=run_id if new is None else new.id, workflow="" if new is None else new.workflow, queue="default",
        state=state, epoch=1, owner=None, starter=None, delivery_count=0, max_deliveries=1, wake_at=None, waits_for="",
        priority=0, deadline=None, inputs=b"", digest=b"" if new is None else new.digest, seed=b"", output=output,
        error=error, tags=(), python_version="", created_at=0.0, finished_at=None, clock_started_at=0.0,
    )  # fmt: skip
