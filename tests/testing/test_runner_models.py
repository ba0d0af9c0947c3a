"""``Runner(model=...)``: one model answers in place of all others, and its usage can be looked at."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from holdfast import Agent, Budget, RunContext, UsageError, current_step, llm_step, parallel, step, tool, workflow
from holdfast.errors import DefinitionError
from holdfast.testing import Runner, RunResult, ScriptedModel, answer, call

did: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


@tool
async def count_bees(hive: str) -> int:
    """Count the bees of a hive."""
    did.append(hive)
    return 7


keeper = Agent("openai:gpt-4o", name="runner-models-keeper", tools=[count_bees])


@llm_step(model="anthropic:claude-sonnet-5")
async def make_a_rhyme(word: str) -> str:
    return f"Rhyme: {word}"


@workflow
async def keeping_and_rhyming(hive: str) -> str:
    kept = await keeper(f"Count: {hive}")
    return await make_a_rhyme(kept.output)


def script(messages: list[ModelMessage]) -> Any:
    asked = messages[0].parts[0].content  # type: ignore[union-attr]
    return f"<{asked}>" if asked.startswith("Rhyme") else call("count_bees", hive="north")


def model_of_all(**options: Any) -> ScriptedModel:
    return ScriptedModel([script, "seven"], name="gpt-4o-mini", provider="openai", **options)


@pytest.mark.asyncio
async def test_it_answers_in_agents_and_in_steps_and_usage_includes_children() -> None:
    model = model_of_all(usage=(1_000_000, 0))
    result = await Runner(model=model).run(keeping_and_rhyming, "north")
    assert (result.output, did, len(model.calls)) == ("<Rhyme: seven>", ["north"], 3)
    assert (result.usage.calls, result.usage.input_tokens) == (3, 3_000_000)
    assert float(result.usage.cost or 0) == pytest.approx(3 * 0.15)
    assert result.children[1].usage.calls == 2


@pytest.mark.asyncio
async def test_nobody_is_asked_twice_wherever_the_process_dies() -> None:
    model = model_of_all()
    runner = Runner(model=model, replay_processes=0, max_pairs=10)
    trials: list[RunResult] = []

    @runner.after_each
    def look(result: RunResult) -> None:
        trials.append(result)
        assert result.usage.calls == 3

    await runner.crash_everywhere(keeping_and_rhyming, "north")
    asked = [one for trial in trials for run in (trial, *trial.children) for one in run.steps]
    assert len(model.calls) == sum(one.execution_count for one in asked if one.name in ("model call", "make_a_rhyme"))
    assert len(did) == sum(one.execution_count for one in asked if one.name == "count_bees")


@pytest.mark.asyncio
async def test_any_model_of_the_library_will_do() -> None:
    result = await Runner(model=TestModel(custom_output_text="tested")).run(keeping_and_rhyming, "north")
    assert result.output == "tested"
    assert did == ["a"]  # it calls every tool that it is offered, with arguments that it makes up

    def answering(messages: list[ModelMessage], _: Any) -> ModelResponse:
        return ModelResponse([TextPart(f"{len(messages)} message")])

    result = await Runner(model=FunctionModel(answering)).run(keeping_and_rhyming, "north")
    assert result.output == "1 message"
    assert result.usage.unpriced == 2
    assert result.usage.cost is None


@pytest.mark.asyncio
async def test_a_model_call_is_repeated_in_virtual_time_also_in_another_process() -> None:
    def unsteady(_: Any) -> Any:
        return ModelHTTPError(503, "m", {"message": "busy"}) if current_step().attempt < 4 else "at last"

    model = ScriptedModel([unsteady])
    runner = Runner(model=model)
    begun = runner.clock.now()
    result = await runner.start(keeper, "Hello?")
    assert (result.status, result.waits_for) == ("waiting", "the next attempt of step 'model call'")
    assert len(model.calls) == 1
    result = await runner.resume(result.run_id)  # in another process, which counts on
    assert (result.output.output, result.steps[1].attempt_count, len(model.calls)) == ("at last", 4, 4)
    assert runner.clock.now() - begun > 2


@workflow
class JudgingInAClass:
    @step(1)
    @llm_step(model="openai:gpt-4o")
    async def grade(self, work: str) -> int:
        return work  # type: ignore[return-value]

    @step(2, depends_on=1)
    async def topics(self, grade: int) -> list[str]:
        return ["a"] * grade

    @step(3, depends_on=2)
    @parallel
    @llm_step(model="openai:gpt-4o")
    async def weigh(self, topic: str) -> int:
        return topic  # type: ignore[return-value]


@pytest.mark.asyncio
async def test_a_number_means_the_answer_and_not_what_was_corrected() -> None:
    model = ScriptedModel(["two", answer(2), answer(2), answer(2)])
    result = await Runner(model=model).run(JudgingInAClass, work="x")
    assert result.output == [2, 2]
    assert (result.steps[1].output, result.steps[1].was_repeated) == (2, False)
    assert result.steps[3].output == [2, 2]
    assert [one.was_repeated for one in result.steps["grade"]] == [True, False]
    assert "by calling the tool" in repr(result.steps["grade"][0].output)


def test_a_budget_is_raised_in_a_plain_test_as_well() -> None:
    model = model_of_all()
    runner = Runner(model=model)
    result = runner.run_sync(keeping_and_rhyming.options(id="frugal", budget=Budget(turns=2)), "north")
    assert (result.status, result.usage.calls) == ("waiting", 2)
    result = runner.set_budget_sync("frugal", Budget(turns=3))
    assert (result.status, result.output) == ("completed", "<Rhyme: seven>")
    assert result.steps[-1].output == "<Rhyme: seven>"


def test_without_a_model_those_of_the_code_are_asked() -> None:
    own = Agent(ScriptedModel(["its own"]), name="runner-models-own")
    assert Runner().run_sync(own, "x").output.output == "its own"
    assert Runner(model=ScriptedModel(["another"])).run_sync(own, "x").output.output == "another"


@pytest.mark.parametrize("mistake", ["openai:gpt-4o", 42])
def test_a_name_is_no_model_to_test_with(mistake: Any) -> None:
    with pytest.raises((UsageError, DefinitionError), match="model"):
        Runner(model=mistake)


@tool
async def name_user(ctx: RunContext[str]) -> str:
    """Name the user."""
    did.append(ctx.deps)
    return ctx.deps


greeter = Agent("openai:gpt-4o", name="runner-models-greeter", tools=[name_user], deps_type=str)


@pytest.mark.asyncio
async def test_a_start_that_joins_a_run_brings_its_deps() -> None:
    runner = Runner(model=ScriptedModel([call("name_user"), "Hello."]))
    runner.simulate_crash_before(step=2)
    first = await runner.run(greeter.options(dedup="door"), "Greet.", deps="Ada")
    assert first.has_crashed
    second = await runner.run(greeter.options(dedup="door"), "Greet.", deps="Bo")
    assert (second.run_id, second.status, did) == (first.run_id, "completed", ["Bo"])
