"""Graphs, functional workflows, streams, and interrupts that are durable."""

from __future__ import annotations

import asyncio
import operator
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain.chat_models import init_chat_model
from langchain.tools import tool
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from replays import answer_approvals, count_steps, open_client, run_and_replay, wait_for_approval

from holdfast.errors import DefinitionError, InputError, RunFailed, UsageError
from holdfast.integrations.langgraph import durable

pytestmark = pytest.mark.asyncio
calls: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


class State(TypedDict, total=False):
    seen: Annotated[list[Any], operator.add]
    number: int
    answer: Any


def build(edges: list[tuple[str, str]], /, *, state: Any = State, **nodes: Any) -> StateGraph[Any]:
    builder = StateGraph(state)
    for name, node in nodes.items():
        builder.add_node(name, node)
    for start, end in edges:
        builder.add_edge(start, end)
    return builder


@dataclass
class Point:
    x: int


class Place(BaseModel):
    name: str
    point: tuple[int, int] = (0, 0)


async def test_a_replayed_graph_runs_no_node_again(provider):
    async def plan(state: State) -> State:
        calls.append("plan")
        return {"number": 2, "seen": [Point(1), Place(name="Oslo", point=(1, 2)), {"a": (1, {2})}]}

    def work(state: State) -> State:
        calls.append(f"work {state['number']}")
        return {"seen": [state["number"] * 10]}

    def fan_out(state: State) -> list[Send]:
        return [Send("work", {"number": number}) for number in range(state["number"])]

    builder = build([(START, "plan"), ("work", END)], plan=plan, work=work)
    builder.add_conditional_edges("plan", fan_out, ["work"])
    graph = durable(builder.compile())
    first, second, run_id = await run_and_replay(lambda: graph.ainvoke({"seen": []}))
    assert first == second
    assert first["seen"] == [Point(1), Place(name="Oslo", point=(1, 2)), {"a": (1, {2})}, 0, 10]
    assert sorted(calls) == ["plan", "work 0", "work 1"]
    assert await count_steps(run_id) == {"plan": 1, "work": 2}


async def test_nodes_update_and_remove_messages_of_an_earlier_process(provider):
    def shorten(state: MessagesState) -> dict[str, Any]:
        calls.append("shorten")
        return {"messages": [RemoveMessage(state["messages"][0].id), AIMessage("Short.")]}

    def replace(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage("Now.", id=state["messages"][0].id)]}

    edges = [(START, "shorten"), ("shorten", "replace")]
    graph = durable(build(edges, state=MessagesState, shorten=shorten, replace=replace).compile())
    asked = {"messages": [{"role": "user", "content": "one"}, ("user", "two")]}
    first, second, _ = await run_and_replay(lambda: graph.ainvoke(asked))
    assert [message.text for message in first["messages"]] == ["Now.", "Short."]
    assert first == second
    assert calls == ["shorten"]


async def test_a_node_of_a_subgraph_goes_on_in_the_parent(provider):
    def leave(state: State) -> Command[Any]:
        calls.append("leave")
        return Command(graph=Command.PARENT, goto="other", update={"seen": ["left"]})

    def other(state: State) -> State:
        calls.append("other")
        return {"seen": ["other"]}

    inner = build([(START, "leave")], leave=leave).compile()
    graph = durable(build([(START, "inner")], inner=inner, other=other).compile())
    first, second, _run_id = await run_and_replay(lambda: graph.ainvoke({"seen": []}))
    assert first == second == {"seen": ["left", "other"]}
    assert calls == ["leave", "other"]


async def test_the_retries_of_a_node_are_a_part_of_its_step(provider):
    def flaky(state: State) -> State:
        calls.append("flaky")
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return {"answer": len(calls)}

    builder = StateGraph(State)
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0.01, jitter=False))
    builder.add_edge(START, "flaky")
    graph = durable(builder.compile())
    first, second, run_id = await run_and_replay(lambda: graph.ainvoke({}))
    assert first == second
    assert first["answer"] == 3
    assert len(calls) == 3
    assert await count_steps(run_id) == {"flaky": 1}


async def test_a_failed_node_fails_the_run_with_its_own_error(provider):
    def broken(state: State) -> State:
        raise KeyError("no such city")

    graph = durable(build([(START, "broken")], broken=broken).compile(name="broken-graph"))
    with pytest.raises(KeyError, match="no such city"):
        await graph.ainvoke({})


async def test_an_interrupt_asks_a_person_and_repeats_no_call(provider):
    provider.scripts = {"draft": [{"text": "A draft."}]}
    model = init_chat_model("openai:gpt-4o")

    @tool
    def look(city: str) -> str:
        """Look."""
        calls.append("look")
        return city

    async def review(state: State) -> State:
        draft = await model.ainvoke([("system", "script:draft"), ("user", "Write.")])
        await look.ainvoke({"city": "Oslo"})
        color = interrupt({"question": "Which color?", "draft": draft.text})
        size = interrupt("Which size?")
        calls.append("done")
        return {"answer": [color, size]}

    graph = durable(build([(START, "review")], review=review).compile())
    person = asyncio.create_task(answer_approvals("blue", {"width": 3}))
    first, second, _run_id = await run_and_replay(lambda: graph.ainvoke({}))
    approvals = await person
    assert [one.question for one in approvals] == ['Which color?\n\n{\n "draft": "A draft."\n}', "Which size?"]
    assert first == second
    assert first["answer"] == ["blue", {"width": 3}]
    assert calls == ["look", "done"]
    assert len(provider.address.calls) == 1


async def test_parallel_nodes_ask_at_the_same_time(provider):
    def make(name: str) -> Any:
        def ask(state: State) -> State:  # a plain function, in a thread
            return {"seen": [(name, interrupt(name))]}

        return ask

    graph = durable(build([(START, "one"), (START, "two")], one=make("one"), two=make("two")).compile())
    person = asyncio.create_task(answer_approvals(*[lambda approval: f"for {approval.question}"] * 2))
    first, second, _ = await run_and_replay(lambda: graph.ainvoke({"seen": []}))
    await person
    assert first == second == {"seen": [("one", "for one"), ("two", "for two")]}


async def test_an_interrupt_with_a_schema_accepts_only_what_fits_and_may_be_denied(provider):
    def ask(state: State) -> State:
        place = interrupt("Where?", response_schema=Place)
        return {"answer": [place, interrupt("Really?"), interrupt("Sure?")]}

    graph = durable(build([(START, "ask")], ask=ask).compile(name="asking"))
    running = asyncio.create_task(graph.ainvoke({}))
    async with open_client() as client:
        place = await wait_for_approval(client)
        with pytest.raises(InputError, match="name"):
            await client.approve(place.id, {"nickname": "Oslo"})
        await client.approve(place.id, {"name": "Oslo"})
        really = await wait_for_approval(client, {place.id})
        await client.deny(really.id)
        sure = await wait_for_approval(client, {place.id, really.id})
        await client.approve(sure.id)
    assert (await running)["answer"] == [Place(name="Oslo"), False, True]


async def test_the_functional_api(provider):
    @task
    async def double(number: int) -> int:
        calls.append(f"double {number}")
        return number * 2

    @task
    def stop(number: int) -> int:
        raise ValueError(f"stop at {number}")

    @entrypoint()
    async def add(numbers: list[int]) -> dict[str, Any]:
        doubled = await asyncio.gather(*(double(number) for number in numbers))
        name = interrupt("Which name?")
        try:
            await stop(3)
        except ValueError as error:
            return {"sum": sum(doubled), "name": name, "error": str(error)}

    graph = durable(add)
    person = asyncio.create_task(answer_approvals("Ann"))
    first, second, run_id = await run_and_replay(lambda: graph.ainvoke([1, 2, 2]))
    await person
    assert first == second == {"sum": 10, "name": "Ann", "error": "stop at 3"}
    assert sorted(calls) == ["double 1", "double 2", "double 2"]
    assert (await count_steps(run_id))["double"] == 3


async def test_a_program_streams_all_modes_and_events(provider):
    provider.scripts = {"talk": [{"text": "It is a sunny day."}]}
    model = init_chat_model("openai:gpt-4o")

    async def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([("system", "script:talk"), *state["messages"]])]}

    graph = durable(build([(START, "talk")], state=MessagesState, talk=talk).compile())
    asked = {"messages": [("user", "Hello")]}

    async def stream() -> list[Any]:
        return [chunk async for chunk in graph.astream(asked, stream_mode=["messages", "updates", "values", "custom"])]

    live, replayed, _ = await run_and_replay(stream)
    text = "".join(chunk[0].text for mode, chunk in live if mode == "messages")
    assert text == "It is a sunny day."
    assert len([mode for mode, _ in live if mode == "messages"]) > 3
    assert [one for one in live if one[0] in ("updates", "values")] == [
        one for one in replayed if one[0] in ("updates", "values")
    ]

    async def read_events() -> list[str]:
        return [event["event"] async for event in graph.astream_events(asked, version="v2")]

    events, _, _ = await run_and_replay(read_events)
    assert {"on_chat_model_stream", "on_chain_end"} <= set(events)


async def test_a_stream_outside_of_programs_is_a_run_of_its_own(provider):
    provider.scripts = {"talk": [{"text": "It is a sunny day."}]}
    model = init_chat_model("openai:gpt-4o")

    async def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([("system", "script:talk"), *state["messages"]])]}

    graph = durable(build([(START, "talk")], state=MessagesState, talk=talk).compile(name="talking"))
    asked, config = {"messages": [("user", "Hello")]}, {"configurable": {"run_id": "talk-1"}}
    tokens = [chunk[0].text async for chunk in graph.astream(asked, config, stream_mode="messages")]
    assert "".join(tokens) == "It is a sunny day."
    (state,) = [chunk async for chunk in graph.astream(asked, config, stream_mode="values")]  # joins the ended run
    assert state["messages"][-1].text == "It is a sunny day."
    with pytest.raises(UsageError, match='stream_mode="values"'):
        [chunk async for chunk in graph.astream(asked, config, stream_mode="messages")]
    parts = [part async for part in graph.astream(asked, stream_mode=["updates", "values"], subgraphs=True)]
    assert [(namespace, mode) for namespace, mode, _ in parts] == [((), "values"), ((), "updates"), ((), "values")]
    with pytest.raises(UsageError, match="needs a @program"):
        async for _ in graph.astream_events(asked, version="v2"):
            pass
    assert len(provider.address.calls) == 2


async def test_an_unknown_effect_is_refused(provider):
    def ship(state: State) -> State:
        return {"answer": "shipped"}

    with pytest.raises(DefinitionError, match="'read', 'idempotent', 'once'"):
        durable(build([(START, "ship")], ship=ship).compile(), effects={"ship": "twice"})


async def test_an_effect_that_resembles_a_name_in_a_graph_causes_a_warning():
    @tool
    def charge(euros: int) -> str:
        """Charge the customer's card."""
        return f"charged {euros}"

    @task
    def pay(euros: int) -> str:
        return str(charge.invoke({"euros": euros}))

    def ship(state: State) -> State:
        return {"answer": pay(5).result()}

    builder = build([(START, "ship")], ship=ship)
    with warnings.catch_warnings(action="error", category=UserWarning):
        durable(
            builder.compile(), name="known", effects={"ship": "once", "pay": "once", "charge": "once", "other": "once"}
        )
    for name, similar in {"shipp": "ship", "chrage": "charge"}.items():
        with pytest.warns(
            UserWarning, match=f"graph 'like-{name}' has no .* {name!r} so far.*Did you mean {similar!r}"
        ):
            durable(builder.compile(), name=f"like-{name}", effects={name: "once"})


async def test_what_is_not_supported_is_refused(provider):
    def work(state: State) -> Any:
        return {"answer": object()}

    builder = build([(START, "work")], work=work)
    with pytest.raises(DefinitionError, match=r"checkpointer \(InMemorySaver\)"):
        durable(builder.compile(checkpointer=InMemorySaver()))
    with pytest.raises(DefinitionError, match="static breakpoints"):
        durable(builder.compile(interrupt_before=["work"]))
    with pytest.raises(DefinitionError, match="takes a compiled graph"):
        durable(builder)
    graph = durable(builder.compile(name="refusing"))
    with pytest.raises(DefinitionError, match="durable already"):
        durable(graph)
    with pytest.raises(UsageError, match="holdfast approve"):
        await graph.ainvoke(Command(resume=1))
    with pytest.raises(UsageError, match="interrupt_before="):
        await graph.ainvoke({}, interrupt_before=["work"])
    with pytest.raises(RunFailed, match="output of step 'work'"):
        await graph.ainvoke({})


async def test_a_blocking_call_on_the_event_loop_is_refused(provider):
    model = init_chat_model("openai:gpt-4o")

    async def block(state: State) -> State:
        return {"answer": model.invoke("Hello").text}

    graph = durable(build([(START, "block")], block=block).compile(name="blocking"))
    with pytest.raises(RunFailed, match="Await the async form"):
        await graph.ainvoke({})


async def test_models_and_tools_outside_of_durable_graphs_are_not_recorded(provider):
    provider.scripts = {"talk": [{"text": "Hi."}]}
    model = init_chat_model("openai:gpt-4o")

    async def talk(state: State) -> State:
        return {"answer": (await model.ainvoke([("system", "script:talk"), ("user", "Hello")])).text}

    plain = build([(START, "talk")], talk=talk).compile()
    _, _, run_id = await run_and_replay(lambda: plain.ainvoke({}))
    assert await count_steps(run_id) == {}
    assert len(provider.address.calls) == 2
