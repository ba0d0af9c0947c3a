"""The results of many runs, as they end: one request in place of one for each run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated

from pydantic import Field, TypeAdapter

from holdfast.errors import HoldfastError, RunNotFound
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import Call
from holdfast.server.endpoints.runs import RunResult, build_result
from holdfast.server.http.models import Name
from holdfast.server.http.response import StreamingResponse
from holdfast.server.http.router import RequestModel, Router
from holdfast.server.http.server_sent_events import ServerSentEvent, make_event_response
from holdfast.services.json_form import to_json_bytes
from holdfast.services.lookup import make_run_not_found
from holdfast.services.problems import problem_from_error
from holdfast.services.wire_values import VALUES_HEADER
from holdfast.stores.operations import Run

router = Router("runs")

MAX_RUNS = 1000
"""Runs that one request may wait for."""
MAX_CHUNK_BYTES = 64 * 1024
"""Bytes of events that are sent together, unless a single one has more."""
MIN_CHUNK_GAP_S = 0.01
"""Minimum seconds between two chunks: the runs that end meanwhile share the next one."""
_result_adapter = TypeAdapter(RunResult)


class ResultsBody(RequestModel):
    """The runs to wait for."""

    ids: Annotated[list[Name], Field(min_length=1, max_length=MAX_RUNS)]


@router("POST", "/v1/runs/results", scope=Scope.READ, is_audited=False, headers=(VALUES_HEADER,))
async def stream_results(call: Call, body: ResultsBody) -> StreamingResponse:
    """The results of several runs, as they end, as server-sent events.

    There is an event `result` for each run, with the same data as `GET /v1/runs/{id}/result`, or an event `problem`
    with its `run_id` if the run does not exist. The stream ends after the last one. If it ends earlier, send the ids
    that are left again.
    """
    return make_event_response(_stream_results(call, list(dict.fromkeys(body.ids))))


async def _stream_results(call: Call, run_ids: list[str]) -> AsyncGenerator[bytes]:
    async with call.tenant.connections.watch_ends(run_ids) as ends:
        while ended := await ends.next():
            events, size = list[bytes](), 0
            for run_id, run in ended:
                events.append(await _encode_end(call, run_id, run))
                call.value_bytes = 0  # the size of this result does not count for the next one
                size += len(events[-1])
                if size > MAX_CHUNK_BYTES:
                    yield b"".join(events)
                    events, size = list[bytes](), 0
            if events:
                yield b"".join(events)
            if not ends.is_complete:
                await asyncio.sleep(MIN_CHUNK_GAP_S)


async def _encode_end(call: Call, run_id: str, run: Run | BaseException) -> bytes:
    try:
        if isinstance(run, BaseException):
            raise make_run_not_found(call.store, run_id) if isinstance(run, RunNotFound) else run
        result = await build_result(call, run)
        encode = partial(to_json_bytes, result, call.encode_value, adapter=_result_adapter)
        return ServerSentEvent(await call.run_body_work(0, encode), event="result").encode()
    except HoldfastError as error:
        problem = problem_from_error(error)
        if problem is None:
            raise
        data = to_json_bytes({**problem.to_json(), "run_id": run_id})
        return ServerSentEvent(data, event="problem").encode()
