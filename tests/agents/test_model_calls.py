"""One model call as a recorded step: retries, fallbacks, budgets, crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai.exceptions import (
    ModelAuthenticationError,
    ModelHTTPError,
    ModelOverloadedError,
    ModelRateLimitError,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    RetryFeedbackPart,
    RetryInfo,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from holdfast import RetryPolicy, workflow
from holdfast.admission.usage import Budget, Usage
from holdfast.agents.models import errors, model_call
from holdfast.agents.models.chain import ModelChain
from holdfast.agents.models.model_call import MODEL_CALL_STEP, STEP, ModelCall, ask_model, issue_within_budget
from holdfast.agents.models.request import MAX_CONTINUATIONS, SeenParts, prepare_messages
from holdfast.core.execution import get_current_execution
from holdfast.engine.definitions import StepCall
from holdfast.errors import BudgetExceeded, ModelRequestRejected, ModelUnavailable, StoreUnavailable
from holdfast.services.run_control import set_budget
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio

WHEN = datetime(2026, 11, 15, tzinfo=UTC)
OVERLOADED = ModelHTTPError.for_category(
    ModelOverloadedError, status_code=503, model_name="m", body={"error": {"message": "Too many guests."}}
)
NO_KEY = ModelHTTPError.for_category(
    ModelAuthenticationError, status_code=401, model_name="m", body={"error": {"message": "Bad key sk-abcd12345678."}}
)

Turn = str | Exception | ModelResponse | Callable[[], Any]


class Scripted(Model[Any]):
    """A model that does one thing after the other, and says what it was asked."""

    def __init__(self, *turns: Turn, name: str = "gpt-4o", provider: str = "openai", usage: RequestUsage | None = None):
        super().__init__()
        self.turns = list(turns)
        self.asked: list[list[ModelMessage]] = []
        self.settings_seen: list[ModelSettings | None] = []
        self.cancelled: list[ModelResponse] = []
        self._name = name
        self._maker = provider
        self._usage = usage or RequestUsage(input_tokens=100, output_tokens=10)

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def system(self) -> str:
        return self._maker

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        self.asked.append(list(messages))
        self.settings_seen.append(model_settings)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, ModelResponse):
            return turn
        if not isinstance(turn, str):
            return await turn()
        return self.answer(TextPart(turn))

    def answer(self, *parts: ModelResponsePart, **fields: Any) -> ModelResponse:
        return ModelResponse(
            list(parts),
            usage=self._usage,
            model_name=self._name,
            provider_name=self._maker,
            timestamp=WHEN,
            **fields,
        )

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        self.cancelled.append(response)


def question(*models: Model | str, **fields: Any) -> ModelCall:
    settings = fields.pop("settings", None)
    timeout = fields.pop("timeout", 300.0)
    retry = fields.pop("retry", errors.DEFAULT_RETRY_POLICY)
    messages = fields.pop("messages", [ModelRequest([UserPromptPart("Hello?", timestamp=WHEN)])])
    return ModelCall(ModelChain(models, settings, timeout, retry=retry), messages, ModelRequestParameters(), **fields)


asked: list[ModelCall] = []
"""What the workflow below asks, one after the other."""


@workflow
async def models_calls_flow() -> list[str]:
    execution = get_current_execution()
    assert execution is not None
    said: list[str] = []
    for one in asked:
        reply, _ = await issue_within_budget(execution, StepCall(MODEL_CALL_STEP, (one,), {}))
        failed = "".join(f" (not {model.model}: {model.error}, {model.attempts})" for model in reply.failed_models)
        said.append(f"{reply.model}: {reply.response.text}{failed}")
    return said


@pytest.fixture
def runner() -> Runner:
    asked.clear()
    return Runner()


async def slept(runner: Runner, *questions: ModelCall) -> tuple[Any, float]:
    """How a run ends that asks this, and how long it took."""
    asked[:] = questions
    began = runner.clock.now()
    result = await runner.run(models_calls_flow)
    return result, runner.clock.now() - began


# Asking


async def test_an_answer_is_recorded_with_what_it_has_used(runner: Runner):
    model = Scripted("Hi!")
    result, _ = await slept(runner, question(model))
    assert result.output == ["openai:gpt-4o: Hi!"]
    [step] = result.steps
    assert (step.name, step.attempt_count) == (STEP, 1)
    assert step.output.usage == Usage(1, 100, 10, nano_usd=350_000)
    assert step.output.response == model.answer(TextPart("Hi!"))


async def test_a_recorded_answer_is_not_asked_for_again(runner: Runner):
    model = Scripted("One", "Two")
    asked[:] = [question(model), question(model)]
    runner.simulate_crash_after(step=1)
    crashed = await runner.run(models_calls_flow)
    assert crashed.has_crashed
    result = await runner.resume(crashed.run_id)
    assert result.output == ["openai:gpt-4o: One", "openai:gpt-4o: Two"]
    assert len(model.asked) == 2


async def test_a_call_works_outside_of_a_run():
    model = Scripted("Hi!")
    reply = await ask_model(question(model))
    assert (reply.response.text, reply.model, reply.usage.calls) == ("Hi!", "openai:gpt-4o", 1)


async def test_outside_of_a_run_it_waits_by_itself(monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(model_call.asyncio, "sleep", sleep)
    retry_after = ModelHTTPError.for_category(
        ModelRateLimitError, status_code=429, model_name="m", headers={"retry-after": "9"}
    )
    reply = await ask_model(question(Scripted(OVERLOADED, retry_after, "Hi!")))
    assert reply.response.text == "Hi!"
    assert 0.5 <= waits[0] <= 1.0
    assert 9.0 <= waits[1] <= 10.0


async def test_outside_a_run_a_call_is_repeated_for_a_minute_at_most(monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []
    now = [1000.0]

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(model_call.asyncio, "sleep", sleep)
    monkeypatch.setattr(model_call.time, "time", lambda: now[0])
    with pytest.raises(ModelUnavailable):
        await ask_model(question(Scripted(*[OVERLOADED] * 100)))
    assert 30.0 < sum(waits) <= 60.0


@pytest.mark.parametrize(
    "model", ["test", TestModel(), FunctionModel(lambda messages, info: ModelResponse([TextPart("Hi")]))]
)
async def test_the_librarys_test_models_can_be_asked(model: Any):
    reply = await ask_model(question(model))
    assert reply.response.text
    assert reply.usage.unpriced == 1


async def test_settings_reach_the_model_and_the_sdk_makes_one_attempt():
    model = Scripted("Hi!")
    await ask_model(question(model, settings={"temperature": 0.2}))
    assert model.settings_seen == [{"temperature": 0.2, "max_retries": 0}]


async def test_an_answer_that_does_not_fit_has_a_complaint(runner: Runner):
    reply = await ask_model(question(Scripted("Hi!"), get_feedback=lambda response: f"not {response.text}"))
    assert reply.feedback == "not Hi!"
    assert (await ask_model(question(Scripted("Hi!"), get_feedback=lambda response: None))).feedback is None


async def test_messages_of_earlier_runs_come_first():
    earlier: list[ModelMessage] = [ModelRequest([UserPromptPart("Before", timestamp=WHEN)])]

    async def whole(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        return [*earlier, *messages]

    model = Scripted("Hi!")
    one = question(model, add_earlier_messages=whole)
    await ask_model(one)
    assert model.asked == [[*earlier, *one.messages]]


async def test_the_conversation_is_passed_on_unchanged():
    seen: list[Any] = []

    class Keeper(Scripted):
        async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
            seen.append(messages)
            return await super().request(messages, model_settings, model_request_parameters)

    one = question(Keeper("Hi!"))
    await ask_model(one)
    assert seen[0] is one.messages


async def test_the_step_is_shown_by_its_turn():
    assert repr(question("test", turn=7)) == "7"
    assert MODEL_CALL_STEP.parameters == ("turn",)


# Faults


async def test_a_passing_fault_is_repeated_after_a_growing_wait(runner: Runner):
    model = Scripted(OVERLOADED, OVERLOADED, OVERLOADED, "Hi!")
    result, seconds = await slept(runner, question(model))
    assert result.output == ["openai:gpt-4o: Hi!"]
    assert result.steps[1].attempt_count == 4
    assert 3.5 <= seconds <= 7.0  # 1 + 2 + 4, of which up to a half is left to chance


async def test_a_model_is_called_again_as_often_as_its_policy_says(runner: Runner):
    model = Scripted(*[OVERLOADED] * 20)
    result, _ = await slept(runner, question(model, retry=RetryPolicy(retries=5)))
    assert len(model.asked) == 6
    assert isinstance(result.error, ModelUnavailable)
    assert (result.error.model, result.error.status) == ("openai:gpt-4o", 503)
    assert "gave no answer in 6 attempts: status 503: Too many guests." in str(result.error)
    assert f"holdfast retry {result.run_id}" in str(result.error)


async def test_a_refusal_is_not_repeated(runner: Runner):
    model = Scripted(NO_KEY, "never")
    result, seconds = await slept(runner, question(model))
    assert (len(model.asked), seconds) == (1, 0.0)
    assert isinstance(result.error, ModelRequestRejected)
    assert result.error.status == 401
    assert "Bad key [key]" in str(result.error)


async def test_the_key_is_nowhere_in_what_is_recorded(runner: Runner):
    result, _ = await slept(runner, question(Scripted(OVERLOADED, NO_KEY)))
    [history] = await runner._world.store.get_histories([(await runner._world.store.get_run(result.run_id)).key])
    assert b"refused" in history.records[0].payload
    assert b"sk-abcd" not in history.records[0].payload


async def test_the_provider_says_how_long_to_wait(runner: Runner):
    later = ModelHTTPError.for_category(
        ModelRateLimitError, status_code=429, model_name="m", headers={"retry-after": "33"}
    )
    result, seconds = await slept(runner, question(Scripted(later, "Hi!")))
    assert result.output == ["openai:gpt-4o: Hi!"]
    assert seconds == pytest.approx(33.25)  # with jitter


async def test_an_outage_of_hours_is_waited_for(runner: Runner):
    model = Scripted(*[OVERLOADED] * 60, "Hi!")
    result, seconds = await slept(runner, question(model))
    assert result.output == ["openai:gpt-4o: Hi!"]
    assert result.steps[1].attempt_count == 61
    assert 2 * 3600 < seconds < 6 * 3600


async def test_a_model_is_given_up_after_a_day(runner: Runner):
    model = Scripted(*[OVERLOADED] * 1000)
    result, seconds = await slept(runner, question(model))
    assert isinstance(result.error, ModelUnavailable)
    assert 23 * 3600 < seconds <= 24 * 3600


async def test_a_long_retry_after_is_respected_unless_another_model_answers(runner: Runner):
    later = ModelHTTPError.for_category(
        ModelRateLimitError, status_code=429, model_name="m", headers={"retry-after": "7200"}
    )
    result, seconds = await slept(runner, question(Scripted(later, "Hi!"), Scripted("Me!", name="o3")))
    assert result.output[0].startswith("openai:o3: Me! (not openai:gpt-4o: status 429")
    assert seconds == 0.0
    alone, seconds = await slept(Runner(), question(Scripted(later, "Hi!")))
    assert alone.output == ["openai:gpt-4o: Hi!"]
    assert 7200 <= seconds < 7201


async def test_a_retry_after_beyond_the_policy_fails_at_once(runner: Runner):
    later = ModelHTTPError.for_category(
        ModelRateLimitError, status_code=429, model_name="m", headers={"retry-after": "7200"}
    )
    alone, seconds = await slept(runner, question(Scripted(later), retry=RetryPolicy(give_up_after=3600)))
    assert isinstance(alone.error, ModelUnavailable)
    assert "The provider asks to wait 7,200 s." in str(alone.error)
    assert seconds == 0.0


async def test_a_retry_after_never_shortens_the_backoff(runner: Runner):
    at_once = ModelHTTPError.for_category(
        ModelRateLimitError, status_code=429, model_name="m", headers={"retry-after": "0"}
    )
    result, seconds = await slept(runner, question(Scripted(at_once, at_once, at_once, "Hi!")))
    assert result.output == ["openai:gpt-4o: Hi!"]
    assert 3.5 <= seconds <= 7.0


async def test_every_model_has_its_own_policy(runner: Runner):
    first, second = Scripted(*[OVERLOADED] * 9), Scripted(*[OVERLOADED] * 9, name="o3")
    retry = {"openai:gpt-4o": RetryPolicy(retries=1), "openai:o3": RetryPolicy(retries=3)}
    result, _ = await slept(runner, question(first, second, retry=retry))
    assert isinstance(result.error, ModelUnavailable)
    assert (len(first.asked), len(second.asked)) == (2, 4)
    assert "The other models did not answer either: openai:gpt-4o: status 503" in str(result.error)


async def test_the_fallback_is_asked_after_one_quick_retry(runner: Runner):
    first, second = Scripted(*[OVERLOADED] * 9), Scripted("Me!", name="o3")
    result, seconds = await slept(runner, question(first, second))
    assert result.output[0].startswith("openai:o3: Me!")
    assert (len(first.asked), len(second.asked)) == (2, 1)
    assert seconds <= 1.0


async def test_when_all_models_fail_the_first_one_to_recover_answers(runner: Runner):
    first, second = Scripted(*[OVERLOADED] * 20, "Hi!"), Scripted(*[OVERLOADED] * 30, "Me!", name="o3")
    result, seconds = await slept(runner, question(first, second))
    assert result.output[0].startswith("openai:gpt-4o: Hi! (not openai:o3: status 503")
    assert len(first.asked) == 21
    assert 18 <= len(second.asked) <= 21
    assert seconds > 1000


async def test_a_model_that_rejected_the_call_is_not_called_again_during_a_backoff(runner: Runner):
    first, second = Scripted(*[OVERLOADED] * 5, "Hi!"), Scripted(NO_KEY, name="o3")
    result, _ = await slept(runner, question(first, second))
    assert result.output[0].startswith("openai:gpt-4o: Hi!")
    assert (len(first.asked), len(second.asked)) == (6, 1)


async def test_an_attempt_has_a_time_out(runner: Runner):
    class Silent(Scripted):
        async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
            self.asked.append(messages)
            if len(self.asked) < 3:
                await asyncio.Event().wait()
            return self.answer(TextPart("At last."))

    model = Silent()
    reply = await ask_model(question(model, timeout=0.01, retry=RetryPolicy(backoff=0.001)))
    assert (len(model.asked), reply.response.text) == (3, "At last.")


async def test_a_timeout_of_the_caller_is_not_a_model_failure():
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await ask_model(question(Scripted(wait)))


async def test_a_mistake_in_a_check_is_not_a_fault_of_the_model(runner: Runner):
    def check(response: ModelResponse) -> str | None:
        raise ZeroDivisionError("oops")

    model = Scripted("Hi!", "never")
    result, _ = await slept(runner, question(model, get_feedback=check))
    assert isinstance(result.error, ZeroDivisionError)
    assert len(model.asked) == 1


async def test_an_error_of_the_engines_is_not_a_fault_of_the_model(runner: Runner):
    model = Scripted(StoreUnavailable("no disk"), "never")
    result, _ = await slept(runner, question(model, Scripted("Never.", name="o3")))
    assert isinstance(result.error, StoreUnavailable)


# Fallbacks


async def test_the_next_model_is_asked_when_one_has_failed_for_good(runner: Runner):
    first, second = Scripted(NO_KEY), Scripted("Here.", name="o3")
    result, seconds = await slept(runner, question(first, second))
    assert result.output == ["openai:o3: Here. (not openai:gpt-4o: status 401: Bad key [key], 1)"]
    assert seconds == 0.0


async def test_each_model_of_a_chain_has_a_quick_retry(runner: Runner):
    first, second = Scripted(*[OVERLOADED] * 20), Scripted(OVERLOADED, "Here.", name="o3")
    result, seconds = await slept(runner, question(first, second))
    assert result.output == ["openai:o3: Here. (not openai:gpt-4o: status 503: Too many guests., 2)"]
    assert (len(first.asked), len(second.asked)) == (2, 2)
    assert seconds <= 2.0


async def test_the_error_names_all_models_when_none_answers(runner: Runner):
    result, _ = await slept(runner, question(Scripted(NO_KEY), Scripted(UserError("No tools."), name="o3")))
    assert isinstance(result.error, ModelRequestRejected)
    assert result.error.model == "openai:o3"
    assert "No tools." in str(result.error)
    assert "openai:gpt-4o: status 401: Bad key [key]" in str(result.error)


async def test_after_an_unknown_model_the_next_one_is_called(runner: Runner):
    result, _ = await slept(runner, question("nonsense", Scripted("Here.")))
    assert result.output[0].startswith("openai:gpt-4o: Here. (not nonsense: There is no model 'nonsense'")


async def test_a_crash_between_attempts_does_not_begin_the_chain_anew(runner: Runner):
    first, second = Scripted(*[OVERLOADED] * 20), Scripted(OVERLOADED, OVERLOADED, "Here.", name="o3")
    asked[:] = [question(first, second)]
    started = await runner.start(models_calls_flow)
    for _ in range(40):  # each call of the runner is another process, which takes the run over
        await runner.advance(2.0)
    result = await runner.resume(started.run_id)
    assert result.output == ["openai:o3: Here. (not openai:gpt-4o: status 503: Too many guests., 3)"]
    assert (len(first.asked), len(second.asked)) == (3, 3)


async def test_another_chain_begins_anew(runner: Runner):
    first = Scripted(NO_KEY)
    asked[:] = [question(first, Scripted(*[OVERLOADED] * 3, name="o3"))]
    started = await runner.start(models_calls_flow)
    newer = Scripted("I am new.", name="gpt-5")
    asked[:] = [question(newer)]
    result = await runner.resume(started.run_id)
    assert result.output == ["openai:gpt-5: I am new."]


# Budgets


async def test_a_call_that_would_pass_the_budget_waits_for_a_higher_one(runner: Runner):
    model = Scripted("One", "Two")
    long: list[ModelMessage] = [ModelRequest([UserPromptPart("x" * 4000, timestamp=WHEN)])]
    asked[:] = [question(model), question(model, messages=long)]
    flow = models_calls_flow.options(budget=Budget(tokens=500))
    result = await runner.run(flow)
    assert result.status == "waiting"
    assert len(model.asked) == 1, "the call was not made"
    assert isinstance(result.steps[2].error, BudgetExceeded)

    class Outside:
        async def now(self) -> float:
            return runner.clock.now()

        async def change(self, op: Any) -> Any:
            [answer] = await runner._world.store.commit([op])
            return answer

        async def get(self, run_id: str) -> Any:
            return await runner._world.store.get_run(run_id)

    await set_budget(Outside(), result.run_id, Budget(tokens=5000))  # type: ignore[arg-type]
    result = await runner.resume(result.run_id)
    assert result.output == ["openai:gpt-4o: One", "openai:gpt-4o: Two"]


async def test_a_budget_in_dollars_cannot_be_kept_without_a_price(runner: Runner):
    asked[:] = [question(Scripted("Hi!", name="unheard-of"))]
    result = await runner.run(models_calls_flow.options(budget=Budget(usd=1)))
    assert isinstance(result.error, ModelRequestRejected)
    assert "its price is not known" in str(result.error)
    assert "Budget(tokens=" in str(result.error)


async def test_a_fallback_with_a_price_keeps_a_budget_in_dollars(runner: Runner):
    asked[:] = [question(Scripted("Hi!", name="unheard-of"), Scripted("Here."))]
    result = await runner.run(models_calls_flow.options(budget=Budget(usd=1)))
    assert result.output[0].startswith("openai:gpt-4o: Here. (not openai:unheard-of: its price is not known")


async def test_a_model_without_a_price_keeps_a_budget_in_tokens(runner: Runner):
    asked[:] = [question(Scripted("Hi!", name="unheard-of"))]
    result = await runner.run(models_calls_flow.options(budget=Budget(tokens=1000)))
    assert result.output == ["openai:unheard-of: Hi!"]


# What is sent, and what comes back


async def test_a_model_that_pauses_is_asked_to_continue():
    model = Scripted()
    model.turns = [
        model.answer(TextPart("One, "), state="suspended", provider_response_id="a", provider_details={"box": 1}),
        model.answer(TextPart("two, "), state="suspended", provider_response_id="b"),
        model.answer(TextPart("three."), provider_response_id="c", provider_details={"end": 2}),
    ]
    reply = await ask_model(question(model))
    assert reply.response.text == "One, two, three."
    assert reply.response.state == "complete"
    assert reply.response.provider_details == {"box": 1, "end": 2}
    assert reply.usage.input_tokens == 300
    assert [len(messages) for messages in model.asked] == [1, 2, 2]
    assert model.asked[2][-1].parts == [TextPart("One, "), TextPart("two, ")]


async def test_a_repeated_answer_replaces_the_first_part():
    model = Scripted()
    model.turns = [
        model.answer(TextPart("So"), state="suspended", provider_response_id="a"),
        model.answer(TextPart("So far."), provider_response_id="a"),
    ]
    reply = await ask_model(question(model))
    assert (reply.response.text, reply.usage.input_tokens) == ("So far.", 100)


async def test_a_model_that_never_comes_to_an_end_is_given_up(runner: Runner):
    model = Scripted()
    model.turns = [model.answer(TextPart("and "), state="suspended") for _ in range(100)]
    result, _ = await slept(runner, question(model))
    assert isinstance(result.error, ModelRequestRejected)
    assert len(model.asked) == MAX_CONTINUATIONS + 1
    assert f"paused {MAX_CONTINUATIONS + 1} times" in str(result.error)


async def test_a_pause_that_cannot_be_continued_is_withdrawn(runner: Runner):
    model = Scripted()
    paused = model.answer(TextPart("One, "), state="suspended")
    model.turns = [paused, NO_KEY]
    result, _ = await slept(runner, question(model))
    assert isinstance(result.error, ModelRequestRejected)
    assert model.cancelled == [paused]


async def test_an_answer_that_was_filtered_away_is_a_refusal(runner: Runner):
    model = Scripted()
    model.turns = [model.answer(finish_reason="content_filter"), "never"]
    result, _ = await slept(runner, question(model))
    assert isinstance(result.error, ModelRequestRejected)
    assert "content filter" in str(result.error)


async def test_an_answer_that_is_an_error_is_repeated(runner: Runner):
    model = Scripted()
    model.turns = [model.answer(finish_reason="error"), "Hi!"]
    result, _ = await slept(runner, question(model))
    assert result.output == ["openai:gpt-4o: Hi!"]


async def test_parts_that_no_provider_knows_are_translated_first():
    feedback = RetryFeedbackPart("Again, please.", retry=RetryInfo(cause="model_retry", attempt=1), timestamp=WHEN)
    messages: list[ModelMessage] = [ModelRequest([feedback])]
    model = Scripted("Hi!", "Hi!")
    await ask_model(question(model, messages=messages))
    messages.append(ModelResponse([TextPart("Hi!")]))
    messages.append(ModelRequest([UserPromptPart("Well?")]))
    await ask_model(question(model, messages=messages))
    for sent in model.asked:
        assert not any(isinstance(part, RetryFeedbackPart) for message in sent for part in message.parts)
        assert "Again, please." in str(sent[0].parts[0])
    assert messages[0].parts == [feedback]


async def test_a_long_conversation_is_scanned_once():
    class Counted(list[Any]):
        looks = 0

        def __iter__(self) -> Any:
            Counted.looks += 1
            return super().__iter__()

    looked = SeenParts()
    messages: list[ModelMessage] = [ModelRequest([UserPromptPart("x")]) for _ in range(50)]
    for message in messages:
        message.parts = Counted(message.parts)
    for _ in range(3):
        assert prepare_messages(Scripted(), messages, ModelRequestParameters(), looked) is messages
    assert Counted.looks == 50
    messages.append(ModelRequest([RetryFeedbackPart("No.", retry=RetryInfo(cause="model_retry", attempt=1))]))
    assert prepare_messages(Scripted(), messages, ModelRequestParameters(), looked) is not messages


async def test_ids_of_another_provider_are_made_to_fit():
    class Short(Scripted):
        @property
        def profile(self) -> Any:
            return {**super().profile, "tool_call_id_length": 9}

    messages: list[ModelMessage] = [
        ModelRequest([UserPromptPart("Hello?")]),
        ModelResponse([ToolCallPart("look", "{}", "call_with_a_long_id")]),
        ModelRequest([ToolReturnPart("look", "seen", "call_with_a_long_id")]),
    ]
    model = Short("Hi!")
    await ask_model(question(model, messages=messages))
    call, result = (message.parts[0] for message in model.asked[0][1:])
    assert len(call.tool_call_id) == 9
    assert call.tool_call_id == result.tool_call_id
