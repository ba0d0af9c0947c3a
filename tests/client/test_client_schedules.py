"""Schedules from a client and in code: what is accepted, and what is told."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Budget,
    Client,
    DefinitionError,
    HoldfastError,
    InputError,
    RunState,
    Runtime,
    Schedule,
    UnknownSchedule,
    UnknownWorkflow,
    UsageError,
    workflow,
)
from holdfast.services.schedules import ScheduleInfo
from holdfast.stores.urls import create_store
from holdfast.testing import ScriptedModel


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(f"sqlite:///{tmp_path}/runs.db")


async def announce(client: Client, **options: Any) -> None:
    """A worker that knows ``etl`` has been there."""

    @workflow
    async def etl(customer: str, days: int = 1) -> str:
        return customer

    async with Runtime(client.url):
        pass


@pytest.mark.asyncio
async def test_a_schedule_is_made_found_paused_resumed_and_deleted(client: Client):
    await announce(client)
    async with client:
        made = await client.schedules.create(
            "nightly", "etl", cron="0 2 * * *", zone="Europe/Berlin", args=["acme"], kwargs={"days": 3},
            catch_up="all", max_catch_up=5, overlap="skip", queue="slow", priority=2, tags=["night"],
        )  # fmt: skip
        assert isinstance(made, ScheduleInfo)
        assert (made.timing, made.zone) == ("0 2 * * * in Europe/Berlin", "Europe/Berlin")
        assert made.inputs == {"customer": "acme", "days": 3}
        assert (made.catch_up, made.max_catch_up, made.overlap, made.queue, made.priority) == (
            "all",
            5,
            "skip",
            "slow",
            2,
        )
        assert (made.tags, made.tag, made.is_declared_in_code, made.is_announced) == (
            ("night",),
            "schedule:nightly",
            False,
            False,
        )
        assert (made.last_run_id, made.last_run_state, made.skipped_at) == ("", None, None)
        assert made.next_at is not None
        assert made.next_at > datetime.now(UTC)
        await client.schedules.create("hourly", "etl", every="1 h", args=["acme"])
        assert [one.name for one in await client.schedules.list()] == ["hourly", "nightly"]
        assert await client.schedules.get("nightly") == made

        assert (await client.schedules.pause("nightly"), await client.schedules.pause("nightly")) == (True, False)
        paused = await client.schedules.get("nightly")
        assert (paused.paused_at is not None, paused.next_at) == (True, None)
        assert (await client.schedules.resume("nightly"), await client.schedules.resume("nightly")) == (True, False)
        assert await client.schedules.get("nightly") == made

        assert (await client.schedules.delete("nightly"), await client.schedules.delete("nightly")) == (True, False)
        with pytest.raises(
            UnknownSchedule, match=r"there is no schedule 'hurly' in sqlite:.*: did you mean 'hourly'\?"
        ):
            await client.schedules.get("hurly")
        for change in (client.schedules.pause, client.schedules.resume, client.schedules.trigger):
            with pytest.raises(UnknownSchedule, match="there is no schedule 'nightly'"):
                await change("nightly")


@pytest.mark.asyncio
async def test_the_same_schedule_may_be_created_again_and_another_one_only_with_replace(client: Client):
    await announce(client)
    async with client:
        first = await client.schedules.create("nightly", "etl", cron="@daily", args=["acme"])
        assert await client.schedules.create("nightly", "etl", cron="@daily", args=["acme"]) == first
        with pytest.raises(UsageError, match=r"'nightly' is there already, and is another one \('etl', @daily\)"):
            await client.schedules.create("nightly", "etl", cron="@hourly", args=["acme"])
        await client.schedules.pause("nightly")
        second = await client.schedules.create("nightly", "etl", cron="@hourly", args=["acme"], replace=True)
        assert (second.timing, second.created_at) == ("@hourly", first.created_at)
        assert second.paused_at is not None


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (UsageError, "when? Give one of the two", {}),
        (UsageError, "when? Give one of the two", {"cron": "@daily", "every": 60}),
        (UsageError, "the hour is '25'", {"cron": "0 25 * * *"}),
        (UsageError, "Did you mean 'Europe/Berlin'?", {"cron": "@daily", "zone": "Berlin"}),
        (UsageError, "in which zone='Europe/Berlin' has no part", {"every": "1 h", "zone": "Europe/Berlin"}),
        (UsageError, "it belongs to every=", {"cron": "@daily", "start": 0}),
        (UsageError, "catch_up='lst' is not known: did you mean 'last'?", {"cron": "@daily", "catch_up": "lst"}),
        (UsageError, "overlap='queue' is not known", {"cron": "@daily", "overlap": "queue"}),
        (UsageError, "max_catch_up=0", {"cron": "@daily", "max_catch_up": 0}),
        (UsageError, "priority=1.5 must be a whole number", {"cron": "@daily", "priority": 1.5}),
        (UsageError, "tags is a collection of words", {"cron": "@daily", "tags": "night"}),
        (UsageError, "those of a schedule may be 65,536", {"cron": "@daily", "args": ["x" * 70_000]}),
        (InputError, "colour", {"cron": "@daily", "kwargs": {"colour": 1}}),
        (UnknownWorkflow, "did you mean 'etl'?", {"cron": "@daily", "workflow": "etx"}),
        (UsageError, "printable", {"cron": "@daily", "name": "night\nly"}),
        (UsageError, "1 to 150", {"cron": "@daily", "name": "n" * 151}),
    ],
)
@pytest.mark.asyncio
async def test_invalid_schedules_are_refused_with_a_hint(
    client: Client, error: type[HoldfastError], message: str, options: dict[str, Any]
):
    await announce(client)
    given = {"name": "nightly", "workflow": "etl", "args": ["acme"], **options}
    async with client:
        with pytest.raises(error) as refused:
            await client.schedules.create(given.pop("name"), given.pop("workflow"), **given)
        assert message in str(refused.value)
        assert await client.schedules.list() == []


@pytest.mark.asyncio
async def test_trigger_starts_a_run_even_if_the_schedule_is_paused(client: Client):
    await announce(client)
    async with client:
        await client.schedules.create("nightly", "etl", cron="@daily", args=["acme"], budget=Budget(turns=3))
        await client.schedules.pause("nightly")
        before = await client.schedules.get("nightly")
        run_id = await client.schedules.trigger("nightly")
        other = await client.schedules.trigger("nightly")
        assert run_id.startswith("nightly@")
        assert "-by-hand-" in run_id
        assert other != run_id
        after = await client.schedules.get("nightly")
        assert (after.last_run_id, after.last_run_state, after.processed_until) == (
            other,
            RunState.PENDING,
            before.processed_until,
        )
        assert {run.id for run in await client.list(tag=after.tag)} == {run_id, other}
        store = create_store(client.url)
        await store.open()
        [usage] = (await store.get_usages([run_id])).values()
        await store.close()
        assert usage.budget == Budget(turns=3).to_limits()


def test_there_is_a_form_without_an_event_loop(client: Client):
    import asyncio

    asyncio.run(announce(client))
    made = client.schedules.create_sync("nightly", "etl", cron="@daily", args=["acme"])
    assert client.schedules.list_sync() == [made]
    assert client.schedules.get_sync("nightly") == made
    assert client.schedules.pause_sync("nightly")
    assert client.schedules.resume_sync("nightly")
    assert client.get_sync(client.schedules.trigger_sync("nightly")).workflow == "etl"
    assert client.schedules.delete_sync("nightly")


# In code


@pytest.mark.asyncio
async def test_a_declared_schedule_is_announced_and_stays_when_its_code_is_removed(client: Client):
    @workflow(schedule=Schedule(cron="0 2 * * *", zone="Europe/Berlin"))
    async def tidy() -> None: ...

    async with client:
        async with Runtime(client.url):
            [here] = await client.schedules.list()
            assert (here.name, here.workflow, here.is_declared_in_code, here.is_announced) == (
                "tidy",
                "tidy",
                True,
                True,
            )
            with pytest.raises(UsageError, match="'tidy' is declared in code: change it there"):
                await client.schedules.create("tidy", "tidy", cron="@daily", replace=True)
        [gone] = await client.schedules.list()
        assert (gone.is_declared_in_code, gone.is_announced) == (True, False)


@pytest.mark.asyncio
async def test_an_agent_is_started_with_its_prompt_and_its_session(client: Client):
    agent = Agent(name="reporter", model=ScriptedModel(["done"]))
    Schedule("report", agent, "What is new?", inputs={"session": "news"}, every="1 d")
    async with client, Runtime(client.url):
        run = await client.get(await client.schedules.trigger("report"))
        assert (run.workflow, run.tags) == ("reporter", ("schedule:report",))
        assert (await client.wait(run.id, timeout=10)).output == "done"
        assert (await client.schedules.get("report")).inputs["session"] == "news"
        store = await client.connections.store()
        stored = await store.get_run(run.id)
        assert stored is not None
        assert stored.session == "news"


def test_an_invalid_declaration_is_refused_when_it_is_made():
    @workflow
    async def etl(customer: str) -> str:
        return customer

    with pytest.raises(
        DefinitionError, match=r"schedule 'a' \(.*test_client_schedules.py:\d+\): cron expression '0 25"
    ):
        Schedule("a", etl, "acme", cron="0 25 * * *")
    with pytest.raises(DefinitionError, match=r"schedule 'a' \(.*test_client_schedules.py:\d+\): .*customer"):
        Schedule("a", etl, cron="@daily")
    with pytest.raises(DefinitionError, match="are for a single start"):
        Schedule("a", etl.options(id="x"), "acme", cron="@daily")
    with pytest.raises(DefinitionError, match="deps are handed over within a process"):
        Schedule("a", etl, inputs={"deps": 1}, cron="@daily")
    with pytest.raises(DefinitionError, match=r"schedule 'needy' .*customer"):

        @workflow(schedule=Schedule(cron="@daily"))
        async def needy(customer: str) -> None: ...

    assert etl.definition.schedules == {}


def test_two_of_one_name_must_be_the_same():
    @workflow
    async def etl(customer: str) -> str:
        return customer

    @workflow
    async def another_nightly() -> None: ...

    Schedule("nightly", etl, "acme", cron="@daily")
    Schedule("nightly", etl, "acme", cron="@daily")
    with pytest.raises(
        DefinitionError, match=r"two schedules are named 'nightly', .* not the same: .*'another_nightly'"
    ):
        Schedule("nightly", another_nightly, cron="@daily")
    for hours in (1, 2):  # the same line again, as when a module is loaded anew
        Schedule("hourly", etl, "acme", every=hours * 3600)
    assert etl.definition.schedules["hourly"].timing == "every 2 hours"
