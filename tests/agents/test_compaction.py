"""Long conversations: when they are compacted, what is sent then, and what happens when that goes wrong."""

from __future__ import annotations

from typing import Any

import pytest
from compaction_agents import TOO_LONG, Listener, find, find_much, make_find_script, texts
from pydantic import BaseModel
from pydantic_ai.messages import (
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters

from holdfast import Agent, Budget, BudgetExceeded, Compaction, ModelOptions, ModelRequestRejected, Output, Runtime
from holdfast.agents.compaction import format_transcript
from holdfast.agents.conversation import rebuild_conversation
from holdfast.agents.models import request
from holdfast.agents.models.context_limit import ConversationSize, find_cut
from holdfast.agents.models.prices import count_message_chars
from holdfast.errors import ContextFull, DefinitionError
from holdfast.testing import Runner, answer, call

pytestmark = pytest.mark.asyncio

WINDOW = Compaction(window=1000)
"""About eight turns of ``find``."""


def names(result: Any) -> list[str]:
    return [step.name for step in result.steps]


# When


async def test_a_conversation_that_nears_the_limit_continues_with_a_summary() -> None:
    model = Listener(make_find_script(20), summary="Ten were found.")
    agent = Agent(model, name="compact-near", tools=[find], instructions="Find.", compaction=WINDOW)
    result = await Runner().run(agent, "Find twenty.")
    assert result.output.output == "done", result.error
    assert names(result).count("compaction") == 2
    first = names(result).index("compaction")
    assert names(result)[first - 1 : first + 2] == ["model call", "compaction", "model call"]
    assert isinstance(result.steps["model call"][first // 2].error, ContextFull)
    assert [asked.turn for asked in model.calls if asked.turn] == list(range(1, 22))

    # Never more than the limit, with what the estimate does not see: the newest result.
    assert max(len(one) for one in model.sent) < 20
    begin = next(one for one in model.sent if "summarised" in str(texts(one[0])))
    assert texts(begin[0])[0] == "Find twenty."
    assert texts(begin[0])[1].endswith("Go on from here.]\n\nTen were found.")
    assert "The task above still holds." in texts(begin[0])[1]
    assert begin[0].instructions == "Find."  # type: ignore[union-attr]
    assert isinstance(begin[1], ModelResponse)
    # What is kept is the newest, as it was.
    before = model.sent[model.sent.index(begin) - 1]
    assert begin[1 : -2 or None] == before[len(before) - (len(begin) - 3) :]


async def test_the_plan_is_kept_word_for_word(runtime: Runtime) -> None:
    def plan(*statuses: str) -> Any:
        return call("write_plan", items=[{"task": f"part {n}", "status": one} for n, one in enumerate(statuses)])

    script = [
        plan("working", "open"),
        *make_find_script(9, plan("done", "working")),
        *make_find_script(9, plan("done", "done")),
        "done",
    ]
    model = Listener(script, summary="Some were found.")
    agent = Agent(model, name="compact-plan", tools=[find], planning=True, compaction=WINDOW)
    result = await agent.run("Find twenty.")
    assert result.output == "done"
    begins = [texts(one[0])[-1] for one in model.sent]
    plans = [begin.partition("as you have written it last:\n")[2] for begin in begins if "summarised" in begin]
    assert list(dict.fromkeys(plans)) == [
        "- part 0 (working)\n- part 1 (open)",
        "- part 0 (done)\n- part 1 (working)",
    ]
    run, history = await runtime.store_provider.read_journal(result.run_id)
    assert (
        rebuild_conversation(run.inputs, run.clock_started_at, history.records, agent.add_guidance).context[:-1]
        == model.sent[-1]
    )


async def test_the_summariser_is_shown_all_that_is_left_out_and_no_tools() -> None:
    model = Listener(make_find_script(9))
    agent = Agent(model, name="compact-shown", tools=[find], instructions="Find well.", compaction=WINDOW)
    result = await Runner().run(agent, "Find nine, but not in Rome.")
    assert result.output.output == "done", result.error
    [shown] = model.transcripts
    [asked] = [one for one in model.calls if one.turn == 0]
    assert asked.tool_names == []
    assert "summarise the conversation of an AI agent" in asked.instructions
    assert "Find well." in shown
    assert "Find nine, but not in Rome." in shown
    kept = model.sent[-1][1]
    assert isinstance(kept, ModelResponse)
    first_kept = int(kept.tool_calls[0].args_as_dict()["number"])
    assert first_kept >= 5
    for number in range(9):
        assert (f'{{"number":{number}}}' in shown) == (number < first_kept)


async def test_below_the_limit_or_without_a_known_window_nothing_is_summarised() -> None:
    short = Listener(make_find_script(5))
    result = await Runner().run(Agent(short, name="compact-short", tools=[find], compaction=WINDOW), "go")
    assert "compaction" not in names(result)
    unknown = Listener(make_find_script(30))
    result = await Runner().run(Agent(unknown, name="compact-unknown", tools=[find]), "go")
    assert result.output.output == "done"
    assert "compaction" not in names(result)
    off = Listener(make_find_script(30), name="gpt-4o-mini", provider="openai", usage=(127_000, 10))
    result = await Runner().run(Agent(off, name="compact-off", tools=[find], compaction=False), "go")
    assert result.output.output == "done"
    assert "compaction" not in names(result)


async def test_the_window_of_a_known_model_is_known() -> None:
    def usage(messages: Any, response: Any) -> tuple[int, int]:
        return 10_000 * len(messages), 100

    model = Listener(make_find_script(8), name="gpt-4o-mini", provider="openai", usage=usage)
    result = await Runner().run(Agent(model, name="compact-known", tools=[find]), "go")
    assert result.output.output == "done", result.error
    # 11 messages are 110,000 tokens, more than 80 % of 128,000.
    assert [len(one) for one in model.sent] == [1, 3, 5, 7, 9, 11, 3, 5, 7]
    assert "128,000" in str(result.steps["model call"][6].error)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trigger_share": 0}, "above 0 and at most 1"),
        ({"trigger_share": 80}, "above 0 and at most 1"),
        ({"trigger_share": "most"}, "above 0 and at most 1"),
        ({"keep_share": 0.5}, "half of trigger_share=0.8"),
        ({"keep_share": -0.1}, "half of trigger_share=0.8"),
        ({"window": 0}, "number of tokens"),
        ({"window": 1e5}, "number of tokens"),
        ({"window": True}, "number of tokens"),
        ({"model": 3}, "a model is a name"),
    ],
)
async def test_settings_that_cannot_work_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        Compaction(**options)


async def test_compaction_is_yes_no_or_how() -> None:
    with pytest.raises(DefinitionError, match=r"agent 'compact-bad': compaction is True, False, or how"):
        Agent("openai:gpt-4o", name="compact-bad", compaction=0.7)  # type: ignore[arg-type]
    assert Agent("openai:gpt-4o", name="compact-yes").compaction == Compaction()


# What is sent


async def test_calls_side_by_side_are_never_parted_from_their_results() -> None:
    both = [[call("find", number=number), call("find", number=-number), "and a text"] for number in range(12)]
    model = Listener([*both, "done"])
    result = await Runner().run(Agent(model, name="compact-pairs", tools=[find], compaction=WINDOW), "go")
    assert result.output.output == "done", result.error
    assert names(result).count("compaction") >= 2  # `Listener` has looked at each of the contexts


class City(BaseModel):
    name: str
    people: int


async def test_corrections_of_a_structured_answer_continue_after_a_compaction() -> None:
    script = [
        *make_find_script(6, answer(name="Paris")),
        "Paris!",
        answer(name="Paris", people="x" * 900),
        answer(name="P"),
    ]
    model = Listener([*script, answer(name="Paris", people=2)])
    agent = Agent(model, name="compact-city", tools=[find], output_type=Output(City, retries=4), compaction=WINDOW)
    result = await Runner().run(agent, "The largest city?")
    assert result.output.output == City(name="Paris", people=2), result.error
    assert "compaction" in names(result)
    assert "people" in str(model.sent[-1][-1])


async def test_a_huge_result_is_cut_rather_than_refused() -> None:
    model = Listener([call("find", number=1), call("find_much", characters=9000), "done"])
    agent = Agent(model, name="compact-huge", tools=[find, find_much], compaction=WINDOW)
    result = await Runner().run(agent, "go")
    assert result.output.output == "done", result.error
    [cut] = texts(model.sent[-1][-1])
    assert cut.startswith("beginxxx")
    assert cut.endswith("xxxend")
    assert "of 9,000 characters, some were left out here when the conversation was compacted" in cut
    assert len(cut) < 1800
    # What the tool returned is in the journal.
    assert len(result.steps["find_much"][0].output) == 9000


async def test_a_huge_first_result_is_cut_without_requesting_a_summary() -> None:
    model = Listener([[call("find_much", characters=9000), call("find", number=1)], "done"])
    agent = Agent(model, name="compact-first", tools=[find, find_much], compaction=WINDOW)
    result = await Runner().run(agent, "go")
    assert result.output.output == "done", result.error
    assert names(result) == ["model call", "find_much", "find", "model call", "compaction", "model call"]
    assert model.transcripts == []
    assert result.output.usage.calls == 2
    [cut, short] = texts(model.sent[-1][-1])
    assert "some were left out" in cut
    assert len(short) == 400
    assert texts(model.sent[-1][0]) == ["go"]


async def test_a_long_task_alone_does_not_make_every_turn_a_compaction() -> None:
    model = Listener(make_find_script(10))
    agent = Agent(model, name="compact-long-task", tools=[find], compaction=WINDOW)
    result = await Runner().run(agent, "Do. " * 900)
    assert result.output.output == "done", result.error
    assert 2 <= names(result).count("compaction") <= 5  # there is something to summarise now and then
    assert all(texts(one[0])[0] == "Do. " * 900 for one in model.sent)


async def test_what_is_known_of_the_messages_does_not_outlive_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the part that the library must translate first is summarised, there is nothing to translate any more."""
    prepared: list[int] = []

    class Prepared(Listener):
        def prepare_messages(self, messages: Any, *args: Any) -> Any:
            prepared.append(len(self.calls))
            return super().prepare_messages(messages, *args)

    monkeypatch.setattr(request, "_get_usual_parts", lambda: {UserPromptPart, ToolCallPart, ToolReturnPart})
    model = Prepared([["a text", call("find", number=0)], *make_find_script(8)])
    agent = Agent(model, name="compact-looked", tools=[find], compaction=WINDOW)
    result = await Runner().run(agent, "go")
    assert result.output.output == "done", result.error
    assert [asked.turn for asked in model.calls] == [1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 10]
    assert prepared == [1, 2, 3, 4, 5, 6, 7]


async def test_a_summary_is_not_streamed_to_who_follows_the_run() -> None:
    streamed: list[int] = []

    class Streaming(Listener):
        def request_stream(self, *args: Any, **options: Any) -> Any:
            streamed.append(len(self.calls))
            return super().request_stream(*args, **options)

    model = Streaming(make_find_script(9))
    agent = Agent(model, name="compact-streamed", tools=[find], compaction=WINDOW)
    result = await Runner().run(agent, "go")
    assert result.output.output == "done", result.error
    assert [model.calls[number].turn for number in streamed] == list(range(1, 11))


async def test_a_result_that_comes_late_is_kept_with_its_call() -> None:
    """A Holdfast agent leaves no call open, but a message history from elsewhere may."""
    history = [
        ModelRequest.user_text_prompt("go"),
        ModelResponse([TextPart("x" * 500)]),
        ModelRequest.user_text_prompt("on"),
        ModelResponse([ToolCallPart("a", {}, "1"), ToolCallPart("b", {}, "2")]),
        ModelRequest([ToolReturnPart("a", "x", "1")]),
        ModelResponse([TextPart("Wait.")]),
        ModelRequest([ToolReturnPart("b", "x", "2")]),
    ]
    cut = find_cut(history, ConversationSize(None, ModelRequestParameters(), 100), Compaction(keep_share=0))
    assert cut is not None
    assert (cut.summarized_count, cut.kept_count, cut.max_result_length) == (3, 4, None)


# The provider says so


async def test_a_rejection_is_recorded_and_a_summary_replaces_older_turns() -> None:
    def at_most_nine(messages: list[ModelMessage]) -> Any:
        return TOO_LONG if len(messages) > 9 else call("find", number=5)

    model = Listener([*(lambda messages: at_most_nine(messages) for _ in range(12)), "done"], summary="In short.")
    agent = Agent(model, name="compact-by-refusal", tools=[find])
    result = await Runner().run(agent, "Find.")
    assert result.output.output == "done", result.error
    assert names(result).count("compaction") >= 2
    full = result.steps["model call"][5].error
    assert isinstance(full, ContextFull)
    assert "exceeds the context window" in str(full)
    assert full.context_window > 0
    assert len(model.sent) == 13


async def test_after_a_rejection_the_last_accepted_size_is_the_limit() -> None:
    """Nobody knows what the model takes, and one result is far longer than that."""

    def answers(messages: list[ModelMessage]) -> Any:
        return TOO_LONG if sum(map(count_message_chars, messages)) > 3000 else "done"

    model = Listener([*make_find_script(4, call("find_much", characters=40_000)), answers])
    result = await Runner().run(Agent(model, name="compact-measure", tools=[find, find_much]), "go")
    assert result.output.output == "done", result.error
    assert names(result).count("compaction") == 1


async def test_a_rejection_right_after_a_compaction_fails_with_advice() -> None:
    model = Listener(make_find_script(9, TOO_LONG))
    agent = Agent(model, name="compact-in-vain", tools=[find], compaction=Compaction(keep_share=0.4))
    result = await Runner().run(agent, "go")
    assert isinstance(result.error, ModelRequestRejected)
    assert "was compacted just before" in str(result.error)
    assert "Compaction(window=...)" in str(result.error)
    assert names(result)[-3:] == ["model call", "compaction", "model call"]
    assert names(result).count("compaction") == 1


async def test_a_conversation_that_cannot_be_compacted_fails_with_advice() -> None:
    model = Listener([TOO_LONG])
    result = await Runner().run(Agent(model, name="compact-nothing"), "x" * 5000)
    assert isinstance(result.error, ModelRequestRejected)
    assert "nothing in it can be summarised" in str(result.error)
    assert "a longer context" in str(result.error)
    off = Agent(Listener([*make_find_script(3, TOO_LONG)]), name="compact-off-refused", tools=[find], compaction=False)
    result = await Runner().run(off, "go")
    assert isinstance(result.error, ModelRequestRejected)
    assert names(result).count("model call") == 4


# Who summarises


async def test_another_model_may_summarise() -> None:
    other = Listener(["unused"], summary="By another.")
    model = Listener(make_find_script(9))
    compaction = Compaction(window=1000, model=other)
    result = await Runner().run(Agent(model, name="compact-other", tools=[find], compaction=compaction), "go")
    assert result.output.output == "done", result.error
    assert len(other.transcripts) == 1
    assert model.transcripts == []
    assert "By another." in texts(model.sent[-1][0])[1]


async def test_a_summarizing_model_with_a_smaller_context_gets_less() -> None:
    shown: list[int] = []

    def summary(messages: list[ModelMessage]) -> Any:
        [text] = texts(messages[0])
        shown.append(len(text))
        return TOO_LONG if len(text) > 4000 else "In short."

    model = Listener([*(call("find_much", characters=2400) for _ in range(8)), "done"], summary=summary)
    compaction = Compaction(window=4000)
    agent = Agent(model, name="compact-shorter", tools=[find_much], compaction=compaction)
    result = await Runner().run(agent, "The task.")
    assert result.output.output == "done", result.error
    assert shown[0] > shown[1] > shown[2]
    assert shown[2] <= 4000


async def test_an_empty_summary_is_requested_again_and_then_the_run_fails() -> None:
    said = iter(["", "At last."])
    model = Listener(make_find_script(9), summary=lambda _: next(said))
    result = await Runner().run(Agent(model, name="compact-empty", tools=[find], compaction=WINDOW), "go")
    assert result.output.output == "done", result.error
    assert names(result).count("compaction") == 2
    assert "At last." in texts(model.sent[-1][0])[1]
    assert result.output.usage.calls == 12

    answers = [""]
    silent = Listener(make_find_script(9), summary=lambda _: answers[0])
    runner = Runner()
    result = await runner.run(Agent(silent, name="compact-silent", tools=[find], compaction=WINDOW), "go")
    assert isinstance(result.error, ContextFull)
    assert "no summary of it in 3 attempts" in str(result.error)
    answers[0] = "Now there is one."
    result = await runner.retry(result.run_id)
    assert result.output.output == "done", result.error


async def test_a_summary_that_is_refused_fails_the_run_and_can_be_retried() -> None:
    does: list[Any] = [ModelRequestRejected("no credit", "scripted", 402)]
    model = Listener(make_find_script(9), summary=lambda _: does[0])
    runner = Runner()
    result = await runner.run(Agent(model, name="compact-refusing", tools=[find], compaction=WINDOW), "go")
    assert isinstance(result.error, ModelRequestRejected)
    assert "no credit" in str(result.error)
    does[0] = "Paid."
    result = await runner.retry(result.run_id)
    assert result.output.output == "done", result.error
    assert len(model.sent) == 10  # none of the turns twice


async def test_the_fallback_summarises_when_the_first_model_does_not() -> None:
    fallback = Listener(["unused"], name="second", summary="By the second.")
    model = Listener(make_find_script(9), summary=ModelRequestRejected("no", "scripted", 400))
    agent = Agent(model, name="compact-fallback", tools=[find], fallback=fallback, compaction=WINDOW)
    result = await Runner().run(agent, "go")
    assert result.output.output == "done", result.error
    assert "By the second." in texts(model.sent[-1][0])[1]


async def test_the_agents_settings_hold_for_the_summary_as_far_as_they_fit() -> None:
    seen: list[Any] = []

    class Settled(Listener):
        async def request(self, messages: list[ModelMessage], model_settings: Any, parameters: Any) -> ModelResponse:
            seen.append(model_settings)
            return await super().request(messages, model_settings, parameters)

    settings = {"max_tokens": 20, "temperature": 0, "parallel_tool_calls": True, "tool_choice": "auto"}
    model = Settled(make_find_script(9))
    agent = Agent(
        model, name="compact-settings", tools=[find], model_options=ModelOptions(settings=settings), compaction=WINDOW
    )
    result = await Runner().run(agent, "go")
    assert result.output.output == "done", result.error
    [summary] = [given for given, asked in zip(seen, model.calls, strict=True) if asked.turn == 0]
    assert summary["temperature"] == 0
    assert summary["max_tokens"] >= 2000
    assert "tool_choice" not in summary
    assert "parallel_tool_calls" not in summary
    assert seen[0]["max_tokens"] == 20


# Counting


async def test_a_compaction_counts_for_usage_and_budgets_and_not_as_a_turn() -> None:
    model = Listener(make_find_script(9), usage=lambda messages, response: (100 * len(messages), 1))
    agent = Agent(model, name="compact-counted", tools=[find], max_turns=10, compaction=WINDOW)
    runner = Runner()
    result = await runner.run(agent.options(budget=Budget(turns=4)), "go")
    assert names(result)[-2:] == ["model call", "compaction"]
    assert result.status == "waiting"
    assert isinstance(result.steps["compaction"][0].error, BudgetExceeded)
    assert model.transcripts == []
    result = await runner.set_budget(result.run_id, Budget(turns=100))
    assert result.output.output == "done", result.error
    summaries = len(model.transcripts)
    assert summaries > 1
    assert result.output.usage.calls == 10 + summaries
    tokens = sum(100 * len(one) for one in model.sent) + 100 * summaries
    assert result.output.usage.input_tokens == tokens


async def test_a_sub_agent_compacts_its_own_conversation() -> None:
    helper_model = Listener(make_find_script(9, "found"))
    helper = Agent(helper_model, name="compact-helper", tools=[find], compaction=WINDOW)
    boss = Agent(Listener([call("compact-helper", task="Find."), "done"]), name="compact-boss", subagents=[helper])
    result = await Runner().run(boss, "go")
    assert result.output.output == "done", result.error
    assert len(helper_model.transcripts) == 1
    assert result.output.usage.calls == 2 + 10 + 1


# Crashes, deploys and forks


async def test_nothing_is_asked_twice_wherever_the_process_dies() -> None:
    script = [*([call("find", number=number), call("find", number=-number)] for number in range(3)), "done"]
    model = Listener(script)
    agent = Agent(model, name="compact-everywhere", tools=[find], compaction=Compaction(window=400))
    trial = await Runner().run(agent, "go")
    assert names(trial).count("compaction") == 2
    report = await Runner(max_pairs=5, replay_processes=0).crash_everywhere(agent, "go")
    assert report.point_count > 15


@pytest.mark.parametrize("compaction", [None, Compaction(window=100_000), Compaction(window=700, keep_share=0.4)])
async def test_a_deploy_may_change_the_limits_under_a_running_run(compaction: Compaction | None) -> None:
    model = Listener(make_find_script(12))
    agent = Agent(model, name=f"compact-deploy-{0 if compaction is None else compaction.window}", tools=[find])
    agent.compaction = WINDOW
    runner = Runner()
    runner.simulate_crash_after(step="compaction")
    crashed = await runner.run(agent, "go")
    assert crashed.has_crashed
    agent.compaction = compaction
    result = await runner.resume(crashed.run_id)
    assert result.output.output == "done", result.error
    assert len(model.sent) == 13
    # Also when it died between the decision and the compaction.
    agent.compaction = WINDOW
    runner = Runner()
    runner.simulate_crash_before(step="compaction")
    crashed = await runner.run(agent, "go")
    assert crashed.has_crashed
    agent.compaction = compaction
    result = await runner.resume(crashed.run_id)
    assert result.output.output == "done", result.error
    assert names(result).count("compaction") >= 1


async def test_after_a_deploy_that_leaves_nothing_to_compact_the_model_is_called() -> None:
    model = Listener([call("find_much", characters=1700), "done"])
    agent = Agent(
        model, name="compact-no-more", tools=[find_much], compaction=Compaction(window=1000, trigger_share=0.4)
    )
    runner = Runner()
    runner.simulate_crash_before(step="compaction")
    crashed = await runner.run(agent, "go")
    assert crashed.has_crashed
    agent.compaction = Compaction(window=1000, trigger_share=1)
    result = await runner.resume(crashed.run_id)
    assert result.output.output == "done", result.error
    assert names(result) == ["model call", "find_much", "model call", "compaction", "model call"]
    assert len(texts(model.sent[-1][-1])[0]) == 1700
    assert result.output.usage.calls == 2


async def test_a_fork_may_replace_a_summary_by_a_text() -> None:
    model = Listener(make_find_script(9))
    runner = Runner()
    result = await runner.run(Agent(model, name="compact-forked", tools=[find], compaction=WINDOW), "go")
    at = names(result).index("compaction") + 1
    forked = await runner.fork(result.run_id, at=at, with_output="Another story.")
    assert forked.output.output == "done", forked.error
    assert "Another story." in texts(model.sent[-1][0])[1]
    assert texts(model.sent[-1][0])[0] == "go"


# The text for the summariser


def spoken() -> list[ModelMessage]:
    return [
        ModelRequest([UserPromptPart(["Look:", ImageUrl("https://example.org/tea.png")])]),
        ModelResponse([ThinkingPart("hm"), TextPart("I look."), ToolCallPart("look", {"at": "tea"}, "c1")]),
        ModelRequest([ToolReturnPart("look", {"green": "x" * 3000}, "c1")]),
        ModelResponse([TextPart("Green."), ToolCallPart("note", '{"x": 1}', "c2")]),
        ModelRequest([ToolReturnPart("note", "noted", "c2")]),
    ]


async def test_the_transcript_names_the_speakers() -> None:
    text = format_transcript(spoken(), "Be kind.", 100_000)
    for words in ("[user]\nLook:\n<https://example.org/tea.png>", '[agent calls look]\n{"at":"tea"}', "Be kind."):
        assert words in text
    assert "x" * 3000 in text
    assert "hm" not in text


async def test_the_text_is_cut_where_it_hurts_least() -> None:
    text = format_transcript(spoken(), "Be kind.", 1000)
    assert len(text) < 1400
    assert "were left out here" in text
    assert "[result of note]\nnoted" in text
    assert "I look." in text
    many = [message for _ in range(50) for message in spoken()]
    assert len(format_transcript(many, "", 5000)) < 5200
