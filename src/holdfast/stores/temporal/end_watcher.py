"""Waiting for runs to end: the server is asked once, and answers when they have.

Somebody who waits for a run reads it from time to time, and asks ``heard`` in between. So for each run that was read
and has not ended, a question is put to the server that it answers at the end (a *long poll*); it is put again when the
server had nothing to say for a while, as long as somebody has read the run in that time.
"""

from __future__ import annotations

import asyncio
import logging

from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.stores.temporal.history import has_ended
from holdfast.stores.temporal.rows import Described

log = logging.getLogger("holdfast.stores")

MOST = 32
"""How many runs are watched at a time; the others are read from time to time only."""


class Ends:
    """Who waits for which executions to end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._polls: dict[str, asyncio.Task[bool]] = {}

    def watch(self, told: Described) -> None:
        """Somebody may want to hear of the end of this execution."""
        if len(self._polls) < MOST:
            self._poll(told)

    def _poll(self, told: Described) -> asyncio.Task[bool]:
        known = self._polls.get(told.execution)
        if known is None:
            known = asyncio.get_running_loop().create_task(self._ask(told), name=f"holdfast-end-of-{told.id}")
            self._polls[told.execution] = known
            known.add_done_callback(lambda _: self._polls.pop(told.execution, None))
        return known

    async def _ask(self, told: Described) -> bool:
        try:
            return await has_ended(self._client, told.id, told.execution)
        except Exception as error:
            known = logging.DEBUG if isinstance(error, RPCError) else logging.WARNING
            log.log(known, "the end of run %r was not waited for: %r", told.id, error)
            await asyncio.sleep(0.5)  # whoever waits reads the run again, and hears what is wrong
            return False

    async def wait(self, told: Described) -> None:
        """Until this execution has ended, or the server had nothing to say for a while."""
        await asyncio.wait([self._poll(told)])

    async def heard(self, timeout: float) -> bool:
        """Whether one of them has ended within so many seconds."""
        polls = list(self._polls.values())
        if not polls:
            await asyncio.sleep(timeout)
            return False
        over, _ = await asyncio.wait(polls, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return any(not poll.cancelled() and poll.result() for poll in over)

    def stop(self) -> None:
        """Nobody waits any more."""
        polls, self._polls = self._polls, {}
        for poll in polls.values():
            if not poll.get_loop().is_closed():
                poll.cancel()
