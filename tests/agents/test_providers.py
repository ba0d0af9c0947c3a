"""Model calls through the real SDKs, against a provider that answers by a script: faults, waits, fallbacks, usage.

The engine's clock is virtual, so that a wait takes no time and can be told from ``clock.slept``.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engine_world import World, read_attempts, read_journal, wait_until_ended
from genai_prices import Usage as Tokens
from genai_prices import calc_price
from provider_server import KEY, Address, Call, ProviderServer, Script
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast import (
    Agent,
    ModelError,
    ModelRequestRejected,
    ModelUnavailable,
    RetryPolicy,
    RunFailed,
    Runtime,
    Usage,
    tool,
    workflow,
)
from holdfast.agents.models.chain import ModelChain
from holdfast.agents.models.model_call import MODEL_CALL_STEP, ModelCall, ask_model, issue_within_budget
from holdfast.agents.models.reply import Reply
from holdfast.core.execution import get_current_execution
from holdfast.engine.definitions import StepCall
from holdfast.reports.recorded_reply import FailedModel
from waits import wait_until

pytestmark = pytest.mark.asyncio

CHAT, RESPONSES, ANTHROPIC = "openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-sonnet-5"
PROTOCOL = {CHAT: "openai-chat", RESPONSES: "openai-responses", ANTHROPIC: "anthropic"}
REFUSALS = ("unauthorized", "quota", "bad_request", "not_found", "too_long")
SUNNY = {"text": "Sunny and warm."}
RETRIES = 5
BOUNDED = RetryPolicy(retries=RETRIES)

_questions: dict[int, ModelCall] = {}
_replies: dict[int, Reply] = {}
_numbers = itertools.count()


@workflow(name="providers-ask")
async def ask_a_provider(number: int) -> None:
    execution = get_current_execution()
    assert execution is not None
    _replies[number], _ = await issue_within_budget(execution, StepCall(MODEL_CALL_STEP, (_questions[number],), {}))


class Asking:
    """Model calls in runs of a world, answered by a server."""

    def __init__(self, world: World, server: ProviderServer) -> None:
        self.world = world
        self.clock = world.clock
        self.server = server
        self.runtime: Runtime | None = None

    @property
    def address(self) -> Address:
        return self.server.address

    @property
    def calls(self) -> list[Call]:
        return self.address.calls

    async def start(self, *models: Any, script: str = "weather", **options: Any) -> tuple[int, Any]:
        if self.runtime is None:
            self.runtime = await self.world.open()
        number = next(_numbers)
        _questions[number] = question(*models, script=script, **options)
        return number, await self.runtime.start(ask_a_provider, number)

    async def ask(self, *models: Any, script: str = "weather", **options: Any) -> Reply:
        """The reply of a model, asked in a run of its own."""
        number, handle = await self.start(*models, script=script, **options)
        await handle.result()
        return _replies.pop(number)

    async def fail(self, *models: Any, script: str = "weather", **options: Any) -> ModelError:
        """The error with which such a run fails."""
        _, handle = await self.start(*models, script=script, **options)
        with pytest.raises(RunFailed) as raised:
            await handle.result()
        assert isinstance(raised.value.__cause__, ModelError)
        return raised.value.__cause__


def question(*models: Any, script: str = "weather", **options: Any) -> ModelCall:
    message = ModelRequest.user_text_prompt("What is the weather?", instructions=f"script:{script}")
    return ModelCall(ModelChain(models, **options), [message], ModelRequestParameters())


@pytest_asyncio.fixture
async def asking(tmp_path: Path, server: ProviderServer) -> AsyncIterator[Asking]:
    world = World("memory", tmp_path)
    yield Asking(world, server)
    await world.close()


@pytest.fixture(params=[CHAT, RESPONSES, ANTHROPIC])
def model(request: pytest.FixtureRequest) -> str:
    return request.param


def failing(*faults: dict[str, Any], **turn: Any) -> Script:
    return {"weather": [{**SUNNY, **turn, "faults": faults}]}


async def test_an_answer_with_its_usage_and_its_cost(asking: Asking, model: str):
    asking.server.scripts = {"weather": [{**SUNNY, "usage": {"input": 1000, "output": 100, "cached": 400}}]}
    reply = await asking.ask(model)
    maker, _, name = model.partition(":")
    tokens = Tokens(input_tokens=1000, cache_read_tokens=400, output_tokens=100)
    price = calc_price(tokens, name, provider_id=maker.removesuffix("-chat")).total_price
    assert price > 0
    assert reply.usage == Usage(1, 1000, 100, 400, nano_usd=int(price * 10**9))
    assert (reply.response.text, reply.model, reply.failed_models) == ("Sunny and warm.", model, ())
    [call] = asking.calls
    assert call.protocol == PROTOCOL[model]
    assert asking.clock.slept == []


async def test_a_model_at_an_address_of_its_own_has_no_price_that_is_known(asking: Asking):
    asking.server.scripts = {"weather": [{**SUNNY, "usage": {"input": 10, "output": 5}}]}
    provider = OpenAIProvider(base_url=asking.address.openai_url, api_key=KEY)
    reply = await asking.ask(OpenAIChatModel("my-own-model", provider=provider))
    assert reply.usage == Usage(1, 10, 5, unpriced=1)
    assert reply.model == "openai:my-own-model"


async def test_a_rejection_fails_at_once_with_the_providers_message(asking: Asking, model: str):
    fault = {"times": None}
    asking.server.scripts = {kind: [{"faults": [fault | {"kind": kind}]}] for kind in REFUSALS}
    asking.server.scripts["unauthorized"] = [{"faults": [fault | {"kind": "unauthorized", "words": "No such key."}]}]
    for asked, kind in enumerate(REFUSALS, 1):
        error = await asking.fail(model, script=kind)
        assert isinstance(error, ModelRequestRejected), kind
        calls = asking.calls
        assert len(calls) == asked, kind
        answered = calls[-1].answered or {}
        assert (error.model, error.status) == (model, answered["status"])
        assert model in str(error)
        assert answered["words"] in str(error)
    assert asking.clock.slept == []


async def test_a_rate_limit_is_respected(asking: Asking, model: str):
    asking.server.scripts = failing({"kind": "rate_limit", "retry_after": 7}, {"kind": "overloaded", "retry_after": 3})
    reply = await asking.ask(model)
    assert reply.response.text == "Sunny and warm."
    assert reply.failed_models == ()
    assert asking.clock.slept == [7.0, 3.0]  # the backoff is 1 s, then 2 s
    assert [call.nth for call in asking.calls] == [1, 2, 3]


async def test_a_providers_long_retry_after_is_respected_unless_another_model_answers(asking: Asking):
    fault = {"kind": "rate_limit", "retry_after": 3601}
    asking.server.scripts = {"weather": [SUNNY], "weather@gpt-4o": [{**SUNNY, "faults": [fault]}]}
    reply = await asking.ask(CHAT, ANTHROPIC)
    assert [(one.model, one.attempts) for one in reply.failed_models] == [(CHAT, 1)]
    assert asking.clock.slept == []
    reply = await asking.ask(RESPONSES)
    assert (reply.model, reply.failed_models) == (RESPONSES, ())
    assert asking.clock.slept == [3601.0]


async def test_no_wait_at_all_does_not_use_up_the_attempts(asking: Asking, model: str):
    asking.server.scripts = failing({"kind": "rate_limit", "retry_after": 0, "times": 12})
    reply = await asking.ask(model)
    assert reply.response.text == "Sunny and warm."
    assert asking.clock.slept == [min(300.0, 2.0**retry) for retry in range(12)]


async def test_an_outage_is_waited_for(asking: Asking, model: str):
    asking.server.scripts = failing({"kind": "server_error", "times": 40})
    reply = await asking.ask(model)
    assert reply.response.text == "Sunny and warm."
    assert sum(asking.clock.slept) > 2 * 3600


async def test_a_lasting_failure_is_retried_and_then_reported(asking: Asking, model: str):
    """As many requests as the policy says: the SDK makes none of its own."""
    asking.server.scripts = failing({"kind": "server_error", "times": None})
    error = await asking.fail(model, retry=BOUNDED)
    assert isinstance(error, ModelUnavailable)
    assert (error.model, error.status) == (model, 500)
    assert all(words in str(error) for words in (model, f"{RETRIES + 1} ", "500: The server had an error"))
    assert [call.nth for call in asking.calls] == list(range(1, RETRIES + 2))
    assert len({call.digest for call in asking.calls}) == 1
    assert asking.clock.slept == [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize(
    ("settings", "stream"), [(None, False), ({"max_tokens": 1000}, False), (None, True)], ids=["", "limited", "stream"]
)
async def test_an_invalid_answer_is_retried(asking: Asking, model: str, settings: dict[str, Any] | None, stream: bool):
    """Anthropic's answers are streamed unless their length is limited."""
    faults = ({"kind": kind} for kind in ("cut", "malformed", "html", "broken", "overloaded"))
    asking.server.scripts = failing(*faults)
    reply = await asking.ask(model, settings=settings, should_stream=stream)
    assert reply.response.text == "Sunny and warm."
    assert len(asking.calls) == 6
    assert {call.stream for call in asking.calls} == {stream or (model == ANTHROPIC and settings is None)}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stream_that_ends_without_a_reason_is_repeated(asking: Asking, model: str, stream: bool):
    """Anthropic's answers are streamed by its library class in any case."""
    asking.server.scripts = failing({"kind": "unfinished", "times": 2}, usage={"input": 70, "output": 9})
    reply = await asking.ask(model, should_stream=stream)
    assert reply.response.text == "Sunny and warm."
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (70, 9)
    assert len(asking.calls) == (3 if stream or model == ANTHROPIC else 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_an_answer_that_was_cut_off_says_so(asking: Asking, model: str, finish: str, stream: bool):
    asking.server.scripts = {"weather": [{"text": "Sunny and", "finish": finish, "usage": {"output": 9}}]}
    reply = await asking.ask(model, should_stream=stream)
    assert (reply.response.text, reply.response.finish_reason) == ("Sunny and", finish)
    assert reply.usage.output_tokens == 9


@pytest.mark.parametrize("stream", [True, False])
async def test_the_message_of_a_refusal_is_reported(asking: Asking, model: str, stream: bool):
    asking.server.scripts = {"weather": [{"refusal": "I do not talk about clouds."}]}
    error = await asking.fail(model, should_stream=stream)
    assert isinstance(error, ModelRequestRejected)
    assert error.refusal == "I do not talk about clouds."
    assert "refuses to answer: I do not talk about clouds." in str(error)
    assert len(asking.calls) == 1


async def test_another_model_may_answer_what_one_refuses(asking: Asking):
    asking.server.scripts = {"weather": [SUNNY], "weather@gpt-4o": [{"refusal": "I do not talk about clouds."}]}
    reply = await asking.ask(CHAT, ANTHROPIC)
    assert (reply.model, reply.response.text) == (ANTHROPIC, "Sunny and warm.")
    assert "I do not talk about clouds." in reply.failed_models[0].error


async def test_silence_is_given_up_and_repeated(asking: Asking, model: str):
    asking.server.scripts = failing({"kind": "stall", "seconds": 60})
    reply = await asking.ask(model, timeout_s=0.3)
    assert reply.response.text == "Sunny and warm."
    await wait_until(lambda: all(call.answered is not None for call in asking.calls))
    gone = [call.gone for call in asking.calls]
    # On a slow machine more than the first may be given up, also while it is being answered.
    assert len(gone) == len(asking.clock.slept) + 1 > 1
    assert (gone[0], gone[-1]) == (True, False)


async def test_lasting_silence_is_reported(asking: Asking):
    asking.server.scripts = failing({"kind": "stall", "seconds": 60, "times": None})
    error = await asking.fail(CHAT, timeout_s=0.05, retry=BOUNDED)
    assert isinstance(error, ModelUnavailable)
    assert "no answer within 0.05 s" in str(error)
    assert len(asking.clock.slept) == RETRIES


async def test_a_refused_connection_is_transient(asking: Asking, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}/v1")
        error = await asking.fail(CHAT, retry=BOUNDED)
    assert isinstance(error, ModelUnavailable)
    assert error.status is None
    assert len(asking.clock.slept) == RETRIES


async def test_the_fallback_answers_and_the_reply_has_the_other_failures(asking: Asking):
    asking.server.scripts = {
        "weather": [SUNNY],
        "weather@gpt-4o": [{"faults": [{"kind": "server_error", "times": None}]}],
        "weather@gpt-4.1": [{"faults": [{"kind": "unauthorized", "words": "No such key.", "times": None}]}],
    }
    reply = await asking.ask(CHAT, "openai:gpt-4.1", ANTHROPIC)
    assert (reply.model, reply.response.text) == (ANTHROPIC, "Sunny and warm.")
    assert reply.failed_models == (
        FailedModel(CHAT, "status 500: The server had an error while processing your request. Sorry about that!", 2),
        FailedModel("openai:gpt-4.1", "status 401: No such key.", 1),
    )
    counts = {name: len(list(group)) for name, group in itertools.groupby(asking.calls, lambda call: call.model)}
    assert counts == {"gpt-4o": 2, "gpt-4.1": 1, "claude-sonnet-5": 1}


async def test_when_the_last_fallback_fails_the_error_names_all(asking: Asking):
    asking.server.scripts = {
        "weather": [{"faults": [{"kind": "overloaded", "times": None}]}],
        "weather@gpt-4o": [{"faults": [{"kind": "quota", "times": None}]}],
    }
    error = await asking.fail(RESPONSES, ANTHROPIC, retry=BOUNDED)
    assert isinstance(error, ModelUnavailable)
    assert error.model == ANTHROPIC
    assert "529: Overloaded." in str(error)
    assert f"{RESPONSES}: status 429: You exceeded your current quota" in str(error)
    assert len(asking.calls) == RETRIES + 2


async def test_a_key_that_the_provider_quotes_is_neither_shown_nor_recorded(asking: Asking, model: str):
    words = f"Incorrect API key provided: {KEY}. You sent 'Authorization: Bearer {KEY}'."
    asking.server.scripts = failing({"kind": "unauthorized", "words": words, "times": None})
    _, handle = await asking.start(model)
    with pytest.raises(RunFailed) as raised:
        await handle.result()
    assert "Incorrect API key provided" in str(raised.value.__cause__)
    assert asking.runtime is not None
    run = await wait_until_ended(asking.runtime, handle)
    recorded = [record.payload for record in await read_journal(asking.runtime, handle)]
    assert len(recorded) == 1
    assert KEY not in f"{raised.value} {raised.value.__cause__!r} {run} {recorded}"


async def until_noted(runtime: Runtime, handle: Any, progress: bytes) -> None:
    """Wait until the store has this progress of the model call. The next request does not wait for that."""

    async def noted() -> bool:
        return any(progress in (attempt.progress or b"") for attempt in (await read_attempts(runtime, handle)).values())

    await wait_until(noted)


async def test_retries_are_counted_over_a_crash(asking: Asking, tmp_path: Path):
    held, go = tmp_path / "held", tmp_path / "go"
    fault = {"kind": "server_error", "times": None}
    asking.server.scripts = failing(fault)

    def hold_the_next() -> None:
        asking.server.scripts = failing(fault, hold={"touch": str(held), "until": str(go)})

    asking.clock.sleep = _and_then(asking.clock.sleep, 2, hold_the_next)  # type: ignore[method-assign]
    _, handle = await asking.start(CHAT, retry=BOUNDED)
    assert asking.runtime is not None
    await wait_until(held.exists)
    await until_noted(asking.runtime, handle, b'"attempts":2')
    await asking.world.crash(asking.runtime)
    await wait_until(lambda: asking.calls[-1].gone)  # or it would answer whom it has not seen leave
    go.touch()
    run = await wait_until_ended(await asking.world.open(), handle)
    assert run.error is not None
    assert f"{RETRIES + 1} attempts" in run.error.decode()
    assert len(asking.calls) == RETRIES + 2  # one of them was in flight when the process died
    assert [call.gone for call in asking.calls].count(True) == 1


async def test_a_model_that_rejected_the_call_is_not_called_again_after_a_crash(asking: Asking, tmp_path: Path):
    held, go = tmp_path / "held", tmp_path / "go"
    asking.server.scripts = {
        "weather": [{**SUNNY, "hold": {"touch": str(held), "until": str(go)}}],
        "weather@gpt-4o": [{"faults": [{"kind": "quota", "times": None}]}],
    }
    number, handle = await asking.start(CHAT, ANTHROPIC)
    assert asking.runtime is not None
    await wait_until(held.exists)
    await until_noted(asking.runtime, handle, b'"is_given_up":true')
    await asking.world.crash(asking.runtime)
    go.touch()
    await wait_until_ended(await asking.world.open(), handle)
    assert [one.model for one in _replies[number].failed_models] == [CHAT]
    assert [call.model for call in asking.calls] == ["gpt-4o", "claude-sonnet-5", "claude-sonnet-5"]


def _and_then(sleep: Callable[[float], Any], times: int, then: Callable[[], None]) -> Callable[[float], Any]:
    """The sleep of a clock, and something to be done after so many of them."""
    slept = itertools.count(1)

    async def sleep_and_then(seconds: float) -> None:
        await sleep(seconds)
        if next(slept) == times:
            then()

    return sleep_and_then


async def test_outside_of_a_run(server: ProviderServer, model: str):
    server.scripts = failing({"kind": "rate_limit", "retry_after": 0})
    assert (await ask_model(question(model))).response.text == "Sunny and warm."
    server.scripts = failing({"kind": "unauthorized", "words": "No such key.", "times": None})
    with pytest.raises(ModelRequestRejected, match="No such key"):
        await ask_model(question(model))
    assert len(server.address.calls) == 3


# Agents


@tool
async def look_out(city: str) -> str:
    """Looks out of a window."""
    return f"snow in {city}"


async def test_an_agent_with_a_tool(runtime: Runtime, server: ProviderServer, model: str):
    server.scripts = {
        "weather": [
            {
                "text": "Let me look.",
                "calls": [{"tool": "look_out", "arguments": {"city": city}} for city in ("Oslo", "Rome")],
                "usage": {"input": 100, "output": 20},
                "faults": [{"kind": "rate_limit", "retry_after": 0}],
            },
            {"text": "I see {results}.", "usage": {"input": 150, "output": 10, "cached": 100}},
        ]
    }
    agent = Agent(
        model, name=f"providers-weather-{PROTOCOL[model]}", tools=[look_out], instructions="You are script:weather."
    )
    result = await agent.run("What is the weather?")
    assert result.output == "I see snow in Oslo, snow in Rome."
    assert (result.usage.calls, result.usage.tokens, result.usage.cached_tokens) == (2, 280, 100)
    assert result.cost is not None
    assert [(call.protocol, call.turn, call.nth) for call in server.address.calls] == [
        (PROTOCOL[model], 0, 1),
        (PROTOCOL[model], 0, 2),
        (PROTOCOL[model], 1, 1),
    ]
    again = await agent.options(id=result.run_id).run("What is the weather?")
    assert again.output == result.output
    assert len(server.address.calls) == 3


async def test_an_agent_with_a_structured_answer(runtime: Runtime, server: ProviderServer, model: str):
    server.scripts = {"weather": [{"answer": {"response": "cold"}}, {"answer": {"response": -3}}]}
    agent: Agent[Any] = Agent(
        model, name=f"providers-degrees-{PROTOCOL[model]}", output_type=int, instructions="You are script:weather."
    )
    result = await agent.run("How many degrees?")
    assert result.output == -3
    assert [call.turn for call in server.address.calls] == [0, 1]
