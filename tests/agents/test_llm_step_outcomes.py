"""``@llm_step``: what becomes of an answer besides: it is undone, mocked, given to forks, and read for ever."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from holdfast import TurnLimitReached, UnrecordableValue, llm_step, step, workflow
from holdfast.agents.llm_answers import AnswerCodec, InvalidAnswer, build_correction_messages
from holdfast.agents.output import OutputSpec
from holdfast.testing import Runner, ScriptedModel, answer, call

did: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done_yet() -> None:
    did.clear()


class City(BaseModel):
    name: str
    size: int = Field(ge=0)


WRONG = [
    "It is Paris.",
    call("final_result", '{"name": "Paris", "size": "big", "x"'),
    answer(name="Paris", size=-1),
]


# Undoing


async def forget(hint: str, city: City) -> None:
    did.append(("forgotten", hint, city.name))


@llm_step(model="openai:gpt-4o")
@step(compensate=forget)
async def note_city(hint: str) -> City:
    return hint  # type: ignore[return-value]


@workflow
async def noting_a_city(hint: str, fail: bool) -> str:
    city = await note_city(hint)
    if fail:
        raise ValueError(city.name)
    return city.name


@workflow
class NotingInAClass:
    @step(1, compensate="forget_it")
    @llm_step(model="openai:gpt-4o")
    async def note(self, hint: str) -> City:
        return hint  # type: ignore[return-value]

    @step(2, depends_on=1)
    async def fail(self, city: City) -> str:
        raise ValueError(city.name)

    async def forget_it(self, hint: str, city: City) -> None:
        did.append(("forgotten", hint, city.name))


@pytest.mark.asyncio
@pytest.mark.parametrize("corrections", [0, 1])
async def test_what_is_undone_is_the_answer_and_not_what_was_corrected(corrections: int) -> None:
    script = [*WRONG[:corrections], answer(name="Paris", size=2)]
    result = await Runner(model=ScriptedModel(script)).run(noting_a_city, "Eiffel", True)
    assert (result.status, did) == ("failed", [("forgotten", "Eiffel", "Paris")])
    did.clear()
    result = await Runner(model=ScriptedModel(script)).run(NotingInAClass, hint="Eiffel")
    assert (result.status, did) == ("failed", [("forgotten", "Eiffel", "Paris")])
    assert result.steps[1].was_compensated


@pytest.mark.asyncio
async def test_where_no_answer_fits_nothing_is_undone() -> None:
    result = await Runner(model=ScriptedModel(WRONG)).run(noting_a_city, "Eiffel", False)
    assert isinstance(result.error, TurnLimitReached)
    assert did == []


# Mocks, and calls outside a run


@pytest.mark.asyncio
async def test_a_mock_gives_the_answer() -> None:
    runner = Runner()
    runner.mock(note_city, return_value=City(name="Rome", size=3))
    result = await runner.run(noting_a_city, "x", False)
    assert (result.output, result.usage.calls) == ("Rome", 0)
    runner.mock(note_city, return_value="Rome")
    result = await runner.run(noting_a_city, "x", False)
    assert isinstance(result.error, UnrecordableValue)


fitting_late = ScriptedModel(["no", answer(name="Oslo", size=1)])


@llm_step(model=fitting_late, max_turns=2)
async def plainly(hint: str) -> City:
    return hint  # type: ignore[return-value]


@llm_step(model=ScriptedModel([WRONG[0]] * 9), max_turns=2)
async def in_vain(hint: str) -> City:
    return hint  # type: ignore[return-value]


@step
async def asks_plainly(hint: str) -> City:
    return await plainly(hint)


@workflow
async def asking_in_a_step(hint: str) -> City:
    return await asks_plainly(hint)


@pytest.mark.asyncio
async def test_outside_a_run_a_call_asks_the_model_and_returns_the_answer() -> None:
    assert await plainly("north") == City(name="Oslo", size=1)
    with pytest.raises(TurnLimitReached, match="'in_vain' has asked the model 2 times"):
        await in_vain("north")


@pytest.mark.asyncio
async def test_in_a_step_it_is_a_plain_call_as_well() -> None:
    result = await Runner().run(asking_in_a_step, "north")
    assert (result.output, result.usage.calls) == (City(name="Oslo", size=1), 0)


@pytest.mark.asyncio
async def test_a_fork_may_be_given_the_answer() -> None:
    runner = Runner(model=ScriptedModel([answer(name="Paris", size=2)]))
    result = await runner.run(noting_a_city, "Eiffel", False)
    forked = await runner.fork(result.run_id, at="note_city", with_output={"name": "Rome", "size": 3})
    assert forked.output == "Rome"


# What earlier versions have recorded

UNFIT_OF_FORMAT_1 = (
    b'{"$model":1,"library":"2.66.0","model":"openai:gpt-4o","message":{"role":"model","parts":'
    b'[{"text":"It is Paris."}],'
    b'"usage":{"input_tokens":10,"output_tokens":3},"model_name":"scripted","timestamp":"2026-01-01T00:00:00+00:00",'
    b'"provider_name":"holdfast","finish_reason":"stop"},"usage":{"calls":1,"input_tokens":10,"output_tokens":3,'
    b'"unpriced":1},"feedback":"no text, please","prompt":[{"role":"user","parts":[{"prompt":"Eiffel",'
    b'"timestamp":"2026-11-15T13:44:27.992768+00:00"}]}]}'
)
ANSWER_OF_FORMAT_1 = (
    b'{"$model":1,"library":"2.66.0","model":"openai:gpt-4o","message":{"role":"model","parts":[{"call":"final_result",'
    b'"tool_call_id":"call_2_1","args":{"name":"Paris","size":2}}],"usage":{"input_tokens":10,"output_tokens":3},'
    b'"model_name":"scripted","timestamp":"2026-01-01T00:00:00+00:00","provider_name":"holdfast",'
    b'"finish_reason":"tool_call"},"usage":{"calls":1,"input_tokens":10,"output_tokens":3,"unpriced":1}}'
)


def test_what_was_recorded_once_can_be_read_for_ever() -> None:
    codec = AnswerCodec(OutputSpec(City))
    assert codec.decode(ANSWER_OF_FORMAT_1, "x") == City(name="Paris", size=2)
    unfit = codec.decode(UNFIT_OF_FORMAT_1, "x")
    assert isinstance(unfit, InvalidAnswer)
    assert (unfit.feedback, unfit.usage.tokens) == ("no text, please", 13)
    said = [part.content for message in build_correction_messages([unfit]) for part in message.parts]  # type: ignore[union-attr]
    assert said == ["Eiffel", "It is Paris.", "no text, please"]
