"""The framework's features in a durable runner, live and when a run continues in another runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adk_kit import KEY, MODEL, collect, message, open_session, read_session, results, texts, wait_until
from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult
from google.adk.events.event import Event
from google.adk.integrations.openai import OpenAILlm
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import AgentTool, FunctionTool, LongRunningFunctionTool, exit_loop
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from google.genai import types
from provider_server import ProviderServer
from pydantic import BaseModel

from holdfast import Client, Runtime
from holdfast.integrations.google_adk import DurableRunner, durable

MakeRunner = Callable[[], DurableRunner]

executed: list[str] = []
"""What tools and callbacks did in this test."""


@pytest.fixture(autouse=True)
def nothing_executed() -> None:
    executed.clear()


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


def make(name: str, *, options: dict[str, Any] | None = None, **agent: Any) -> MakeRunner:
    """Makes the runner as each process would: with an empty session service."""

    def make_runner() -> DurableRunner:
        made = LlmAgent(name=name, instruction="script:main", **{"model": MODEL, **agent})
        return durable(InMemoryRunner(app=App(name="app", root_agent=made)), **(options or {}))

    return make_runner


async def interrupt(make_runner: MakeRunner, folder: Path) -> tuple[DurableRunner, list[Event]]:
    """Stop a run while its model holds back an answer, and let another runtime and another runner continue it."""
    first = make_runner()
    async with Runtime():
        interrupted = asyncio.create_task(collect(first, run_id="run"))
        await wait_until(lambda: asyncio.to_thread((folder / "held").exists))
    interrupted.cancel()
    await asyncio.gather(interrupted, return_exceptions=True)
    (folder / "go").touch()
    runner = make_runner()
    assert runner.session_service is not first.session_service
    async with Runtime():
        return runner, await collect(runner, run_id="run")


def hold(folder: Path, **turn: Any) -> dict[str, Any]:
    return {**turn, "hold": {"touch": str(folder / "held"), "until": str(folder / "go")}}


# Tools


def test_what_a_tool_changed_is_there_again_after_a_crash(provider: ProviderServer, tmp_path: Path):
    def remember(what: str, tool_context: ToolContext) -> dict[str, str]:
        """Remember."""
        executed.append(what)
        tool_context.state["user:seen"] = what
        tool_context.state.setdefault("list", []).append(what)
        tool_context.actions.skip_summarization = False
        return {"seen": what}

    provider.scripts = {"main": [{"calls": [call("remember", what="Oslo")]}, hold(tmp_path, text="Done.")]}
    runner, events = asyncio.run(interrupt(make("stateful", tools=[remember]), tmp_path))
    session = asyncio.run(read_session(runner))
    assert executed == ["Oslo"]
    assert texts(events) == ["Done."]
    assert results(events) == [{"seen": "Oslo"}]
    assert session.state == {"user:seen": "Oslo", "list": ["Oslo"]}
    assert [event.id for event in session.events[1:]] == [event.id for event in events]


def test_ids_and_times_are_the_same_after_a_crash(provider: ProviderServer, tmp_path: Path):
    seen: list[tuple[str, str, float]] = []

    class Watch(BasePlugin):
        async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
            ids = [one.id for one in event.get_function_calls()]
            seen.append((event.id, f"{invocation_context.invocation_id} {ids}", event.timestamp))

    def look(city: str) -> str:
        """Look."""
        return city

    def make_runner() -> DurableRunner:
        agent = LlmAgent(name="same", model=MODEL, instruction="script:main", tools=[look])
        return durable(InMemoryRunner(app=App(name="app", root_agent=agent, plugins=[Watch(name="watch")])))

    turns = [{"calls": [call("look", city=city) for city in ("Oslo", "Rome")]}, hold(tmp_path, text="Done.")]
    provider.scripts = {"main": turns}
    asyncio.run(interrupt(make_runner, tmp_path))
    assert len(seen) == 5, "two events before the crash, and three of the whole run"
    assert seen[:2] == seen[2:4]


def test_media_of_a_tool_is_recorded(provider: ProviderServer, tmp_path: Path):
    def draw() -> dict[str, Any]:
        """Draw."""
        executed.append("draw")
        return {"note": "a dot", "image": types.Part.from_bytes(data=b"\x89PNG\xff", mime_type="image/png")}

    provider.scripts = {"main": [{"calls": [call("draw")]}, hold(tmp_path, text="Nice.")]}
    _, events = asyncio.run(interrupt(make("painter", tools=[draw]), tmp_path))
    [response] = [one for event in events for one in event.get_function_responses()]
    assert executed == ["draw"]
    assert response.response == {"note": "a dot"}
    assert response.parts[0].inline_data.data == b"\x89PNG\xff"


def test_an_agent_in_a_tool_is_one_step_and_its_calls_are_recorded(provider: ProviderServer, tmp_path: Path):
    provider.scripts = {
        "main": [{"calls": [call("helper", request="Help.")]}, {"text": "Thanks."}],
        "helper": [{"calls": [call("look", city="Oslo")]}, hold(tmp_path, text="Helped.")],
    }

    def look(city: str) -> str:
        """Look."""
        executed.append(city)
        return city

    helper = LlmAgent(name="helper", model=MODEL, instruction="script:helper", tools=[look])
    _, events = asyncio.run(interrupt(make("boss", tools=[AgentTool(helper)]), tmp_path))
    assert results(events) == [{"result": "Helped."}]
    assert executed == ["Oslo"]
    counts = [(call.agent, call.turn) for call in provider.address.calls]
    assert sorted(counts) == [("helper", 0), ("helper", 1), ("helper", 1), ("main", 0), ("main", 1)]


def test_a_sub_agent_of_one_turn_runs_in_the_session(provider: ProviderServer, tmp_path: Path):
    provider.scripts = {
        "main": [{"calls": [call("helper", request="Help.")]}, hold(tmp_path, text="Thanks.")],
        "helper": [{"text": "Helped."}],
    }
    helper = LlmAgent(name="helper", model=MODEL, instruction="script:helper", mode="single_turn", description="Helps.")

    def make_runner() -> DurableRunner:
        own = helper.clone()
        return make("chief", sub_agents=[own])()

    runner, events = asyncio.run(interrupt(make_runner, tmp_path))
    session = asyncio.run(read_session(runner))
    assert texts(events)[-1] == "Thanks."
    assert len({event.id for event in session.events}) == len(session.events)
    assert len(provider.address.calls) == 4, "only the held request was made again"


def test_a_long_running_tool_is_answered_by_a_later_invocation(provider: ProviderServer):
    def request_refund(amount: int) -> dict[str, Any]:
        """Request a refund."""
        executed.append(str(amount))
        return {"status": "pending"}

    provider.scripts = {
        "main": [{"calls": [call("request_refund", amount=5)]}, {"text": "Pending."}, {"text": "Paid."}]
    }

    async def main() -> tuple[list[Event], list[Event]]:
        runner = make("patient", tools=[LongRunningFunctionTool(request_refund)])()
        first = await collect(runner)
        [refund] = [one for event in first for one in event.get_function_calls()]
        assert first[0].long_running_tool_ids == {refund.id}
        answer = types.FunctionResponse(id=refund.id, name=refund.name, response={"status": "paid"})
        sent = types.Content(role="user", parts=[types.Part(function_response=answer)])
        return first, await collect(runner, sent)

    _, second = asyncio.run(main())
    assert texts(second)[-1] in ("Pending.", "Paid.")
    assert executed == ["5"]


def test_a_tool_that_is_no_step_is_executed_again(provider: ProviderServer, tmp_path: Path):
    def log() -> str:
        """Log."""
        executed.append("log")
        return "logged"

    provider.scripts = {"main": [{"calls": [call("log")]}, hold(tmp_path, text="Done.")]}
    asyncio.run(interrupt(make("logging", tools=[log], options={"effects": {"log": None}}), tmp_path))
    assert executed == ["log", "log"]


def test_callbacks_are_executed_again(provider: ProviderServer, tmp_path: Path):
    def look() -> str:
        """Look."""
        executed.append("look")
        return "rain"

    def after_tool(**_: Any) -> dict[str, str]:
        executed.append("after_tool")
        return {"result": "sun"}

    provider.scripts = {"main": [{"calls": [call("look")]}, hold(tmp_path, text="I see {results}.")]}
    _, events = asyncio.run(interrupt(make("called", tools=[look], after_tool_callback=after_tool), tmp_path))
    assert executed == ["look", "after_tool", "after_tool"]
    assert texts(events) == ["I see sun."]


def test_executed_code_is_a_step(provider: ProviderServer, tmp_path: Path):
    class Executor(BaseCodeExecutor):
        def execute_code(self, invocation_context: Any, code_execution_input: CodeExecutionInput) -> Any:
            executed.append(code_execution_input.code)
            return CodeExecutionResult(stdout="42")

    provider.scripts = {"main": [{"text": "```python\nprint(6 * 7)\n```"}, hold(tmp_path, text="It is 42.")]}
    _, events = asyncio.run(interrupt(make("coder", code_executor=Executor()), tmp_path))
    assert executed == ["print(6 * 7)"]
    assert texts(events)[-1] == "It is 42."


# Approvals


def pay(amount: int) -> str:
    """Pay."""
    executed.append(f"pay {amount}")
    return f"paid {amount}"


def book(amount: int, tool_context: ToolContext) -> str:
    """Book, if that is confirmed."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(hint="Book for that much?")
        return "waiting"
    executed.append(f"book {tool_context.tool_confirmation.confirmed}")
    return "booked"


@pytest.mark.parametrize("is_approved", [True, False])
def test_a_tool_that_requires_confirmation_waits_for_an_approval(is_approved: bool, provider: ProviderServer):
    provider.scripts = {"main": [{"calls": [call("pay", amount=5)]}, {"text": "It said: {results}"}]}

    async def main() -> tuple[str, list[str]]:
        tool = FunctionTool(pay, require_confirmation=True)
        async with Runtime(), Client() as client:
            invocation = asyncio.create_task(collect(make("payer", tools=[tool])(), run_id="pay"))
            handle = client.handle("pay")
            [approval] = await wait_until(lambda: _list_approvals(handle))
            await (handle.approve(approval.id) if is_approved else handle.deny(approval.id))
            return approval.question, texts(await invocation)

    question, said = asyncio.run(main())
    assert question == "May the agent 'payer' call pay(amount=5)?"
    assert executed == (["pay 5"] if is_approved else [])
    assert said == ["It said: paid 5" if is_approved else "It said: This tool call is rejected."]


async def _list_approvals(handle: Any) -> Any:
    try:
        return await handle.approvals()
    except LookupError:
        return None  # the run has not started yet


def test_a_tool_that_asks_for_confirmation_itself_waits_for_an_approval(provider: ProviderServer):
    provider.scripts = {"main": [{"calls": [call("book", amount=5)]}, {"text": "It said: {results}"}]}

    async def main() -> tuple[str, list[str]]:
        async with Runtime(), Client() as client:
            invocation = asyncio.create_task(collect(make("agency", tools=[book])(), run_id="book"))
            handle = client.handle("book")
            [approval] = await wait_until(lambda: _list_approvals(handle))
            await handle.approve(approval.id)
            return approval.question, texts(await invocation)

    assert asyncio.run(main()) == ("Book for that much?", ["It said: booked"])
    assert executed == ["book True"]


def test_without_approvals_the_frameworks_own_confirmation_works(provider: ProviderServer):
    provider.scripts = {"main": [{"calls": [call("pay", amount=5)]}, {"text": "It said: {results}"}]}

    async def main() -> list[str]:
        tool = FunctionTool(pay, require_confirmation=True)
        runner = make("native", tools=[tool], options={"approvals": False})()
        first = await collect(runner)
        [request] = [one for event in first for one in event.get_function_calls() if one.name != "pay"]
        answer = types.FunctionResponse(id=request.id, name=request.name, response={"confirmed": True})
        sent = types.Content(role="user", parts=[types.Part(function_response=answer)])
        return texts(await collect(runner, sent))

    assert asyncio.run(main()) == ["It said: paid 5"]
    assert executed == ["pay 5"]


# Agents


class Verdict(BaseModel):
    city: str
    stars: int


def test_an_output_schema_and_a_state_delta_work(provider: ProviderServer, tmp_path: Path):
    provider.scripts = {"main": [hold(tmp_path, answer={"city": "Oslo", "stars": 4})]}
    make_runner = make("judge", output_schema=Verdict, output_key="verdict")

    async def main() -> Any:
        async with Runtime():
            runner = make_runner()
            await open_session(runner)
            (tmp_path / "go").touch()
            options = {"state_delta": {"mood": "good"}}
            events = [one async for one in runner.run_async(**KEY, new_message=message("Judge."), **options)]
            return events, (await read_session(runner)).state

    events, state = asyncio.run(main())
    assert Verdict.model_validate_json(texts(events)[-1]) == Verdict(city="Oslo", stars=4)
    assert state["mood"] == "good"
    assert state["verdict"] == {"city": "Oslo", "stars": 4}


def test_a_loop_ends_where_it_ended_before(provider: ProviderServer, tmp_path: Path):
    provider.scripts = {
        "worker": [{"text": "Draft 1."}, {"text": "Draft 2."}, {"text": "Draft 3."}],
        "judge": [{"text": "Again."}, hold(tmp_path, calls=[call("exit_loop")])],
    }

    def make_runner() -> DurableRunner:
        worker = LlmAgent(name="worker", model=MODEL, instruction="script:worker")
        judge = LlmAgent(name="judge", model=MODEL, instruction="script:judge", tools=[exit_loop])
        loop = LoopAgent(name="loop", sub_agents=[worker, judge], max_iterations=5)
        return durable(InMemoryRunner(app=App(name="app", root_agent=loop)))

    _, events = asyncio.run(interrupt(make_runner, tmp_path))
    assert texts(events) == ["Draft 1.", "Again.", "Draft 2."]
    assert len(provider.address.calls) == 5, "only the held request was made again"


def test_parallel_agents_continue_where_each_of_them_was(provider: ProviderServer, tmp_path: Path):
    provider.scripts = {
        "a": [{"text": "A."}],
        "b": [{"text": "B.", "delay": 0.1}],
        "c": [hold(tmp_path, text="C.")],
    }

    def make_runner() -> DurableRunner:
        agents = [LlmAgent(name=name, model=MODEL, instruction=f"script:{name}") for name in "abc"]
        return durable(InMemoryRunner(app=App(name="app", root_agent=ParallelAgent(name="all", sub_agents=agents))))

    runner, events = asyncio.run(interrupt(make_runner, tmp_path))
    assert sorted(texts(events)) == ["A.", "B.", "C."]
    assert {event.author: texts([event]) for event in events} == {"a": ["A."], "b": ["B."], "c": ["C."]}
    session = asyncio.run(read_session(runner))
    assert len({event.id for event in session.events}) == len(session.events)


def test_the_summary_of_a_long_session_is_recorded(provider: ProviderServer):
    provider.scripts = {"main": [{"text": "One."}, {"text": "Two."}], MODEL: [{"text": "A summary."}]}

    def make_runner() -> DurableRunner:
        agent = LlmAgent(name="long", model=MODEL, instruction="script:main")
        compaction = EventsCompactionConfig(compaction_interval=1, overlap_size=0)
        return durable(InMemoryRunner(app=App(name="app", root_agent=agent, events_compaction_config=compaction)))

    async def main() -> tuple[list[str], Any]:
        runner = make_runner()
        await collect(runner, run_id="long")
        async with Client() as client:
            report = await client.handle("long").describe()
        return [entry.name for entry in report.journal if entry.kind == "step"], await read_session(runner)

    steps, session = asyncio.run(main())
    assert steps == ["load session", "model call", "model call"]
    assert session.events[-1].actions.compaction.compacted_content.parts[0].text == "A summary."


def test_a_graph_of_nodes_continues(provider: ProviderServer, tmp_path: Path):
    provider.scripts = {
        "writer": [{"text": "A draft."}],
        "editor": [hold(tmp_path, text="A text.")],
    }

    def shorten(node_input: str) -> str:
        executed.append(node_input)
        return f"short: {node_input}"

    def make_runner() -> DurableRunner:
        writer, editor = (
            LlmAgent(name=name, model=MODEL, instruction=f"script:{name}") for name in ("writer", "editor")
        )
        graph = Workflow(name="graph", edges=[("START", writer, shorten, editor)])
        return durable(InMemoryRunner(app=App(name="app", root_agent=graph)))

    _, events = asyncio.run(interrupt(make_runner, tmp_path))
    assert texts(events)[-1] == "A text."
    assert executed == ["A draft.", "A draft."], "plain nodes are executed again"
    assert len(provider.address.calls) == 3, "only the held request was made again"


def test_a_model_that_pairs_calls_by_id_works(provider: ProviderServer, tmp_path: Path):
    def look(city: str) -> str:
        """Look."""
        executed.append(city)
        return city

    provider.scripts = {
        "main": [
            {"calls": [call("look", city="Oslo"), call("look", city="Rome")]},
            hold(tmp_path, text="I saw {results}."),
        ]
    }
    _, events = asyncio.run(interrupt(make("paired", model=OpenAILlm(model="gpt-4o"), tools=[look]), tmp_path))
    assert sorted(executed) == ["Oslo", "Rome"]
    assert texts(events)[-1] == 'I saw {"result": "Oslo"}, {"result": "Rome"}.'

    async def read_usage() -> Any:
        async with Client() as client:
            return await client.handle("run").usage()

    assert asyncio.run(read_usage()).nano_usd > 0
