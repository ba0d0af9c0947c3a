"""``Runner``: runs workflows in a unit test, in memory and in virtual time, with crashes where the test wants them.

Each call of a runner simulates one process from start to end. Between two calls, a run exists only in the store. A
runner is therefore not bound to an event loop, and every call after the first replays the journal, as a process that
takes over does.
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
from holdfast.authoring.workflow import PreparedStart, Workflow
from holdfast.core.seeded_random import SEED_BYTES
from holdfast.engine.journal_engine import JournalEngine
from holdfast.errors import RunNotFound, UsageError
from holdfast.reports.events import Event, list_events
from holdfast.services.approvals import approve, deny, list_approvals
from holdfast.services.forks import NOT_GIVEN, fork_run
from holdfast.services.run_control import cancel_run, pause_run, resume_run, retry_run, send_signal, set_budget
from holdfast.services.run_start import build_new_run, resolve_start
from holdfast.services.settlement import settle_step
from holdfast.services.store_provider import OpenStoreProvider, StoreProvider
from holdfast.stores.operations import NewRun, Run
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
from holdfast.testing.result_builder import build_run_result, build_short_result
from holdfast.testing.results import Children, RunResult, Steps
from holdfast.testing.runner_setup import RunnerSetup
from holdfast.testing.simulated_process import DEFAULT_ACTOR, SimulatedProcess, World
from holdfast.testing.subprocess_replay import stop_if_replay_process
from holdfast.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class Runner(RunnerSetup):
    """Runs workflows in memory and in virtual time, and crashes their process where you want it.

    Args:
        model: replaces every model, in agents and in ``@llm_step``: a ``ScriptedModel``, or any model object of
            pydantic-ai.
        max_pairs: maximum number of schedules with two crashes that ``crash_everywhere`` tries, after all others.
            Default: 100, and fewer for a long run.
        replay_processes: number of new Python processes in which ``crash_everywhere`` replays the journal.
        compare_results: whether ``crash_everywhere`` compares every result with the one of the run without a crash.
        only: the one schedule that ``crash_everywhere`` tries, as printed by a failure.
    """

    def __init__(
        self,
        *,
        model: Model | None = None,
        max_pairs: int | None = None,
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
        """In a trial, an unreached crash point is not an error: code may take another path after the first crash."""
        self._has_full_results = True
        """Whether results show what the run did: in most trials, nothing looks at that."""

    @property
    def clock(self) -> VirtualClock:
        """The virtual clock of this runner."""
        return self._world.clock

    # Running

    async def run(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> RunResult:
        """Run the workflow until it ends, its process crashes, or it waits for something the test does not provide.

        Virtual time jumps over all waits. A crash or a failed workflow does not raise: check ``.has_crashed``,
        ``.status``, and ``.error``. Child runs that outlive the workflow then continue until they need more time to
        pass.
        """
        return await self._start_run(workflow, args, kwargs, until=None)

    async def start(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> RunResult:
        """Start a run, and execute it until it needs time to pass."""
        return await self._start_run(workflow, args, kwargs, until=self.clock.now())

    async def resume(self, run_id: str) -> RunResult:
        """Let another process take over the run, and run it as ``run`` does. A paused run does not continue."""
        await self._read_run(run_id)
        if await self._has_tree_ended(run_id):
            return await self.result(run_id)
        return await self._resume_run(run_id, until=None)

    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> RunResult:
        """Send a value into the run, and execute it until it needs time to pass.

        With an ``id``, sending it again changes nothing.
        """
        return await self._change_run(run_id, lambda provider: send_signal(provider, run_id, name, value, id))

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
        """Approve the open approval of the run, and execute the run until it needs time to pass.

        Args:
            run_id: the run that asks. A child run asks under its own id.
            value: the choice, or the content of the form, for an approval that takes more than yes or no.
            arguments: for a tool call, arguments that replace those of the call.
            by: who approves.
            reason: why.
            id: the approval, if several are open: see ``result.approvals``.
        """
        approval_id = await self._find_open_approval(run_id, id)
        call = partial(approve, value=value, arguments=arguments, by=by, reason=reason, run_id=run_id)
        return await self._change_run(run_id, lambda provider: call(provider, approval_id))

    async def deny(self, run_id: str, *, by: str = DEFAULT_ACTOR, reason: str = "", id: str | None = None) -> RunResult:
        """Deny the open approval of the run, and execute the run until it needs time to pass."""
        approval_id = await self._find_open_approval(run_id, id)
        call = partial(deny, by=by, reason=reason, run_id=run_id)
        return await self._change_run(run_id, lambda provider: call(provider, approval_id))

    async def cancel(self, run_id: str) -> RunResult:
        """Request the cancellation of the run, and execute it until it needs time to pass.

        The run is cancelled and compensated when this returns, unless that needs time to pass: then call ``resume``.
        """
        return await self._change_run(run_id, lambda provider: cancel_run(provider, run_id))

    async def pause(self, run_id: str) -> RunResult:
        """Pause the run: until ``unpause``, neither signals nor time continue it."""
        return await self._change_run(run_id, lambda provider: pause_run(provider, run_id))

    async def unpause(self, run_id: str) -> RunResult:
        """End a pause, and execute the run until it needs time to pass.

        A handle's ``resume`` and ``holdfast resume`` do this; a runner's ``resume`` is for crashes.
        """
        return await self._change_run(run_id, lambda provider: resume_run(provider, run_id))

    async def retry(self, run_id: str, *, run_again: bool = False) -> RunResult:
        """Retry a failed, cancelled, or dead run from where it failed, and run it as ``run`` does.

        With ``run_again``, also if that runs a ``once`` step a second time.
        """
        call = partial(retry_run, run_id=run_id, run_again=run_again)
        return await self._change_run(run_id, call, until=None)

    async def settle(
        self, run_id: str, step: int | str, output: Any = NOT_GIVEN, *, happened: bool = True
    ) -> RunResult:
        """Settle a ``once`` step whose outcome is unknown after a crash, and run the run that failed because of it.

        Args:
            run_id: the run.
            step: the step's number or name.
            output: the step's result.
            happened: false if the step had no effect, so that it runs again.
        """
        await self._read_run(run_id)
        await settle_step(self._world.store, run_id, step, output=output, happened=happened, by=DEFAULT_ACTOR)
        return await self._resume_run(run_id, until=None)

    async def set_budget(self, run_id: str, budget: Budget) -> RunResult:
        """Change the run's budget, and execute the run until it needs time to pass."""
        return await self._change_run(run_id, lambda provider: set_budget(provider, run_id, budget))

    async def fork(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = NOT_GIVEN, id: str | None = None
    ) -> RunResult:
        """Fork the run at a step, and run the fork as ``run`` does.

        Args:
            run_id: the run to fork.
            at: the number or name of the first step that the fork executes. Default: the fork shares all records.
            with_output: the result of that step. Default: the step runs again.
            id: the id of the fork. Default: the run's id with ``-fork-1``, ``-fork-2``, and so on.
        """
        source = await self._read_run(run_id)
        number = 1
        while f"{run_id}-fork-{number}" in self._world.traces:
            number += 1
        new_id = id or f"{run_id}-fork-{number}"
        entropy = hashlib.blake2b(f"fork {new_id}".encode(), digest_size=SEED_BYTES).digest()
        step = self._resolve_step(source, at)
        run = await fork_run(
            self._world.store, run_id, at=step, with_output=with_output, new_id=new_id, entropy=entropy
        )
        self._world.add_run(run)
        return await self._resume_run(new_id, until=None)

    async def advance(self, by: Duration) -> None:
        """Let time pass, and execute every run meanwhile."""
        until = self.clock.now() + duration_to_seconds(by, "advance by", may_be_zero=True)
        async with SimulatedProcess(self._world) as process:
            await process.drive(until=until, stop=_never_stop)
        self.clock.advance_to(until)

    async def result(self, run_id: str) -> RunResult:
        """The current state of the run."""
        return await self._build_result(run_id, has_crashed=False)

    async def events(self, run_id: str, after: str | None = None) -> list[Event]:
        """The events of the run so far, or those after the offset ``after``: see ``Handle.events``."""
        await self._read_run(run_id)
        return await list_events(self._world.store, run_id, after)

    async def crash_everywhere(self, workflow: Workflow[..., Any], /, *args: Any, **kwargs: Any) -> CrashReport:
        """Run the workflow with a crash at every point where it can crash, and check that nothing is lost or repeated.

        A short workflow is run once for each point; the points of a long one share runs (see ``crash_schedules``).
        Every trial has its own store and clock, and the mocks and answers of this runner. Steps really run in every
        trial: use ``before_each`` to reset what they change outside. Raises ``CrashSafetyError``, an
        ``AssertionError`` with the shortest schedule that breaks a promise, the cause, and how to reproduce it.
        """
        __tracebackhide__ = True  # pytest shows the message, not our stack
        _check_workflow(workflow)
        stop_if_replay_process()
        if self._world.crash_points:
            raise UsageError("crash_everywhere chooses the crashes itself: drop the simulate_crash_... before it")
        return await CrashCheck(self._make_trial_runner, self._settings, workflow, args, kwargs).check()

    def before_each(self, call: BeforeEach) -> BeforeEach:
        """Call a function before every trial of ``crash_everywhere``, to reset what steps have changed outside."""
        self._settings.before_each.append(call)
        return call

    def after_each(self, call: AfterEach) -> AfterEach:
        """Call a function with the result of every trial of ``crash_everywhere``, to check what steps did outside."""
        self._settings.after_each.append(call)
        return call

    # Internals

    async def _start_run(
        self, workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, until: float | None
    ) -> RunResult:
        _check_workflow(workflow)
        definition, options = workflow.definition, workflow.start_options
        prepared = workflow.prepare_start(args, kwargs)
        inputs = definition.inputs_codec.encode(prepared.args, prepared.kwargs)
        new = build_new_run(definition.to_spec(), inputs, options, now=self.clock.now(), defaults=definition.defaults)
        # Nothing is random: a run has the same id, keys, and random numbers each time the test runs.
        number = 1 + sum(not trace.parent for trace in self._world.traces.values())
        while f"{definition.name}-{number}" in self._world.traces:
            number += 1  # the test gave this id to another run
        seed = hashlib.blake2b(f"{definition.name} {number}".encode(), digest_size=SEED_BYTES).digest()
        new = replace(new, seed=seed, id=f"{definition.name}-{number}" if new.has_generated_id else new.id)
        if prepared.bind_run is not None:
            prepared.bind_run(new.id)
        run_id = new.id
        async with SimulatedProcess(self._world) as process:
            starting = process.engine.loop.create_task(_start_or_join(process.engine, new, prepared))
            await process.wait_until_idle()
            if starting.done():
                run_id = starting.result()
                await self._drive(process, run_id, until)
            else:
                starting.cancel()  # the process crashed before the answer
        if await self._world.store.get_run(run_id) is None:
            return RunResult(run_id, new.workflow, "pending", True, None, None, "", Steps([], {}), Children({}))
        return await self._build_checked_result(run_id, process)

    async def _resume_run(self, run_id: str, *, until: float | None) -> RunResult:
        async with SimulatedProcess(self._world) as process:
            await self._drive(process, run_id, until)
        return await self._build_checked_result(run_id, process)

    async def _drive(self, process: SimulatedProcess, run_id: str, until: float | None) -> None:
        await process.drive(until=until, stop=partial(self._has_ended, run_id))
        root = self._world.find_root(run_id)
        if not process.state.is_dead and await self._has_ended(run_id) and not await self._has_tree_ended(root):
            # Runs that waited for this one continue, and so do children it did not wait for. A trial also checks how
            # those end, so it lets time pass for them.
            until = None if self._is_trial else self.clock.now()
            await process.drive(until=until, stop=partial(self._has_tree_ended, root))

    async def _change_run(
        self, run_id: str, change: Callable[[StoreProvider], Awaitable[object]], *, until: float | None = MISSING
    ) -> RunResult:
        """Change a run from outside, then drive it. Default for ``until``: no time passes."""
        await self._read_run(run_id)  # for an unknown id, its error lists the runs of this runner
        await change(self._store_provider)
        return await self._resume_run(run_id, until=self.clock.now() if until is MISSING else until)

    @property
    def _store_provider(self) -> StoreProvider:
        return OpenStoreProvider(self._world.store)

    async def _find_open_approval(self, run_id: str, id: str | None) -> str:
        """``id``, or the id of the only open approval of the run."""
        await self._read_run(run_id)
        if id is not None:
            return id
        approvals = await list_approvals(self._store_provider, run_id)
        if not approvals:
            raise UsageError(f"run {run_id!r} has no open approval")
        if len(approvals) > 1:
            known = ", ".join(f"{approval.id} ({approval.question!r})" for approval in approvals)
            raise UsageError(f"run {run_id!r} has {len(approvals)} open approvals: choose one with id=: {known}")
        return approvals[0].id

    def _resolve_step(self, run: Run, at: int | str | None) -> int | str | None:
        """The step as the store knows it, which numbers steps by call and not as a class declares them."""
        numbers = get_definition(run.workflow, run.version).step_numbers
        if not numbers or not isinstance(at, int):
            return at
        for name, number in numbers.items():
            if number == at:
                return name
        known = ", ".join(f"{number} ({name})" for name, number in numbers.items())
        raise UsageError(f"fork: workflow {run.workflow!r} has no step {at}; its steps are: {known}")

    def _make_trial_runner(self, has_full_results: bool) -> FreshRunner:
        """A runner with the mocks and answers of this one, and an empty store."""
        runner = Runner(model=self._world.model)
        runner._is_trial = True
        runner._has_full_results = has_full_results
        runner._world.mocks, runner._world.signal_answers = self._world.mocks, self._world.signal_answers
        runner._world.approval_answers = self._world.approval_answers
        runner._world.cancel_points = list(self._world.cancel_points)
        for mock in self._world.mocks.values():
            mock.rewind()
        return FreshRunner(runner, runner._world)

    async def _build_checked_result(self, run_id: str, process: SimulatedProcess) -> RunResult:
        result = await self._build_result(run_id, has_crashed=process.state.is_dead)
        if not self._is_trial and not process.state.is_dead:
            await self._check_all_points_reached(self._world.find_root(run_id))
        return result

    async def _check_all_points_reached(self, run_id: str) -> None:
        """Raise if a run has ended without reaching a crash or a cancel that the test asked for."""
        for action, points in (("crash", self._world.crash_points), ("cancel", self._world.cancel_points)):
            if points and await self._has_tree_ended(run_id):
                raise UsageError(_describe_unreached(f"{action} {points.pop(0)}", await self.result(run_id)))

    async def _has_ended(self, run_id: str) -> bool:
        return (await self._read_run(run_id)).state.is_terminal

    async def _has_tree_ended(self, run_id: str) -> bool:
        """Whether the run and all its descendants have ended."""
        return all([await self._has_ended(trace.run_id) for trace in self._world.list_run_tree(run_id)])

    async def _read_run(self, run_id: str) -> Run:
        run = await self._world.store.get_run(run_id)
        if run is None:
            known = ", ".join(map(repr, self._world.traces)) or "none"
            raise RunNotFound(f"this runner has no run {run_id!r} (runs: {known})", run_id)
        return run

    async def _build_result(self, run_id: str, *, has_crashed: bool) -> RunResult:
        run = await self._read_run(run_id)
        if not self._has_full_results or (self._is_trial and has_crashed):
            return build_short_result(run, has_crashed=has_crashed)
        return await build_run_result(self._world, run, has_crashed=has_crashed)

    # For tests without an event loop

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
        f"run {result.run_id!r} is {result.status}, and never reached the simulated {subject}; its steps: {steps}"
        f"{f'; its children: {children}' if children else ''}"
    )


async def _start_or_join(engine: JournalEngine, new: NewRun, prepared: PreparedStart) -> str:
    """The id of the started run. It is another one than that of ``new`` if the start joined a run by its dedup key."""
    run = resolve_start(await engine.start(new, join_orphan=False), new)
    prepared.rebind_run(new.id, run.id)
    return run.id


async def _never_stop() -> bool:
    return False
