"""The reservation of a step with the budgets of its run, and its usage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from temporalio.client import Client
from temporalio.exceptions import TemporalError
from temporalio.service import RPCError, RPCStatusCode

from holdfast.admission.usage import Usage
from holdfast.engine.budget_reservation import MAX_POLL_DELAY_S, MIN_POLL_DELAY_S, make_shortage_error
from holdfast.errors import StoreError
from holdfast.stores.temporal import budgets
from holdfast.stores.temporal.budgets import StepRef
from holdfast.stores.temporal.run_memo import BudgetOwner

log = logging.getLogger("holdfast.engine")

T = TypeVar("T")

STALE_CHECK_AFTER_S = 5.0
"""After this wait, a step checks whether the steps that it waits for are still in flight."""

_PERMANENT_ERRORS = {
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
}


class BudgetReservation:
    """The reservation of one step.

    Args:
        client: the connection to Temporal.
        owners: the budgets that apply to its run, the nearest first.
        step: the step.
        name: its name.
    """

    def __init__(self, client: Client, owners: Sequence[BudgetOwner], step: StepRef, name: str) -> None:
        self._client = client
        self._owners = owners
        self._step = step
        self._name = name
        self._has_reserved = False

    async def reserve(self, expected: Usage) -> None:
        """Make a reservation with every budget. Waits while only the reservations of other calls are in the way."""
        delay_s, waited_s = MIN_POLL_DELAY_S, 0.0
        while self._owners:
            self._has_reserved = True
            shortage = await self._retry_until_reachable(
                lambda: budgets.reserve_usage(self._client, self._owners, self._step, expected)
            )
            if shortage is None:
                return
            if not shortage.is_temporary:
                raise make_shortage_error(self._step.run_id, self._name, shortage)
            await asyncio.sleep(delay_s)
            waited_s += delay_s
            delay_s = min(MAX_POLL_DELAY_S, 2 * delay_s)
            if waited_s > STALE_CHECK_AFTER_S:
                waited_s = 0.0
                await self._release_orphaned(shortage.run_id)

    async def _release_orphaned(self, run_id: str) -> None:
        [owner] = [owner for owner in self._owners if owner.run_id == run_id]
        count = await self._retry_until_reachable(lambda: budgets.release_orphaned(self._client, owner))
        if count:
            log.info(
                "%d reservation(s) with the budget of run %r were given back: nobody carries out the steps any more",
                count,
                run_id,
            )

    async def report_usage(self, usage: Usage) -> None:
        """Replace the reservation by the final usage of the step."""
        if self._owners and (self._has_reserved or usage != Usage()):
            self._has_reserved = False
            await self._retry_until_reachable(
                lambda: budgets.report_usage(self._client, self._owners, self._step, usage)
            )

    async def release(self) -> None:
        """Release the reservation of a step that is not executed."""
        if self._has_reserved:
            await self.report_usage(Usage())

    async def _retry_until_reachable(self, call: Callable[[], Awaitable[T]]) -> T:
        """Wait while Temporal cannot be reached, so that the step does not fail for it."""
        delay_s = MIN_POLL_DELAY_S
        while True:
            try:
                return await call()
            except (RPCError, TemporalError) as error:
                if isinstance(error, RPCError) and error.status in _PERMANENT_ERRORS:
                    raise StoreError(
                        f"Temporal refuses what {self._name!r} of run {self._step.run_id!r} asks of the account of "
                        f"its budget: {error}"
                    ) from error
                cause = error
            await asyncio.sleep(delay_s)
            if delay_s < MAX_POLL_DELAY_S <= 2 * delay_s:  # once, and not for a short interruption
                log.warning(
                    "%r of run %r waits for the account of its budget, which cannot be reached: %s",
                    self._name,
                    self._step.run_id,
                    cause,
                )
            delay_s = min(MAX_POLL_DELAY_S, 2 * delay_s)
