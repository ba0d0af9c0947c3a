"""Arguments that other frameworks have, and what the error says to write instead."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Agent, DefinitionError, llm_step, step, tool, workflow


@workflow
async def hinted() -> None: ...


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (
            lambda: Agent("openai:gpt-4o", name="a", system_prompt="x"),
            "no argument system_prompt=: write instructions=",
        ),
        (lambda: Agent("openai:gpt-4o", name="a", task_queue="q"), r"write workflow_options=WorkflowOptions\(queue="),
        (lambda: Agent("openai:gpt-4o", name="a", max_steps=3), "write max_turns="),
        (
            lambda: Agent("openai:gpt-4o", name="a", model_timeout=60),
            r"no argument model_timeout=: write model_options=ModelOptions\(timeout=\.\.\.\)",
        ),
        (lambda: Agent("openai:gpt-4o", name="a", instruction="x"), r"did you mean instructions=\?"),
        (lambda: Agent("openai:gpt-4o", name="a", zzz=1), "it takes approvals, budget, "),
        (lambda: step(max_retries=3), "@step has no argument max_retries=: write retries="),
        (lambda: workflow(task_queue="q"), "@workflow has no argument task_queue=: write queue="),
        (lambda: hinted.options(workflow_id="x"), r"options\(...\) has no argument workflow_id=: write id="),
        (lambda: tool(needs_approval=True), "write requires_approval="),
        (lambda: llm_step(model="openai:gpt-4o", system_prompt="x"), "write instructions="),
    ],
)
def test_an_argument_of_another_framework_gets_a_hint(declare: Callable[[], Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        declare()


def test_hints_name_arguments_that_exist() -> None:
    from holdfast.agents import llm_step, tools
    from holdfast.agents.agent_keyword_hints import AGENT_KEYWORD_HINTS
    from holdfast.authoring import step, workflow

    for hints, function in (
        (AGENT_KEYWORD_HINTS, Agent.__init__),
        (tools._KEYWORD_HINTS, tools.tool),
        (llm_step._KEYWORD_HINTS, llm_step.llm_step),
        (step._KEYWORD_HINTS, step.step),
        (workflow._KEYWORD_HINTS, workflow.workflow),
        (workflow._OPTION_HINTS, workflow.Workflow.options),
    ):
        known = set(inspect.signature(function).parameters)
        for given, hint in hints.items():
            assert given not in known, f"{given}= exists: its hint is never shown"
            if hint.startswith("write "):
                assert hint.split()[1].partition("=")[0] in known | {"it"}, hint
            for group, option in re.findall(r"\b(ModelOptions|WorkflowOptions)\((\w+)=", hint):
                assert option in inspect.signature(getattr(holdfast, group)).parameters, hint
