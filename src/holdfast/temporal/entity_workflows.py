"""The entity workflows: the account of a budget, and the order of a session.

See ``stores.temporal.entity_workflows`` for their purpose, and for how to call them. Their handlers do not wait before
they change the state, so messages take effect in the order in which Temporal delivers them.

**When they end.** An entity that has received no message for a while checks whether its run has ended, first after a
minute, then at longer and longer intervals. If so, it ends with its whole state as its result. Temporal does not let a
workflow end before it has received all its messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

from holdfast.admission.usage import BUDGET_SIGNAL, BudgetLimits
from holdfast.stores.rules import encode_budget
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.awaited_run import AwaitedRun, found_run_from_json
from holdfast.stores.temporal.budgets import BUDGET_KEY, BudgetAccount, StepRef, usage_from_json
from holdfast.stores.temporal.payloads import from_payload, to_raw_value
from holdfast.stores.temporal.sessions import SessionOrder

FIRST_CHECK_S = 60.0
MAX_CHECK_INTERVAL_S = 86_400.0
"""The time without a message after which an entity checks whether it is still needed; it doubles each time."""

CONTINUE_AS_NEW_AFTER = 4000
"""Events in its history after which an entity continues as new, if Temporal does not suggest it before."""

CHECK_TIMEOUT = timedelta(seconds=60)


class _EntityWorkflow(ABC):
    """The life of an entity."""

    _message_count = 0

    @abstractmethod
    def _state_to_json(self) -> dict[str, Any]:
        """The whole state."""

    @abstractmethod
    def _get_owner_run_id(self) -> str:
        """The run that needs the entity."""

    def _build_memo(self) -> dict[str, Any]:
        return {}

    async def _run_until_unneeded(self) -> dict[str, Any]:
        wait_s = FIRST_CHECK_S
        while True:
            count = self._message_count
            try:
                await workflow.wait_condition(_is_history_long, timeout=wait_s)
            except TimeoutError:
                if (
                    count == self._message_count
                    and await self._has_run_ended(self._get_owner_run_id())
                    and count == self._message_count
                ):
                    return self._state_to_json()
                wait_s = FIRST_CHECK_S if count != self._message_count else min(2 * wait_s, MAX_CHECK_INTERVAL_S)
            else:
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(self._state_to_json(), memo=self._build_memo())

    async def _has_run_ended(self, run_id: str) -> bool:
        answer: RawValue = await workflow.execute_activity(
            identifiers.AWAIT_RUN_ACTIVITY,
            to_raw_value(AwaitedRun(run_id, wait=False).to_json()),
            result_type=RawValue,
            start_to_close_timeout=CHECK_TIMEOUT,
            summary=run_id,
        )
        found = found_run_from_json(from_payload(answer.payload))
        return found is None or found.state.is_terminal


def _is_history_long() -> bool:
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() >= CONTINUE_AS_NEW_AFTER


@workflow.defn(name=identifiers.ACCOUNT_TYPE, sandboxed=False)
class BudgetWorkflow(_EntityWorkflow):
    """Holds the account of a budget."""

    @workflow.init
    def __init__(self, state: dict[str, Any]) -> None:
        self._account = BudgetAccount.from_json(state)

    @workflow.run
    async def run(self, state: dict[str, Any]) -> dict[str, Any]:
        """Live as long as it is needed."""
        return await self._run_until_unneeded()

    @workflow.update(name=identifiers.RESERVE_UPDATE)
    async def reserve(self, step: list[Any], expected: dict[str, Any]) -> dict[str, Any] | None:
        """Make a reservation for a step. Returns the shortage if it is refused."""
        self._message_count += 1
        shortage = self._account.reserve(StepRef(*step), usage_from_json(expected))
        return None if shortage is None else shortage._asdict()

    @workflow.signal(name=identifiers.USED_SIGNAL)
    def record_usage(self, step: list[Any], usage: dict[str, Any]) -> None:
        """Record the final usage of a step."""
        self._message_count += 1
        self._account.record_usage(StepRef(*step), usage_from_json(usage))

    @workflow.signal(name=identifiers.SET_BUDGET_SIGNAL)
    async def set_budget(self, limits: list[Any]) -> None:
        """Replace the budget, and let the refused steps ask again."""
        self._message_count += 1
        budget = BudgetLimits(*limits)
        refused_steps = self._account.set_limits(budget)
        workflow.upsert_memo(self._build_memo())
        for step in refused_steps:
            try:
                handle: Any = workflow.get_external_workflow_handle(step.run_id)
                await handle.signal(BUDGET_SIGNAL, to_raw_value(encode_budget(budget)))
            except FailureError:
                pass  # it has ended; a retry of it asks again

    @workflow.query(name=identifiers.IN_FLIGHT_QUERY, description="The steps that something is reserved for")
    def list_reservations(self) -> list[list[Any]]:
        """The steps that something is reserved for."""
        return [list(step) for step in self._account.reserved]

    @workflow.query(name=identifiers.STATUS_QUERY, description="What may be used, and what was")
    def status(self) -> dict[str, Any]:
        """The limits, the usage, and the number of reservations."""
        account = self._account
        return {"budget": account.limits._asdict(), "used": asdict(account.used), "in_flight": len(account.reserved)}

    def _state_to_json(self) -> dict[str, Any]:
        return self._account.to_json()

    def _get_owner_run_id(self) -> str:
        return self._account.run_id

    def _build_memo(self) -> dict[str, Any]:
        return {BUDGET_KEY: list(self._account.limits)}


@workflow.defn(name=identifiers.SESSION_TYPE, sandboxed=False)
class SessionWorkflow(_EntityWorkflow):
    """Holds the order of the runs in a session."""

    @workflow.init
    def __init__(self, state: dict[str, Any]) -> None:
        self._order = SessionOrder.from_json(state)

    @workflow.run
    async def run(self, state: dict[str, Any]) -> dict[str, Any]:
        """Live as long as it is needed."""
        return await self._run_until_unneeded()

    @workflow.update(name=identifiers.JOIN_UPDATE)
    async def join(self, run_id: str) -> str:
        """Append a run, and return the run before it."""
        self._message_count += 1
        return self._order.join(run_id)

    @workflow.signal(name=identifiers.JOINED_SIGNAL)
    def note_started(self, run_id: str) -> None:
        """Append a run that was started."""
        self._message_count += 1
        self._order.join(run_id)

    def _state_to_json(self) -> dict[str, Any]:
        return self._order.to_json()

    def _get_owner_run_id(self) -> str:
        return self._order.newest


ENTITY_WORKFLOWS = (BudgetWorkflow, SessionWorkflow)
