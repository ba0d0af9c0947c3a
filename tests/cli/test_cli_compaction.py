"""What ``holdfast show`` tells of a conversation that was compacted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Agent, Compaction, tool
from holdfast.cli import main
from holdfast.testing import ScriptedModel, call


@tool
async def dig(characters: int) -> str:
    """Digs."""
    return "x" * characters


def show(*words: str) -> str:
    result = CliRunner().invoke(main, ["show", *words])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module", autouse=True)
def _runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path_factory.mktemp('compacted')}/runs.db")
        patch.setenv("COLUMNS", "120")
        window = Compaction(window=1000)
        script = [*(call("dig", characters=400) for _ in range(9)), "done"]
        digger = Agent(
            ScriptedModel(script, summary="Much was dug."), name="cli-digger", tools=[dig], compaction=window
        )
        digger.options(id="long").run_sync("Dig.")
        huge = ScriptedModel([call("dig", characters=9000), "done"])
        Agent(huge, name="cli-huge", tools=[dig], compaction=window).options(id="huge").run_sync("Dig.")
        summaries = iter(["", "At last."])
        silent = ScriptedModel(script, summary=lambda _: next(summaries))
        Agent(silent, name="cli-silent", tools=[dig], compaction=window).options(id="silent").run_sync("Dig.")
        yield


def test_the_journal_shows_why_and_what_was_summarized() -> None:
    output = show("long")
    assert "context full" in output
    assert "the limit is 80% of the 1,000" in output
    assert "messages summarised, the newest 2 kept" in output
    assert "“Much was dug.”" in output
    assert "failed" not in output
    assert "results of tools were cut to 1," in show("huge")


def test_the_conversation_has_all_messages_and_the_summary_in_its_place() -> None:
    output = show("long", "--conversation")
    assert output.count("→ dig(") == 9
    assert "The model was not asked" in output
    assert output.index("compacts 15 messages summarised, the newest 2 kept") < output.index("Much was dug.")
    assert output.count("answers") == 1
    assert "results of tools were cut" in show("huge", "--conversation")
    silent = show("silent", "--conversation")
    assert silent.index("no summary: The summary is empty.") < silent.index("At last.")


def test_json_has_stable_names() -> None:
    output = CliRunner().invoke(main, ["show", "long", "--conversation", "--json"]).output
    [summary] = [one for one in json.loads(output)["messages"] if one["role"] == "summary"]
    assert summary["text"] == "Much was dug."
    assert summary["final"] is False
    assert summary["compaction"] == {
        "summarized_count": 15,
        "kept_count": 2,
        "answer_count": 7,
        "max_result_length": None,
    }
    output = CliRunner().invoke(main, ["show", "long", "--json"]).output
    [record] = [one for one in json.loads(output)["journal"] if one["name"] == "compaction"]
    assert record["model_call"]["compaction"]["summarized_count"] == 15
