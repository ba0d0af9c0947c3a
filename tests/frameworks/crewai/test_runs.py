"""A durable crew outside of programs: its kickoffs are runs of their own; in a workflow, they are child runs."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from pydantic import BaseModel

from holdfast import Client, program, workflow
from holdfast.errors import RunFailed, UsageError
from holdfast.integrations.crewai import durable
from holdfast.worker.workflow_loader import _select_workflows  # pyright: ignore[reportPrivateUsage]


class Trip(BaseModel):
    city: str


def make_crew(name: str, **options: Any) -> Crew:
    scout = Agent(role="scout", goal="script:scout Find", backstory="", llm="gpt-4o")
    find = Task(description="Find a trip to {city}.", expected_output="A trip.", agent=scout, output_pydantic=Trip)
    crew_options = options.pop("crew", {})
    return durable(Crew(name=name, agents=[scout], tasks=[find], **crew_options), **options)


SCRIPTS = {"scout": [{"answer": {"city": "Oslo"}}]}


async def get_runs() -> list[Any]:
    async with Client() as client:
        return await client.list()


@pytest.mark.parametrize("method", ["kickoff", "kickoff_async", "akickoff"])
def test_a_kickoff_is_a_run(method, provider):
    provider.scripts = SCRIPTS
    crew = make_crew(f"{method}-crew", id=f"{method}-{{city}}")
    kickoff = getattr(crew, method)

    def run() -> Any:
        found = kickoff(inputs={"city": "Oslo"})
        return asyncio.run(found) if asyncio.iscoroutine(found) else found

    first = run()
    assert isinstance(first.pydantic, Trip)
    assert first.pydantic == first.tasks_output[0].pydantic == Trip(city="Oslo")
    assert crew.usage_metrics == first.token_usage
    assert first.token_usage.prompt_tokens > 0
    runs = asyncio.run(get_runs())
    assert [(run.id, run.workflow, run.state) for run in runs] == [(f"{method}-Oslo", f"{method}-crew", "completed")]
    assert run() == first, "starting it again returns the result of the run"
    assert len(provider.address.calls) == 1


@pytest.mark.parametrize("method", ["kickoff_for_each", "kickoff_for_each_async", "akickoff_for_each"])
def test_kickoffs_for_each_are_one_run(method, provider):
    provider.scripts = SCRIPTS
    found = getattr(make_crew(f"{method}-crew"), method)(inputs=[{"city": "Oslo"}, {"city": "Rome"}])
    outputs = asyncio.run(found) if asyncio.iscoroutine(found) else found
    assert [output.pydantic for output in outputs] == [Trip(city="Oslo")] * 2
    assert "Rome" in outputs[1].tasks_output[0].description
    assert [run.workflow for run in asyncio.run(get_runs())] == [f"{method}-crew.for_each"]


def test_runs_of_one_crew_at_the_same_time_do_not_mix(provider):
    provider.scripts = SCRIPTS
    crew = make_crew("busy-crew")

    async def run() -> list[Any]:
        return await asyncio.gather(*(crew.akickoff(inputs={"city": city}) for city in ("Oslo", "Rome", "Bonn")))

    outputs = asyncio.run(run())
    cities = [output.tasks_output[0].description for output in outputs]
    assert cities == [f"Find a trip to {city}." for city in ("Oslo", "Rome", "Bonn")]


def test_in_a_workflow_a_kickoff_is_a_child_run(provider):
    provider.scripts = SCRIPTS
    crew = make_crew("child-crew")

    @workflow(name="parent")
    async def parent() -> str:
        return (await crew.akickoff(inputs={"city": "Oslo"})).pydantic.city

    @workflow(name="blocking-parent")
    async def blocking_parent() -> Any:
        return crew.kickoff(inputs={"city": "Oslo"})

    assert parent.run_sync() == "Oslo"
    assert sorted(run.workflow for run in asyncio.run(get_runs())) == ["child-crew", "parent"]
    with pytest.raises(RunFailed, match=r"crew 'child-crew': in a workflow, `await crew.akickoff"):
        blocking_parent.run_sync()


def test_in_a_program_a_kickoff_is_a_part_of_its_run(provider):
    provider.scripts = SCRIPTS
    crew = make_crew("inner-crew")

    @program(name="outer")
    async def outer() -> str:
        outputs = await crew.akickoff_for_each(inputs=[{"city": "Oslo"}])
        return outputs[0].pydantic.city

    assert outer.run_sync() == "Oslo"
    assert [run.workflow for run in asyncio.run(get_runs())] == ["outer"]


def test_a_crews_own_exception_reaches_its_caller(provider):
    crew = make_crew("angry-crew")

    def refuse(inputs: Any) -> Any:
        raise LookupError("no such city")

    crew.before_kickoff_callbacks.append(refuse)
    with pytest.raises(LookupError, match="no such city"):
        crew.kickoff(inputs={"city": "Oslo"})


def test_a_worker_serves_a_crew(provider):
    crew = make_crew("served-crew")
    module: Any = type("module", (), {"crew": crew, "__name__": "module"})
    assert _select_workflows(module, "crew", "module:crew") == ("served-crew",)
    assert not hasattr(Crew(agents=crew.agents, tasks=crew.tasks), "holdfast_workflow")


def test_a_copy_of_a_durable_crew_is_an_ordinary_crew(provider, tmp_path):
    provider.scripts = SCRIPTS
    crew = make_crew("copied-crew")
    for copied in (crew.copy(), crew.model_copy(), copy.copy(crew)):
        assert not hasattr(copied, "holdfast_workflow")
        copied.kickoff(inputs={"city": "Oslo"})
    assert not (tmp_path / "runs.db").exists(), "there are no runs"
    assert crew.holdfast_workflow.name == "copied-crew"  # type: ignore[attr-defined]


def test_a_run_shows_its_conversation(provider):
    provider.scripts = SCRIPTS
    make_crew("talking-crew", id="talk").kickoff(inputs={"city": "Oslo"})

    async def read() -> list[Any]:
        async with Client() as client:
            return await client.conversation("talk")

    messages = asyncio.run(read())
    assert [message.role for message in messages] == ["system", "user", "model"]
    assert "Find a trip to Oslo." in messages[1].text
    assert "Oslo" in messages[2].text


def test_what_cannot_be_an_input_of_a_run_is_refused(provider):
    with pytest.raises(UsageError, match=r"kickoff\(from_checkpoint=...\) cannot be recorded"):
        from crewai.state.checkpoint_config import CheckpointConfig

        make_crew("files-crew").kickoff(from_checkpoint=CheckpointConfig())
    with pytest.raises(UsageError, match="crew 'stream-crew' has stream=True: a run of its own returns its result"):
        make_crew("stream-crew", crew={"stream": True}).kickoff(inputs={"city": "Oslo"})
    with pytest.raises(UsageError, match="durable\\(\\) takes a Crew of CrewAI, not an object of type Agent"):
        durable(Agent(role="scout", goal="Find", backstory="", llm="gpt-4o"))  # type: ignore[type-var]
