"""A simulated process: one real engine on the store in memory, with a life that can end at any point.

The engine, its writer, drivers and steps are those of production. What differs is injected: time is virtual, the store
is reached through ``CrashableStore``, every attempt of a step passes ``_around_step``, and each run in memory is a
``TracedExecution``. Several processes follow one another on the same ``World``, which is what outlives them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

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
from holdfast.testing.traced_execution import TracedExecution
from holdfast.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from pydantic_ai.models import Model

UNLIMITED_LEASE_S = 1e9
"""A lease that no test uses up."""

IDLE_TURNS = 3
"""Turns of the loop without anything under way after which nothing is taken to happen by itself."""

MAX_TIME_JUMPS = 100_000
MAX_VIRTUAL_S = 100 * 365 * 86400.0
"""How often, and how far, time jumps for a run that does not end: then it is taken to go on for ever."""

MAX_BUSY_TURNS = 300
"""Turns after which a step that is still busy is waited for in small naps."""

DEFAULT_ACTOR = "tester"
"""Who answers the approvals of runs in a test; default of ``by``."""


class RunTrace:
    """What is known of one run over all the processes that had it."""

    def __init__(self, run_id: str, workflow: str, version: str, parent: str) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.version = version
        self.parent = parent
        """The id of the run that started it; empty if the test did."""
        self.traced_executions: list[TracedExecution] = []
        """The run as each process had it in memory."""
        self.execution_counts: Counter[int] = Counter()
        """How often the step at a position was begun."""
        self.steps: dict[int, StepDefinition] = {}
        self.events: list[RunEvent] = []
        """What was written, in order."""
        self.repeated_events: list[RunEvent] = []
        """Steps that were begun although their outcome was recorded."""
        self.answer_counts: Counter[str] = Counter()
        """How many signals of a name were sent by ``World.answers``, and how often a question was answered."""
        self.handled_approval_ids: set[str] = set()
        """The ids of the questions that were answered by ``World.people``, or left open."""


class World:
    """What outlives the processes of a test."""

    def __init__(self, model: Model | None = None) -> None:
        self.model = model
        """What answers in place of all models."""
        self.clock = VirtualClock()
        self.store = MemoryStore(clock=self.clock.now)
        self.mocks: dict[str, Mock] = {}
        self.signal_answers: dict[str, list[Any]] = {}
        """Values for runs that wait for a signal, by its name."""
        self.approval_answers: dict[str, list[Any]] = {}
        """Answers to questions, by their text, or by the tool that is to be called."""
        self.crash_points: list[CrashPoint] = []
        """Where the next process may die; each point is used once."""
        self.later_crash_points: deque[CrashPoint] = deque()
        """Points to be armed one after the other, each after a death."""
        self.cancel_points: list[CrashPoint] = []
        """After what somebody asks for the run to be cancelled; each point is used once."""
        self.traces: dict[str, RunTrace] = {}
        """What is known of each run, by its id, in the order in which they were created."""
        self.run_ids: dict[int, str] = {}
        """Run ids by key."""
        self.event_log: list[tuple[RunTrace, RunEvent]] = []
        """What was written of all runs, in order."""

    def add_run(self, run: Run) -> bool:
        """There is a new run; false when that is known."""
        if run.key in self.run_ids:
            return False
        self.run_ids[run.key] = run.id
        self.traces[run.id] = RunTrace(run.id, run.workflow, run.version, run.parent)
        return True

    def find_root(self, run_id: str) -> str:
        """The run that the test has started itself, and that this one comes from."""
        while parent := self.traces[run_id].parent:
            run_id = parent
        return run_id

    def list_run_tree(self, run_id: str) -> list[RunTrace]:
        """The run, the runs that it has started, those that they have started, and so on, as they were created."""
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
            execution_factory=self._make_execution,
            step_interceptor=self._around_step,
            fire_schedules=False,  # a test starts what it wants to see
        )
        # Failures are what such tests are about, and a check of all crashes has hundreds of deaths.
        self.engine.run_log = RunLog(is_encrypted=False, max_level=logging.DEBUG)

    async def __aenter__(self) -> SimulatedProcess:
        await self.engine.open()
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self.state.is_dead:
            await self._clean_up_crashed()
            return
        if error is not None:  # the test's own time-out, perhaps: a step may be busy for ever
            await self.engine.close()
            return
        self.engine.park_idle()
        await self.wait_until_idle()
        if self.state.is_dead:  # it died while it was writing that the run waits
            await self._clean_up_crashed()
        else:
            await self.engine.close()

    async def _clean_up_crashed(self) -> None:
        """Nothing of it goes on; others can tell that it is dead."""
        tasks = self.engine.simulate_crash()
        if tasks:
            await asyncio.wait(tasks)
        await self.engine.thread_pool.join()  # a thread cannot be stopped: what it does, it did before it died
        self.world.store.simulate_worker_death(self.engine.worker_id)
        if self.world.later_crash_points:
            self.world.crash_points.append(self.world.later_crash_points.popleft())

    async def drive(self, *, until: float | None, stop: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Let runs go on until ``stop`` says so, or nothing more happens before ``until`` (``None``: ever).

        Time jumps from one thing that is due to the next.
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
                    f"not ended. If it goes on for ever, use `start` and `advance` in place of `run` and `resume`."
                )
            self.world.clock.advance_to(due)
            self.engine.wake()

    async def wait_until_idle(self) -> None:
        """Wait until nothing is under way but what waits for time to pass, or for a signal."""
        calm = turns = 0
        while calm < IDLE_TURNS and not self.state.is_dead:
            await asyncio.sleep(0 if turns < MAX_BUSY_TURNS else 0.001)
            turns += 1
            busy = not self._store.has_polled or self.engine.in_flight_count > self.world.clock.sleeper_count
            calm = 0 if busy else calm + 1

    async def _find_next_due(self) -> float | None:
        alarm = self.world.clock.get_next_due()
        wake = await self.world.store.claims.get_next_wake_at(workflows=tuple(definitions), queues=None)
        times = [time for time in (alarm, wake) if time is not None]
        return min(times, default=None)

    async def _send_prepared_answers(self) -> bool:
        """Send each run the signals that it waits for and that the test has prepared; true when there were any."""
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
        question = call.request
        key = next((one for one in self.world.approval_answers if _is_same_question(one, question)), None)
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
        if question.tool:
            return await approve(provider, call.id, arguments=None if answer is True else answer, by=DEFAULT_ACTOR)
        is_plain = not (question.choices or question.form_schema)
        return await approve(provider, call.id, None if is_plain and answer is True else answer, by=DEFAULT_ACTOR)

    # What the engine calls

    def _make_execution(self, run_id: str, *args: Any, **kwargs: Any) -> TracedExecution:
        execution = TracedExecution(run_id, *args, **kwargs)
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

    # What the store calls (see `mortal.Witness`)

    def should_crash(self, phase: Phase, key: int, event: RunEvent, new: NewRun | None = None) -> bool:
        """Whether the process is to die here; the point is used up by that."""
        if not self.world.crash_points:
            return False
        place = self._locate_event(key, event, new)
        for point in self.world.crash_points:
            if point.matches(phase, place):
                self.world.crash_points.remove(point)
                return True
        return False

    def add_run(self, run: Run) -> bool:
        """There is a new run; false when that is known."""
        return self.world.add_run(run)

    def on_event(self, key: int, event: RunEvent) -> Op | None:
        """The event is in the store; returns what somebody asks for because of that."""
        trace = self.world.traces[self.world.run_ids[key]]
        trace.events.append(event)
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
    """Whether this is what is asked. When it is asked again, what was wrong with the answer follows the text."""
    return key in (question.question, question.tool) or question.question.startswith(f"{key}\n\n")


def _count_occurrence(trace: RunTrace, event: RunEvent) -> int:
    """The how manieth step (or signal, or child) of its name this is, in the order of the calls."""
    if not trace.traced_executions or event.kind == "patch":  # of which a run has one
        return 1
    what = "step" if event.kind == "intent" else event.kind
    return sum(
        get_event_kind(command.kind) == what and command.name == event.name and command.position < event.number
        for command in trace.traced_executions[-1].issued
    )
