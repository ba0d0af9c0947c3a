"""Histories that are kept in files, and what they are taken through."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from holdfast.authoring.registry import definitions
from holdfast.codec import preview_arguments
from holdfast.stores.operations import FinishRun, NewRun
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.awaited_run import AwaitedRun
from holdfast.stores.temporal.payloads import from_payload, load_json
from holdfast.temporal.engine_context import EngineContext, TemporalSettings
from holdfast.temporal.rebuilt_runs import RebuiltRun, trim_transient_events
from holdfast.temporal.run_workflow import EngineContextInterceptor, RunWorkflow
from holdfast.temporal.steps_and_timers import TemporalStep

FOLDER = Path(__file__).parent / "histories"


@dataclass(frozen=True)
class RecordedHistory:
    """The history of one execution."""

    run_id: str
    execution: str
    continue_after: int | None
    history: WorkflowHistory

    @property
    def events(self) -> Sequence[HistoryEvent]:
        """What happened."""
        return self.history.events

    @property
    def engine_context(self) -> EngineContext:
        """What it was recorded with."""
        return EngineContext(definitions, TemporalSettings(continue_as_new_after=self.continue_after))

    def write(self, path: Path) -> None:
        """Keep it."""
        data = {
            "run": self.run_id,
            "execution": self.execution,
            "continue_after": self.continue_after,
            "history": self.history.to_json_dict(),
        }
        path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")

    @classmethod
    def read(cls, path: Path) -> RecordedHistory:
        """As it was kept."""
        data = json.loads(path.read_text())
        history = WorkflowHistory.from_json(data["run"], data["history"])
        return cls(data["run"], data["execution"], data["continue_after"], history)


async def replay(recorded: RecordedHistory) -> BaseException | None:
    """Let Temporal's own replayer look for differences; what it finds, if it finds any."""
    replayer = Replayer(
        workflows=[RunWorkflow],
        workflow_runner=UnsandboxedWorkflowRunner(),
        interceptors=[EngineContextInterceptor(recorded.engine_context)],
        debug_mode=True,
    )
    return (await replayer.replay_workflow(recorded.history, raise_on_replay_failure=False)).replay_failure


class ObservedRun(RebuiltRun):
    """A recalled run that notes what it would have begun."""

    def __init__(self, recorded: RecordedHistory) -> None:
        self.starts: list[tuple[str, str, Any]] = []
        self.end: FinishRun | None = None
        super().__init__(recorded.engine_context, recorded.events[0], recorded.run_id, recorded.execution)

    def start_step(self, step: TemporalStep) -> None:
        """With its arguments, as people see them."""
        call, position = step.call, step.command.position
        preview = preview_arguments(call.step.parameters, call.args, call.kwargs)
        self.starts.append((identifiers.format_activity_id(position), call.step.name, preview))

    def start_await(self, position: int, awaited: AwaitedRun) -> None:
        """With what is asked."""
        self.starts.append(
            (identifiers.format_activity_id(position), identifiers.AWAIT_RUN_ACTIVITY, json.loads(awaited.to_json()))
        )

    def set_timer(self, position: int | None, summary: str, delay: float) -> None:
        """With when it rings, to the millisecond."""
        self.starts.append(("timer", summary, round(max(0.001, delay) * 1000)))

    def start_child_workflow(self, new: NewRun, position: int, *, is_awaited: bool) -> None:
        """With its inputs."""
        self.starts.append(("child", new.id, new.inputs))

    def finish(self, end: FinishRun) -> None:
        """The run has ended."""
        self.end = end


_rebuilt_runs: list[ObservedRun] = []


def rebuild(recorded: RecordedHistory) -> ObservedRun:
    """A run, brought back from its history."""
    run = ObservedRun(recorded)
    _rebuilt_runs.append(run)
    run.apply_events(trim_transient_events(recorded.events))
    return run


def release_all() -> None:
    """Let all runs that were brought back leave memory."""
    while _rebuilt_runs:
        _rebuilt_runs.pop().release()


def list_starts(events: Sequence[HistoryEvent]) -> list[tuple[str, str, Any]]:
    """What a history says was begun: all of it that could be seen from outside."""
    starts: list[tuple[str, str, Any]] = []
    for event in events:
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                new = event.activity_task_scheduled_event_attributes
                starts.append((new.activity_id, new.activity_type.name, load_json(new.input.payloads[0])))
            case EventType.EVENT_TYPE_TIMER_STARTED:
                timer = event.timer_started_event_attributes
                ms = round(timer.start_to_fire_timeout.ToNanoseconds() / 1e6)
                starts.append(("timer", load_json(event.user_metadata.summary), ms))
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                child = event.start_child_workflow_execution_initiated_event_attributes
                starts.append(("child", child.workflow_id, from_payload(child.input.payloads[0])))
            case _:
                pass
    return starts
