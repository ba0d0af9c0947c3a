"""``@llm_step``: the function returns the prompt, the output is the model's answer, and every call is recorded."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ImageUrl, ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

import holdfast
from holdfast import (
    Budget,
    DefinitionError,
    ModelOptions,
    ModelRequestRejected,
    TurnLimitReached,
    UsageError,
    current_step,
    llm_step,
    parallel,
    step,
    workflow,
)
from holdfast.reports.recorded_reply import decode_reply
from holdfast.services.journal_files import export_run
from holdfast.testing import Runner, RunResult, ScriptedModel, answer, call

did: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


class City(BaseModel):
    name: str
    size: int = Field(ge=0)


@dataclass
class Verdict:
    good: bool


def echo(messages: list[ModelMessage]) -> str:
    """Answers with the last prompt."""
    return f"<{messages[-1].parts[-1].content}>"  # type: ignore[union-attr]


def echoing(**options: Any) -> ScriptedModel:
    return ScriptedModel([echo], name="gpt-4o-mini", provider="openai", **options)


# In a function, alone or with @step on either side


@llm_step(model="openai:gpt-4o", instructions="Be brief.")
async def alone(topic: str) -> str:
    """About a topic."""
    did.append(topic)
    return f"About {topic}"


@llm_step(model="openai:gpt-4o")
@step(name="above", retries=1)
async def asked_above(topic: str) -> str:
    return topic


@step(name="below")
@llm_step(model="openai:gpt-4o")
def asked_below(topic: str) -> str:
    did.append(threading.current_thread() is threading.main_thread())
    return topic


@workflow
async def three_ways_to_ask(topic: str) -> list[str]:
    return [await alone(topic), await asked_above(topic), await asked_below(topic)]


@pytest.mark.asyncio
async def test_the_answer_is_the_output_whichever_way_it_is_declared() -> None:
    model = echoing()
    result = await Runner(model=model).run(three_ways_to_ask, "bees")
    assert result.output == ["<About bees>", "<bees>", "<bees>"]
    assert [one.name for one in result.steps] == ["alone", "above", "below"]
    assert [one.instructions for one in model.calls] == ["Be brief.", "", ""]
    assert did == ["bees", False]  # a plain function runs in a thread
    assert alone.__doc__ == "About a topic."


# In a class


@workflow(id="agent-{run_id}")
class AnswersInThree:
    @step(1)
    @llm_step(model="anthropic:claude-sonnet-5", fallback="openai:gpt-4o")
    async def reason(self, prompt: str) -> str:
        return prompt  # what is returned is the prompt; the recorded output is the model's answer

    @step(2, depends_on=1)
    async def call_tool(self, result: str) -> dict[str, str]:
        return {"found": result}

    @llm_step(model="anthropic:claude-sonnet-5")
    @step(3, depends_on=2)
    async def synthesize(self, tool_output: dict[str, str]) -> str:
        return f"Sum up {tool_output['found']}"


@pytest.mark.asyncio
async def test_the_questions_of_a_run_share_one_script() -> None:
    model, other = ScriptedModel(["one", answer(name="x"), answer(name="y", size=1), "four"]), ScriptedModel(["mine"])

    @llm_step(model=model)
    async def first() -> str:
        return "first?"

    @llm_step(model=model, output_type=City)
    async def corrected() -> City:
        return "which?"  # type: ignore[return-value]

    @llm_step(model=other)
    async def elsewhere() -> str:
        return "yours?"

    @workflow(name="llm-shared-script")
    async def flow() -> list[str]:
        return [await first(), (await corrected()).name, await elsewhere(), await first()]

    expected = ["one", "y", "mine", "four"]
    runner = Runner()
    assert (await runner.run(flow)).output == expected
    await Runner(replay_processes=0, max_pairs=0).crash_everywhere(flow)
    stand_in = ScriptedModel(["a", answer(name="b", size=2), "c", "d"])
    result = await Runner(model=stand_in).run(flow)
    assert result.output == ["a", "b", "c", "d"]
    assert [step.usage is not None and step.usage.calls for step in result.steps] == [1, 1, 1, 1]


@pytest.mark.asyncio
async def test_a_model_is_not_asked_again_after_a_crash() -> None:
    model = echoing()
    runner = Runner(model=model)
    runner.simulate_crash_after(step=1)
    result = await runner.run(AnswersInThree, run_id="test", prompt="why")
    assert result.has_crashed
    assert len(model.calls) == 1
    result = await runner.resume("agent-test")
    assert result.steps[1].was_replayed
    assert result.steps[1].output == "<why>"
    assert result.output == "<Sum up <why>>"
    assert len(model.calls) == 2
    assert (result.usage.calls, result.usage.unpriced) == (2, 0)
    assert result.usage.cost


@workflow
class ManyQuestions:
    @step(1)
    async def topics(self, last: str) -> list[str]:
        return ["bees", "ants", last]

    @step(2, depends_on=1)
    @parallel(max_concurrency=2)
    @llm_step(model="openai:gpt-4o", output_type=Verdict)
    async def judge(self, topic: str) -> str:
        return f"Are {topic} good?"

    @step(3, depends_on=2, when=lambda judge: any(one.good for one in judge))
    @llm_step(model="openai:gpt-4o")
    async def praise(self, judge: list[Verdict]) -> str:
        return f"Praise {sum(one.good for one in judge)} of them"


@pytest.mark.asyncio
async def test_a_fan_out_asks_for_each_item_and_conditions_see_answers() -> None:
    def judging(messages: list[ModelMessage]) -> Any:
        asked = messages[0].parts[0].content  # type: ignore[union-attr]
        return answer(good="ees" in asked) if asked.startswith("Are") else echo(messages)

    result = await Runner(model=ScriptedModel([judging])).run(ManyQuestions, last="wasps")
    assert result.steps[2].output == [Verdict(True), Verdict(False), Verdict(False)]
    assert result.output == "<Praise 1 of them>"
    result = await Runner(model=ScriptedModel([lambda _: answer(good=False)])).run(ManyQuestions, last="wasps")
    assert (result.status, result.output, len(result.steps)) == ("completed", None, 4)


# Answers of a type


@llm_step(model="openai:gpt-4o")
async def find_city(hint: str) -> City:
    did.append(hint)
    return hint  # type: ignore[return-value]


@workflow
async def finding_a_city(hint: str) -> str:
    city = await find_city(hint)
    return f"{city.name} {city.size}"


WRONG = [
    "It is Paris.",
    call("final_result", '{"name": "Paris", "size": "big", "x"'),
    answer(name="Paris", size=-1),
]


@pytest.mark.asyncio
async def test_an_answer_that_does_not_fit_is_recorded_and_corrected() -> None:
    model = ScriptedModel([WRONG[0], answer(name="Paris", size=-1), answer(name="Paris", size=2)], usage=(10, 1))
    result = await Runner(model=model).run(finding_a_city, "Eiffel")
    assert result.output == "Paris 2"
    assert [one.name for one in result.steps] == ["find_city"] * 3
    assert [one.was_repeated for one in result.steps] == [True, True, False]
    assert did == ["Eiffel"]  # the prompt is made once
    assert (result.usage.calls, result.usage.input_tokens, result.usage.unpriced) == (3, 30, 3)
    assert [one.message_count for one in model.calls] == [1, 3, 5]
    told = [str(part.content) for one in model.calls[1:] for part in one.last_message.parts]  # type: ignore[union-attr]
    assert "calling the tool `final_result`" in told[0]
    assert "- size: Input should be greater than or equal to 0" in told[1]


@pytest.mark.asyncio
async def test_no_correction_is_paid_for_twice_wherever_the_process_dies() -> None:
    model = ScriptedModel([WRONG[0], WRONG[2], answer(name="Paris", size=2)])
    runner = Runner(model=model, replay_processes=0, max_pairs=20)
    trials: list[RunResult] = []

    @runner.after_each
    def count(result: RunResult) -> None:
        trials.append(result)
        assert result.usage.calls == 3
        # A process that died while it asked had no answer yet: only such a call is made again.
        assert sum(one.execution_count for one in result.steps) <= 3 + 2

    report = await runner.crash_everywhere(finding_a_city, "Eiffel")
    assert report.point_count >= 9
    assert len(model.calls) == sum(one.execution_count for trial in trials for one in trial.steps)


@pytest.mark.asyncio
async def test_after_max_turns_the_step_fails_and_a_retry_asks_once_more() -> None:
    model = ScriptedModel([*WRONG, answer(name="Paris", size=2)])
    runner = Runner(model=model)
    result = await runner.run(finding_a_city, "Eiffel")
    assert isinstance(result.error, TurnLimitReached)
    assert "has asked the model 3 times, and no answer fits" in str(result.error)
    assert "greater than or equal to 0" in str(result.error)
    assert f"holdfast retry {result.run_id}" in str(result.error)
    model.script = [*WRONG[:2], answer(name="Paris", size=2)]
    result = await runner.retry(result.run_id)
    assert result.output == "Paris 2"
    assert len(model.calls) == 4


@llm_step(model="openai:gpt-4o", output_type=list[City], max_turns=1)
async def list_cities(country: str) -> str:
    return country


@llm_step(model="openai:gpt-4o")
async def count_them(what: str) -> int:
    return what  # type: ignore[return-value]


@llm_step(model="openai:gpt-4o")
async def say_it(what: str):
    return what


@workflow
async def listing_cities(country: str) -> tuple[list[City], int, str]:
    return await list_cities(country), await count_them(country), await say_it(country)


@pytest.mark.asyncio
async def test_the_output_type_wins_over_the_annotation_and_without_both_it_is_a_text() -> None:
    def by_type(_: Any, offered: Any) -> Any:
        if not offered.output_tools:
            return "a text"
        kind = offered.output_tools[0].parameters_json_schema["properties"]["response"]["type"]
        return answer([City(name="Paris", size=2)]) if kind == "array" else answer(7)

    result = await Runner(model=ScriptedModel([by_type])).run(listing_cities, "France")
    assert result.output == ([City(name="Paris", size=2)], 7, "a text")


@pytest.mark.asyncio
async def test_a_call_of_an_unknown_tool_is_not_an_answer() -> None:
    model = ScriptedModel([call("search", query="x"), "found"])
    result = await Runner(model=model).run(saying_something, "x")
    assert result.output == "found"
    [told] = model.calls[1].last_message.parts
    assert told.content == "There is no tool `search`. Please give your answer as a text."  # type: ignore[union-attr]


# Prompts


@llm_step(model="openai:gpt-4o")
async def ask_anything(prompt: Any) -> str:
    return {
        "content": ["Look:", ImageUrl("https://example.org/x.png")],
        "message": ModelRequest([UserPromptPart("one message")]),
        "messages": [
            ModelRequest.user_text_prompt("a"),
            ModelResponse([TextPart("b")]),
            ModelRequest.user_text_prompt("c"),
        ],
        "instructed": [ModelRequest.user_text_prompt("a", instructions="Be kind.")],
        "data": [{"type": "text"}],
        "mixed": [ModelRequest.user_text_prompt("a"), "b"],
        "answered": [ModelResponse([TextPart("b")])],
        "nothing": None,
    }.get(prompt, prompt)  # type: ignore[return-value]


@workflow
async def asking_anything(prompt: str) -> str:
    return await ask_anything(prompt)


@pytest.mark.asyncio
async def test_a_prompt_may_be_content_or_messages() -> None:
    seen: list[Any] = []
    model = ScriptedModel([lambda messages: seen.append(messages) or "ok"] * 2)
    for prompt in ("plain", "content", "message", "messages"):
        assert (await Runner(model=model).run(asking_anything, prompt)).output == "ok"
    assert [[part.content for part in messages[-1].parts] for messages in seen] == [
        ["plain"], [["Look:", ImageUrl("https://example.org/x.png")]], ["one message"], ["c"],
    ]  # fmt: skip
    assert [len(messages) for messages in seen] == [1, 1, 1, 3]
    await Runner(model=model).run(asking_anything, "instructed")
    assert model.calls[-1].instructions == "Be kind."


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("nothing", "returns the prompt: a text"),
        ("answered", "end with an answer"),
        ("", "It returned ''."),
        ("data", "It returned [{"),
        ("mixed", "a list of texts"),
    ],
)
def test_an_invalid_prompt_is_reported(prompt: str, told: str) -> None:
    result = Runner(model=ScriptedModel([])).run_sync(asking_anything, prompt)
    assert isinstance(result.error, UsageError)
    assert told in str(result.error)


# Faults


@llm_step(model="openai:gpt-4o")
@step(retries=2, backoff=60)
async def say(what: str) -> str:
    did.append(what)
    if what == "unsteady" and len(did) < 3:
        raise ValueError("not yet")
    return what


@workflow
async def saying_something(what: str) -> str:
    return await say(what)


@pytest.mark.asyncio
async def test_the_steps_own_retries_are_for_its_function() -> None:
    model = echoing()
    runner = Runner(model=model)
    before = runner.clock.now()
    result = await runner.run(saying_something, "unsteady")
    assert (result.output, result.steps[1].attempt_count, len(model.calls)) == ("<unsteady>", 3, 1)
    assert 60 < runner.clock.now() - before <= 180


@pytest.mark.asyncio
async def test_model_calls_are_repeated_in_virtual_time_and_refusals_are_not() -> None:
    def unsteady(messages: list[ModelMessage]) -> Any:
        return ModelHTTPError(503, "m", {"message": "busy"}) if current_step().attempt < 4 else echo(messages)

    runner = Runner(model=ScriptedModel([unsteady]))
    before = runner.clock.now()
    result = await runner.run(saying_something, "x")
    assert (result.output, result.steps[1].attempt_count) == ("<x>", 4)
    assert runner.clock.now() > before
    refusing = ScriptedModel([ModelHTTPError(400, "m", {"message": "no such parameter"})])
    result = await Runner(model=refusing).run(saying_something, "x")
    assert isinstance(result.error, ModelRequestRejected)
    assert "no such parameter" in str(result.error)
    assert len(refusing.calls) == 1


first_model = ScriptedModel([ModelHTTPError(401, "m", {"message": "bad key"})], name="first", provider="test")
second_model = ScriptedModel([echo], name="second", provider="test")


@llm_step(model=first_model, fallback=[second_model])
async def with_fallback(what: str) -> str:
    return what


@workflow
async def asking_with_fallback(what: str) -> str:
    return await with_fallback(what)


@pytest.mark.asyncio
async def test_who_answered_and_who_did_not_is_recorded() -> None:
    runner = Runner()
    result = await runner.run(asking_with_fallback, "x")
    assert result.output == "<x>"
    [record] = (await export_run(runner._world.store, result.run_id)).records
    reply = decode_reply(record.payload)
    assert reply is not None
    assert (reply.model, reply.text, reply.usage.calls) == ("test:second", "<x>", 1)
    assert [(one.model, one.attempts) for one in reply.failed_models] == [("test:first", 1)]
    assert "bad key" in reply.failed_models[0].error


# Budgets


@llm_step(model=ScriptedModel(["yes"] * 3, usage=(5, 5)))
async def asked_beside_others(text: str) -> str:
    return text


@workflow
async def asking_side_by_side() -> list[str]:
    return await asyncio.gather(*[asked_beside_others(text) for text in "abc"])


@pytest.mark.asyncio
async def test_all_steps_that_wait_for_a_budget_continue_when_it_is_raised() -> None:
    runner = Runner()
    result = await runner.run(asking_side_by_side.options(budget=Budget(turns=1)))
    assert (result.status, result.usage.calls) == ("waiting", 1)
    await runner.set_budget(result.run_id, Budget(turns=2))
    result = await runner.resume(result.run_id)
    assert (result.status, result.usage.calls) == ("waiting", 2)
    await runner.set_budget(result.run_id, Budget(turns=3))
    result = await runner.resume(result.run_id)
    assert result.output == ["yes"] * 3


@pytest.mark.asyncio
async def test_a_budget_parks_the_run_between_two_corrections_until_it_is_raised() -> None:
    model = ScriptedModel([WRONG[0], answer(name="Paris", size=2)])
    runner = Runner(model=model)
    result = await runner.run(finding_a_city.options(budget=Budget(turns=1)), "Eiffel")
    assert (result.status, len(model.calls)) == ("waiting", 1)
    assert "budget" in result.waits_for
    result = await runner.resume(result.run_id)
    assert (result.status, len(model.calls)) == ("waiting", 1)
    result = await runner.set_budget(result.run_id, Budget(turns=2))
    assert (result.status, result.output, len(model.calls)) == ("completed", "Paris 2", 2)
    assert result.usage.calls == 2
    assert did == ["Eiffel"]


# In a real runtime


@pytest.mark.asyncio
async def test_it_is_recorded_in_a_store_as_well(runtime: holdfast.Runtime) -> None:
    handle = await runtime.start(asking_with_fallback, "x")
    assert await handle.result() == "<x>"
    asked = len(second_model.calls)
    again = await runtime.start(asking_with_fallback.options(id=handle.run_id), "x")
    assert await again.result() == "<x>"
    assert len(second_model.calls) == asked


# What is refused when it is declared


def test_mistakes_are_reported_when_the_step_is_declared() -> None:
    async def ask(what: str) -> str:
        return what

    async def ask_nothing(what: str) -> None: ...

    for declare, told in [
        (lambda: llm_step(model="")(ask), "no name of a model"),
        (lambda: llm_step(model="gpt-4o", fallback=[7])(ask), "not 7"),  # type: ignore[list-item]
        (lambda: llm_step(ask), "needs a model: write"),  # type: ignore[arg-type, call-overload, misc]
        (lambda: llm_step(model="gpt-4o", max_turns=0)(ask), "max_turns=0"),
        (lambda: llm_step(model="gpt-4o", model_options=ModelOptions(timeout=-1))(ask), "timeout -1"),
        (lambda: llm_step(model="gpt-4o", timeout=60)(ask), r"no argument timeout=: write model_options="),  # type: ignore[call-overload]
        (lambda: llm_step(model="gpt-4o")(ask_nothing), "-> None"),
        (lambda: llm_step(model="gpt-4o")(step(effect="once")(ask)), "effect='once'"),
        (lambda: llm_step(model="gpt-4o")(llm_step(model="gpt-4o")(ask)), "twice"),
        (lambda: llm_step(model="gpt-4o", output_type=asyncio.Event)(ask), "cannot be recorded"),
        (lambda: step(compensate=llm_step(model="gpt-4o")(ask))(ask), "asks a model"),
    ]:
        with pytest.raises(DefinitionError, match=told):
            declare()


def test_it_is_public() -> None:
    assert holdfast.llm_step is llm_step
