"""What type checkers and editors know of agents: read by pyright in ``test_agent_typing``, never executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from holdfast import Agent, AgentResult, Handle, ModelOptions, Output, WorkflowOptions, llm_step
from holdfast.agents.agent_handle import AgentHandle


@dataclass
class Report:
    title: str


writer = Agent("openai:gpt-4o", name="writer")
reporter = Agent("openai:gpt-4o", name="reporter", output_type=Report)
careful = Agent("openai:gpt-4o", name="careful", output_type=Output(Report, retries=5))
lengthy = Agent("openai:gpt-4o", name="lengthy", output_type=Output(str, continue_truncated=True))
counter = Agent("openai:gpt-4o", name="counter", output_type=Output(list[int]))
assert_type(writer, Agent[str])
assert_type(reporter, Agent[Report])
assert_type(careful, Agent[Report])
assert_type(lengthy, Agent[str])
assert_type(counter, Agent[list[int]])
assert_type(careful.options(id="r-1", delay="5 min"), Agent[Report])

configured = Agent(
    "openai:gpt-4o",
    name="configured",
    model_options=ModelOptions(settings={"temperature": 0, "openai_reasoning_effort": "low"}, timeout="1 min"),
    workflow_options=WorkflowOptions(queue="llm", timeout="1 h", tags=["night"]),
)
assert_type(configured, Agent[str])


@llm_step(model="openai:gpt-4o", output_type=Report, model_options=ModelOptions(timeout=30))
async def summarize(text: str) -> str:
    return text


async def run() -> None:
    assert_type(await careful.run("go"), AgentResult[Report])
    assert_type((await reporter.run("go")).output, Report)
    handle = await careful.options(id="r-2").start("go")
    assert_type(handle, AgentHandle[Report])
    plain: Handle[AgentResult[Report]] = handle
    assert_type(await summarize("text"), Report)
    print(plain)


Agent("openai:gpt-4o", name="old", model_timeout=60)  # pyright: ignore[reportCallIssue]
Output(Report, 5)  # pyright: ignore[reportCallIssue]
writer.options(dely=5)  # pyright: ignore[reportCallIssue]
