"""A simulated process: one real engine on the memory store, which can die at any point.

The engine, its writer, drivers, and steps are those of production. The differences are injected: time is virtual, the
store is a ``CrashableStore``, every attempt of a step passes through ``_around_step``, and each run in memory is a
``TracedExecution``. Processes follow one another on the same ``World``, which outlives them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.agents.models.model_resolution import model_override
from holdfast.authoring.registry import definitions, get_definition
from holdfast.codec import codec_for
from holdfast.core.records import RecordKind
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.journal_engine import JournalEngine
from holdfast.engine.run_approvals import ApprovalCall
from holdfast.engine.step_run import StepRun
from holdfast.errors import UsageError
from holdfast.run_log import RunLog
from holdfast.services.approvals import approve, deny, find_approval
from holdfast.services.store_provider import OpenStoreProvider
from holdfast.stores.approvals import ApprovalRequest, ApprovalState
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import CancelRun, NewRun, Op, Run, SendSignal
from holdfast.testing.crash_points import CrashPoint, EventLocation, Phase, RunEvent
from holdfast.testing.crashable import CrashableAwaitable, CrashableStore, ProcessState, get_event_kind
from holdfast.testing.mocks import Mock
from holdfast.testing.shared_heartbeat import SharedThreadHeartbeat
from holdfast.testing.traced_execution import TracedExecution, TracedProgramExecution
from holdfast.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from pydantic_ai.models import Model

UNLIMITED_LEASE_S = 1e9
"""A lease that does not expire in a test."""

IDLE_TURNS = 3
"""After so many turns of the loop with nothing in progress, the process counts as idle."""

MAX_TIME_JUMPS = 100_000
MAX_VIRTUAL_S = 100 * 365 * 86400.0
"""The number of jumps in time, and their sum, after which a run counts as endless."""

PROGRAM_END_TIMEOUT_S = 10.0
"""How long to wait for the thread of a program whose process has crashed. It ends at its next call."""

MAX_BUSY_TURNS = 300
"""After so many turns of the loop, the wait for a busy step sleeps between turns."""

DEFAULT_ACTOR = "tester"
"""Who answers approvals in a test, by default."""


TE = TypeVar("TE", bound=TracedExecution)


class RunTrace:
    """What all processes together did with one run."""

    def __init__(self, run_id: str, workflow: str, version: str, parent: str) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.version = version
        self.parent = parent
        """The id of the run that started it; empty if the test did."""
        self.traced_executions: list[TracedExecution] = []
        """The execution of the run in each process."""
        self.execution_counts: Counter[int] = Counter()
        """How often the step at a position was started."""
        self.steps: dict[int, StepDefinition] = {}
        self.events: set[RunEvent] = set()
        """The events that were written."""
        self.repeated_events: list[RunEvent] = []
        """Steps that were started although their outcome was recorded."""
        self.answer_counts: Counter[str] = Counter()
        """How many of the ``World``'s answers were used, by the name of the signal or the question."""
        self.handled_approval_ids: set[str] = set()
        """The approvals that were answered by ``World.approval_answers``, or left open."""


class World:
    """Everything that outlives the processes of a test."""

    def __init__(self, model: Model | None = None) -> None:
        self.model = model
        """Replaces all models."""
        self.clock = VirtualClock()
        self.store = MemoryStore(clock=self.clock.now)
        self.mocks: dict[str, Mock] = {}
        self.signal_answers: dict[str, list[Any]] = {}
        """Values for runs that wait for a signal, by its name."""
        self.approval_answers: dict[str, list[Any]] = {}
        """Answers to approvals, by their question or their tool."""
        self.crash_points: list[CrashPoint] = []
        """Where the next process crashes; each point is used once."""
        self.later_crash_points: deque[CrashPoint] = deque()
        """Points that become active one by one, each after a crash."""
        self.cancel_points: list[CrashPoint] = []
        """The events after which the run is requested to cancel; each point is used once."""
        self.traces: dict[str, RunTrace] = {}
        """The traces of all runs by id, in the order of creation."""
        self.run_ids: dict[int, str] = {}
        """Run ids by key."""
        self.event_log: list[tuple[RunTrace, RunEvent]] = []
        """The events of all runs, in order."""

    def add_run(self, run: Run) -> bool:
        """Add a new run. Returns false if it is already known."""
        if run.key in self.run_ids:
            return False
        self.run_ids[run.key] = run.id
        self.traces[run.id] = RunTrace(run.id, run.workflow, run.version, run.parent)
        return True

    def find_root(self, run_id: str) -> str:
        """The oldest ancestor of the run, which the test started itself."""
        while parent := self.traces[run_id].parent:
            run_id = parent
        return run_id

    def list_run_tree(self, run_id: str) -> list[RunTrace]:
        """The run and its descendants, in the order of creation."""
        found = {run_id}
        for trace in self.traces.values():
            if trace.parent in found:
                found.add(trace.run_id)
        return [trace for trace in self.traces.values() if trace.run_id in found]


class SimulatedProcess:
    """One engine, from its start to its end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = ProcessState()
        self._store = CrashableStore(world.store, self.state, self)
        self.engine = JournalEngine(
            cast(Store, self._store),
            definitions,
            lease_s=UNLIMITED_LEASE_S,
            max_concurrency=100_000,
            clock=world.clock,
            heartbeat_factory=SharedThreadHeartbeat,
            execution_factory=partial(self._make_execution, TracedExecution),
            program_execution_factory=partial(self._make_execution, TracedProgramExecution),
            step_interceptor=self._around_step,
            fire_schedules=False,  # a test starts what it wants to see
        )
        # These tests are about failures, and `crash_everywhere` has hundreds of them: log them at DEBUG only.
        self.engine.run_log = RunLog(is_encrypted=False, max_level=logging.DEBUG)

    async def __aenter__(self) -> SimulatedProcess:
        await self.engine.open()
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self.state.is_dead:
            await self._clean_up_crashed()
            return
        if error is not None:  # the test's own timeout, perhaps: a step may be busy forever
            await self.engine.close()
            return
        self.engine.park_idle()
        await self.wait_until_idle()
        if self.state.is_dead:  # it died while it parked the run
            await self._clean_up_crashed()
        else:
            await self.engine.close()

    async def _clean_up_crashed(self) -> None:
        """Stop everything that is left of the process, and let others see that it is dead."""
        programs = [driver.program for driver in self.engine.held_runs.list_drivers()]
        tasks = self.engine.simulate_crash()
        if tasks:
            await asyncio.wait(tasks)
        await self.engine.thread_pool.join()  # a thread cannot be stopped: its work counts as done before the crash
        for program in programs:
            if program is not None and program.thread is not None:
                await asyncio.to_thread(program.thread.join, PROGRAM_END_TIMEOUT_S)
        self.world.store.simulate_worker_death(self.engine.worker_id)
        if self.world.later_crash_points:
            self.world.crash_points.append(self.world.later_crash_points.popleft())

    async def drive(self, *, until: float | None, stop: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Execute runs until ``stop`` returns true or nothing more is due by ``until`` (``None``: at any time).

        Time jumps from one due time to the next.
        """
        idle_turns, jumps, began = 0, 0, self.world.clock.now()
        while True:
            await self.wait_until_idle()
            if self.state.is_dead or await stop():
                return
            if await self._send_prepared_answers():
                continue
            due = await self._find_next_due()
            if due is None or (until is not None and due > until):
                return
            idle_turns = idle_turns + 1 if due <= self.world.clock.now() else 0
            assert idle_turns < 1000, "something is due all the time, and nothing happens"
            jumps += 1
            if until is None and (jumps > MAX_TIME_JUMPS or due > began + MAX_VIRTUAL_S):
                raise UsageError(
                    f"a run has waited {jumps} times, until {datetime.fromtimestamp(due, UTC):%Y-%m-%d %H:%M}, and has "
                    f"not ended. If it never ends, use `start` and `advance` instead of `run` and `resume`."
                )
            self.world.clock.advance_to(due)
            self.engine.wake()

    async def wait_until_idle(self) -> None:
        """Wait until everything in progress waits for time to pass or for a signal."""
        idle_turns = turns = 0
        while idle_turns < IDLE_TURNS and not self.state.is_dead:
            await asyncio.sleep(0 if turns < MAX_BUSY_TURNS else 0.001)
            turns += 1
            is_busy = not self._store.has_polled or self.engine.in_flight_count > self.world.clock.sleeper_count
            idle_turns = 0 if is_busy else idle_turns + 1

    async def _find_next_due(self) -> float | None:
        alarm = self.world.clock.get_next_due()
        wake = await self.world.store.claims.get_next_wake_at(workflows=tuple(definitions), queues=None)
        times = [time for time in (alarm, wake) if time is not None]
        return min(times, default=None)

    async def _send_prepared_answers(self) -> bool:
        """Send each run the signals and answers that the test has set up. Returns whether there were any."""
        sent = False
        for trace in self.world.traces.values():
            if not trace.traced_executions or trace.traced_executions[-1].loop.is_closing:
                continue
            for command in list(trace.traced_executions[-1].open_commands.values()):
                if isinstance(command.call, ApprovalCall):
                    sent |= await self._answer_approval(trace, command.call)
                if command.kind is not RecordKind.SIGNAL:
                    continue
                values = self.world.signal_answers.get(command.name, [])
                number = trace.answer_counts[command.name]
                if number < len(values):
                    trace.answer_counts[command.name] += 1
                    payload = codec_for(Any).encode(values[number], f"signal {command.name!r}")
                    key = f"answer {command.name} {number}"
                    signal = SendSignal(trace.run_id, command.name, payload, key, self.world.clock.now())
                    await self.world.store.commit([signal])
                    sent = True
        if sent:
            self.engine.wake()
        return sent

    async def _answer_approval(self, trace: RunTrace, call: ApprovalCall) -> bool:
        request = call.request
        key = next((key for key in self.world.approval_answers if _is_same_question(key, request)), None)
        if (
            key is None
            or call.id in trace.handled_approval_ids
            or trace.answer_counts[key] >= len(self.world.approval_answers[key])
        ):
            return False
        provider = OpenStoreProvider(self.world.store)
        if (await find_approval(provider, call.id)).state is not ApprovalState.OPEN:
            return False
        trace.handled_approval_ids.add(call.id)
        answer = self.world.approval_answers[key][trace.answer_counts[key]]
        trace.answer_counts[key] += 1
        if answer is None:
            return False
        if answer is False:
            return await deny(provider, call.id, by=DEFAULT_ACTOR)
        if request.tool:
            return await approve(provider, call.id, arguments=None if answer is True else answer, by=DEFAULT_ACTOR)
        is_plain = not (request.choices or request.form_schema)
        return await approve(provider, call.id, None if is_plain and answer is True else answer, by=DEFAULT_ACTOR)

    # Called by the engine

    def _make_execution(self, cls: type[TE], run_id: str, *args: Any, **kwargs: Any) -> TE:
        execution = cls(run_id, *args, **kwargs)
        self.world.traces[run_id].traced_executions.append(execution)
        return execution

    async def _around_step(self, step: StepRun, proceed: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self.state.is_dead:
            await self.state.die()
        run, position = step.driver.run, step.command.position
        trace = self.world.traces[run.id]
        event = RunEvent(get_event_kind(step.command.kind), position + 1, step.call.step.name)
        if self.should_crash("before", run.key, event):
            await self.state.die()
        if event in trace.events:
            trace.repeated_events.append(event)
        trace.execution_counts[position] += 1
        trace.steps[position] = step.call.step
        if self.world.model is not None:
            model_override.set(self.world.model)  # in the step's own context
        mock = self.world.mocks.get(step.call.step.name)
        return await CrashableAwaitable(
            proceed() if mock is None else mock.call(*step.call.args, **step.call.kwargs), self.state
        )

    # Called by the store

    def should_crash(self, phase: Phase, key: int, event: RunEvent, new: NewRun | None = None) -> bool:
        """Whether the process crashes here, which uses up the crash point."""
        if not self.world.crash_points:
            return False
        location = self._locate_event(key, event, new)
        for point in self.world.crash_points:
            if point.matches(phase, location):
                self.world.crash_points.remove(point)
                return True
        return False

    def on_event(self, key: int, event: RunEvent) -> Op | None:
        """Log an event that was written. Returns the cancel request that the test wants after it, if any."""
        trace = self.world.traces[self.world.run_ids[key]]
        trace.events.add(event)
        self.world.event_log.append((trace, event))
        for point in self.world.cancel_points:
            if point.matches("after", self._locate_event(key, event, None)):
                self.world.cancel_points.remove(point)
                self.engine.loop.call_soon(self.engine.wake)
                return CancelRun(self.world.find_root(trace.run_id), self.world.clock.now())
        return None

    def _locate_event(self, key: int, event: RunEvent, new: NewRun | None) -> EventLocation:
        if new is not None:
            return EventLocation(event, new.id, bool(new.parent), lambda: 1, {})
        trace = self.world.traces[self.world.run_ids[key]]
        if event.kind == "child" and not event.name:
            event = event._replace(name=trace.traced_executions[-1].issued[event.number - 1].name)
        numbers = get_definition(trace.workflow, trace.version).step_numbers
        return EventLocation(event, trace.run_id, bool(trace.parent), partial(_count_occurrence, trace, event), numbers)


def _is_same_question(key: str, question: ApprovalRequest) -> bool:
    """Whether ``key`` names this approval. When a run asks again, the text continues with what was wrong before."""
    return key in (question.question, question.tool) or question.question.startswith(f"{key}\n\n")


def _count_occurrence(trace: RunTrace, event: RunEvent) -> int:
    """Which occurrence of its name the step (or signal, or child) is, in the order of the calls."""
    if not trace.traced_executions or event.kind == "patch":  # patches occur once
        return 1
    kind = "step" if event.kind == "intent" else event.kind
    return sum(
        get_event_kind(command.kind) == kind and command.name == event.name and command.position < event.number
        for command in trace.traced_executions[-1].issued
    )
