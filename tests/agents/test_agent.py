"""The agent loop, in memory: what the model gets, what is recorded, and how a run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from model_scripts import get_sent_contents
from pydantic import BaseModel

from holdfast import Agent, ModelOptions, ModelRetry, Output, RetryPolicy, RunContext, WorkflowOptions, tool, workflow
from holdfast.errors import (
    DefinitionError,
    DepsMissing,
    InputError,
    InvalidOutput,
    ModelRequestRejected,
    SettleRefused,
    TurnLimitReached,
)
from holdfast.testing import Runner, ScriptedModel, answer, call

pytestmark = pytest.mark.asyncio


def outcomes(model: Any, turn: int = -1) -> list[str]:
    return [part.outcome for part in model.calls[turn].last_message.parts]


@tool
async def double(number: int) -> int:
    """Twice a number.

    Args:
        number: the number to double.
    """
    return 2 * number


async def test_a_run_asks_calls_and_asks_again() -> None:
    model = ScriptedModel([call("double", number=21), "It is 42."])
    agent = Agent(model, name="agent-doubles", tools=[double], instructions="You are a calculator.")
    result = await Runner().run(agent, "What is twice 21?")
    assert result.status == "completed", result.error
    assert result.output.output == "It is 42."
    assert result.output.usage.calls == 2
    assert [step.name for step in result.steps] == ["model call", "double", "model call"]
    assert model.calls[0].tool_names == ["double"]
    assert model.calls[0].instructions == "You are a calculator."
    assert get_sent_contents(model, 0) == ["What is twice 21?"]
    assert get_sent_contents(model, 1) == [42]


async def test_calls_of_one_answer_run_side_by_side_and_are_recorded_as_they_finish() -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    @tool
    async def gated(index: int) -> str:
        """Waits for the call behind it."""
        if index == 0:
            await gates[0].wait()
        else:
            gates[0].set()
        return f"done {index}"

    model = ScriptedModel([[call("gated", index=0), call("gated", index=1)], "ok"])
    result = await Runner().run(Agent(model, name="agent-side-by-side", tools=[gated]), "go")
    assert result.output.output == "ok", result.error
    # Told in the order of the calls, whatever order they finished in.
    assert get_sent_contents(model) == ["done 0", "done 1"]


async def test_failures_are_feedback_for_the_model() -> None:
    @tool
    async def broken() -> str:
        """Raises."""
        raise ValueError("the disk is on fire")

    @tool
    async def picky(colour: str) -> str:
        """Wants another colour."""
        raise ModelRetry("Only red will do.")

    @tool
    async def unrecordable() -> Any:
        """Returns what cannot be recorded."""
        return object()

    script = [
        [call("broken"), call("picky", colour="blue"), call("unrecordable"), call("duoble", number=1)],
        [call("double", number="many"), call("double", "{not json")],
        "I give up.",
    ]
    model = ScriptedModel(script)
    agent = Agent(model, name="agent-unlucky", tools=[broken, picky, unrecordable, double])
    result = await Runner().run(agent, "go")
    assert result.output.output == "I give up.", result.error
    first = get_sent_contents(model, 1)
    assert "the disk is on fire" in first[0]
    assert first[1] == "Only red will do."
    assert "could not be recorded" in first[2]
    assert "double" in first[3]
    assert outcomes(model, 1) == ["failed", "retried", "failed", "retried"]
    assert "number" in get_sent_contents(model, 2)[0]
    assert "JSON" in get_sent_contents(model, 2)[1]
    assert [step.attempt_count for step in result.steps["unrecordable"]] == [1]


async def test_a_tools_own_retries_come_before_the_model_sees_the_error() -> None:
    tries: list[int] = []

    @tool(retries=2)
    async def shaky() -> str:
        """Fails twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "there"

    model = ScriptedModel([call("shaky"), "ok"])
    result = await Runner().run(Agent(model, name="agent-shaky", tools=[shaky]), "go")
    assert len(tries) == 3
    assert get_sent_contents(model) == ["there"]
    assert result.steps["shaky"][0].attempt_count == 3


class City(BaseModel):
    name: str
    people: int


async def test_a_structured_answer_is_checked_and_the_model_corrects_it() -> None:
    model = ScriptedModel([answer(name="Paris"), "Paris!", answer(name="Paris", people=2_000_000)])
    agent = Agent(model, name="agent-city", output_type=City)
    result = await Runner().run(agent, "The largest city of France?")
    assert result.output.output == City(name="Paris", people=2_000_000), result.error
    assert "people" in get_sent_contents(model, 1)[0]
    assert "final_result" in get_sent_contents(model, 2)[0]
    assert [step.name for step in result.steps] == ["model call"] * 3


async def test_an_answer_that_never_fits_ends_in_a_clear_error() -> None:
    model = ScriptedModel([answer(name="Paris")] * 4 + [answer(name="Paris", people=2_000_000)])
    agent = Agent(model, name="agent-stubborn", output_type=City)
    runner = Runner()
    result = await runner.run(agent, "The largest city of France?")
    assert isinstance(result.error, InvalidOutput)
    assert "4 answers in a row" in str(result.error)
    assert "people" in str(result.error)
    assert len(model.calls) == 4, "once, and Output.retries more"
    model.script = [*model.script[:3], answer(name="Paris", people=2_000_000)]
    result = await runner.retry(result.run_id)
    assert result.output.output == City(name="Paris", people=2_000_000), result.error
    assert len(model.calls) == 5, "a retry asks once more"


async def test_an_answer_that_fits_or_a_call_begins_the_count_of_misfits_anew() -> None:
    wrong, calls = answer(name="Paris"), call("double", number=1)
    model = ScriptedModel([wrong, calls, wrong, calls, wrong, answer(name="Paris", people=1)])
    agent = Agent(model, name="agent-on-and-off", output_type=Output(City, retries=1), tools=[double])
    assert (await Runner().run(agent, "go")).output.output == City(name="Paris", people=1)


async def test_the_turn_limit_ends_in_a_clear_error() -> None:
    model = ScriptedModel([lambda _: call("double", number=1)] * 10)
    agent = Agent(model, name="agent-restless", tools=[double], max_turns=3)
    result = await Runner().run(agent, "go")
    assert result.status == "failed"
    assert isinstance(result.error, TurnLimitReached)
    assert "3 turns" in str(result.error)
    assert len(model.calls) == 3


async def test_sub_agents_run_side_by_side_and_a_failure_is_an_observation() -> None:
    helper = Agent(
        ScriptedModel([lambda messages: f"did {messages[0].parts[0].content}"]),
        name="helper-one",
        instructions="You help.",
    )
    refusing = Agent(ScriptedModel([ModelRequestRejected("no such key", "x", 401)]), name="helper-two")
    model = ScriptedModel(
        [
            [call("helper-one", task="this"), call("helper-two", task="that"), call("helper-one", nothing=1)],
            "all done",
        ]
    )
    boss = Agent(model, name="agent-boss", subagents=[helper], tools=[refusing])
    result = await Runner().run(boss, "go")
    assert result.output.output == "all done", result.error
    seen = get_sent_contents(model)
    assert seen[0] == "did this"
    assert "no such key" in seen[1]
    assert "task" in seen[2]
    assert sorted(child.workflow for child in result.children) == ["helper-one", "helper-two"]
    assert result.output.usage.calls == 3  # its own two, and the one of the helper that has answered


class Keys:
    secret = "do-not-record"


async def test_tools_and_sub_agents_get_deps_that_are_never_recorded() -> None:
    seen: list[tuple[str, str]] = []

    @tool
    async def use(ctx: RunContext[Keys], what: str) -> str:
        """Uses the deps."""
        seen.append((ctx.deps.secret, ctx.tool_call_id))
        assert ctx.run_id
        assert ctx.idempotency_key
        return what

    helper = Agent(ScriptedModel([call("use", what="b"), "ok"]), name="deps-helper", tools=[use], deps_type=Keys)
    model = ScriptedModel([[call("use", what="a"), call("deps-helper", task="t")], "ok"])
    agent = Agent(model, name="agent-with-deps", tools=[use], subagents=[helper], deps_type=Keys)
    runner = Runner()
    result = await runner.run(agent, "go", deps=Keys())
    assert result.output.output == "ok", result.error
    assert [secret for secret, _ in seen] == ["do-not-record"] * 2
    assert "do-not-record" not in repr(vars(runner._world.store))


async def test_missing_deps_fail_the_run_without_another_model_call() -> None:
    @tool
    async def needs(ctx: RunContext[int]) -> int:
        """Needs deps."""
        return ctx.deps

    model = ScriptedModel([call("needs"), "never"])
    agent = Agent(model, name="agent-without-deps", tools=[needs], deps_type=int)
    runner = Runner()
    result = await runner.run(agent, "go")
    assert isinstance(result.error, DepsMissing)
    assert "run_worker(deps=...)" in str(result.error)
    assert len(model.calls) == 1


@pytest.mark.parametrize("deps_type", [Keys, Keys | int])
async def test_deps_of_the_wrong_type_are_refused_before_any_model_call(deps_type: Any) -> None:
    model = ScriptedModel(["never"])
    agent = Agent(model, name="agent-with-wrong-deps", deps_type=deps_type)
    with pytest.raises(
        InputError, match=r"'agent-with-wrong-deps' has deps_type=.*Keys.*, and deps= is of type str: pass"
    ):
        await Runner().run(agent, "go", deps="keys")
    with pytest.raises(InputError, match="deps= is of type str"):
        await agent.run_worker("memory://", deps="keys")
    assert not model.calls


@pytest.mark.parametrize("deps_type", [None, type(None), dict[str, int], Any])
async def test_deps_whose_type_cannot_be_checked_are_accepted(deps_type: Any) -> None:
    agent = Agent(ScriptedModel(["ok"]), name="agent-with-unchecked-deps", deps_type=deps_type)
    assert (await Runner().run(agent, "go", deps="keys")).output.output == "ok"


async def test_a_sub_agent_that_cannot_use_its_parents_deps_names_their_type() -> None:
    @tool
    async def count(ctx: RunContext[int]) -> int:
        """Counts."""
        return ctx.deps

    helper = Agent(ScriptedModel([call("count"), "never"]), name="deps-of-int", tools=[count], deps_type=int)
    model = ScriptedModel([call("deps-of-int", task="t"), "never"])
    agent = Agent(model, name="agent-with-deps-of-str", subagents=[helper], deps_type=str)
    result = await Runner().run(agent, "go", deps="keys")
    assert isinstance(result.error, DepsMissing)
    assert "agent 'deps-of-int' has deps_type=int, and this process was given a str for run" in str(result.error)


async def test_instructions_may_be_a_function_and_are_recorded() -> None:
    made: list[str] = []

    async def instructions(ctx: RunContext[str]) -> str:
        made.append(ctx.deps)
        return f"You work for {ctx.deps}."

    model = ScriptedModel([call("double", number=1), "ok"])
    agent = Agent(model, name="agent-instructed", tools=[double], instructions=instructions, deps_type=str)
    runner = Runner()
    runner.simulate_crash_after(step="double")
    result = await runner.run(agent, "go", deps="Ada")
    result = await runner.resume(result.run_id)
    assert result.output.output == "ok", result.error
    assert made == ["Ada"]
    assert [asked.instructions for asked in model.calls] == ["You work for Ada."] * 2


async def test_in_workflow_code_a_run_is_a_child() -> None:
    agent = Agent(ScriptedModel(["forty-two"]), name="agent-as-child")

    @workflow
    async def asks_an_agent() -> tuple[str, int]:
        result = await agent.run("What is it?")
        return result.output, result.usage.calls

    result = await Runner().run(asks_an_agent)
    assert result.output == ("forty-two", 1), result.error
    assert [child.workflow for child in result.children] == ["agent-as-child"]


async def test_a_fork_may_replace_an_answer_by_a_text() -> None:
    agent = Agent(ScriptedModel([call("double", number=1), "two"]), name="agent-forked", tools=[double])
    runner = Runner()
    result = await runner.run(agent, "go")
    forked = await runner.fork(result.run_id, at=3, with_output="twelve")
    assert (result.output.output, forked.output.output) == ("two", "twelve")
    assert forked.output.usage.calls == 1  # the recorded one that it shares; the other was not a call


async def test_message_history_comes_first() -> None:
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart

    history = [ModelRequest.user_text_prompt("My name is Ada."), ModelResponse([TextPart("Hello Ada.")])]
    model = ScriptedModel(["unused", "You are Ada."])
    agent = Agent(model, name="agent-with-history")
    result = await Runner().run(agent, "Who am I?", message_history=history)
    assert result.output.output == "You are Ada.", result.error
    assert model.calls[0].message_count == 3


async def test_a_once_tool_in_flight_at_a_crash_is_not_repeated_and_the_model_learns_of_it() -> None:
    charged: list[int] = []

    @tool(effect="once")
    async def charge(amount: int) -> str:
        """Charges a card."""
        charged.append(amount)
        return "charged"

    model = ScriptedModel([call("charge", amount=5), lambda messages: str(messages[-1].parts[0].content)])
    runner = Runner()
    runner.simulate_crash_before(step="charge")
    agent = Agent(model, name="agent-once", tools=[charge])
    result = await runner.run(agent, "go")
    assert result.has_crashed
    result = await runner.resume(result.run_id)
    assert "may or may not have happened" in result.output.output, result.error
    assert charged == []
    with pytest.raises(SettleRefused, match=r"the model of its agent, was told, and has gone on.*is completed"):
        await runner.settle(result.run_id, "charge", "charged")


async def test_nothing_is_asked_twice_wherever_the_process_dies() -> None:
    helper = Agent(ScriptedModel([call("double", number=2), "four"]), name="everywhere-helper", tools=[double])
    model = ScriptedModel(
        [[call("double", number=1), call("everywhere-helper", task="two?")], call("double", number=3), "done"]
    )
    agent = Agent(model, name="agent-everywhere", tools=[double], subagents=[helper])
    report = await Runner(max_pairs=10, replay_processes=0).crash_everywhere(agent, "go")
    assert report.point_count > 15


doubler = Agent("openai:gpt-4o-mini", name="agent-elsewhere", tools=[double])


@pytest.mark.filterwarnings("error::holdfast.testing.CrashSafetyWarning")
async def test_a_journal_is_replayed_in_a_new_process() -> None:
    model = ScriptedModel([call("double", number=1), "two"])
    report = await Runner(model=model, max_pairs=0, replay_processes=1).crash_everywhere(doubler, "go")
    assert report.process_count == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "name"),
        ({"name": "bad-1", "max_turns": 0}, "max_turns"),
        (
            {"name": "bad-8", "output_retries": 2},
            r"write output_type=Output\(\.\.\., retries=",
        ),
        ({"name": "bad-9", "model_options": {"timeout": 3}}, r"model_options is a ModelOptions, as in ModelOptions\("),
        ({"name": "bad-10", "workflow_options": {"queue": "q"}}, "workflow_options is a WorkflowOptions, as in"),
        ({"name": "bad-11", "planning": 1}, "planning=1 is True or False"),
        ({"name": "bad-2", "tools": [double, tool(name="double")(lambda: 1)]}, "double"),
        ({"name": "bad-3", "tools": [3]}, "tool"),
        ({"name": "bad-4", "budget": 3}, "Budget"),
        ({"name": "bad-5", "tags": ["word"]}, r"no argument tags=: write workflow_options=WorkflowOptions\(tags="),
        ({"name": "bad-6", "instructions": 3}, "instructions"),
        ({"name": "bad-7", "fallback": [""]}, "model"),
    ],
)
async def test_mistakes_are_reported_when_an_agent_is_defined(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        Agent("openai:gpt-4o", **options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Output(City, retries=-1), "Output: retries=-1 must be a whole number, 0 or more"),
        (lambda: Output(str, retries=True), "Output: retries=True"),
        (lambda: Output(str, continue_truncated=1), "Output: continue_truncated=1 is True or False"),  # type: ignore[arg-type]
        (lambda: Output(int, continue_truncated=True), "Output: continue_truncated is for texts, and its type is"),
        (lambda: ModelOptions(settings=0.5), "ModelOptions: settings is a mapping"),  # type: ignore[arg-type]
        (lambda: ModelOptions(timeout=0), "ModelOptions: timeout 0 is not a duration"),
        (lambda: ModelOptions(timeout="soon"), "ModelOptions: timeout 'soon' is not a duration: use seconds"),
        (lambda: ModelOptions(retry=3), "ModelOptions: retry is a RetryPolicy"),  # type: ignore[arg-type]
        (lambda: ModelOptions(retry={"m": 3}), "ModelOptions, model m: retry is a RetryPolicy"),  # type: ignore[dict-item]
        (lambda: ModelOptions(stream="yes"), "ModelOptions: stream='yes' is True or False"),  # type: ignore[arg-type]
        (lambda: WorkflowOptions(timeout=-1), "WorkflowOptions: timeout -1 is not a duration"),
        (lambda: WorkflowOptions(tags="word"), r"WorkflowOptions: tags is a collection of words.*tags=\['word'\]"),
        (lambda: WorkflowOptions(max_deliveries=0), "WorkflowOptions: max_deliveries=0 must be a whole number"),
        (lambda: WorkflowOptions(version="a@b"), "WorkflowOptions: a version has at most 100"),
        (lambda: WorkflowOptions(serves="1"), "WorkflowOptions: serves is a collection of versions"),
    ],
)
async def test_options_that_do_not_fit_are_refused_where_they_are_written(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        make()


async def test_a_retry_policy_for_a_model_that_the_agent_does_not_have_is_refused() -> None:
    options = ModelOptions(retry={"openai:gpt-5": RetryPolicy()})
    with pytest.raises(
        DefinitionError, match=r"agent 'bad-12': retry has a policy for openai:gpt-5, but its models are"
    ):
        Agent("openai:gpt-4o", name="bad-12", model_options=options)


async def test_the_options_of_an_agent_are_those_of_its_runs() -> None:
    options = WorkflowOptions(queue="slow", timeout="1 h", tags=["night"], max_deliveries=5, version="2", serves=["1"])
    definition = Agent("openai:gpt-4o", name="agent-options", workflow_options=options).definition
    assert (definition.queue, definition.timeout_s, definition.tags) == ("slow", 3600, ("night",))
    assert (definition.max_deliveries, definition.version, definition.also_served_versions) == (5, "2", ("1",))
    chain = Agent(
        "openai:gpt-4o",
        name="agent-model-options",
        model_options=ModelOptions(settings={"temperature": 0}, timeout="1 min", stream=False),
    ).model_chain
    assert (chain.settings, chain.timeout_s, chain.should_stream) == ({"temperature": 0}, 60, False)


async def test_an_empty_prompt_is_refused_before_anything_is_recorded() -> None:
    agent = Agent(ScriptedModel(["x"]), name="agent-unasked")
    with pytest.raises(InputError, match="empty prompt"):
        await Runner().run(agent, "  ")
    with pytest.raises(InputError, match="agent 'agent-unasked' is a list of messages"):
        await Runner().run(agent, "go", message_history=[1])
