"""The client: runs by name, without their code; what it lists and tells; and the errors that teach."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conformance_world import World, effect_counts, make_unique_id

from holdfast import (
    Agent,
    Client,
    InputError,
    RunConflict,
    RunFailed,
    RunNotFound,
    RunState,
    UnknownWorkflow,
    UsageError,
    current_run,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.testing import ScriptedModel
from waits import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@step
async def cl_greet(name: str, times: int) -> str:
    effect_counts[current_run().id, "greeted"] += 1
    return " ".join(["hello"] * times) + f" {name}"


@workflow
async def cl_greeting(name: str, times: int = 1) -> str:
    return await cl_greet(name, times)


@workflow
async def cl_waiting(word: str) -> list[Any]:
    return [word, await wait_for_signal("go")]


@workflow
async def cl_failing() -> None:
    await cl_greet("", 0)
    raise ValueError("on purpose")


async def test_runs_are_started_by_name_with_options(world: World, client: Client) -> None:
    run = make_unique_id("greeting")
    assert await client.options(id=run, tags=["x"]).run("cl_greeting", "Ada", times=2) == "hello hello Ada"
    info = await client.get(run)
    assert (info.id, info.workflow, info.state, info.tags) == (run, "cl_greeting", RunState.COMPLETED, ("x",))
    assert (info.inputs, info.output, info.error) == ({"name": "Ada", "times": 2}, "hello hello Ada", None)
    assert info.finished_at is not None
    assert info.created_at <= info.finished_at <= datetime.now(UTC) + timedelta(seconds=1)


async def test_what_cannot_be_started_is_refused_with_what_could(world: World, client: Client) -> None:
    with pytest.raises(UnknownWorkflow, match="cl_no_such_thing"):
        await client.run("cl_no_such_thing")
    with pytest.raises(InputError, match="colour"):
        await client.run("cl_greeting", "Ada", colour="red")
    with pytest.raises(InputError):
        await client.run("cl_greeting", "Ada", 1, 2, 3)
    with pytest.raises(RunNotFound):
        await client.get(make_unique_id("missing"))
    with pytest.raises(RunNotFound):
        await client.wait(make_unique_id("missing"))
    with pytest.raises(UsageError, match="no_such_state"):
        await client.list(state="no_such_state")


@workflow
class ClParcel:
    @step(1)
    async def weigh(self, city: str, grams: int) -> int:
        return grams


cl_agent = Agent(ScriptedModel(["yes"]), name="cl_agent")


@pytest.mark.parametrize(
    ("name", "inputs", "fault"),
    [
        ("cl_greeting", {"name": "Ada", "times": "lots"}, "input 'times' must be an integer, not a string"),
        ("cl_greeting", {"times": 2}, "input 'name' is missing: it must be a string"),
        ("ClParcel", {"city": "Oslo", "grams": "heavy"}, "input 'grams' must be an integer, not a string"),
        ("cl_agent", {"prompt": 5}, "input 'prompt' must be a string or a list, not an integer"),
    ],
)
async def test_inputs_that_do_not_fit_use_up_no_id(
    world: World, client: Client, name: str, inputs: dict[str, Any], fault: str
) -> None:
    run = make_unique_id("unfit")
    with pytest.raises(InputError, match=re.escape(fault)):
        await client.options(id=run).start(name, **inputs)
    with pytest.raises(InputError, match=re.escape(fault)):
        await client.start_many(name, [inputs])
    with pytest.raises(InputError):  # in the process that has the code
        await {"cl_greeting": cl_greeting, "ClParcel": ClParcel, "cl_agent": cl_agent}[name].options(id=run)(**inputs)
    with pytest.raises(RunNotFound):
        await client.get(run)


async def test_what_a_workflow_takes_can_be_asked(world: World, client: Client) -> None:
    schema = await client.inputs_schema("cl_greeting")
    assert schema["required"] == ["name"]
    assert schema["properties"] == {"name": {"type": "string"}, "times": {"type": "integer"}}
    with pytest.raises(UnknownWorkflow):
        await client.inputs_schema("cl_no_such_thing")


async def test_many_runs_are_started_at_once(world: World, client: Client) -> None:
    ids = await client.start_many("cl_greeting", [(name,) for name in "abc"] + [{"name": "d", "times": 2}])
    assert await asyncio.gather(*map(client.wait, ids)) == ["hello a", "hello b", "hello c", "hello hello d"]


async def test_a_failure_has_its_class_and_its_message(world: World, client: Client) -> None:
    run = make_unique_id("failing")
    with pytest.raises(RunFailed, match="on purpose") as failed:
        await client.options(id=run).run("cl_failing")
    assert failed.value.run_id == run
    info = await client.get(run)
    assert info.state is RunState.FAILED
    assert info.error is not None
    assert str(info.error).endswith("ValueError: on purpose")


async def test_waiting_for_a_result_has_a_time_out_and_the_run_goes_on(world: World, client: Client) -> None:
    run = make_unique_id("waiting")
    handle = await client.options(id=run).start("cl_waiting", "one")
    with pytest.raises(TimeoutError):
        await client.wait(run, timeout=0.1)
    await client.signal(run, "go", "on")
    assert await handle.result() == ["one", "on"]


async def test_a_run_that_waits_says_for_what(world: World, client: Client) -> None:
    run = make_unique_id("waiting")
    handle = await client.options(id=run).start("cl_waiting", "one")

    async def waits() -> Any:
        info = await client.get(run)
        return info if info.waits_for else None

    info = await wait_until(waits)
    assert info.state is RunState.WAITING
    assert "signal" in info.waits_for  # where workers alone know which one it is, no more is told
    assert info.stall_advice is None
    await handle.signal("go")
    assert await handle.result() == ["one", None]


async def test_runs_are_listed_by_state_workflow_text_and_time_newest_first(world: World, client: Client) -> None:
    # The database has a clock of its own, or one that was read over a connection.
    text, before = make_unique_id("listed"), datetime.now(UTC) - timedelta(seconds=5)
    ids = [f"{text}-{number}" for number in range(3)]
    for run in ids:
        await client.options(id=run).run("cl_greeting", run)
    failing = f"{text}-failing"
    with pytest.raises(RunFailed):
        await client.options(id=failing).run("cl_failing")

    async def listed(**where: Any) -> list[str]:
        return [one.id for one in await client.list(**where)]

    async def all_there() -> list[str] | None:
        found = await listed(text=text)
        ended = await listed(text=text, state=["completed", "failed"])
        return found if len(found) == len(ended) == 4 else None

    assert await wait_until(all_there) == [failing, *reversed(ids)]
    assert await listed(text=text, state="failed") == [failing]
    assert await listed(text=text, workflow="cl_greeting") == [*reversed(ids)]
    assert await listed(text=text, created_before=before) == []
    assert await listed(text=text, created_after=before, limit=2) == [failing, ids[2]]
    assert await listed(text=text, limit=2, before=ids[2]) == [ids[1], ids[0]]


async def test_a_run_is_followed_until_it_ends_and_from_any_place(world: World, client: Client) -> None:
    run = make_unique_id("waiting")
    handle = await cl_waiting.options(id=run).start("one")
    first = asyncio.ensure_future(anext(client.events(run)))
    await asyncio.sleep(0.1)
    await handle.signal("go", "now")
    event = await asyncio.wait_for(first, 20)
    assert (event.kind, event.name, event.data) == ("signal", "go", {"value": "now"})
    rest = [one async for one in client.events(run, event.offset)]
    assert [(one.kind, one.data) for one in rest] == [("ended", {"state": "completed", "output": ["one", "now"]})]
    assert [one async for one in handle.events(rest[-1].offset)] == []


async def test_events_tell_steps_failures_and_the_end(world: World, client: Client) -> None:
    run = make_unique_id("failing")
    with pytest.raises(RunFailed):
        await client.options(id=run).run("cl_failing")
    events = [one async for one in client.events(run, follow=False)]
    assert [(one.kind, one.name, one.step) for one in events] == [("step", "cl_greet", 1), ("ended", "", None)]
    assert events[-1].data["state"] == "failed"
    with pytest.raises(RunNotFound):
        await anext(client.events(make_unique_id("missing")))


async def test_served_workflows_are_listed(world: World, client: Client) -> None:
    served = {one.name: one for one in await client.health()}
    assert served["cl_greeting"].state == "serving"
    assert served["cl_greeting"].worker_count == 1


async def test_a_client_learns_of_a_conflict(world: World, client: Client) -> None:
    run = make_unique_id("conflict")
    await client.options(id=run).run("cl_greeting", "Ada")
    with pytest.raises(RunConflict, match=run):
        await client.options(id=run).run("cl_greeting", "Bob")
    assert effect_counts[run, "greeted"] == 1


async def test_a_client_without_an_event_loop(world: World) -> None:
    def without() -> list[Any]:
        client = Client(world.url)
        run = make_unique_id("sync")
        assert client.options(id=run).start_sync("cl_waiting", "sync") == run
        client.signal_sync(run, "go", 1)
        return [client.wait_sync(run), client.get_sync(run).state]

    assert await asyncio.to_thread(without) == [["sync", 1], RunState.COMPLETED]
