"""A simulated process: one real engine on the store in memory, with a life that can end at any point.

The engine, its writer, drivers and steps are those of production. What differs is injected: time is virtual, the
store is reached through ``MortalStore``, every attempt of a step passes ``_around``, and each run in memory is a
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

from holdfast.agents.models.model_resolution import instead
from holdfast.authoring.registry import definition_of, definitions
from holdfast.codec import codec_for
from holdfast.core.records import Kind
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.journal_engine import JournalEngine
from holdfast.engine.run_approvals import ApprovalCall
from holdfast.engine.step_run import StepRun
from holdfast.errors import UsageError
from holdfast.run_log import RunLog
from holdfast.services.approvals import approve, deny, find_approval
from holdfast.stores.approvals import ApprovalState, Question
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import CancelRun, NewRun, Op, Run, SendSignal
from holdfast.testing.crash_points import CrashPoint, Event, Moment, Place
from holdfast.testing.crashable import Life, Mortal, MortalStore, what_is
from holdfast.testing.mocks import Mock
from holdfast.testing.store_provider import TESTER, StoreReach
from holdfast.testing.traced_execution import TracedExecution
from holdfast.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from pydantic_ai.models import Model

FOR_EVER = 1e9
"""A lease that no test uses up."""

CALM = 3
"""Turns of the loop without anything under way after which nothing is taken to happen by itself."""

MOST_JUMPS = 100_000
LONGEST = 100 * 365 * 86400.0
"""How often, and how far, time jumps for a run that does not end: then it is taken to go on for ever."""

EAGER_TURNS = 300
"""Turns after which a step that is still busy is waited for in small naps."""


class RunTrace:
    """What is known of one run over all the processes that had it."""

    def __init__(self, run_id: str, workflow: str, version: str, parent: str) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.version = version
        self.parent = parent
        """The id of the run that started it; empty if the test did."""
        self.lives: list[TracedExecution] = []
        """The run as each process had it in memory."""
        self.executions: Counter[int] = Counter()
        """How often the step at a position was begun."""
        self.steps: dict[int, StepDefinition] = {}
        self.events: list[Event] = []
        """What was written, in order."""
        self.ran_again: list[Event] = []
        """Steps that were begun although their outcome was recorded."""
        self.answered: Counter[str] = Counter()
        """How many signals of a name were sent by ``World.answers``, and how often a question was answered."""
        self.looked_at: set[str] = set()
        """The ids of the questions that were answered by ``World.people``, or left open."""


class World:
    """What outlives the processes of a test."""

    def __init__(self, model: Model | None = None) -> None:
        self.model = model
        """What answers in place of all models."""
        self.clock = VirtualClock()
        self.store = MemoryStore(clock=self.clock.now)
        self.mocks: dict[str, Mock] = {}
        self.answers: dict[str, list[Any]] = {}
        """Values for runs that wait for a signal, by its name."""
        self.people: dict[str, list[Any]] = {}
        """Answers to questions, by their text, or by the tool that is to be called."""
        self.armed: list[CrashPoint] = []
        """Where the next process may die; each point is used once."""
        self.then: deque[CrashPoint] = deque()
        """Points to be armed one after the other, each after a death."""
        self.cancels: list[CrashPoint] = []
        """After what somebody asks for the run to be cancelled; each point is used once."""
        self.traces: dict[str, RunTrace] = {}
        """What is known of each run, by its id, in the order in which they were created."""
        self.ids: dict[int, str] = {}
        """Run ids by key."""
        self.life: list[tuple[RunTrace, Event]] = []
        """What was written of all runs, in order."""

    def created(self, run: Run) -> bool:
        """There is a new run; false when that is known."""
        if run.key in self.ids:
            return False
        self.ids[run.key] = run.id
        self.traces[run.id] = RunTrace(run.id, run.workflow, run.version, run.parent)
        return True

    def eldest(self, run_id: str) -> str:
        """The run that the test has started itself, and that this one comes from."""
        while parent := self.traces[run_id].parent:
            run_id = parent
        return run_id

    def family(self, run_id: str) -> list[RunTrace]:
        """The run, the runs that it has started, those that they have started, and so on, as they were created."""
        found = {run_id}
        for trace in self.traces.values():
            if trace.parent in found:
                found.add(trace.run_id)
        return [trace for trace in self.traces.values() if trace.run_id in found]


class Process:
    """One engine, from its start to its end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.life = Life()
        self._store = MortalStore(world.store, self.life, self)
        self.engine = JournalEngine(
            cast(Store, self._store),
            definitions,
            lease=FOR_EVER,
            concurrency=100_000,
            clock=world.clock,
            execution=self._make_execution,
            around_step=self._around,
            schedules=False,  # a test starts what it wants to see
        )
        # Failures are what such tests are about, and a check of all crashes has hundreds of deaths.
        self.engine.run_log = RunLog(is_encrypted=False, max_level=logging.DEBUG)

    async def __aenter__(self) -> Process:
        await self.engine.open()
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self.life.over:
            await self._bury()
            return
        if error is not None:  # the test's own time-out, perhaps: a step may be busy for ever
            await self.engine.close()
            return
        self.engine.park_idle()
        await self.settle()
        if self.life.over:  # it died while it was writing that the run waits
            await self._bury()
        else:
            await self.engine.close()

    async def _bury(self) -> None:
        """Nothing of it goes on; others can tell that it is dead."""
        tasks = self.engine.vanish()
        if tasks:
            await asyncio.wait(tasks)
        await self.engine.threads.join()  # a thread cannot be stopped: what it does, it did before it died
        self.world.store.kill_worker(self.engine.worker)
        if self.world.then:
            self.world.armed.append(self.world.then.popleft())

    async def drive(self, *, until: float | None, stop: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Let runs go on until ``stop`` says so, or nothing more happens before ``until`` (``None``: ever).

        Time jumps from one thing that is due to the next.
        """
        idle_turns, jumps, began = 0, 0, self.world.clock.now()
        while True:
            await self.settle()
            if self.life.over or await stop():
                return
            if await self._answer_waits():
                continue
            due = await self._next_due()
            if due is None or (until is not None and due > until):
                return
            idle_turns = idle_turns + 1 if due <= self.world.clock.now() else 0
            assert idle_turns < 1000, "something is due all the time, and nothing happens"
            jumps += 1
            if until is None and (jumps > MOST_JUMPS or due > began + LONGEST):
                raise UsageError(
                    f"a run has waited {jumps} times, until {datetime.fromtimestamp(due, UTC):%Y-%m-%d %H:%M}, and has "
                    f"not ended. If it goes on for ever, use `start` and `advance` in place of `run` and `resume`."
                )
            self.world.clock.move_to(due)
            self.engine.nudge()

    async def settle(self) -> None:
        """Wait until nothing is under way but what waits for time to pass, or for a signal."""
        calm = turns = 0
        while calm < CALM and not self.life.over:
            await asyncio.sleep(0 if turns < EAGER_TURNS else 0.001)
            turns += 1
            busy = not self._store.watched or self.engine.in_flight > self.world.clock.sleeping
            calm = 0 if busy else calm + 1

    async def _next_due(self) -> float | None:
        alarm = self.world.clock.next_alarm()
        wake = await self.world.store.next_wake(workflows=tuple(definitions), queues=None)
        times = [time for time in (alarm, wake) if time is not None]
        return min(times, default=None)

    async def _answer_waits(self) -> bool:
        """Send each run the signals that it waits for and that the test has prepared; true when there were any."""
        sent = False
        for trace in self.world.traces.values():
            if not trace.lives or trace.lives[-1].loop.closing:
                continue
            for command in list(trace.lives[-1].open.values()):
                if isinstance(command.call, ApprovalCall):
                    sent |= await self._answer_question(trace, command.call)
                if command.kind is not Kind.SIGNAL:
                    continue
                values = self.world.answers.get(command.name, [])
                number = trace.answered[command.name]
                if number < len(values):
                    trace.answered[command.name] += 1
                    payload = codec_for(Any).encode(values[number], f"signal {command.name!r}")
                    key = f"answer {command.name} {number}"
                    signal = SendSignal(trace.run_id, command.name, payload, key, self.world.clock.now())
                    await self.world.store.commit([signal])
                    sent = True
        if sent:
            self.engine.nudge()
        return sent

    async def _answer_question(self, trace: RunTrace, call: ApprovalCall) -> bool:
        question = call.question
        key = next((one for one in self.world.people if _is_asked(one, question)), None)
        if key is None or call.id in trace.looked_at or trace.answered[key] >= len(self.world.people[key]):
            return False
        reach = StoreReach(self.world.store, self.world.clock.now)
        if (await find_approval(reach, call.id)).state is not ApprovalState.OPEN:
            return False
        trace.looked_at.add(call.id)
        answer = self.world.people[key][trace.answered[key]]
        trace.answered[key] += 1
        if answer is None:
            return False
        if answer is False:
            return await deny(reach, call.id, by=TESTER)
        if question.tool:
            return await approve(reach, call.id, arguments=None if answer is True else answer, by=TESTER)
        is_plain = not (question.choices or question.form)
        return await approve(reach, call.id, None if is_plain and answer is True else answer, by=TESTER)

    # What the engine calls

    def _make_execution(self, run_id: str, *args: Any, **kwargs: Any) -> TracedExecution:
        execution = TracedExecution(run_id, *args, **kwargs)
        self.world.traces[run_id].lives.append(execution)
        return execution

    async def _around(self, step: StepRun, proceed: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self.life.over:
            await self.life.end()
        run, position = step.driver.run, step.command.position
        trace = self.world.traces[run.id]
        event = Event(what_is(step.command.kind), position + 1, step.call.step.name)
        if self.dies("before", run.key, event):
            await self.life.end()
        if event in trace.events:
            trace.ran_again.append(event)
        trace.executions[position] += 1
        trace.steps[position] = step.call.step
        if self.world.model is not None:
            instead.set(self.world.model)  # in the step's own context
        mock = self.world.mocks.get(step.call.step.name)
        return await Mortal(proceed() if mock is None else mock.call(*step.call.args, **step.call.kwargs), self.life)

    # What the store calls (see `mortal.Witness`)

    def dies(self, moment: Moment, key: int, event: Event, new: NewRun | None = None) -> bool:
        """Whether the process is to die here; the point is used up by that."""
        if not self.world.armed:
            return False
        place = self._place(key, event, new)
        for point in self.world.armed:
            if point.matches(moment, place):
                self.world.armed.remove(point)
                return True
        return False

    def created(self, run: Run) -> bool:
        """There is a new run; false when that is known."""
        return self.world.created(run)

    def happened(self, key: int, event: Event) -> Op | None:
        """The event is in the store; returns what somebody asks for because of that."""
        trace = self.world.traces[self.world.ids[key]]
        trace.events.append(event)
        self.world.life.append((trace, event))
        for point in self.world.cancels:
            if point.matches("after", self._place(key, event, None)):
                self.world.cancels.remove(point)
                self.engine.loop.call_soon(self.engine.nudge)
                return CancelRun(self.world.eldest(trace.run_id), self.world.clock.now())
        return None

    def _place(self, key: int, event: Event, new: NewRun | None) -> Place:
        if new is not None:
            return Place(event, new.id, bool(new.parent), lambda: 1, {})
        trace = self.world.traces[self.world.ids[key]]
        if event.what == "child" and not event.name:
            event = event._replace(name=trace.lives[-1].issued[event.number - 1].name)
        numbers = definition_of(trace.workflow, trace.version).numbers
        return Place(event, trace.run_id, bool(trace.parent), partial(_occurrence, trace, event), numbers)


def _is_asked(key: str, question: Question) -> bool:
    """Whether this is what is asked. When it is asked again, what was wrong with the answer follows the text."""
    return key in (question.text, question.tool) or question.text.startswith(f"{key}\n\n")


def _occurrence(trace: RunTrace, event: Event) -> int:
    """The how manieth step (or signal, or child) of its name this is, in the order of the calls."""
    if not trace.lives or event.what == "patch":  # of which a run has one
        return 1
    what = "step" if event.what == "intent" else event.what
    return sum(
        what_is(command.kind) == what and command.name == event.name and command.position < event.number
        for command in trace.lives[-1].issued
    )
