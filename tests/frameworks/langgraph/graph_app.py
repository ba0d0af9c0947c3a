"""Graphs of LangGraph with nodes, subgraphs, tasks, and interrupts, as they are killed by the tests."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import sys
from typing import Annotated, Any, TypedDict

from effects import effect
from langchain.chat_models import init_chat_model
from langchain.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from holdfast import Client, program
from holdfast.errors import StepOutcomeUnknown, StoreNotFound
from holdfast.integrations.langgraph import durable

model = init_chat_model("openai:gpt-4o")


class State(TypedDict, total=False):
    topic: str
    facts: Annotated[list[str], operator.add]
    answer: str
    approved: bool


def ask_model(script: str, text: str) -> Any:
    return [("system", f"script:{script}"), ("user", text)]


# A subgraph


async def look(state: State) -> State:
    with effect("look"):
        return {"facts": [f"seen {state['topic']}"]}


async def judge(state: State) -> Command[str]:
    answer = await model.ainvoke(ask_model("judge", f"Judge {state['topic']}."))
    return Command(goto=END, update={"facts": [answer.text]})


inner = StateGraph(State)
inner.add_node("look", look)
inner.add_node("judge", judge)
inner.add_edge(START, "look")
inner.add_edge("look", "judge")


# The graph: two parallel nodes, a fan-out to the subgraph, and an interrupt


def measure(state: State) -> State:  # a plain function, which runs in a thread
    with effect("measure"):
        return {"facts": ["measured"]}


async def read(state: State) -> State:
    parts = [part.text async for part in model.astream(ask_model("read", f"Read about {state['topic']}."))]
    return {"facts": ["".join(parts)]}


def fan_out(state: State) -> list[Send]:
    return [Send("visit", {"topic": f"{state['topic']}-{part}"}) for part in ("east", "west")]


async def visit(state: State) -> State:
    found = await inner_graph.ainvoke({"topic": state["topic"]})
    return {"facts": found["facts"]}


async def review(state: State) -> State:
    draft = await model.ainvoke(ask_model("review", "Write a draft."))
    answer = interrupt({"question": "Publish it?", "draft": draft.text})
    return {"approved": answer, "answer": f"{draft.text} {sorted(state['facts'])}"}


def route(state: State) -> str:
    return "publish" if state["approved"] else END


@tool
async def announce(text: str) -> str:
    """Announce a text."""
    with effect("announce"):
        return "announced"


async def publish(state: State) -> State:
    try:
        await announce.ainvoke({"text": state["answer"]})
    except StepOutcomeUnknown:
        pass  # a person looks at the site, and finds it announced
    return {"answer": f"published: {state['answer']}"}


inner_graph = inner.compile()
builder = StateGraph(State)
for name, node in {
    "measure": measure,
    "read": read,
    "visit": visit,
    "nested": inner_graph,
    "review": review,
    "publish": publish,
}.items():
    builder.add_node(name, node)
builder.add_edge(START, "measure")
builder.add_edge(START, "read")
builder.add_conditional_edges("measure", fan_out, ["visit"])
builder.add_edge(["read", "visit"], "nested")
builder.add_edge("nested", "review")
builder.add_conditional_edges("review", route, ["publish", END])
graph = durable(builder.compile(name="report"), effects={"announce": "once"})


# The functional API


@task
def fetch(page: int) -> str:
    with effect("fetch"):
        return f"page {page}"


@task
async def summarize(text: str) -> str:
    return (await model.ainvoke(ask_model("summary", text))).text


@entrypoint()
async def functional(topic: str) -> dict[str, Any]:
    pages = await asyncio.gather(*(fetch(number) for number in range(3)))
    summary = await summarize(" ".join(pages))
    name = interrupt("What is its name?")
    with effect("save"):
        return {"topic": topic, "summary": summary, "name": name}


functional_graph = durable(functional, name="functional")


# Runs


async def answer_approvals(value: Any) -> None:
    """Approve of every question, as a person would do."""
    while True:
        with contextlib.suppress(StoreNotFound):  # the first run creates it
            async with Client() as client:
                for approval in await client.approvals():
                    await client.approve(approval.id, value)
        await asyncio.sleep(0.01)


async def run(value: Any, call: Any) -> Any:
    person = asyncio.create_task(answer_approvals(value))
    try:
        return await call()
    finally:
        person.cancel()


@program(id="two-reports")
async def two_reports() -> str:
    states = await asyncio.gather(*(graph.ainvoke({"topic": topic}) for topic in ("Rome", "Oslo")))
    return " | ".join(state["answer"] for state in states)


RUNS: dict[str, Any] = {
    "graph": lambda: run(None, lambda: graph.ainvoke({"topic": "Rome"}, {"configurable": {"run_id": "report-1"}})),
    "functional": lambda: run("Ann", lambda: functional_graph.ainvoke("Rome", {"configurable": {"run_id": "rome"}})),
    "program": lambda: run(None, two_reports),
}

if __name__ == "__main__":
    print("RESULT:", asyncio.run(RUNS[sys.argv[1]]()))
