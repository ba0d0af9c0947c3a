"""Agents with a scripted model: tools, a sub-agent, and a tool that needs an approval. Tools write the ledger."""

from __future__ import annotations

from typing import Any

from ledger import effect
from pydantic_ai.messages import ModelResponse

from holdfast import Agent, tool
from holdfast.testing import ScriptedModel, call

PARAGRAPH = "A sentence that the model has written. " * 20


class ForgetfulModel(ScriptedModel):
    """A scripted model that doesn't keep a list of its calls, which would grow for as long as the worker lives."""

    async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
        self.calls.clear()
        return await super().request(*args, **kwargs)


@tool
async def look_up(topic: str) -> str:
    """Look a topic up."""
    with effect(topic):
        return f"{topic}: {PARAGRAPH}"


@tool
def write_draft(text: str) -> str:
    """Write a draft. In a thread."""
    with effect():
        return f"{len(text)} characters"


@tool(requires_approval=True, effect="once")
async def publish(title: str) -> str:
    """Publish the draft, once a person has approved."""
    with effect(title):
        return f"{title} is published"


reviewer = Agent(
    ForgetfulModel([[call("look_up", topic="style")], f"The review: {PARAGRAPH}"]), name="reviewer", tools=[look_up]
)
author = Agent(
    ForgetfulModel(
        [
            [call("look_up", topic="history"), call("look_up", topic="geography")],
            [PARAGRAPH, call("write_draft", text=PARAGRAPH)],
            call("reviewer", task="Review the draft."),
            call("publish", title="The article"),
            "It is published.",
        ]
    ),
    name="author",
    tools=[look_up, write_draft, publish],
    subagents=[reviewer],
)
