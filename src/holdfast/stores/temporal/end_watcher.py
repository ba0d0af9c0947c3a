"""Waiting for runs to end: the server is asked once, and answers when they have.

Somebody who waits for a run reads it from time to time, and asks ``wait_for_any`` in between. So for each run that was
read and has not ended, a question is put to the server that it answers at the end (a *long poll*); it is put again when
the server had nothing to say for a while, as long as somebody has read the run in that time.
"""

from __future__ import annotations

import asyncio
import logging

from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.stores.temporal.history import wait_until_ended
from holdfast.stores.temporal.rows import ExecutionDescription

log = logging.getLogger("holdfast.stores")

MAX_WATCHED_RUNS = 32
"""How many runs are watched at a time; the others are read from time to time only."""


class EndWatcher:
    """Who waits for which executions to end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._polls: dict[str, asyncio.Task[bool]] = {}

    def watch(self, execution: ExecutionDescription) -> None:
        """Somebody may want to hear of the end of this execution."""
        if len(self._polls) < MAX_WATCHED_RUNS:
            self._get_poll(execution)

    def _get_poll(self, execution: ExecutionDescription) -> asyncio.Task[bool]:
        known = self._polls.get(execution.execution_id)
        if known is None:
            known = asyncio.get_running_loop().create_task(
                self._run_poll(execution), name=f"holdfast-end-of-{execution.id}"
            )
            self._polls[execution.execution_id] = known
            known.add_done_callback(lambda _: self._polls.pop(execution.execution_id, None))
        return known

    async def _run_poll(self, execution: ExecutionDescription) -> bool:
        try:
            return await wait_until_ended(self._client, execution.id, execution.execution_id)
        except Exception as error:
            known = logging.DEBUG if isinstance(error, RPCError) else logging.WARNING
            log.log(known, "the end of run %r was not waited for: %r", execution.id, error)
            await asyncio.sleep(0.5)  # whoever waits reads the run again, and hears what is wrong
            return False

    async def wait(self, execution: ExecutionDescription) -> None:
        """Until this execution has ended, or the server had nothing to say for a while."""
        await asyncio.wait([self._get_poll(execution)])

    async def wait_for_any(self, timeout_s: float) -> bool:
        """Whether one of them has ended within so many seconds."""
        polls = list(self._polls.values())
        if not polls:
            await asyncio.sleep(timeout_s)
            return False
        over, _ = await asyncio.wait(polls, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return any(not poll.cancelled() and poll.result() for poll in over)

    def stop(self) -> None:
        """Nobody waits any more."""
        polls, self._polls = self._polls, {}
        for poll in polls.values():
            if not poll.get_loop().is_closed():
                poll.cancel()
