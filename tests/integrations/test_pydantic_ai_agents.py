"""Pydantic AI agents made durable: mistakes are reported early, and programs and workers find the agent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic_ai
import pytest
from provider_server import ProviderServer
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset

from holdfast import Client, DefinitionError, UsageError, workflow
from holdfast.errors import StoreNotFound
from holdfast.integrations.pydantic_ai import Durable
from holdfast.integrations.pydantic_ai.operation_codec import OPERATION_CODEC
from holdfast.worker.workflow_loader import load_workflows


async def look(place: str) -> str:
    """Look at a place."""
    return f"{place} seen"


def test_it_runs_without_an_event_loop(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    model = TestModel(custom_output_text="done")
    agent = Agent(model, name="pai-sync", tools=[look], capabilities=[Durable()])
    assert agent.run_sync("Go.", run_id="pai-sync-1").output == "done"
    assert agent.run_sync("Go.", run_id="pai-sync-1").output == "done"
    model.custom_output_text = "asked again"
    assert agent.run_sync("Go.", run_id="pai-sync-1").output == "done"


def test_an_override_reaches_run_sync(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    helper = Agent(TestModel(custom_output_text="own"), name="pai-sync-override", capabilities=[Durable()])
    with helper.override(model=TestModel(custom_output_text="sync")):
        assert helper.run_sync("Go.").output == "sync"
        with helper.run_stream_sync("Go on.") as stream:
            assert stream.get_output() == "sync"


def test_a_model_object_is_used_on_one_event_loop_after_the_other(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    with ProviderServer({"go": [{"text": "hello"}]}, tmp_path / "provider.ledger") as provider:
        for key, value in provider.address.environment.items():
            monkeypatch.setenv(key, value)
        model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider())
        agent = Agent(model, name="pai-loops", instructions="script:go", capabilities=[Durable()])

        @workflow(name="pai-loops-flow")
        async def flow(prompt: str) -> str:
            return (await agent.run(prompt)).output

        for number in range(2):
            assert asyncio.run(agent.run(f"own {number}")).output == "hello"
            assert asyncio.run(flow(f"flow {number}")) == "hello"


def test_a_worker_serves_an_agent_by_its_name_in_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pai_served_app.py").write_text(
        "from pydantic_ai import Agent\n"
        "from pydantic_ai.models.test import TestModel\n"
        "from holdfast.integrations.pydantic_ai import Durable\n"
        "helpful = Agent(TestModel(), name='pai-served', capabilities=[Durable()])\n"
        "plain = Agent(TestModel(), name='pai-not-served')\n"
    )
    assert load_workflows("pai_served_app:helpful") == ("pai-served",)
    with pytest.raises(UsageError, match="Workflows and agents in 'pai_served_app': helpful"):
        load_workflows("pai_served_app:plain")


class Own(AbstractToolset[None]):
    id = "own"

    async def get_tools(self, ctx: Any) -> Any:
        return {}

    async def call_tool(self, *_: Any) -> Any: ...


def test_mistakes_are_reported_when_the_agent_is_made() -> None:
    with pytest.raises(UserError, match="name"):
        Agent(TestModel(), capabilities=[Durable()])
    with pytest.raises(DefinitionError, match="tries is no setting"):
        Agent(TestModel(), name="pai-wrong-1", capabilities=[Durable(tools={"look": {"tries": 3}})])
    with pytest.raises(DefinitionError, match="neither False nor settings"):
        Agent(TestModel(), name="pai-wrong-2", capabilities=[Durable(tools={"look": True})])
    with pytest.raises(DefinitionError, match="DynamicToolset"):
        Agent(TestModel(), name="pai-wrong-3", toolsets=[Own()], capabilities=[Durable()])
    with pytest.raises(UserError, match="id"):
        Agent(TestModel(), name="pai-wrong-4", toolsets=[FunctionToolset([look])], capabilities=[Durable()])
    assert Agent(TestModel(), name="pai-wrong-5", capabilities=[Durable()])
    with pytest.raises(DefinitionError, match="two workflows are named"):
        assert Agent(TestModel(), name="pai-wrong-5", capabilities=[Durable()])


def test_settings_name_a_tool_of_the_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    settings: Any = {"lok": {"effect": "once"}}
    agent = Agent(TestModel(), name="pai-misspelt", tools=[look], capabilities=[Durable(tools=settings)])
    with pytest.raises(
        DefinitionError, match=r"agent 'pai-misspelt' has no tool 'lok', which tools= names. It has: look"
    ):
        agent.run_sync("Go.")
    with pytest.raises(StoreNotFound):  # there was no run
        Client(url).list_sync()
    dynamic = DynamicToolset(lambda _: FunctionToolset([]), id="dynamic")
    with pytest.warns(UserWarning, match="Did you mean 'look'"):
        agent.run_sync("Go.", toolsets=[dynamic])


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"kind": "tool_return", "result": "sunny"}, b'"sunny"'),
        ({"kind": "tool_return", "result": {"a": [1, None]}}, b'{"a":[1,null]}'),
        (
            {"kind": "model_retry", "message": "again"},
            b'{"$pydantic_ai":1,"library":"LIB","value":{"kind":"model_retry","message":"again"}}',
        ),
        (
            {"kind": "tool_return", "result": {"$pydantic_ai": 1}},
            b'{"$pydantic_ai":1,"library":"LIB","value":{"kind":"tool_return","result":{"$pydantic_ai":1}}}',
        ),
    ],
)
def test_the_recorded_form_of_operations_stays_as_it_is(value: Any, written: bytes) -> None:
    """Journals of earlier versions are read for ever: a change of this form needs another number."""
    data, read = OPERATION_CODEC.round_trip(value, "the output")
    assert data.replace(pydantic_ai.__version__.encode(), b"LIB") == written
    assert read == OPERATION_CODEC.decode(data, "the output") == value


def test_the_library_is_imported_only_when_it_is_used() -> None:
    code = "import sys, holdfast; holdfast.Agent; print('pydantic_ai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
