"""``Runner``: workflows in a unit test, in memory, in virtual time, with crashes where the test wants them.

Each call of a runner is a process of its own, from its start to its end: what a run is between two calls is what the
store holds of it. A runner is therefore bound to no event loop, and every call after the first replays the journal, as
a process that takes over does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.admission.usage import Budget
from holdfast.agents.models.model_resolution import check_model
from holdfast.authoring.registry import get_definition
from holdfast.authoring.workflow import Workflow
from holdfast.core.seeded_random import SEED_BYTES
from holdfast.errors import RunNotFound, UsageError
from holdfast.reports.events import Event, list_events
from holdfast.services.approvals import approve, deny, list_approvals
from holdfast.services.forks import NOT_GIVEN, fork_run
from holdfast.services.run_control import cancel_run, pause_run, resume_run, retry_run, send_signal, set_budget
from holdfast.services.run_start import build_new_run, resolve_start
from holdfast.services.settlement import settle_step
from holdfast.services.store_provider import OpenStoreProvider, StoreProvider
from holdfast.stores.operations import Run
from holdfast.sync_methods import run_sync, sync_method
from holdfast.testing.crash_everywhere import (
    AfterEach,
    BeforeEach,
    CrashCheck,
    CrashCheckSettings,
    CrashReport,
    FreshRunner,
)
from holdfast.testing.crash_points import parse_schedule
from holdfast.testing.mocks import MISSING
from holdfast.testing.result_builder import build_run_result
from holdfast.testing.results import Children, RunResult, Steps
from holdfast.testing.runner_setup import RunnerSetup
from holdfast.testing.simulated_process import DEFAULT_ACTOR, SimulatedProcess, World
from holdfast.testing.subprocess_replay import stop_if_replay_process
from holdfast.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class Runner(RunnerSetup):
    """Runs workflows in memory and in virtual time, and lets their process die where you say.

    Args:
        model: the model that answers in place of all others, in agents and in ``@llm_step``: a ``ScriptedModel``, or
            any model object of the pydantic-ai library.
        max_pairs: how many schedules with two crashes ``crash_everywhere`` tries, in addition to all those with one.
        replay_processes: in how many new Python processes it replays the journal.
        compare_results: whether it holds every result against that of the run without a crash.
        only: let it try only this schedule, as one of its failures printed it.
    """

    def __init__(
        self,
        *,
        model: Model | None = None,
        max_pairs: int = 100,
        replay_processes: int = 3,
        compare_results: bool = True,
        only: str | None = None,
    ) -> None:
        if model is not None:
            check_model(model, "Runner(model=...)")
        if isinstance(model, str):
            raise UsageError(f"Runner(model={model!r}): give it a model object, such as a ScriptedModel")
        super().__init__(World(model))
        schedule = None if only is None else parse_schedule(only)
        self._settings = CrashCheckSettings(max_pairs, replay_processes, compare_results, schedule)
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
        ``.has_crashed``, ``.status`` and ``.error``. Runs that it has started and that outlive it then get as far as
        they can without more time passing.
        """
        return await self._start_run(workflow, args, kwargs, until=None)

    async def start(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> RunResult:
        """Start a run, and let it go as far as it gets without time passing."""
        return await self._start_run(workflow, args, kwargs, until=self.clock.now())

    async def resume(self, run_id: str) -> RunResult:
        """Let another process take the run over, and run it as ``run`` does. A paused run stays where it is."""
        await self._read_run(run_id)
        if await self._has_tree_ended(run_id):
            return await self.result(run_id)
        return await self._resume_run(run_id, until=None)

    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> RunResult:
        """Send a value into the run, and let it go as far as it gets without time passing.

        With an ``id``, sending it again changes nothing.
        """
        return await self._change_run(run_id, lambda reach: send_signal(reach, run_id, name, value, id))

    async def approve(
        self,
        run_id: str,
        value: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str = DEFAULT_ACTOR,
        reason: str = "",
        id: str | None = None,
    ) -> RunResult:
        """Say yes to the open question of the run, and let it go as far as it gets without time passing.

        Args:
            run_id: the run that asks; one that it has started asks for itself.
            value: the choice, or what is filled into the form, if the question is not answered with yes or no.
            arguments: for the call of a tool, arguments in place of those that it was called with.
            by: who answers.
            reason: why.
            id: which question, if several are open: see ``result.approvals``.
        """
        asked = await self._find_open_approval(run_id, id)
        call = partial(approve, value=value, arguments=arguments, by=by, reason=reason, run_id=run_id)
        return await self._change_run(run_id, lambda reach: call(reach, asked))

    async def deny(self, run_id: str, *, by: str = DEFAULT_ACTOR, reason: str = "", id: str | None = None) -> RunResult:
        """Say no to the open question of the run, and let it go as far as it gets without time passing."""
        asked = await self._find_open_approval(run_id, id)
        return await self._change_run(run_id, lambda reach: deny(reach, asked, by=by, reason=reason, run_id=run_id))

    async def cancel(self, run_id: str) -> RunResult:
        """Ask for the run to be cancelled, and let it go as far as it gets without time passing.

        So it is cancelled and undone when this returns, unless that takes time: ``resume`` lets it pass.
        """
        return await self._change_run(run_id, lambda reach: cancel_run(reach, run_id))

    async def pause(self, run_id: str) -> RunResult:
        """Pause the run: whatever is sent to it, and whatever time passes, it does not go on before ``unpause``."""
        return await self._change_run(run_id, lambda reach: pause_run(reach, run_id))

    async def unpause(self, run_id: str) -> RunResult:
        """Lift a pause, and let the run go as far as it gets without time passing.

        This is what ``resume`` of a handle does, and ``holdfast resume``; that of a runner is for crashes.
        """
        return await self._change_run(run_id, lambda reach: resume_run(reach, run_id))

    async def retry(self, run_id: str, *, run_again: bool = False) -> RunResult:
        """Let a failed, cancelled or dead run go on from where it went wrong, and run it as ``run`` does.

        With ``run_again``, also if that runs a ``once`` step a second time.
        """
        return await self._change_run(run_id, lambda reach: retry_run(reach, run_id, run_again=run_again), until=None)

    async def settle(
        self, run_id: str, step: int | str, output: Any = NOT_GIVEN, *, happened: bool = True
    ) -> RunResult:
        """Say what came of a ``once`` step that a crash has left unknown, and run the run that failed because of that.

        Args:
            run_id: the run.
            step: its number or its name.
            output: what it has returned.
            happened: false: it did not happen, and runs again.
        """

        await self._read_run(run_id)
        await settle_step(self._world.store, run_id, step, output=output, happened=happened, by=DEFAULT_ACTOR)
        return await self._resume_run(run_id, until=None)

    async def set_budget(self, run_id: str, budget: Budget) -> RunResult:
        """Give the run another budget, and let it go as far as it gets without time passing."""
        return await self._change_run(run_id, lambda reach: set_budget(reach, run_id, budget))

    async def fork(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = NOT_GIVEN, id: str | None = None
    ) -> RunResult:
        """Make a new run that shares the beginning of this one, up to a step, and run it as ``run`` does.

        Args:
            run_id: the run to fork.
            at: the step that it is to do anew: its number or its name. Without one, it shares all that is recorded.
            with_output: what that step is taken to have returned; it runs again unless given.
            id: the id of the new run; the old one with ``-fork-1`` and so on unless given.
        """
        source = await self._read_run(run_id)
        number = 1
        while f"{run_id}-fork-{number}" in self._world.traces:
            number += 1
        new_id = id or f"{run_id}-fork-{number}"
        fresh = hashlib.blake2b(f"fork {new_id}".encode(), digest_size=SEED_BYTES).digest()
        place = self._resolve_step(source, at)
        run = await fork_run(self._world.store, run_id, at=place, with_output=with_output, new_id=new_id, entropy=fresh)
        self._world.add_run(run)
        return await self._resume_run(new_id, until=None)

    async def advance(self, by: Duration) -> None:
        """Let time pass, and every run do what it does in that time."""
        until = self.clock.now() + duration_to_seconds(by, "advance by", may_be_zero=True)
        async with SimulatedProcess(self._world) as process:
            await process.drive(until=until, stop=_never_stop)
        self.clock.advance_to(until)

    async def result(self, run_id: str) -> RunResult:
        """How the run stands now."""
        return await self._build_result(run_id, has_crashed=False)

    async def events(self, run_id: str, after: str | None = None) -> list[Event]:
        """What has happened in the run so far, or behind the event with the offset ``after``: see ``Handle.events``."""
        await self._read_run(run_id)
        return await list_events(self._world.store, run_id, after)

    async def crash_everywhere(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> CrashReport:
        """Run the workflow once for every point at which its process can die, and see that nothing is lost or repeated.

        Every trial has a store and a clock of its own; mocks and answers are those of this runner. Steps really run,
        once for each trial: ``before_each`` puts back what they have changed outside. Raises ``CrashSafetyError``, an
        ``AssertionError`` that tells the shortest schedule that breaks a promise, the cause, and how to reproduce it.
        """
        __tracebackhide__ = True  # pytest: the message is the story, not our stack
        _check_workflow(workflow)
        stop_if_replay_process()
        if self._world.crash_points:
            raise UsageError("crash_everywhere chooses the crashes itself: drop the simulate_crash_... before it")
        return await CrashCheck(self._make_trial_runner, self._settings, workflow, args, kwargs).check()

    def before_each(self, call: BeforeEach) -> BeforeEach:
        """Call this before every trial of ``crash_everywhere``, to put back what steps have changed outside."""
        self._settings.before_each.append(call)
        return call

    def after_each(self, call: AfterEach) -> AfterEach:
        """Call this with the result after every trial of ``crash_everywhere``: to check what must hold outside."""
        self._settings.after_each.append(call)
        return call

    # Inside

    async def _start_run(
        self, workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, until: float | None
    ) -> RunResult:
        _check_workflow(workflow)
        definition, options = workflow.definition, workflow.start_options
        given = workflow.prepare_start(args, kwargs)
        inputs = definition.inputs_codec.encode(given.args, given.kwargs)
        new = build_new_run(definition.to_spec(), inputs, options, now=self.clock.now(), defaults=definition.defaults)
        # Nothing of chance: a run of the same test has the same id, the same keys and the same random numbers.
        number = 1 + sum(not trace.parent for trace in self._world.traces.values())
        while f"{definition.name}-{number}" in self._world.traces:
            number += 1  # a test has given this id to a run itself
        seed = hashlib.blake2b(f"{definition.name} {number}".encode(), digest_size=16).digest()
        new = replace(new, seed=seed, id=f"{definition.name}-{number}" if new.has_generated_id else new.id)
        if given.bind_run is not None:
            given.bind_run(new.id)
        run_id = new.id
        async with SimulatedProcess(self._world) as process:
            starting = process.engine.loop.create_task(process.engine.start(new, join_orphan=False))
            await process.wait_until_idle()
            if starting.done():
                run_id = resolve_start(
                    starting.result(), new
                ).id  # another one, if this start joins it by its dedup key
                await self._drive(process, run_id, until)
            else:
                starting.cancel()  # it died before it knew
        if await self._world.store.get_run(run_id) is None:
            return RunResult(run_id, new.workflow, "pending", True, None, None, "", Steps([], {}), Children({}))
        return await self._build_final_result(run_id, process)

    async def _resume_run(self, run_id: str, *, until: float | None) -> RunResult:
        async with SimulatedProcess(self._world) as process:
            await self._drive(process, run_id, until)
        return await self._build_final_result(run_id, process)

    async def _drive(self, process: SimulatedProcess, run_id: str, until: float | None) -> None:
        await process.drive(until=until, stop=partial(self._has_ended, run_id))
        eldest = self._world.find_root(run_id)
        if not process.state.is_dead and await self._has_ended(run_id) and not await self._has_tree_ended(eldest):
            # Who waited for it goes on, and so does what it has left behind, for which nobody waits. In a trial it
            # matters all the same how that ends.
            until = None if self._is_trial else self.clock.now()
            await process.drive(until=until, stop=partial(self._has_tree_ended, eldest))

    async def _change_run(
        self, run_id: str, change: Callable[[StoreProvider], Awaitable[object]], *, until: float | None = MISSING
    ) -> RunResult:
        """Change a run from outside, and let it go on; without time passing unless told otherwise."""
        await self._read_run(run_id)  # who is not there is told with those that are
        await change(self._store_provider)
        return await self._resume_run(run_id, until=self.clock.now() if until is MISSING else until)

    @property
    def _store_provider(self) -> StoreProvider:
        return OpenStoreProvider(self._world.store)

    async def _find_open_approval(self, run_id: str, id: str | None) -> str:
        """The question that is meant: the only one of the run that is open, unless it is named."""
        await self._read_run(run_id)
        asked = await list_approvals(self._store_provider, run_id)
        if id is not None:
            return id
        if len(asked) != 1:
            open_ones = ", ".join(f"{one.id} ({one.question!r})" for one in asked)
            told = f"has {len(asked)} open questions: say which with id=: {open_ones}" if asked else "asks nothing now"
            raise UsageError(f"run {run_id!r} {told}")
        return asked[0].id

    def _resolve_step(self, run: Run, at: int | str | None) -> int | str | None:
        """What the store must be told: it counts steps as they were called, not as a class declares them."""
        numbers = get_definition(run.workflow, run.version).step_numbers
        if not numbers or not isinstance(at, int):
            return at
        for name, number in numbers.items():
            if number == at:
                return name
        known = ", ".join(f"{number} ({name})" for name, number in numbers.items())
        raise UsageError(f"fork: workflow {run.workflow!r} has no step {at}; its steps are: {known}")

    def _make_trial_runner(self) -> FreshRunner:
        """A runner with the mocks and answers of this one, where nothing has happened yet."""
        runner = Runner(model=self._world.model)
        runner._is_trial = True
        runner._world.mocks, runner._world.signal_answers = self._world.mocks, self._world.signal_answers
        runner._world.approval_answers = self._world.approval_answers
        runner._world.cancel_points = list(self._world.cancel_points)
        for mock in self._world.mocks.values():
            mock.rewind()
        return FreshRunner(runner, runner._world)

    async def _build_final_result(self, run_id: str, process: SimulatedProcess) -> RunResult:
        result = await self._build_result(run_id, has_crashed=process.state.is_dead)
        if not self._is_trial and not process.state.is_dead:
            await self._check_points_used(self._world.find_root(run_id))
        return result

    async def _check_points_used(self, run_id: str) -> None:
        """A crash, or a cancel, that a run which is over never came to is a mistake."""
        if (self._world.crash_points or self._world.cancel_points) and await self._has_tree_ended(run_id):
            what, points = (
                ("crash", self._world.crash_points)
                if self._world.crash_points
                else ("cancel", self._world.cancel_points)
            )
            raise UsageError(_describe_unreached(f"{what} {points.pop(0)}", await self.result(run_id)))

    async def _has_ended(self, run_id: str) -> bool:
        return (await self._read_run(run_id)).state.is_terminal

    async def _has_tree_ended(self, run_id: str) -> bool:
        """Whether the run has ended, and all that it has started."""
        return all([await self._has_ended(trace.run_id) for trace in self._world.list_run_tree(run_id)])

    async def _read_run(self, run_id: str) -> Run:
        run = await self._world.store.get_run(run_id)
        if run is None:
            known = ", ".join(repr(one) for one in self._world.traces) or "none"
            raise RunNotFound(f"this runner has no run {run_id!r} (runs: {known})", run_id)
        return run

    async def _build_result(self, run_id: str, *, has_crashed: bool) -> RunResult:
        return await build_run_result(self._world, await self._read_run(run_id), has_crashed=has_crashed)

    # The same, for tests without an event loop

    _run_sync = staticmethod(run_sync)

    run_sync = sync_method(run)
    start_sync = sync_method(start)
    resume_sync = sync_method(resume)
    signal_sync = sync_method(signal)
    approve_sync = sync_method(approve)
    deny_sync = sync_method(deny)
    cancel_sync = sync_method(cancel)
    pause_sync = sync_method(pause)
    unpause_sync = sync_method(unpause)
    retry_sync = sync_method(retry)
    settle_sync = sync_method(settle)
    set_budget_sync = sync_method(set_budget)
    fork_sync = sync_method(fork)
    advance_sync = sync_method(advance)
    events_sync = sync_method(events)
    crash_everywhere_sync = sync_method(crash_everywhere)
    result_sync = sync_method(result)


def _check_workflow(workflow: Any) -> None:
    if not isinstance(workflow, Workflow):
        raise UsageError(f"a runner runs workflows, not {workflow!r}: put @workflow on it")


def _describe_unreached(subject: str, result: RunResult) -> str:
    named = [f"{step.number} ({step.name})" for step in result.steps]
    steps = ", ".join(dict.fromkeys(named)) or "none"
    children = ", ".join(f"{child.workflow} ({child.run_id!r})" for child in result.children)
    return (
        f"run {result.run_id!r} is {result.status}, and never came to the simulated {subject}; its steps: {steps}"
        f"{f'; its children: {children}' if children else ''}"
    )


async def _never_stop() -> bool:
    return False
