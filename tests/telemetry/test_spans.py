"""One trace covers a run: its steps, model calls, tools, approvals, children, crashes, and what has started it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from engine_world import World
from exported_spans import Spans
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Agent, RunFailed, ask, current_step, program, step, tool, workflow
from holdfast.integrations import AnswerCodec, ModelAnswer, ModelInput, TokenCounts, record_model_call, record_tool_call
from holdfast.telemetry.tracing import CAPTURE_VARIABLE
from holdfast.testing import ScriptedModel, call
from holdfast.trace_context import parse_trace_parent
from waits import wait_until

pytestmark = pytest.mark.asyncio


@step
async def add(left: int, right: int) -> int:
    return left + right


async def test_a_run_and_its_steps_are_one_trace_below_the_code_that_started_it(world: World, spans: Spans):
    @workflow
    async def total(numbers: list[int]) -> int:
        found = 0
        for number in numbers:
            found = await add(found, number)
        return found

    runtime = await world.open()
    with spans.provider.get_tracer("web").start_as_current_span("request"):
        handle = await runtime.start(total, [1, 2])
    assert await handle.result() == 3
    run, request = spans.get("invoke_workflow total"), spans.get("request")
    assert spans.get_parent_name(run) == "request"
    assert [spans.get_parent_name(one) for one in spans.list("add")] == ["invoke_workflow total"] * 2
    assert {one.context.trace_id for one in spans.list() if one.context} == {request.get_span_context().trace_id}  # type: ignore[union-attr]
    attributes = spans.get_attributes("invoke_workflow total")
    assert (attributes["holdfast.run.id"], attributes["holdfast.run.state"]) == (handle.run_id, "completed")
    assert run.start_time is not None
    assert run.end_time is not None
    assert all(one.start_time and run.start_time <= one.start_time <= run.end_time for one in spans.list("add"))


async def test_an_agent_has_the_names_of_the_conventions_for_generative_ai(world: World, spans: Spans):
    @tool
    def look_up(word: str) -> str:
        return f"{word} is a plant"

    helper = Agent(ScriptedModel(["Yes."]), name="helper")
    agent = Agent(
        ScriptedModel([call("look_up", word="kelp"), call("helper", task="Is it?"), "It is."]),
        name="botanist", tools=[look_up], subagents=[helper],
    )  # fmt: skip
    runtime = await world.open()
    await (await runtime.start(agent, "What is kelp?")).result()
    assert spans.get_attributes("invoke_agent botanist")["gen_ai.agent.name"] == "botanist"
    assert spans.get_attributes("execute_tool look_up")["gen_ai.tool.name"] == "look_up"
    chat = spans.get_attributes("chat scripted")
    assert (chat["gen_ai.operation.name"], chat["gen_ai.request.model"]) == ("chat", "scripted")
    assert isinstance(chat["gen_ai.usage.input_tokens"], int)
    assert spans.list("chat scripted")[0].kind is SpanKind.CLIENT
    assert spans.get_parent_name(spans.get("invoke_agent helper")) == "invoke_agent botanist"


async def test_a_takeover_is_in_the_same_trace_and_replay_makes_no_span(world: World, spans: Spans):
    calls: list[str] = []
    hang = True

    @step
    async def work(name: str) -> str:
        calls.append(name)
        if name == "b" and hang:
            await asyncio.sleep(60)
        return name

    @workflow
    async def flow() -> list[str]:
        return [await work(name) for name in "abc"]

    first = await world.open()
    handle = await first.start(flow)
    await wait_until(lambda: "b" in calls)
    await world.crash(first)
    hang = False
    second = await world.open()
    await flow.get_handle(second.store_provider, handle.run_id).result()
    workers = [one.attributes["holdfast.worker.id"] for one in spans.list("work") if one.attributes]
    assert workers == [first.worker_id, second.worker_id, second.worker_id]
    run = spans.get("invoke_workflow flow")
    assert {one.parent.span_id for one in spans.list("work") if one.parent} == {run.get_span_context().span_id}  # type: ignore[union-attr]
    [event] = run.events
    assert event.name == "holdfast.takeover"
    assert event.attributes is not None
    assert event.attributes["holdfast.worker.previous_id"] == first.worker_id
    assert event.attributes["holdfast.worker.id"] == second.worker_id
    assert event.attributes["holdfast.replayed_records"] == 1


async def test_code_of_a_step_is_below_the_span_of_the_step_and_can_add_to_it(world: World, spans: Spans):
    tracer = spans.provider.get_tracer("library")

    def note(name: str) -> None:
        trace.get_current_span().set_attribute("customer", name)
        trace.get_current_span().add_event("noted")
        with tracer.start_as_current_span(f"query {name}"):
            pass

    @step
    async def fetch(name: str) -> None:
        note(name)

    @step
    def fetch_in_thread(name: str) -> None:
        note(name)

    @workflow
    async def flow() -> None:
        await asyncio.gather(fetch("ada"), fetch_in_thread("bob"))

    await (await (await world.open()).start(flow)).result()
    for name, step_name in (("ada", "fetch"), ("bob", "fetch_in_thread")):
        assert spans.get_parent_name(spans.get(f"query {name}")) == step_name
        assert spans.get_attributes(step_name)["customer"] == name
        assert [event.name for event in spans.get(step_name).events] == ["noted"]


async def test_retries_and_failures_are_seen(world: World, spans: Spans):
    @step(retries=1, backoff=0.01)
    async def fetch() -> None:
        raise ValueError(f"attempt {current_step().attempt}")

    @workflow
    async def flow() -> None:
        await fetch()

    with pytest.raises(RunFailed):
        await (await (await world.open()).start(flow)).result()
    failed, run = spans.get("fetch"), spans.get("invoke_workflow flow")
    attributes = spans.get_attributes("fetch")
    assert (attributes["holdfast.step.attempts"], attributes["error.type"]) == (2, "builtins.ValueError")
    assert [event.name for event in failed.events] == ["holdfast.retry"]
    for one in (failed, run):
        assert one.status.status_code is StatusCode.ERROR
        assert one.status.description == "ValueError: attempt 2"


async def test_an_approval_is_a_span_from_the_question_to_the_answer(world: World, spans: Spans):
    @workflow
    async def flow() -> bool:
        return await ask("Send it?")

    runtime = await world.open()
    handle = await runtime.start(flow)
    await wait_until(lambda: bool(spans.list("approval start")))
    world.clock.advance(3600)
    [approval] = await handle.approvals()
    await handle.approve(approval.id, by="ada")
    assert await handle.result()
    waited = spans.get("approval")
    assert waited.start_time is not None
    assert waited.end_time is not None
    assert 3600 <= (waited.end_time - waited.start_time) / 1e9 < 3610


async def test_calls_of_a_program_are_below_its_run(world: World, spans: Spans):
    class Codec(AnswerCodec[str]):
        def dump(self, answer: str) -> Any:
            return answer

        def load(self, data: Any) -> str:
            return data

        def describe(self, answer: str) -> ModelAnswer:
            return ModelAnswer(answer, tokens=TokenCounts(100, 10))

    async def answer() -> str:
        with spans.provider.get_tracer("sdk").start_as_current_span("POST"):
            return "Oslo"

    @program
    async def flow() -> str:
        where = await record_model_call(ModelInput("openai:gpt-4o", [{"role": "user"}]), Codec(), answer)
        return await record_tool_call("look_up", {"city": where}, answer)

    await (await (await world.open()).start(flow)).result()
    assert [spans.get_parent_name(one) for one in spans.list("POST")] == ["chat gpt-4o", "execute_tool look_up"]
    chat = spans.get_attributes("chat gpt-4o")
    assert chat["gen_ai.usage.input_tokens"] == 100
    assert chat["holdfast.cost_usd"] == pytest.approx(0.00035)


async def test_nothing_is_exported_of_a_trace_that_is_not_sampled(
    world: World, spans: Spans, monkeypatch: pytest.MonkeyPatch
):
    provider = TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(spans.exporter))
    monkeypatch.setattr("holdfast.telemetry.spans.get_tracer_provider", lambda: provider)
    seen: list[bool] = []

    @step
    async def fetch() -> None:
        seen.append(trace.get_current_span().get_span_context().trace_flags.sampled)

    @workflow
    async def flow() -> None:
        await fetch()

    await (await (await world.open()).start(flow)).result()
    assert seen == [False]
    assert spans.list() == []


async def test_contents_are_attached_only_on_request(world: World, spans: Spans, monkeypatch: pytest.MonkeyPatch):
    @workflow
    async def flow(name: str) -> str:
        return f"Hello {name}, {await add(1, 2)}"

    await (await (await world.open()).start(flow, "secret")).result()
    assert "secret" not in str([one.to_json() for one in spans.list()])
    monkeypatch.setenv(CAPTURE_VARIABLE, "true")
    await (await (await world.open()).start(flow, "ada")).result()
    assert spans.get_attributes("invoke_workflow flow")["holdfast.run.output"] == '"Hello ada, 3"'
    assert spans.get_attributes("add")["holdfast.step.output"] == "3"


async def test_log_lines_have_the_id_of_the_trace(world: World, spans: Spans, caplog: pytest.LogCaptureFixture):
    @step(retries=1, backoff=0.01)
    async def fetch() -> None:
        raise ValueError("no")

    @workflow
    async def flow() -> None:
        await fetch()

    caplog.set_level(logging.INFO, "holdfast.runs")
    with pytest.raises(RunFailed):
        await (await (await world.open()).start(flow)).result()
    context = spans.get("invoke_workflow flow").get_span_context()  # type: ignore[no-untyped-call]
    assert context is not None
    assert {record.__dict__.get("trace_id") for record in caplog.records} == {f"{context.trace_id:032x}"}


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", True),
        ("01-" + "a" * 32 + "-" + "b" * 16 + "-00-more", True),
        ("00-" + "0" * 32 + "-" + "b" * 16 + "-01", False),
        ("ff-" + "a" * 32 + "-" + "b" * 16 + "-01", False),
        ("00-" + "g" * 32 + "-" + "b" * 16 + "-01", False),
        ("", False),
        ("x" * 10_000, False),
    ],
)
async def test_a_header_that_is_no_trace_context_is_ignored(text: str, is_valid: bool):
    assert (parse_trace_parent(text) is not None) == is_valid
