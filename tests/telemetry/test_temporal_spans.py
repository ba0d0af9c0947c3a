"""On Temporal, a run has the same spans as on a store."""

from __future__ import annotations

import sys

import pytest
from exported_spans import Spans
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.plugin import SimplePlugin

import temporal_server
from holdfast import Runtime, ask, program, step, workflow
from holdfast.trace_context import continuing_trace
from waits import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


async def test_a_run_on_temporal_is_one_trace(spans: Spans):
    @step(retries=1, backoff=0.01)
    async def add(left: int, right: int) -> int:
        if not spans.list("query"):
            with spans.provider.get_tracer("library").start_as_current_span("query"):
                raise ValueError("no")
        return left + right

    @workflow
    async def inner(number: int) -> int:
        return await add(number, 1)

    @program
    async def prog(number: int) -> int:
        return await add(number, 1)

    @workflow
    async def outer() -> int:
        await add(1, 2)
        assert await ask("Go on?")
        return await inner(3) + await prog(4)

    async with Runtime(temporal_server.fresh_url()) as runtime:
        with continuing_trace("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"):
            handle = await runtime.start(outer)
        await wait_until(lambda: bool(spans.list("approval start")), timeout_s=60)
        [approval] = await handle.approvals()
        await handle.approve(approval.id, by="ada")
        assert await handle.result() == 9
        await wait_until(lambda: bool(spans.list("invoke_workflow outer")))
    names = sorted(span.name for span in spans.list())
    runs = ["invoke_workflow inner", "invoke_workflow outer", "invoke_workflow prog"]
    assert names == sorted(["query", "add", "add", "add", "approval", "approval start", *runs])
    assert {span.context.trace_id for span in spans.list() if span.context} == {int("ab" * 16, 16)}
    assert spans.get_parent_name(spans.get("query")) == "add"
    parents = {span.name: spans.get_parent_name(span) for span in spans.list()}
    assert parents["invoke_workflow inner"] == parents["invoke_workflow prog"] == "invoke_workflow outer"
    assert sorted(spans.get_parent_name(span) or "" for span in spans.list("add")) == runs
    assert spans.get("invoke_workflow outer").parent is not None


async def test_an_interceptor_of_temporals_users_works_beside_our_spans(spans: Spans, monkeypatch: pytest.MonkeyPatch):
    interceptor = TracingInterceptor(spans.provider.get_tracer("temporal"))
    plugin = SimplePlugin("traced", interceptors=[interceptor])
    monkeypatch.setattr(sys.modules[__name__], "traced", plugin, raising=False)

    @step
    async def add(left: int, right: int) -> int:
        return left + right

    @workflow
    async def inner(number: int) -> int:
        return await add(number, 1)

    @workflow
    async def outer() -> int:
        return await inner(await add(1, 2))

    async with Runtime(f"{temporal_server.fresh_url()}?plugins={__name__}:traced") as runtime:
        assert await (await runtime.start(outer)).result() == 4
        await wait_until(lambda: bool(spans.list("invoke_workflow outer")))
    theirs = {"StartWorkflow:outer", "RunWorkflow:outer", "StartActivity:add", "RunActivity:add", "RunWorkflow:inner"}
    assert theirs <= {span.name for span in spans.list()}
    assert len(spans.list("add")) == 2
    [ours, _] = spans.list("add")
    assert spans.get_parent_name(ours) == "invoke_workflow outer"
