"""The adapter keeps the promises of every adapter, and the page of the docs is true."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool
from quiet import QUIET

from holdfast.engine.program_context import find_program
from holdfast.integrations.crewai import durable
from holdfast.testing import ScriptedChat, ScriptedTools, check_adapter

PAGE = Path(__file__).parents[3] / "docs" / "frameworks" / "crewai.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def make_crew(chat: ScriptedChat, tools: ScriptedTools, task: str) -> Crew:
    class Model(BaseLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            answer = chat.answer([message["content"] for message in messages if message["role"] == "tool"])
            used = {"prompt_tokens": answer.input_tokens, "completion_tokens": answer.output_tokens}
            self._track_token_usage_internal(used)
            calls = [
                {
                    "id": one.id,
                    "type": "function",
                    "function": {"name": one.name, "arguments": json.dumps(one.arguments)},
                }
                for one in answer.tool_calls
            ]
            return calls or answer.text

        async def acall(self, *args: Any, **kwargs: Any) -> Any:
            return self.call(*args, **kwargs)

        def supports_function_calling(self) -> bool:
            return True

    scout = Agent(
        role="scout",
        goal="Look up cities",
        backstory="",
        llm=Model(model="scripted"),
        tools=[tool("look_up")(tools.look_up), tool("charge")(tools.charge)],
    )
    work = Task(description=task, expected_output="What was found.", agent=scout)
    return Crew(name="checked", agents=[scout], tasks=[work])


def test_the_adapter_keeps_its_promises():
    async def agent(chat: ScriptedChat, tools: ScriptedTools, task: str) -> str:
        crew = make_crew(chat, tools, task)
        if find_program() is not None:  # elsewhere, a kickoff of a durable crew is a run
            durable(crew, effects={"charge": "once"})
        return (await crew.akickoff()).raw

    asyncio.run(check_adapter(agent))


@pytest.mark.parametrize("code", SNIPPETS, ids=[str(number) for number in range(1, len(SNIPPETS) + 1)])
def test_a_snippet_of_the_docs_runs(code: str, tmp_path: Path):
    script = tmp_path / "snippet.py"
    script.write_text(code)
    source = str(PAGE.parents[2] / "src")
    paths = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **QUIET, "PYTHONPATH": paths, "HOLDFAST_URL": f"sqlite:///{tmp_path / 'runs.db'}"}
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_the_page_has_snippets():
    assert len(SNIPPETS) == 3
