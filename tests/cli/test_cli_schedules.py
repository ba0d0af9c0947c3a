"""``holdfast schedules``: listing and changing schedules."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cli_project import Project

from holdfast import ScheduleInfo
from holdfast.client.resources import ClientSchedules
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.schedules import ScheduleDefinition
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import NewWorker

YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).timestamp()


@pytest.fixture
def planned(project: Project) -> Project:
    """Three schedules, and a worker that has announced one of them and is gone."""

    async def plan() -> None:
        store = SqliteStore(project.database)
        await store.open()
        await store.announce_workflows([WorkflowSpec("etl", ("customer",))])
        nightly = ScheduleDefinition(
            "nightly", "etl", "30 2 * * * in Europe/Berlin", b'{"customer":"acme"}', "all", 5, "skip",
            queue="slow", priority=2, tags=("night",),
        )  # fmt: skip
        await store.schedules.put([nightly, ScheduleDefinition("hourly", "etl", "every hour", b"{}", "skip")])
        worker = await store.workers.register(NewWorker("w", "h", 1, ("etl",)), 60)
        await store.schedules.put(
            [ScheduleDefinition("old one", "etl", "@monthly", b"{}", is_declared_in_code=True)], worker=worker
        )
        await store.workers.retire(worker)
        await store.close()

    asyncio.run(plan())
    return project


def test_an_empty_list_explains_how_to_create_a_schedule(project: Project):
    assert "there is no database" in project.here("schedules").err

    async def make_database() -> None:
        store = SqliteStore(project.database)
        await store.open()
        await store.close()

    asyncio.run(make_database())
    assert project.here("schedules").out.startswith("there is no schedule yet: `@workflow(schedule=Schedule(cron=")
    assert project.here("schedules", "--json").json == []


def test_the_list_shows_when_each_fires_next_in_its_zone_and_what_is_wrong(planned: Project):
    lines = planned.here("schedules").out.splitlines()
    assert re.fullmatch(r"schedule +workflow +when +next +last run +catch-up", lines[0])
    soon = r"in \d+ \w+( \d+ \w+)?"
    assert re.fullmatch(rf"hourly +etl +every hour +\d{{4}}-\d\d-\d\d \d\d:00:00 \S+, {soon} +skip", lines[1])
    nightly = r"nightly +etl +at 02:30 every day \(Europe/Berlin\) +\d{4}-\d\d-\d\d 02:30:00 CES?T, "
    assert re.fullmatch(rf"{nightly}{soon} +all", lines[2])
    assert lines[3].startswith("old one")
    assert lines[4:] == [
        "'old one' is declared by code, no live worker announces it: if it was removed from the code, "
        "`holdfast schedules delete 'old one'` deletes it"
    ]
    hourly, one, _ = planned.here("schedules", "--json").json
    assert (hourly["name"], hourly["catch_up"], hourly["zone"]) == ("hourly", "skip", "")
    assert one == planned.here("schedules", "show", "nightly", "--json").json
    assert datetime.fromisoformat(one["next_at"]) > datetime.now(UTC)
    assert (one["timing"], one["inputs"]) == ("30 2 * * * in Europe/Berlin", {"customer": "acme"})
    assert (one["last_run_state"], one["is_declared_in_code"]) == (None, False)


def test_one_is_shown_with_all_that_is_known_of_it(planned: Project):
    out = planned.here("schedules", "show", "nightly").out
    assert out.startswith("nightly starts etl\n")
    assert "at 02:30 every day (Europe/Berlin); as written: 30 2 * * * in Europe/Berlin" in out
    assert out.count(" 02:30:00 CE") == 3
    for line in (
        '  inputs    {"customer": "acme"}',
        "  queue     slow",
        "  priority  2",
        "  missed    each fires, 5 at most (all)",
        "  overlap   starts nothing while the run before is under way",
        "  last run  none yet",
        "  its runs  holdfast runs --tag schedule:nightly",
    ):
        assert f"{line}\n" in out
    wrong = planned.here("schedules", "show", "nighty")
    assert (wrong.code, wrong.out) == (1, "")
    assert "there is no schedule 'nighty'" in wrong.err
    assert "did you mean 'nightly'?" in wrong.err


def test_it_is_paused_resumed_triggered_and_deleted(planned: Project):
    def run_schedules(*words: str) -> str:
        done = planned.here("schedules", *words)
        assert done.code == 0, done.err
        return done.out

    assert run_schedules("pause", "nightly") == (
        "schedule 'nightly' is paused; `holdfast schedules resume nightly` lets it fire again\n"
    )
    assert "was paused before: nothing changed" in run_schedules("pause", "nightly")
    assert re.search(r"^nightly .* paused +all$", run_schedules(), re.M)
    assert "'nightly' was paused " in run_schedules()
    assert re.match(r"schedule 'nightly' is resumed; next: \S+ 02:30:00 CES?T, in ", run_schedules("resume", "nightly"))
    assert planned.here("schedules", "resume", "nightly", "--json").json["changed"] is False

    assert "no live worker serves workflow 'etl'" in run_schedules("trigger", "hourly")
    run = planned.here("schedules", "trigger", "nightly", "--json").json["run_id"]
    assert [one["id"] for one in planned.here("runs", "--tag", "schedule:nightly", "--json").json] == [run]
    assert re.search(r"^nightly .* pending +all$", run_schedules(), re.M)

    assert run_schedules("delete", "nightly") == "schedule 'nightly' is deleted, its runs stay\n"
    assert "a worker that starts with that code brings it back" in run_schedules("delete", "old one")
    assert [one["name"] for one in planned.here("schedules", "--json").json] == ["hourly"]
    assert planned.here("schedules", "delete", "nightly").code == 1


def test_resume_reports_what_happens_to_missed_ticks(planned: Project):
    async def long_ago() -> None:
        store = SqliteStore(planned.database, clock=lambda: YESTERDAY)
        await store.open()
        for policy in ("skip", "last", "all"):
            await store.schedules.put([ScheduleDefinition(policy, "etl", "every hour", b"{}", policy)])
            await store.schedules.pause(policy)
        await store.schedules.put([ScheduleDefinition("late", "etl", "every hour", b"{}")])
        await store.close()

    asyncio.run(long_ago())
    assert "missed ticks are skipped" in planned.here("schedules", "resume", "skip").out
    assert "the newest missed tick fires" in planned.here("schedules", "resume", "last").out
    assert "missed ticks fire now, 100 at most" in planned.here("schedules", "resume", "all").out
    assert "'late' is late: no live worker fires it" in planned.here("schedules").out
    assert "  next      now: due since " in planned.here("schedules", "show", "late").out
    [late] = [one for one in planned.here("schedules", "--json", "--url", planned.url).json if one["name"] == "late"]
    assert datetime.fromisoformat(late["next_at"]) < datetime.now(UTC)


def test_a_time_zone_that_only_the_server_knows_falls_back_to_local_time(
    planned: Project, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = "30 2 * * * in Mars/Olympus_Mons"
    get = ClientSchedules.get

    async def get_elsewhere(schedules: ClientSchedules, name: str) -> ScheduleInfo:
        return replace(await get(schedules, name), timing=elsewhere, zone="Mars/Olympus_Mons")

    monkeypatch.setattr(ClientSchedules, "get", get_elsewhere)
    output = planned.here("schedules", "show", "nightly").out
    assert f"as written: {elsewhere}" in output
    assert re.search(r"  next +\d{4}-\d\d-\d\d \d\d:30:00 \S+, in \d+ \w+( \d+ \w+)?\n", output)
