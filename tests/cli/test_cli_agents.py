"""What ``show`` and ``runs`` tell of agents and of model calls."""

from __future__ import annotations

import re

from cli_project import Project

# The journal


def test_a_model_call_shows_the_model_its_usage_and_its_tool_calls(lab: Project):
    out = lab.here("show", "research-1").out
    assert re.search(
        r"^ +1  model call .* ok\n"
        r"      openai:gpt-4o: 1,200 tokens in, 60 out, \$0\.0036\n"
        r"      “I will look it up\.”\n"
        r"      asks for web_search and read_page\n"
        r" +\d  \w",
        out,
        re.M,
    )
    assert re.search(r"^ +3  read_page .* failed\n +url='https://bad.example'\n +ConnectionError: no route", out, re.M)
    assert re.search(r"^ +6  nope .* failed\n +UnknownTool: There is no tool 'nope'", out, re.M)
    assert re.search(r"^ +9  web_search .* failed\n +query=3\n +arguments refused: query should be a valid", out, re.M)
    assert re.search(r"^ +5  child archaeologist .* ok\n +run 'research-1:archaeologist-5'$", out, re.M)


def test_the_answer_of_an_agent_is_shown_without_its_envelope(lab: Project):
    out = lab.here("show", "research-1").out
    assert "\nanswer     Two particles share one state.\n\n           Measuring one tells you the other.\n\n" in out
    assert "$agent" not in out
    assert (
        'answer     {\n             "name": "Paris",\n             "people": 2\n           }'
        in lab.here("show", "typed-1").out
    )
    data = lab.here("show", "research-1", "--json").json
    assert data["output"] == "Two particles share one state.\n\nMeasuring one tells you the other."
    [child] = [one for one in data["journal"] if one["kind"] == "child"]
    assert child["output"] == "It has two faults:\n1. it is old"


def test_models_that_failed_are_shown_with_the_reason(lab: Project):
    out = lab.here("show", "fall-1").out
    assert "      anthropic:claude-sonnet-5: 2,000 tokens in, 30 out, $0.0043\n" in out
    assert "      openai:gpt-5 gave no answer: status 401: Incorrect API key provided\n" in out
    [call] = [one["model_call"] for one in lab.here("show", "fall-1", "--json").json["journal"]]
    assert (call["model"], call["usage"]["usd"]) == ("anthropic:claude-sonnet-5", 0.0043)
    assert [(one["model"], one["attempts"]) for one in call["failed_models"]] == [("openai:gpt-5", 1)]


def test_a_model_call_in_flight_names_the_models_that_failed(lab: Project):
    out = lab.here("show", "flaky-1").out
    assert re.search(
        r"^in flight\n +1  model call  attempt \d+ failed .*; waiting for the next attempt at \d.*\n"
        r"      openai:gpt-5: status 503: overloaded$",
        out,
        re.M,
    )
    assert "progress" not in out
    output = lab.here("show", "flaky-1", "--conversation").out
    assert re.search(
        r"^user\n    Ask\.\n\n#1 the model is asked again at \d.* UTC: \d+ attempts? so far$", output, re.M
    )


def test_an_answer_that_was_cut_off_says_so(lab: Project):
    out = lab.here("show", "cut-1").out
    assert "      “Once upon a”\n      cut off at the limit of tokens\n" in out
    out = lab.here("show", "continued-1").out
    assert "      cut off at the limit of tokens; the model was asked to continue\n" in out
    assert "cannot be used" not in out
    [call] = [one["model_call"] for one in lab.here("show", "cut-1", "--json").json["journal"]]
    assert (call["finish_reason"], call["refusal"], call["is_continued"]) == ("length", "", False)


def test_an_unknown_price_and_the_reason_why_an_answer_is_invalid_are_shown(lab: Project):
    out = lab.here("show", "typed-1").out
    assert "      holdfast:scripted: 100 tokens in, 10 out, price not known\n" in out
    assert "      it cannot be used: Please give your answer by calling the tool `final_result`" in out
    assert '      “{"name": "Paris", "people": 2}”\n' in out
    assert "\nused\n      2 model calls: 200 tokens in, 20 out, price not known\n" in out


def test_the_usage_of_a_run_includes_the_runs_below_it(lab: Project):
    out = lab.here("show", "research-1").out
    assert "\nused, with the runs below it\n      6 model calls: 6,800 tokens in, 340 out, $0.018144\n" in out
    assert re.search(r"^ +research-1:archaeologist-5 +archaeologist +completed +\$0\.00014$", out, re.M)
    data = lab.here("show", "research-1", "--json").json["usage"]
    assert (data["calls"], data["input_tokens"], data["output_tokens"], data["usd"]) == (6, 6800, 340, 0.018144)
    assert "used" not in lab.here("show", "plain").out.split()


def test_an_llm_step_is_shown_as_a_model_call_with_its_output(lab: Project):
    out = lab.here("show", "rated").out
    assert re.search(
        r"^ +1  rate .* ok\n +text='this'\n +openai:gpt-4o: 100 tokens in, 50 out, \$0\.00075\n"
        r' +“{"title": "x", "stars": 3}”$',
        out,
        re.M,
    )
    [record] = lab.here("show", "rated", "--json").json["journal"]
    assert record["output"] == {"title": "x", "stars": 3}


def test_a_failure_of_the_provider_is_shown_without_frames_of_this_library(lab: Project):
    out = lab.here("show", "fails-1").out
    assert re.search(
        r"^error +ModelRequestRejected: .*openai:gpt-5 was refused: status 401: Incorrect API key", out, re.M
    )
    assert "File " not in out


# Budgets


def test_a_run_that_waits_for_a_higher_budget_shows_the_command_that_gives_it(lab: Project):
    out = lab.here("show", "poor-1").out
    assert re.search(r"^waits for  a higher budget: its budget of \$0\.05 would be passed \(\$0\.03 used", out, re.M)
    assert re.search(r"^ +3  model call .* refused\n      its budget of \$0\.05 would be passed", out, re.M)
    assert "\nused so far\n      1 model call: 10,000 tokens in, 500 out, $0.03\n" in out
    assert re.search(
        r"^its budget\n +budget +used +left\n +usd +\$0\.05 +\$0\.03 +\$0\.02\n +turns +9 +1 +8$", out, re.M
    )
    assert "\nrun 'poor-1' waits for a higher budget: `holdfast budget poor-1 --usd 0.10` gives it more" in out
    data = lab.here("show", "poor-1", "--json").json
    assert (data["budget"], data["budget_remaining"]) == ({"usd": 0.05, "turns": 9}, {"usd": 0.02, "turns": 8})
    assert (data["budget_refusal"]["run_id"], data["budget_refusal"]["limit"]) == ("poor-1", "usd")


def test_a_run_below_a_budget_names_the_run_that_has_it(lab: Project):
    out = lab.here("show", "rich-1:sub-2").out
    assert "waits for  a higher budget: the budget of run 'rich-1', which started it, of 25,000 tokens would be" in out
    assert "\nthe budget of run 'rich-1', which is above it\n" in out
    assert "`holdfast budget rich-1 --tokens 50000` gives it more, and lets it go on" in out
    above = lab.here("show", "rich-1").out
    assert re.search(r"^ +rich-1:sub-3 +sub +waiting for a higher budget +\$0\.03$", above, re.M)
    assert "wait for a higher budget: `holdfast show rich-1:sub-2` tells for which" in above


# The list


def test_the_list_has_a_column_for_cost_only_where_something_was_paid(lab: Project):
    lines = {line.split()[0]: line for line in lab.here("runs").out.splitlines()}
    assert re.search(r"took +cost +waiting for / error$", lines["id"])
    assert lines["research-1"].endswith(" $0.0181")
    assert lines["typed-1"].endswith(" not known")
    assert re.search(r"\$0\.03 +waits for a higher budget; no live worker serves it$", lines["poor-1"])
    assert "cost" not in lab.here("runs", "--workflow", "plain").out
    data = {run["id"]: run["usage"] for run in lab.here("runs", "--json").json}
    assert data["plain"] is None
    assert (data["typed-1"]["usd"], data["typed-1"]["unpriced"], data["typed-1"]["input_tokens"]) == (
        None,
        2,
        200,
    )
    assert data["research-1"]["output_tokens"] == 340


# The conversation


def test_the_conversation_is_shown_in_order(lab: Project):
    out = lab.here("show", "research-1", "--conversation").out
    pieces = [
        "research-1 (research), completed\n",
        "\nuser\n    Explain entanglement to me.\n",
        "\n#1 openai:gpt-4o  1,200 tokens in, 60 out, $0.0036\n    I will look it up.\n"
        '    → web_search(query="entanglement")\n    → read_page(url="https://bad.example")\n',
        '\n#2 web_search\n    ["entanglement is a thing"]\n',
        "\n#3 read_page  failed\n    The tool 'read_page' failed: ConnectionError: no route to host \\x1b[31m\n",
        "\n#5 archaeologist  run 'research-1:archaeologist-5'\n    It has two faults:\n    1. it is old\n",
        "\n#6 nope  failed\n    There is no tool 'nope'",
        "    → write_file\n      path: out.py\n      text:\n        def f(x):\n            return x\n",
        "\n#9 web_search  failed\n    The arguments do not fit the tool 'web_search', which was not called:\n    -",
        "\n#12 openai:gpt-4o  answers  1,200 tokens in, 60 out, $0.0036\n    Two particles share one state.\n\n"
        "    Measuring one tells you the other.\n",
    ]
    at = 0
    for piece in pieces:
        assert piece in out[at:], piece
        at = out.index(piece, at)


def test_long_texts_are_cut_without_full(lab: Project):
    cut = lab.here("show", "research-1", "--conversation").out
    assert re.search(r"^    … \d+ more words$", cut, re.M)
    assert "The end." not in cut
    assert cut.endswith("long texts are cut: `holdfast show research-1 --conversation --full` shows all of it\n")
    full = lab.here("show", "research-1", "--conversation", "--full").out
    assert "Lorem ipsum dolor sit amet. The end.\n" in full
    assert "more words" not in full
    assert lab.here("show", "research-1", "--full").code == 2


def test_a_conversation_shows_corrections_refusals_sessions_and_history(lab: Project):
    typed = lab.here("show", "typed-1", "--conversation").out
    assert "\n    Paris\n\ncorrection\n    Please give your answer by calling the tool `final_result`" in typed
    assert 'answers  100 tokens in, 10 out, price not known\n    {"name": "Paris", "people": 2}\n' in typed
    poor = lab.here("show", "poor-1", "--conversation").out
    assert "\n#3 the model was not asked: its budget of $0.05 would be passed" in poor
    chat = lab.here("show", "chat-2", "--conversation").out
    assert "\ncontinues run 'chat-1' of session 's1': `holdfast show chat-1 --conversation`\n" in chat
    assert "\n#3 system\n    Be kind.\n\nuser\n    Who am I?\n" in chat
    later = lab.here("show", "chat-3", "--conversation").out
    assert "\nuser  (before this run)\n    I am Ann.\n\nscripted  (before this run)\n    Hello Ann.\n" in later
    assert "no model has answered: ModelRequestRejected: " in lab.here("show", "fails-1", "--conversation").out


def test_a_conversation_as_json_has_all_of_it(lab: Project):
    data = lab.here("show", "research-1", "--conversation", "--json").json
    assert [one["role"] for one in data["messages"]] == [
        "user", "model", "tool", "tool", "model", "tool", "tool", "model", "tool", "tool", "model", "tool", "model",
    ]  # fmt: skip
    first, bad, last = data["messages"][1], data["messages"][3], data["messages"][-1]
    assert first["tool_calls"][0] == {"id": "call_1_1", "name": "web_search", "arguments": {"query": "entanglement"}}
    assert (bad["name"], bad["ok"], bad["number"]) == ("read_page", False, 3)
    assert (first["final"], last["final"]) == (False, True)
    assert data["messages"][-2]["content"].endswith("The end.")
    assert lab.here("show", "chat-2", "--conversation", "--json").json["previous_run"] == "chat-1"


def test_there_is_no_conversation_in_a_run_that_is_no_agents(lab: Project):
    done = lab.here("show", "rated", "--conversation")
    assert (done.code, done.out) == (1, "")
    assert "run 'rated' of workflow 'rated' is not an agent's: it has no conversation. `holdfast show" in done.err


# The terminal


def test_an_agents_run_fits_into_80_columns(lab: Project):
    for args in (("research-1",), ("research-1", "--conversation"), ("poor-1",), ("rich-1:sub-2",)):
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", lab.on_a_terminal("show", *args))
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "\x1b" not in text


def test_no_command_that_reads_loads_the_model_library(lab: Project):
    code = (
        "import sys, contextlib\n"
        "from holdfast.cli import main\n"
        "for args in (['runs'], ['show', 'research-1'], ['show', 'research-1', '--conversation'],\n"
        "             ['show', 'chat-3', '--conversation', '--json'], ['show', 'rated', '--json'],\n"
        "             ['budget', 'poor-1'], ['budget', 'nobody', '--turns', '9'], ['doctor']):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main(args, standalone_mode=True)\n"
        "print([name for name in ('pydantic_ai', 'openai', 'anthropic', 'genai_prices') if name in sys.modules])\n"
    )
    done = lab.python("-c", code, is_fresh=True)
    assert done.code == 0
    assert done.out.splitlines()[-1] == "[]"
