"""The one workflow class that Temporal's workers know: it passes everything to its ``LiveRun``.

It runs outside the SDK's sandbox. User code runs on a loop that refuses what cannot be replayed (``core.loop``), and
Holdfast's own code in between is deterministic (``live_run``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.run_memo import RUN_MEMO_KEY
from holdfast.temporal.engine_context import EngineContext
from holdfast.temporal.live_program import LiveProgram
from holdfast.temporal.live_run import LiveRun

_ENGINE_CONTEXT = "holdfast_site"


class EngineContextInterceptor(Interceptor):
    """Gives the workflows of a worker access to its engine's context."""

    def __init__(self, engine_context: EngineContext) -> None:
        self._engine_context = engine_context

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        """Add the context; this intercepts nothing."""
        cast(Any, input).unsafe_extern_functions[_ENGINE_CONTEXT] = lambda: self._engine_context
        return None


@workflow.defn(dynamic=True, sandboxed=False)
class RunWorkflow:
    """A run of any workflow."""

    def __init__(self) -> None:
        self._live_run: LiveRun | None = None
        self._early_signals: list[tuple[str, Sequence[RawValue]]] = []
        """Signals that arrived before ``run`` was called."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RawValue:
        """Run an execution to its end."""
        engine_context: EngineContext = cast(Any, workflow).extern_functions()[_ENGINE_CONTEXT]()
        self._live_run = _make_live_run(engine_context, args)
        early, self._early_signals = self._early_signals, []
        for name, values in early:
            self._live_run.receive_signal(name, values)
        return await self._live_run.execute()

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Receive a signal."""
        if self._live_run is None:
            self._early_signals.append((name, args))
        else:
            self._live_run.receive_signal(name, args)

    @workflow.update(dynamic=True)
    async def on_update(self, name: str, args: Sequence[RawValue]) -> Any:
        """Receive an update from a step of the run, or from its program."""
        info = workflow.current_update_info()
        await workflow.wait_condition(lambda: self._live_run is not None)
        assert self._live_run is not None
        assert info is not None
        return await self._live_run.receive_update(info.id, name, args)

    @workflow.query(name=identifiers.STATUS_QUERY, description="What the run is doing")
    def status(self) -> dict[str, Any]:
        """What the run is doing."""
        return {"state": "pending"} if self._live_run is None else self._live_run.status()

    @workflow.query(name=identifiers.PLAN_QUERY, description="The agent's plan, if it has one")
    def plan(self) -> list[Any]:
        """The agent's plan."""
        return [] if self._live_run is None else self._live_run.plan()

    @workflow.query(name=identifiers.JOURNAL_QUERY, description="The records that the code has seen, in short")
    def journal(self) -> dict[str, Any]:
        """The records that the code has seen."""
        return {} if self._live_run is None else self._live_run.journal()


def _make_live_run(engine_context: EngineContext, args: Sequence[RawValue]) -> LiveRun:
    """The live run of this execution."""
    run_memo: dict[str, Any] = workflow.memo().get(RUN_MEMO_KEY, {})
    definition = engine_context.get_definition(workflow.info().workflow_type, run_memo.get("version", ""))
    return LiveProgram(engine_context, args) if definition.is_program else LiveRun(engine_context, args)
