"""A user's folder with agents in it, whose models answer by a script, and runs of theirs in every state."""

from __future__ import annotations

from pathlib import Path

from cli_project import Project

LAB = '''
import asyncio

from pydantic import BaseModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart

from holdfast import Output, Agent, Budget, llm_step, step, tool, workflow
from holdfast.testing.scripted_model import ScriptedModel, answer, call


def gpt(*script, usage=(1200, 60), name="gpt-4o"):
    return ScriptedModel(list(script), name=name, provider="openai", usage=usage)


@tool
async def web_search(query: str) -> list[str]:
    """Search."""
    return [f"{query} is a thing"]


@tool
def read_page(url: str) -> str:
    """Read a page."""
    if "bad" in url:
        raise ConnectionError("no route to host \\x1b[31m")
    return "Lorem ipsum dolor sit amet. " * 80 + "The end."


@tool
def write_file(path: str, text: str) -> int:
    """Write a file."""
    return len(text)


digging = gpt("It has two faults:\\n1. it is old", usage=(800, 40), name="gpt-4o-mini")
archaeologist = Agent(digging, name="archaeologist")
research = Agent(
    gpt(
        ["I will look it up.", call("web_search", query="entanglement"), call("read_page", url="https://bad.example")],
        [call("archaeologist", task="What is wrong with legacy.py?"), call("nope", x=1)],
        [call("write_file", path="out.py", text="def f(x):\\n    return x\\n"), call("web_search", query=3)],
        call("read_page", url="https://good.example"),
        "Two particles share one state.\\n\\nMeasuring one tells you the other.",
    ),
    name="research",
    tools=[web_search, read_page, write_file],
    subagents=[archaeologist],
)


class City(BaseModel):
    name: str
    people: int


typed = Agent(
    ScriptedModel(["Paris", answer(name="Paris", people=2)], usage=(100, 10)), name="typed", output_type=City
)

bad = gpt(ModelHTTPError(401, "gpt-5", {"error": {"message": "Incorrect API key provided"}}), name="gpt-5")
second = ScriptedModel(["from the second"], name="claude-sonnet-5", provider="anthropic", usage=(2000, 30))
fall = Agent(bad, fallback=second, name="fall")
fails = Agent(bad, name="fails")
flaky = Agent(gpt(ModelHTTPError(503, "gpt-5", {"error": {"message": "overloaded"}}), name="gpt-5"), name="flaky")

short = ModelResponse([TextPart("Once upon a")], finish_reason="length")
cut = Agent(ScriptedModel([short]), name="cut")
continued = Agent(ScriptedModel([short, " time."]), name="continued", output_type=Output(str, continue_truncated=True))

talk = ScriptedModel(["Hello Ann.", "You are Ann.", "Still Ann."], usage=(10, 5))
chat = Agent(talk, name="chat", instructions=lambda: "Be kind.")

poor = Agent(
    gpt(call("web_search", query="a"), "done", usage=(10_000, 500)),
    name="poor",
    tools=[web_search],
    budget=Budget(usd=0.05, turns=9),
)
sub = Agent(gpt(call("web_search", query="x"), "sub done", usage=(10_000, 500)), name="sub", tools=[web_search])
rich = Agent(
    gpt([call("sub", task="the one"), call("sub", task="the other")], "rich done", usage=(1000, 50)),
    name="rich",
    subagents=[sub],
    budget=Budget(tokens=25_000),
)


class Note(BaseModel):
    title: str
    stars: int


@llm_step(model=gpt(answer(title="x", stars=3), usage=(100, 50)))
async def rate(text: str) -> Note:
    return f"Rate {text}"


@workflow(id="rated")
async def rated() -> int:
    return (await rate("this")).stars


@step
def nothing() -> None:
    pass


@workflow(id="plain")
async def plain() -> None:
    await nothing()
'''

SEED_LAB = """
import asyncio
from holdfast import Client, RunFailed
from lab import *

async def until_waiting(*ids):
    async with Client() as client:
        for id in ids:
            while (await client.get(id)).state != "waiting":
                await asyncio.sleep(0.05)

async def main():
    await plain()
    await rated()
    await research.options(id="research-1").run("Explain entanglement to me.")
    await typed.options(id="typed-1").run("Which city?")
    await cut.options(id="cut-1").run("Tell a story.")
    await continued.options(id="continued-1").run("Tell a story.")
    await fall.options(id="fall-1").run("Ask.")
    try:
        await fails.options(id="fails-1").run("Ask.")
    except RunFailed:
        pass
    await chat.options(id="chat-1").run("I am Ann.", session="s1")
    said = await chat.options(id="chat-2").run("Who am I?", session="s1")
    await chat.options(id="chat-3").run("And now?", message_history=said.messages)
    await poor.options(id="poor-1").start("Go.")
    await rich.options(id="rich-1").start("Go.")
    await flaky.options(id="flaky-1").start("Ask.")  # left when the process ends
    await until_waiting("poor-1", "rich-1", "rich-1:sub-2", "rich-1:sub-3")

asyncio.run(main())
"""


def make_lab(folder: Path) -> Project:
    """A folder with agents, and the runs of ``SEED_LAB``."""
    folder.mkdir(exist_ok=True)
    (folder / "lab.py").write_text(LAB)
    project = Project(folder)
    done = project.python("-c", SEED_LAB)
    assert done.code == 0, done.err
    return project
