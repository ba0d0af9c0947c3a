"""``Runner``: workflows in a unit test, in memory, in virtual time, with crashes where the test wants them.

Each call of a runner is a process of its own, from its start to its end: what a run is between two calls is what the
store holds of it. A runner is therefore bound to no event loop, and every call after the first replays the journal, as
a process that takes over does.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.authoring.registry import definitions
from holdfast.authoring.step import Step
from holdfast.authoring.workflow import Workflow
from holdfast.client.client import run_sync
from holdfast.client.outcome import unsuccessful
from holdfast.client.starting import accept, new_run
from holdfast.codec import codec_for, decode_error, describe_error
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.errors import CodecError, RunEnded, RunNotFound, StepFailed, UsageError
from holdfast.stores.contract import Run, SendSignal, Verdict
from holdfast.testing.children import stop_if_child
from holdfast.testing.clock import VirtualClock
from holdfast.testing.crashes import CrashPoint, Moment, What, parse_schedule
from holdfast.testing.everywhere import AfterEach, BeforeEach, Everywhere, Fork, Report, Settings
from holdfast.testing.mocks import MISSING, Mock
from holdfast.testing.process import Process, RunTrace, World
from holdfast.testing.results import RunResult, StepResult, Steps


class Runner:
    """Runs workflows in memory and in virtual time, and lets their process die where you say.

    Args:
        pairs: how many schedules with two crashes ``crash_everywhere`` tries, beside all those with one.
        processes: in how many new Python processes it replays the journal.
        same_result: whether it holds every result against that of the run without a crash.
        only: let it try only this schedule, as one of its failures printed it.
    """

    def __init__(
        self, *, pairs: int = 100, processes: int = 3, same_result: bool = True, only: str | None = None
    ) -> None:
        self._world = World()
        schedule = None if only is None else parse_schedule(only)
        self._settings = Settings(pairs, processes, same_result, schedule)
        self._is_trial = False
        """In a trial, a crash that is never come to is no mistake: the code may take another way after the first."""

    @property
    def clock(self) -> VirtualClock:
        """The virtual clock of this runner."""
        return self._world.clock

    # Running

    async def run(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> RunResult:
        """Run the workflow until it has ended, its process dies, or it waits for a signal that nobody sends.

        Time jumps over whatever the run waits for. A crash, and a workflow that fails, raise nothing: look at
        ``.crashed``, ``.status`` and ``.error``.
        """
        return await self._begin(workflow, args, kwargs, until=None)

    async def start(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> RunResult:
        """Start a run, and let it go as far as it gets without time passing."""
        return await self._begin(workflow, args, kwargs, until=self.clock.now())

    async def resume(self, run_id: str) -> RunResult:
        """Let another process take the run over, and run it as ``run`` does."""
        if await self._has_ended(run_id):
            return await self.result(run_id)
        return await self._go_on(run_id, until=None)

    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> RunResult:
        """Send a value into the run, and let it go as far as it gets without time passing.

        With an ``id``, sending it again changes nothing.
        """
        run = await self._read(run_id)
        payload = codec_for(Any).encode(value, f"signal {name!r}")
        [verdict] = await self._world.store.commit([SendSignal(run_id, name, payload, id, self.clock.now())])
        if verdict is Verdict.ENDED:
            raise RunEnded(f"run {run_id!r} is {run.state}: it takes no signal", run_id)
        return await self._go_on(run_id, until=self.clock.now())

    async def advance(self, by: timedelta | float) -> None:
        """Let time pass, and every run do what it does in that time."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise UsageError(f"time does not go back: advance({by!r})")
        until = self.clock.now() + seconds

        async def never() -> bool:
            return False

        async with Process(self._world) as process:
            await process.drive(until=until, stop=never)
        self.clock.move_to(until)

    async def result(self, run_id: str) -> RunResult:
        """How the run stands now."""
        return await self._result(run_id, crashed=False)

    async def crash_everywhere(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> Report:
        """Run the workflow once for every point at which its process can die, and see that nothing is lost or repeated.

        Every trial has a store and a clock of its own; mocks and answers are those of this runner. Steps really run,
        once for each trial: ``before_each`` puts back what they have changed outside. Raises ``CrashSafetyError``, an
        ``AssertionError`` that tells the shortest schedule that breaks a promise, the cause, and how to reproduce it.
        """
        __tracebackhide__ = True  # pytest: the message is the story, not our stack
        _check_workflow(workflow)
        stop_if_child()
        if self._world.armed:
            raise UsageError("crash_everywhere chooses the crashes itself: drop the simulate_crash_... before it")
        return await Everywhere(self._fork, self._settings, workflow, args, kwargs).check()

    def before_each(self, call: BeforeEach) -> BeforeEach:
        """Call this before every trial of ``crash_everywhere``, to put back what steps have changed outside."""
        self._settings.before_each.append(call)
        return call

    def after_each(self, call: AfterEach) -> AfterEach:
        """Call this with the result after every trial of ``crash_everywhere``: to check what must hold outside."""
        self._settings.after_each.append(call)
        return call

    # Mocks, answers and crashes

    def mock(
        self,
        step: Step[..., Any] | str,
        *,
        return_value: Any = MISSING,
        side_effect: Any = MISSING,
        raises: Any = MISSING,
    ) -> Mock:
        """Let a step return this value, call this function (or take these outcomes one by one), or raise this.

        The step's retries and its recording stay as they are. Returns the mock, whose ``calls`` tell how it was called.
        """
        if not isinstance(step, Step | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"mock takes a step or the name of one, not {step!r}: put @step on it")
        name = step.name if isinstance(step, Step) else step
        made = self._world.mocks[name] = Mock(name, return_value, side_effect, raises)
        return made

    def answer(self, signal: str, *values: Any) -> None:
        """Whenever a run waits for this signal, send it the next of these values."""
        self._world.answers[signal] = list(values)

    def simulate_crash_before(
        self,
        step: Step[..., Any] | int | str | None = None,
        *,
        occurrence: int = 1,
        signal: int | str | None = None,
        timer: int | None = None,
        end: bool = False,
    ) -> None:
        """Let the process die before the step begins (or before the signal, the timer or the run's end is recorded).

        A step is named by its number (from 1), or by itself or its name and which ``occurrence`` of it is meant.
        """
        self._simulate("before", step, occurrence, signal, timer, end)

    def simulate_crash_during(self, step: Step[..., Any] | int | str, *, occurrence: int = 1) -> None:
        """Let the process die when the step has run, before its outcome is recorded."""
        self._simulate("during", step, occurrence, None, None, False)

    def simulate_crash_after(
        self,
        step: Step[..., Any] | int | str | None = None,
        *,
        occurrence: int = 1,
        signal: int | str | None = None,
        timer: int | None = None,
        end: bool = False,
    ) -> None:
        """Let the process die when the step's outcome (or the signal, the timer, the run's end) has been recorded."""
        self._simulate("after", step, occurrence, signal, timer, end)

    def _simulate(
        self,
        moment: Moment,
        step: Step[..., Any] | int | str | None,
        occurrence: int,
        signal: int | str | None,
        timer: int | None,
        end: bool,
    ) -> None:
        kinds: dict[What, Any] = {"step": step, "signal": signal, "timer": timer, "end": end or None}
        targets: list[tuple[What, Any]] = [(what, target) for what, target in kinds.items() if target is not None]
        if len(targets) != 1:
            raise UsageError(f"simulate_crash_{moment}: name one of step=, signal=, timer= and end=True")
        what, target = targets[0]
        if isinstance(target, Step):
            target = target.name
        if occurrence < 1 or (occurrence > 1 and not isinstance(target, str)):
            raise UsageError(f"simulate_crash_{moment}: occurrence= counts from 1 the steps (or signals) of one name")
        if what == "end":
            point = CrashPoint(moment, what, 0)
        elif isinstance(target, str) and what != "timer":
            point = CrashPoint(moment, what, None, target, occurrence)
        elif isinstance(target, int) and not isinstance(target, bool):
            if target < 1:
                raise UsageError(f"simulate_crash_{moment}: {what}={target!r}, but numbers begin with 1")
            point = CrashPoint(moment, what, target)
        else:
            named = "its number" if what == "timer" else "its number or its name"
            raise UsageError(f"simulate_crash_{moment}: {what}={target!r}; a {what} is told by {named}")
        self._world.armed.append(point)

    # Inside

    async def _begin(
        self, workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, until: float | None
    ) -> RunResult:
        _check_workflow(workflow)
        definition, options = workflow.definition, workflow.start_options
        inputs = definition.inputs.encode(args, kwargs)
        new = new_run(definition.spec(), inputs, options, now=self.clock.now(), defaults=definition.defaults)
        # Nothing of chance: a run of the same test has the same id, the same keys and the same random numbers.
        number = len(self._world.traces) + 1
        while f"{definition.name}-{number}" in self._world.traces:
            number += 1  # a test has given this id to a run itself
        seed = hashlib.blake2b(f"{definition.name} {number}".encode(), digest_size=16).digest()
        new = replace(new, seed=seed, id=f"{definition.name}-{number}" if new.generated_id else new.id)
        async with Process(self._world) as process:
            starting = process.engine.loop.create_task(process.engine.start(new, join_orphan=False))
            await process.settle()
            if starting.done():
                accept(starting.result(), new)
                await process.drive(until=until, stop=partial(self._has_ended, new.id))
            else:
                starting.cancel()  # it died before it knew
        if await self._world.store.get(new.id) is None:
            return RunResult(new.id, "pending", True, None, None, "", Steps([], {}))
        return await self._finished(new.id, process)

    async def _go_on(self, run_id: str, *, until: float | None) -> RunResult:
        async with Process(self._world) as process:
            await process.drive(until=until, stop=partial(self._has_ended, run_id))
        return await self._finished(run_id, process)

    def _fork(self) -> Fork:
        """A runner with the mocks and answers of this one, where nothing has happened yet."""
        runner = Runner()
        runner._is_trial = True
        runner._world.mocks, runner._world.answers = self._world.mocks, self._world.answers
        for mock in self._world.mocks.values():
            mock.rewind()
        return Fork(runner, runner._world)

    async def _finished(self, run_id: str, process: Process) -> RunResult:
        result = await self._result(run_id, crashed=process.life.over)
        if self._world.armed and not self._is_trial and not process.life.over and RunState(result.status).is_terminal:
            point = self._world.armed.pop(0)
            steps = ", ".join(f"{step.number} ({step.name})" for step in result.steps) or "none"
            raise UsageError(
                f"run {run_id!r} is {result.status}, and never came to the simulated crash {point}; its steps: {steps}"
            )
        return result

    async def _has_ended(self, run_id: str) -> bool:
        return (await self._read(run_id)).state.is_terminal

    async def _read(self, run_id: str) -> Run:
        run = await self._world.store.get(run_id)
        if run is None:
            known = ", ".join(repr(one) for one in self._world.traces) or "none"
            raise RunNotFound(f"this runner has no run {run_id!r} (runs: {known})", run_id)
        return run

    async def _result(self, run_id: str, *, crashed: bool) -> RunResult:
        run = await self._read(run_id)
        [history] = await self._world.store.histories([run.key])
        definition = definitions[run.workflow]
        output: Any = None
        error: BaseException | None = None
        if run.state is RunState.COMPLETED:
            output = definition.output.decode(run.output or b"null", f"the result of workflow {definition.name!r}")
        elif run.state.is_terminal:
            error = unsuccessful(run, [definition.namespace])
            error = error.__cause__ or error
        steps = _steps(self._world.trace(run_id), {r.position: r for r in history.records if r.kind is Kind.STEP})
        return RunResult(run_id, run.state.value, crashed, output, error, run.waits_for, steps)

    # The same, for tests without an event loop

    def run_sync(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> RunResult:
        """``run`` in a plain test function."""
        return run_sync(self.run(workflow, *args, **kwargs))

    def start_sync(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> RunResult:
        """``start`` in a plain test function."""
        return run_sync(self.start(workflow, *args, **kwargs))

    def resume_sync(self, run_id: str) -> RunResult:
        """``resume`` in a plain test function."""
        return run_sync(self.resume(run_id))

    def signal_sync(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> RunResult:
        """``signal`` in a plain test function."""
        return run_sync(self.signal(run_id, name, value, id=id))

    def advance_sync(self, by: timedelta | float) -> None:
        """``advance`` in a plain test function."""
        run_sync(self.advance(by))

    def crash_everywhere_sync(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> Report:
        """``crash_everywhere`` in a plain test function."""
        __tracebackhide__ = True  # pytest: the message is the story, not our stack
        return run_sync(self.crash_everywhere(workflow, *args, **kwargs))

    def result_sync(self, run_id: str) -> RunResult:
        """``result`` in a plain test function."""
        return run_sync(self.result(run_id))


def _check_workflow(workflow: Any) -> None:
    if not isinstance(workflow, Workflow):
        raise UsageError(f"a runner runs workflows, not {workflow!r}: put @workflow on it")


def _steps(trace: RunTrace, records: dict[int, Record]) -> Steps:
    if not trace.lives:
        return Steps([], {})
    last = trace.lives[-1]
    replayed = {record.position for record in last.delivered[: last.replayed] if record.kind is Kind.STEP}
    steps: list[StepResult] = []
    others: dict[int, str] = {}
    for command in last.issued:
        number = command.position + 1
        if command.kind is not Kind.STEP:
            others[number] = f"the wait for signal {command.name!r}"
            continue
        record = records.get(command.position)
        output, error = _outcome(last, record) if record is not None else (None, None)
        steps.append(
            StepResult(
                number=number,
                name=command.name,
                output=output,
                error=error,
                is_recorded=record is not None,
                was_replayed=command.position in replayed,
                attempts=0 if record is None else record.attempts,
                executions=trace.executions[command.position],
            )
        )
    return Steps(steps, others)


def _outcome(execution: Any, record: Record) -> tuple[Any, BaseException | None]:
    step = execution.calls[record.position]
    payload = record.payload or b"null"
    if record.ok:
        return step.output.decode(payload, f"the output of step {step.name!r}"), None
    try:
        return None, decode_error(payload, [step.namespace])
    except CodecError:
        info = describe_error(payload)
        return None, StepFailed(f"{info.type}: {info.message}", step.name)
