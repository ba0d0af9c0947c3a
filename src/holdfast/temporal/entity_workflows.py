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

from holdfast.admission.usage import BUDGET_SIGNAL, Limits
from holdfast.stores.rules import budget_payload
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.budgets import BUDGET, Asker, BudgetAccount, usage_of
from holdfast.stores.temporal.payloads import data_of, raw
from holdfast.stores.temporal.sessions import SessionOrder
from holdfast.temporal.awaited_run import AwaitedRun

FIRST_LOOK = 60.0
LONGEST_LOOK = 86_400.0
"""Seconds without any message after which a keeper looks whether it is still needed; twice as long each time."""

CONTINUE_AFTER = 4000
"""Events in its history after which a keeper continues as new, if Temporal does not suggest it before."""

PATIENCE = timedelta(seconds=60)
"""For one look."""


class _Keeping(ABC):
    """What both have in common: how they live and end."""

    _heard = 0
    """How many messages have come."""

    @abstractmethod
    def _kept(self) -> dict[str, Any]:
        """All that it knows."""

    @abstractmethod
    def _kept_for(self) -> str:
        """The run without which nobody needs it."""

    @abstractmethod
    def _shown(self) -> dict[str, Any]:
        """Its memo."""

    async def _live(self) -> dict[str, Any]:
        wait = FIRST_LOOK
        while True:
            heard = self._heard
            try:
                await workflow.wait_condition(_is_long, timeout=wait)
            except TimeoutError:
                if heard == self._heard and await self._is_over(self._kept_for()) and heard == self._heard:
                    return self._kept()
                wait = FIRST_LOOK if heard != self._heard else min(2 * wait, LONGEST_LOOK)
            else:
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(self._kept(), memo=self._shown())

    async def _is_over(self, run_id: str) -> bool:
        answer: RawValue = await workflow.execute_activity(
            identifiers.AWAIT_RUN,
            raw(AwaitedRun(run_id, wait=False).to_json()),
            result_type=RawValue,
            start_to_close_timeout=PATIENCE,
            summary=run_id,
        )
        found = AwaitedRun.found_in(data_of(answer.payload))
        return found is None or found.state.is_terminal


def _is_long() -> bool:
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() >= CONTINUE_AFTER


@workflow.defn(name=identifiers.ACCOUNT, sandboxed=False)
class AccountWorkflow(_Keeping):
    """Keeps the account of a budget."""

    @workflow.init
    def __init__(self, kept: dict[str, Any]) -> None:
        self._account = BudgetAccount.of(kept)

    @workflow.run
    async def run(self, kept: dict[str, Any]) -> dict[str, Any]:
        """As long as it is needed."""
        return await self._live()

    @workflow.update(name=identifiers.RESERVE)
    async def reserve(self, asker: list[Any], expected: dict[str, Any]) -> dict[str, Any] | None:
        """A step is about to use something: why it may not, if so."""
        self._heard += 1
        refused = self._account.reserve(Asker(*asker), usage_of(expected))
        return None if refused is None else refused._asdict()

    @workflow.signal(name=identifiers.USED)
    def used(self, asker: list[Any], used: dict[str, Any]) -> None:
        """A step has used something, and will use no more."""
        self._heard += 1
        self._account.use(Asker(*asker), usage_of(used))

    @workflow.signal(name=identifiers.BUDGET)
    async def budget(self, limits: list[Any]) -> None:
        """There is another budget: whoever was refused asks again."""
        self._heard += 1
        given = Limits(*limits)
        short = self._account.give(given)
        workflow.upsert_memo(self._shown())
        for asker in short:
            try:
                waits: Any = workflow.get_external_workflow_handle(asker.run_id)
                await waits.signal(BUDGET_SIGNAL, raw(budget_payload(given)))
            except FailureError:
                pass  # it has ended; a retry of it asks anew

    @workflow.query(name=identifiers.IN_FLIGHT, description="The steps that something is reserved for")
    def in_flight(self) -> list[list[Any]]:
        """The steps that something is reserved for."""
        return [list(asker) for asker in self._account.reserved]

    @workflow.query(name=identifiers.STATUS, description="What may be used, and what was")
    def status(self) -> dict[str, Any]:
        """What may be used, and what was."""
        account = self._account
        return {"budget": account.limits._asdict(), "used": asdict(account.used), "in_flight": len(account.reserved)}

    def _kept(self) -> dict[str, Any]:
        return self._account.kept()

    def _kept_for(self) -> str:
        return self._account.run_id

    def _shown(self) -> dict[str, Any]:
        return {BUDGET: list(self._account.limits)}


@workflow.defn(name=identifiers.SESSION, sandboxed=False)
class SessionWorkflow(_Keeping):
    """Keeps the order of the runs in a session."""

    @workflow.init
    def __init__(self, kept: dict[str, Any]) -> None:
        self._order = SessionOrder.of(kept)

    @workflow.run
    async def run(self, kept: dict[str, Any]) -> dict[str, Any]:
        """As long as it is needed."""
        return await self._live()

    @workflow.update(name=identifiers.JOIN)
    async def join(self, run_id: str) -> str:
        """A run asks which one came before it."""
        self._heard += 1
        return self._order.join(run_id)

    @workflow.signal(name=identifiers.JOINED)
    def joined(self, run_id: str) -> None:
        """A run was started."""
        self._heard += 1
        self._order.join(run_id)

    def _kept(self) -> dict[str, Any]:
        return self._order.kept()

    def _kept_for(self) -> str:
        return self._order.newest

    def _shown(self) -> dict[str, Any]:
        return {}


KEEPERS = (AccountWorkflow, SessionWorkflow)
"""What a worker of their task queue serves."""
