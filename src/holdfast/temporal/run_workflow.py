"""The one class that Temporal's workers know, whatever the workflow: it hands everything to the run that it holds.

It runs outside the SDK's sandbox. The user's code runs on a loop that refuses what cannot be replayed (``core.loop``),
and Holdfast's own code between the two does nothing else than what ``live_run`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

from holdfast.stores.temporal import identifiers
from holdfast.temporal.engine_context import EngineContext
from holdfast.temporal.live_run import LiveRun

_ENGINE_CONTEXT = "holdfast_site"


class EngineContextInterceptor(Interceptor):
    """Lets the workflows of a worker find what they share with the rest of its engine."""

    def __init__(self, engine_context: EngineContext) -> None:
        self._engine_context = engine_context

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        """Hand the site in; nothing is intercepted."""
        cast(Any, input).unsafe_extern_functions[_ENGINE_CONTEXT] = lambda: self._engine_context
        return None


@workflow.defn(dynamic=True, sandboxed=False)
class RunWorkflow:
    """A run of any workflow."""

    def __init__(self) -> None:
        self._live_run: LiveRun | None = None
        self._early_signals: list[tuple[str, Sequence[RawValue]]] = []
        """Signals that came before the run was there to hear them."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RawValue:
        """From the beginning of an execution to its end."""
        site: EngineContext = cast(Any, workflow).extern_functions()[_ENGINE_CONTEXT]()
        self._live_run = LiveRun(site, args)
        early, self._early_signals = self._early_signals, []
        for name, values in early:
            self._live_run.receive_signal(name, values)
        return await self._live_run.execute()

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """A signal has come."""
        if self._live_run is None:
            self._early_signals.append((name, args))
        else:
            self._live_run.receive_signal(name, args)

    @workflow.update(dynamic=True)
    async def on_update(self, name: str, args: Sequence[RawValue]) -> bool:
        """A step of the run asks for a change of it."""
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
