"""What a step reserves with the budgets of its run, and what it has used."""

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
"""Seconds after which a step that waits for others looks whether they are at work at all."""

_PERMANENT_ERRORS = {
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
}


class BudgetReservation:
    """That of one step.

    Args:
        client: the way to Temporal.
        owners: the budgets that its run is under, the nearest first.
        asker: the step.
        step: its name.
    """

    def __init__(self, client: Client, owners: Sequence[BudgetOwner], asker: StepRef, step: str) -> None:
        self._client = client
        self._owners = owners
        self._asker = asker
        self._step = step
        self._has_reserved = False

    async def reserve(self, expected: Usage) -> None:
        """Reserve with every budget; without any, nothing is asked. Waits for the calls of others, if only these are in
        the way."""
        pause, waited = MIN_POLL_DELAY_S, 0.0
        while self._owners:
            self._has_reserved = True
            refused = await self._retry_until_reachable(
                lambda: budgets.reserve_usage(self._client, self._owners, self._asker, expected)
            )
            if refused is None:
                return
            if not refused.is_temporary:
                raise make_shortage_error(self._asker.run_id, self._step, refused)
            await asyncio.sleep(pause)
            waited += pause
            pause = min(MAX_POLL_DELAY_S, 2 * pause)
            if waited > STALE_CHECK_AFTER_S:
                waited = 0.0
                await self._release_orphaned(refused.run_id)

    async def _release_orphaned(self, run_id: str) -> None:
        [owner] = [one for one in self._owners if one.run_id == run_id]
        given_back = await self._retry_until_reachable(lambda: budgets.release_orphaned(self._client, owner))
        if given_back:
            log.info(
                "%d reservation(s) with the budget of run %r were given back: nobody carries out the steps any more",
                given_back,
                run_id,
            )

    async def report_usage(self, usage: Usage) -> None:
        """The step has used so much, and will use no more."""
        if self._owners and (self._has_reserved or usage != Usage()):
            self._has_reserved = False
            await self._retry_until_reachable(
                lambda: budgets.report_usage(self._client, self._owners, self._asker, usage)
            )

    async def release(self) -> None:
        """The step is not carried out."""
        if self._has_reserved:
            await self.report_usage(Usage())

    async def _retry_until_reachable(self, call: Callable[[], Awaitable[T]]) -> T:
        """Whatever becomes of it in the end, a step loses nothing when Temporal cannot be reached for a while."""
        pause = MIN_POLL_DELAY_S
        while True:
            try:
                return await call()
            except (RPCError, TemporalError) as error:
                if isinstance(error, RPCError) and error.status in _PERMANENT_ERRORS:
                    raise StoreError(
                        f"Temporal refuses what {self._step!r} of run {self._asker.run_id!r} asks of the account of "
                        f"its budget: {error}"
                    ) from error
                said = error
            await asyncio.sleep(pause)
            if pause < MAX_POLL_DELAY_S <= 2 * pause:  # once, and not for what is over in a moment
                log.warning(
                    "%r of run %r waits for the account of its budget, which cannot be reached: %s",
                    self._step,
                    self._asker.run_id,
                    said,
                )
            pause = min(MAX_POLL_DELAY_S, 2 * pause)
