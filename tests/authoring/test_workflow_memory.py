"""``memory``: values that outlive runs, in workflow code, in steps, outside of runs, and through a client."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import Client, InputError, Runtime, UnrecordableValue, memory, step, workflow
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio


class Taste(BaseModel):
    drink: str
    sugar: int = 0


@dataclass
class Place:
    city: str
    since: datetime


async def test_what_one_run_puts_another_one_gets():
    @workflow
    async def learn(who: str) -> None:
        await memory.put(f"user/{who}", "drink", "tea with milk")

    @workflow
    async def serve(who: str) -> Any:
        return await memory.get(f"user/{who}", "drink", "water")

    await learn("ada")
    assert await serve("ada") == "tea with milk"
    assert await serve("bob") == "water"


async def test_every_call_of_workflow_code_is_a_recorded_step(url: str):
    @workflow(id="recorded")
    async def flow() -> list[Any]:
        await memory.put("notes", "a", "the tide is high")
        await memory.put("notes", "b", "the moon is full")
        found = await memory.search("notes", "moon")
        listed = await memory.list("notes")
        await memory.delete("notes", "a")
        return [await memory.get("notes", "a"), [one.key for one in found], [one.key for one in listed]]

    assert await flow() == [None, ["b"], ["a", "b"]]
    async with Client(url) as client:
        assert await client.memory.get("notes", "b") == "the moon is full"
    async with Runtime(url) as runtime:
        _, history = await runtime.store_provider.read_journal("recorded")
    names = [record.name for record in history.records]
    assert names == [f"memory.{verb}" for verb in ("put", "put", "search", "list", "delete", "get")]


async def test_a_replay_sees_what_was_read_and_not_what_is_there_now():
    runner = Runner()

    @workflow(id="once-read")
    async def flow() -> Any:
        await memory.put("n", "k", 1)
        first = await memory.get("n", "k")
        await memory.put("n", "k", 2)
        return [first, await memory.get("n", "k")]

    runner.simulate_crash_after(step=3)
    assert (await runner.run(flow)).has_crashed
    result = await runner.resume("once-read")
    assert result.output == [1, 2]
    assert [one.execution_count for one in result.steps] == [1, 1, 1, 1]


async def test_memory_survives_a_crash_at_every_point():
    @workflow
    async def flow() -> Any:
        for number in range(3):
            before = await memory.get("count", "n", 0)
            await memory.put("count", "n", before + 1)
            await memory.put("count", f"at-{number}", f"number {number}")
        await memory.delete("count", "at-0")
        found = await memory.search("count", "number")
        return [await memory.get("count", "n"), sorted(one.key for one in found)]

    assert (await Runner().run(flow)).output == [3, ["at-1", "at-2"]]
    # Each schedule has a store of its own: were a put repeated without its record, the count would be more than 3.
    await Runner(max_pairs=20, replay_processes=0).crash_everywhere(flow)


async def test_values_come_back_as_what_they_are():
    since = datetime(2026, 1, 2, tzinfo=UTC)

    @workflow
    async def flow() -> Any:
        await memory.put("v", "model", Taste(drink="tea", sugar=2))
        await memory.put("v", "data", Place("Oslo", since))
        await memory.put("v", "plain", {"a": [1, 2.5, None, True], "when": since})
        taste = await memory.get("v", "model", type=Taste)
        place = await memory.get("v", "data", type=Place)
        assert isinstance(taste, Taste)
        assert isinstance(place, Place)
        assert await memory.get("v", "nothing", type=Taste) is None
        return [taste.sugar, place.city, place.since == since, (await memory.get("v", "plain"))["when"] == since]

    assert await flow() == [2, "Oslo", True, True]
    assert await memory.get("v", "model", type=Taste) == Taste(drink="tea", sugar=2)
    assert (await memory.list("v"))[1].value == {"drink": "tea", "sugar": 2}

    @workflow
    async def look() -> Any:
        return [one.value for one in await memory.search("v", "tea 2026")]

    found = await look()
    assert {"drink": "tea", "sugar": 2} in found
    assert {"city": "Oslo", "since": "2026-01-02T00:00:00Z"} in found
    assert {"a": [1, 2.5, None, True], "when": since} in found
    assert len(found) == 3


async def test_a_step_and_code_outside_of_runs_go_to_the_store_at_once():
    @step
    async def learn() -> Any:
        await memory.put("s", "k", "first")
        return await memory.get("s", "k")

    @workflow
    async def flow() -> Any:
        return await learn()

    assert await flow() == "first"
    assert await memory.get("s", "k") == "first"
    await memory.put("s", "k", "second", text="words of its own")
    assert [one.value for one in await memory.search("s", "own")] == ["second"]
    assert await memory.search("s", "second") == []
    await memory.delete("s", "k")
    await memory.delete("s", "k")
    assert await memory.list("s") == []


async def test_namespaces_know_nothing_of_each_other():
    await memory.put("one", "k", "apples")
    await memory.put("two", "k", "apples and pears")
    assert [one.value for one in await memory.search("one", "apples pears")] == ["apples"]
    await memory.delete("two", "k")
    assert await memory.get("one", "k") == "apples"


async def test_pages_of_a_namespace():
    for number in range(5):
        await memory.put("pages", f"k{number}", number)
    first = await memory.list("pages", limit=2)
    rest = await memory.list("pages", after=first[-1].key)
    assert [one.value for one in first + rest] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: memory.put("", "k", 1), "namespace is a printable text"),
        (lambda: memory.put("n", " ", 1), "a key is a printable text"),
        (lambda: memory.put("n", "k" * 201, 1), "1 to 200 characters"),
        (lambda: memory.put("n", "a\nb", 1), "a key is a printable text"),
        (lambda: memory.put("n", "k", 1, text=7), "a str, and not 7"),  # type: ignore[arg-type]
        (lambda: memory.search("n", 7), "the words to look for are a str"),  # type: ignore[arg-type]
        (lambda: memory.search("n", "x", limit=0), "limit=0 must be"),
        (lambda: memory.list("n", limit=5000), "limit=5000 must be"),
    ],
    ids=range(8),
)
async def test_what_cannot_be_is_refused(call: Any, words: str):
    with pytest.raises(InputError, match=words):
        await call()
    assert await memory.list("n") == []


async def test_a_value_that_would_not_survive_is_refused():
    with pytest.raises(UnrecordableValue, match="Memory 'k' of namespace 'n'"):
        await memory.put("n", "k", object())
    assert await memory.get("n", "k") is None


async def test_words_of_structured_values_are_found():
    await memory.put("deep", "order-7", {"customer": "Ada", "lines": [{"item": "kettle", "count": 2}]})
    await memory.put("deep", "order-8", ["kettle"])
    assert [one.key for one in await memory.search("deep", "ADA")] == ["order-7"]
    assert {one.key for one in await memory.search("deep", "kettle")} == {"order-7", "order-8"}
    assert (await memory.search("deep", "order-8"))[0].key == "order-8"
