"""A pipeline of Google ADK: a planner with tools and a transfer, two critics at the same time, and an editor.

``own`` makes a run of its own, ``program`` calls the same runner in a program, ``stream`` streams in a run of its own,
and ``stored`` keeps the session in SQLite.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from effects import effect
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.runners import InMemoryRunner, Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from holdfast import program
from holdfast.integrations.google_adk import HoldfastSessionService, durable

MODEL = "gemini-2.5-flash"


def search(query: str, tool_context: ToolContext) -> str:
    """Search."""
    with effect("search"):
        tool_context.state[f"found_{query}"] = True
        return f"search({query})"


async def charge(query: str) -> dict[str, str]:
    """Charge a card."""
    with effect("charge"):
        return {"charged": query}


def check_weather(query: str) -> str:
    """Check the weather."""
    with effect("check_weather"):
        return f"weather({query})"


def make_agent() -> SequentialAgent:
    booker = LlmAgent(
        name="booker", model=MODEL, description="Books trips.", instruction="script:booker", tools=[charge, search]
    )
    planner = LlmAgent(
        name="planner", model=MODEL, instruction="script:planner", tools=[search, check_weather], sub_agents=[booker]
    )
    critics = ParallelAgent(
        name="critics",
        sub_agents=[
            LlmAgent(
                name=name, model=MODEL, instruction=f"script:{name}", tools=[check_weather], output_key=f"{name}_says"
            )
            for name in ("cost", "style")
        ],
    )
    editor = LlmAgent(name="editor", model=MODEL, instruction="script:editor {cost_says} / {style_says} / {found_Oslo}")
    return SequentialAgent(name="trip", sub_agents=[planner, critics, editor])


def make_runner(kind: str) -> Runner:
    app = App(name="trips", root_agent=make_agent())
    if kind == "stored":
        from google.adk.sessions.sqlite_session_service import SqliteSessionService

        service: Any = SqliteSessionService("sessions.db")
    elif kind == "remembered":
        service = HoldfastSessionService()
    else:
        return InMemoryRunner(app=app)
    return Runner(app=app, session_service=service)


KIND = sys.argv[1] if __name__ == "__main__" else "own"
runner = durable(make_runner(KIND), effects={"charge": "once"})


def message(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


async def open_session() -> None:
    key = {"app_name": runner.app_name, "user_id": "ada", "session_id": "s1"}
    if await runner.session_service.get_session(**key) is None:
        await runner.session_service.create_session(**key)


async def ask(text: str, **options: Any) -> str:
    answers: list[str] = []
    async for event in runner.run_async(user_id="ada", session_id="s1", new_message=message(text), **options):
        if event.is_final_response() and event.content and not event.partial:
            answers += [part.text for part in event.content.parts or () if part.text]
    return answers[-1]


async def describe_session() -> str:
    """What must be the same after a crash: the authors of the session's events, and its state."""
    session = await runner.session_service.get_session(app_name=runner.app_name, user_id="ada", session_id="s1")
    assert session is not None
    authors = sorted(event.author for event in session.events)
    assert len({event.id for event in session.events}) == len(authors), "an event is in the session twice"
    return f"{len(authors)} events of {sorted(set(authors))}, {sorted(session.state)}"


@program(id="trip")
async def plan() -> str:
    await open_session()
    first = await ask("Plan a trip.")
    return f"{first} {await describe_session()}"


async def main() -> str:
    if KIND == "program":
        return await plan()
    await open_session()
    config = RunConfig(streaming_mode=StreamingMode.SSE if KIND == "stream" else StreamingMode.NONE)
    answer = await ask("Plan a trip.", run_config=config, run_id="trip")
    return f"{answer} {await describe_session()}"


if __name__ == "__main__":
    print("RESULT:", asyncio.run(main()))
