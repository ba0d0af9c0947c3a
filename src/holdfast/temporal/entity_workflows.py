"""The workflows that keep something for many runs: the account of a budget, the order of a session.

See ``stores.temporal.entity_workflows`` for what they are, and how they are reached. Their handlers wait for nothing,
so that what they keep changes in one order, the one in which Temporal hands them what has come.

**When they end.** A keeper that has heard nothing for a while looks whether the run that it is kept for is over, at
first after a minute, then at longer and longer intervals. If that is so, it ends, with all that it knows as its result.
Temporal lets no workflow end that has not heard everything that was sent to it.
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
from holdfast.stores.temporal.budgets import BUDGET_KEY, BudgetAccount, StepRef, usage_from_json
from holdfast.stores.temporal.payloads import from_payload, to_raw_value
from holdfast.stores.temporal.sessions import SessionOrder
from holdfast.temporal.awaited_run import AwaitedRun

FIRST_CHECK_S = 60.0
MAX_CHECK_INTERVAL_S = 86_400.0
"""Seconds without any message after which a keeper looks whether it is still needed; twice as long each time."""

CONTINUE_AS_NEW_AFTER = 4000
"""Events in its history after which a keeper continues as new, if Temporal does not suggest it before."""

CHECK_TIMEOUT = timedelta(seconds=60)
"""For one look."""


class _EntityWorkflow(ABC):
    """What both have in common: how they live and end."""

    _message_count = 0
    """How many messages have come."""

    @abstractmethod
    def _state_to_json(self) -> dict[str, Any]:
        """All that it knows."""

    @abstractmethod
    def _get_owner_run_id(self) -> str:
        """The run without which nobody needs it."""

    @abstractmethod
    def _build_memo(self) -> dict[str, Any]:
        """Its memo."""

    async def _run_until_unneeded(self) -> dict[str, Any]:
        wait = FIRST_CHECK_S
        while True:
            heard = self._message_count
            try:
                await workflow.wait_condition(_is_history_long, timeout=wait)
            except TimeoutError:
                if (
                    heard == self._message_count
                    and await self._has_run_ended(self._get_owner_run_id())
                    and heard == self._message_count
                ):
                    return self._state_to_json()
                wait = FIRST_CHECK_S if heard != self._message_count else min(2 * wait, MAX_CHECK_INTERVAL_S)
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
        found = AwaitedRun.found_from_json(from_payload(answer.payload))
        return found is None or found.state.is_terminal


def _is_history_long() -> bool:
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() >= CONTINUE_AS_NEW_AFTER


@workflow.defn(name=identifiers.ACCOUNT_TYPE, sandboxed=False)
class BudgetWorkflow(_EntityWorkflow):
    """Keeps the account of a budget."""

    @workflow.init
    def __init__(self, state: dict[str, Any]) -> None:
        self._account = BudgetAccount.from_json(state)

    @workflow.run
    async def run(self, state: dict[str, Any]) -> dict[str, Any]:
        """As long as it is needed."""
        return await self._run_until_unneeded()

    @workflow.update(name=identifiers.RESERVE_UPDATE)
    async def reserve(self, asker: list[Any], expected: dict[str, Any]) -> dict[str, Any] | None:
        """A step is about to use something: why it may not, if so."""
        self._message_count += 1
        refused = self._account.reserve(StepRef(*asker), usage_from_json(expected))
        return None if refused is None else refused._asdict()

    @workflow.signal(name=identifiers.USED_SIGNAL)
    def record_usage(self, asker: list[Any], usage: dict[str, Any]) -> None:
        """A step has used something, and will use no more."""
        self._message_count += 1
        self._account.record_usage(StepRef(*asker), usage_from_json(usage))

    @workflow.signal(name=identifiers.SET_BUDGET_SIGNAL)
    async def set_budget(self, limits: list[Any]) -> None:
        """There is another budget: whoever was refused asks again."""
        self._message_count += 1
        given = BudgetLimits(*limits)
        short = self._account.set_limits(given)
        workflow.upsert_memo(self._build_memo())
        for asker in short:
            try:
                waits: Any = workflow.get_external_workflow_handle(asker.run_id)
                await waits.signal(BUDGET_SIGNAL, to_raw_value(encode_budget(given)))
            except FailureError:
                pass  # it has ended; a retry of it asks anew

    @workflow.query(name=identifiers.IN_FLIGHT_QUERY, description="The steps that something is reserved for")
    def list_reservations(self) -> list[list[Any]]:
        """The steps that something is reserved for."""
        return [list(asker) for asker in self._account.reserved]

    @workflow.query(name=identifiers.STATUS_QUERY, description="What may be used, and what was")
    def status(self) -> dict[str, Any]:
        """What may be used, and what was."""
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
    """Keeps the order of the runs in a session."""

    @workflow.init
    def __init__(self, state: dict[str, Any]) -> None:
        self._order = SessionOrder.from_json(state)

    @workflow.run
    async def run(self, state: dict[str, Any]) -> dict[str, Any]:
        """As long as it is needed."""
        return await self._run_until_unneeded()

    @workflow.update(name=identifiers.JOIN_UPDATE)
    async def join(self, run_id: str) -> str:
        """A run asks which one came before it."""
        self._message_count += 1
        return self._order.join(run_id)

    @workflow.signal(name=identifiers.JOINED_SIGNAL)
    def note_started(self, run_id: str) -> None:
        """A run was started."""
        self._message_count += 1
        self._order.join(run_id)

    def _state_to_json(self) -> dict[str, Any]:
        return self._order.to_json()

    def _get_owner_run_id(self) -> str:
        return self._order.newest

    def _build_memo(self) -> dict[str, Any]:
        return {}


ENTITY_WORKFLOWS = (BudgetWorkflow, SessionWorkflow)
"""What a worker of their task queue serves."""
