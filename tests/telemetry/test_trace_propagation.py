"""The trace of a caller reaches the run over HTTP, and the trace of a run reaches what works on it."""

from __future__ import annotations

import httpx2
import pytest
from asgi_server import running_server
from exported_spans import Spans

from holdfast.telemetry.telemetry import Telemetry
from holdfast.trace_context import parse_trace_parent

pytestmark = pytest.mark.asyncio

TRACE_ID = "ab" * 16
TRACE = f"00-{TRACE_ID}-{'cd' * 8}-01"


async def test_the_trace_of_a_request_covers_the_delivery_and_its_run(spans: Spans):
    async with running_server() as served:
        assert isinstance(served.app.platform.telemetry, Telemetry)
        client = served.caller()
        sent = await client.post("/v1/addresses/mailer/send", json={"payload": 1}, headers={"traceparent": TRACE})
        assert sent.status_code == 201, sent.text
        delivery = (await client.post("/v1/addresses/mailer/claim?wait=5", json={})).json()
        context = parse_trace_parent(delivery["trace_parent"])
        assert context is not None
        assert f"{context.trace_id:032x}" == TRACE_ID
        done: httpx2.Response = await client.post(f"/v1/deliveries/{delivery['id']}/complete", json={"output": 2})
        assert done.status_code == 200, done.text
    run, delivered = spans.get("invoke_agent mailer"), spans.get("deliver mailer")
    assert run.parent is not None
    assert f"{run.parent.span_id:016x}" == "cd" * 8
    assert spans.get_parent_name(delivered) == "invoke_agent mailer"
    assert run.context is not None
    assert run.context.span_id == context.span_id
    assert spans.get_attributes("deliver mailer")["holdfast.delivery.outcome"] == "completed"


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "cd" * 8 + "-01", "x" * 5000])
async def test_a_request_without_a_trace_starts_a_run_without_one(header: str):
    async with running_server() as served:
        headers = {"traceparent": header} if header else {}
        sent = await served.caller().post("/v1/addresses/mailer/send", json={"payload": 1}, headers=headers)
        store = await served.app.platform.tenants.get_default_store()
        run = await store.get_run(sent.json()["id"])
        assert run is not None
        assert run.trace_parent == ""
