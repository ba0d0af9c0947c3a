"""Waiting for the results of runs, with one request for all runs that a program waits for at the same moment.

Calls that begin in the same turn of the event loop share a stream of results. A single one is a long poll, and so are
all of them if the server cannot serve a stream: it is older, or has too many of them open.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from holdfast.client.http.backoff import Backoff
from holdfast.client.http.problems import error_from_response
from holdfast.client.http.requests import quote_segment
from holdfast.client.http.transport import TransientError, Transport
from holdfast.errors import HoldfastError, ServerError, TooManyRequests

LONG_POLL_S = 25.0
"""Seconds that the server is asked to wait for a result: proxies cut connections that are silent for a minute."""
MAX_RUNS = 1000
"""Runs in one request: a server accepts no more."""
PATH = "/v1/runs/results"


class ResultGroup:
    """Runs that are awaited together."""

    def __init__(self) -> None:
        self.futures: dict[str, list[asyncio.Future[Mapping[str, Any]]]] = {}
        """By run id: those who wait for the JSON of its result."""
        self.task: asyncio.Task[None] | None = None
        """Reads the results."""

    async def wait(self, run_id: str) -> Mapping[str, Any]:
        """The JSON of a run's result."""
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self.futures.setdefault(run_id, []).append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if all(other.done() for other in self.futures.get(run_id, ())):
                self.futures.pop(run_id, None)
            if not self.futures and self.task is not None:
                self.task.cancel()
            raise

    def resolve(self, run_id: str, result: Mapping[str, Any] | Exception) -> None:
        """Answer those who wait for a run."""
        for future in self.futures.pop(run_id, ()):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


class ResultReader:
    """Reads the results of runs from a server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._upcoming: dict[asyncio.AbstractEventLoop, ResultGroup] = {}
        """Runs whose calls began in this turn, by event loop."""
        self._can_stream = True

    async def wait(self, run_id: str) -> Mapping[str, Any]:
        """The JSON of a run's result, once it has ended. Raises the server's errors."""
        if not self._can_stream:
            return await self._poll(run_id)
        loop = asyncio.get_running_loop()
        group = self._upcoming.get(loop)
        if group is None or len(group.futures) >= MAX_RUNS:
            group = self._upcoming[loop] = ResultGroup()
            loop.call_soon(self._start, loop, group)
        return await group.wait(run_id)

    def _start(self, loop: asyncio.AbstractEventLoop, group: ResultGroup) -> None:
        if self._upcoming.get(loop) is group:
            del self._upcoming[loop]
        group.task = loop.create_task(self._read(group))

    async def _read(self, group: ResultGroup) -> None:
        try:
            if len(group.futures) > 1:
                await self._read_stream(group)
            await asyncio.gather(*(self._read_alone(run_id, group) for run_id in list(group.futures)))
        except Exception as error:
            for run_id in list(group.futures):
                group.resolve(run_id, error)

    async def _read_alone(self, run_id: str, group: ResultGroup) -> None:
        try:
            group.resolve(run_id, await self._poll(run_id))
        except HoldfastError as error:
            group.resolve(run_id, error)

    async def _poll(self, run_id: str) -> Mapping[str, Any]:
        path = f"/v1/runs/{quote_segment(run_id)}/result"
        backoff = Backoff(self._transport.timing, None)
        while True:
            sent_at = self._transport.timing.clock()
            response = await self._transport.request("GET", path, wait_s=LONG_POLL_S, give_up_after_s=None)
            result = response.unwrap()
            if response.status != 202:
                return result
            if self._transport.timing.clock() - sent_at < 1.0:
                await backoff.wait()  # the server did not wait: it is about to stop
            else:
                backoff.reset()

    async def _read_stream(self, group: ResultGroup) -> None:
        """Read results until there are no more to wait for, or the server cannot serve a stream."""
        backoff = Backoff(self._transport.timing, None)
        while group.futures:
            retry_after_s: float | None = None
            try:
                async with self._transport.stream(PATH, body={"ids": list(group.futures)}) as stream:
                    async for event in stream:
                        backoff.reset()
                        self._handle_event(event.event, json.loads(event.data), group)
            except TransientError as error:
                if isinstance(error.error, TooManyRequests):
                    return
                retry_after_s = error.retry_after_s
            except ServerError as error:
                if error.status not in (404, 405):
                    raise
                self._can_stream = False
                return
            if group.futures:
                await backoff.wait(retry_after_s)

    def _handle_event(self, kind: str, data: Mapping[str, Any], group: ResultGroup) -> None:
        if kind == "result":
            group.resolve(str(data["run_id"]), data)
        elif kind == "problem":
            error = error_from_response(int(data["status"]), data, self._transport.endpoint.url, f"POST {PATH}")
            group.resolve(str(data["run_id"]), error)
