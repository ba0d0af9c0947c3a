"""Where the calls of a durable runner are recorded: in runs of their own, in programs, and in workflows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from adk_kit import KEY, MODEL, collect, message, open_session, read_session, texts
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.runners import InMemoryRunner, Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from provider_server import ProviderServer

from holdfast import Client, DefinitionError, RunFailed, Runtime, UsageError, program, step, workflow
from holdfast.integrations.google_adk import DurableRunner, durable

LOOK = {"calls": [{"tool": "look", "arguments": {"city": "Oslo"}}], "usage": {"input": 100, "output": 20}}
SCRIPTS = {"main": [LOOK, {"text": "It rains.", "usage": {"input": 200, "output": 30}}, {"text": "Still."}]}

looked: list[str] = []


def look(city: str) -> str:
    """Look at the weather."""
    looked.append(city)
    return f"rain in {city}"


def make_runner(name: str, **options: Any) -> DurableRunner:
    agent = LlmAgent(name=name, model=MODEL, instruction="script:main", tools=[look])
    return durable(InMemoryRunner(agent=agent), **options)


@pytest.fixture(autouse=True)
def scripts(provider: ProviderServer) -> None:
    provider.scripts = SCRIPTS
    looked.clear()


async def list_runs() -> list[tuple[str, str]]:
    async with Client() as client:
        return [(run.workflow, str(run.state.value)) for run in await client.list()]


def test_an_invocation_is_a_run_named_after_its_agent():
    async def main() -> Any:
        events = await collect(make_runner("alone"))
        async with Client() as client:
            [run] = await client.list()
            handle = client.handle(run.id)
            return events, run, await handle.describe(), await handle.usage(), await handle.conversation()

    events, run, report, usage, conversation = asyncio.run(main())
    assert texts(events) == ["It rains."]
    assert (run.workflow, run.state.value) == ("alone", "completed")
    assert [entry.name for entry in report.journal if entry.kind == "step"] == [
        "load session", "model call", "look", "model call",
    ]  # fmt: skip
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (2, 300, 50)
    assert usage.nano_usd > 0
    assert [(one.role, one.text) for one in conversation if one.text] == [
        ("system", conversation[0].text),
        ("user", "Go."),
        ("tool", "rain in Oslo"),
        ("model", "It rains."),
    ]


def test_a_run_with_an_id_is_joined_and_fills_the_session_of_another_process(provider: ProviderServer):
    async def main() -> Any:
        first = await collect(make_runner("joined"), run_id="trip-1")
        again = make_runner("joined")  # as in another process: its sessions are others
        second = await collect(again, run_id="trip-1")
        session = await read_session(again)
        third = await collect(again, "And now?")
        return first, second, session, third

    first, second, session, third = asyncio.run(main())
    assert [event.id for event in first] == [event.id for event in second]
    assert texts(second) == ["It rains."]
    assert [event.author for event in session.events] == ["user", "joined", "joined", "joined"]
    assert texts(third) == ["Still."]
    assert len(provider.address.calls) == 3
    assert looked == ["Oslo"]


def test_a_program_records_all_invocations_in_its_own_run():
    runner = make_runner("inner")

    @program(id="outer")
    async def outer() -> list[str]:
        return texts(await collect(runner)) + texts(await collect(runner, "And now?"))

    assert asyncio.run(outer()) == ["It rains.", "Still."]
    assert asyncio.run(list_runs()) == [("outer", "completed")]


def test_an_invocation_of_a_workflow_is_its_child():
    runner = make_runner("child")

    @workflow
    async def parent() -> list[str]:
        await prepare()
        return texts([event async for event in runner.run_async(**KEY, new_message=message("Go."))])

    @step
    async def prepare() -> None:
        await open_session(runner)

    assert asyncio.run(parent()) == ["It rains."]
    assert sorted(asyncio.run(list_runs())) == [("child", "completed"), ("parent", "completed")]


def test_the_runner_works_without_async_code():
    runner = make_runner("plain")
    asyncio.run(open_session(runner))
    assert texts(list(runner.run(**KEY, new_message=message("Go."), run_id="plain-1"))) == ["It rains."]
    assert texts(list(runner.run(**KEY, new_message=message("Go."), run_id="plain-1"))) == ["It rains."]
    assert looked == ["Oslo"]


def test_a_plain_program_calls_the_runner_without_async_code():
    runner = make_runner("plain_inner")

    @program
    def plain_outer() -> list[str]:
        asyncio.run(open_session(runner))
        return texts(list(runner.run(**KEY, new_message=message("Go."))))

    assert asyncio.run(plain_outer()) == ["It rains."]
    assert asyncio.run(list_runs()) == [("plain_outer", "completed")]


def test_run_debug_is_durable():
    runner = make_runner("debugged")
    events = asyncio.run(runner.run_debug(["Go.", "And now?"], quiet=True))
    assert texts(events) == ["It rains.", "Still."]
    assert asyncio.run(list_runs()) == [("debugged", "completed")] * 2


@pytest.mark.parametrize("place", ["own", "program"])
def test_a_stream_arrives_in_parts_and_then_complete(place: str, provider: ProviderServer):
    provider.scripts = {"main": [{"text": "One two three."}]}
    runner = make_runner(f"streamed_{place}")
    config = RunConfig(streaming_mode=StreamingMode.SSE)

    @program(name=f"streaming_{place}")
    async def streaming() -> list[list[str]]:
        events = await collect(runner, run_config=config)
        return [texts(events, partial=True), texts(events)]

    async def own() -> list[list[str]]:
        events = await collect(runner, run_config=config)
        return [texts(events, partial=True), texts(events)]

    parts, complete = asyncio.run(streaming() if place == "program" else own())
    assert parts == ["One ", "two ", "three."]
    assert complete == ["One two three."]


def test_a_caller_that_has_enough_leaves_the_run_running():
    async def main() -> Any:
        runner = make_runner("left")
        await open_session(runner)
        async for _ in runner.run_async(**KEY, new_message=message("Go."), run_id="left-1"):
            break
        async with Client() as client:
            return await client.handle("left-1").result()

    assert asyncio.run(main())["text"] == "It rains."


def test_a_worker_serves_runs_that_a_client_starts():
    agent = LlmAgent(name="served", model=MODEL, instruction="script:main", tools=[look])
    app = App(name="app", root_agent=agent)
    runner = durable(Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True))

    async def main() -> tuple[str, str]:
        async with Runtime(), Client() as client:
            result = await client.run("served", **KEY, message="Go.")
            handle = await runner.program.start(**KEY, new_message=message("And now?"))
            return result["text"], (await handle.result())["text"]

    assert asyncio.run(main()) == ("It rains.", "Still.")


def test_the_agents_exception_reaches_the_caller():
    def fail(city: str) -> str:
        """Fail."""
        raise LookupError(f"no {city}")

    fail.__name__ = "look"
    agent = LlmAgent(name="failing", model=MODEL, instruction="script:main", tools=[fail])
    runner = durable(InMemoryRunner(agent=agent))
    with pytest.raises(LookupError, match="no Oslo"):
        asyncio.run(collect(runner))
    assert asyncio.run(list_runs()) == [("failing", "failed")]


def test_a_missing_session_is_the_frameworks_error():
    async def main() -> None:
        async for _ in make_runner("nowhere").run_async(**KEY, new_message=message("Go.")):
            pass

    with pytest.raises(Exception, match="Session not found: s1") as caught:
        asyncio.run(main())
    assert not isinstance(caught.value, RunFailed)


def test_other_code_of_the_process_has_its_own_ids_and_times():
    runner = make_runner("polite")

    @program
    async def politeness() -> bool:
        await open_session(runner)
        ids: list[str] = []
        async for _ in runner.run_async(**KEY, new_message=message("Go.")):
            ids.append(platform_uuid._id_provider_context_var.get() is platform_uuid._default_id_provider)
            assert platform_time._time_provider_context_var.get() is platform_time._default_time_provider
        return all(ids)

    assert asyncio.run(politeness()) is True


# What is refused


def test_a_live_session_is_refused():
    async def main() -> None:
        async for _ in make_runner("live").run_live(**KEY):
            pass

    with pytest.raises(UsageError, match="a live session is a connection that cannot be recorded"):
        asyncio.run(main())


def test_compositional_function_calling_is_refused():
    with pytest.raises(UsageError, match="`support_cfc` uses the live API"):
        asyncio.run(collect(make_runner("cfc"), run_config=RunConfig(support_cfc=True)))


def test_an_abort_signal_is_refused_in_a_run_of_its_own():
    with pytest.raises(UsageError, match="Cancel the run instead"):
        asyncio.run(collect(make_runner("aborted"), abort_signal=asyncio.Event()))


def test_a_run_id_is_refused_in_a_program():
    runner = make_runner("named")

    @program
    async def naming() -> None:
        await collect(runner, run_id="x")

    with pytest.raises(RunFailed, match="run_id='x' cannot be given in a program"):
        asyncio.run(naming())


def test_a_wrong_effect_is_refused():
    with pytest.raises(UsageError, match="tool 'look': effect='twice' is not one of"):
        make_runner("wrong", effects={"look": "twice"})


def test_an_effect_names_a_tool_of_one_of_the_agents():
    with pytest.raises(DefinitionError, match=r"has no tool 'loook', which effects= names. It has: look"):
        make_runner("misspelt", effects={"loook": "once"})
    guide = LlmAgent(name="guide", model=MODEL, tools=[look])
    for options in ({"sub_agents": [guide]}, {"tools": [AgentTool(guide)]}):
        root = LlmAgent(name="root", model=MODEL, **options)
        durable(InMemoryRunner(agent=root), effects={"look": "once", "transfer_to_agent": None})
        guide.parent_agent = None
    root = LlmAgent(name="open", model=MODEL, tools=[look, ExampleToolset()])
    with pytest.warns(UserWarning, match="has no tool 'loook' so far.*Did you mean 'look'"):
        durable(InMemoryRunner(agent=root), effects={"loook": "once", "charge": "once"})


class ExampleToolset(BaseToolset):
    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        return []

    async def close(self) -> None: ...


def test_a_durable_runner_is_not_made_durable_again():
    with pytest.raises(UsageError, match="is durable already"):
        durable(make_runner("twice"))
