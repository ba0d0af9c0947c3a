"""Waits for runs to end, with a long poll for each.

A caller that waits for a run reads it from time to time, and calls ``wait_for_any`` in between. So each open run that
is read gets a long poll, which the server answers when the run ends. If a long poll expires, the next read of the run
starts another one.
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
"""The maximum number of long polls at a time. Callers see the end of other runs when they read them again."""


class EndWatcher:
    """The long polls for the ends of executions."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._polls: dict[str, asyncio.Task[bool]] = {}

    def watch(self, execution: ExecutionDescription) -> None:
        """Watch an open execution, because a caller may wait for its end."""
        if len(self._polls) < MAX_WATCHED_RUNS:
            self._get_poll(execution)

    def _get_poll(self, execution: ExecutionDescription) -> asyncio.Task[bool]:
        poll = self._polls.get(execution.execution_id)
        if poll is None:
            name = f"holdfast-end-of-{execution.id}"
            poll = asyncio.get_running_loop().create_task(self._run_poll(execution), name=name)
            self._polls[execution.execution_id] = poll
            poll.add_done_callback(lambda _: self._polls.pop(execution.execution_id, None))
        return poll

    async def _run_poll(self, execution: ExecutionDescription) -> bool:
        try:
            return await wait_until_ended(self._client, execution.id, execution.execution_id)
        except Exception as error:
            level = logging.DEBUG if isinstance(error, RPCError) else logging.WARNING
            log.log(level, "the end of run %r was not waited for: %r", execution.id, error)
            await asyncio.sleep(0.5)  # the caller reads the run again, and that raises the error
            return False

    async def wait(self, execution: ExecutionDescription) -> None:
        """Wait until this execution has ended, or the long poll has expired."""
        await asyncio.wait([self._get_poll(execution)])

    async def wait_for_any(self, timeout_s: float) -> bool:
        """Whether an execution ended within this time."""
        polls = list(self._polls.values())
        if not polls:
            await asyncio.sleep(timeout_s)
            return False
        done, _ = await asyncio.wait(polls, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return any(not poll.cancelled() and poll.result() for poll in done)

    def stop(self) -> None:
        """Cancel all long polls."""
        polls, self._polls = self._polls, {}
        for poll in polls.values():
            if not poll.get_loop().is_closed():
                poll.cancel()
