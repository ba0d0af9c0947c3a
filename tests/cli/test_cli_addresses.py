"""``holdfast send``, ``addresses`` and ``policies``: work for processes elsewhere, and what a day may cost."""

from __future__ import annotations

import asyncio
import json

from cli_project import Project

from holdfast.stores.sqlite import SqliteStore


def created(project: Project) -> None:
    """A database without anything in it."""

    async def create() -> None:
        store = SqliteStore(project.database)
        await store.open()
        await store.close()

    asyncio.run(create())


def test_work_is_sent_and_is_a_run(project: Project):
    created(project)
    sent = json.loads(project.here("send", "data-pipeline", '{"customer": "acme"}', "--id", "job-7", "--json").out)
    assert sent == {"id": "job-7", "address": "data-pipeline", "state": "pending", "created": True}
    again = project.here("send", "data-pipeline", '{"customer": "acme"}', "--id", "job-7")
    assert again.out == "run 'job-7' was sent before: it is pending\n"
    other = project.here("send", "data-pipeline", "other words", "--id", "job-7")
    assert other.code == 1
    assert "was started with other inputs" in other.err
    [run] = json.loads(project.here("runs", "--json").out)
    assert (run["id"], run["workflow"]) == ("job-7", "data-pipeline")
    advice = project.here("doctor").out
    assert "nobody listens to 'data-pipeline' (1 unfinished run)" in advice
    assert "holdfast worker" not in advice.split("unserved")[1].splitlines()[0]


def test_settings_of_an_address(project: Project):
    created(project)
    assert "no addresses yet" in project.here("addresses").out
    done = project.here("addresses", "set", "mailer", "--max-deliveries", "5", "--deadline", "60")
    assert "at most 5 deliveries in a row without a new step, a deadline of 1 min 00 s" in done.out
    assert "nothing changed" in project.here("addresses", "set", "mailer", "--max-deliveries", "5").out
    listed = project.here("addresses").out.splitlines()
    assert listed[1].split() == ["mailer", "5", "1", "min", "00", "s", "30.0", "s", "fetched", "by", "listeners"]
    project.here("addresses", "set", "mailer", "--no-deadline")
    assert json.loads(project.here("addresses", "--json").out)[0]["deadline"] is None


def test_policies_are_set_shown_and_deleted(project: Project):
    created(project)
    assert "no policy yet" in project.here("policies").out
    done = project.here("policies", "set", "mailer", "--runs", "2", "--usd", "20", "--on-breach", "pause")
    assert done.out.startswith("'mailer' may have 2 runs and $20 a day (of UTC); when that is reached, the policy")
    again = project.here("policies", "set", "mailer", "--runs", "2", "--usd", "20", "--on-breach", "pause", "--json")
    assert again.json["changed"] is False
    project.here("send", "mailer")
    assert project.here("policies").out.splitlines()[1].split("  ")[0] == "mailer"
    assert "1 of 2" in project.here("policies").out
    assert project.here("policies").out.endswith("within its limits\n")
    project.here("send", "mailer")
    assert project.here("policies").out.endswith("has reached its runs, and no server has seen it yet\n")
    [data] = json.loads(project.here("policies", "--json").out)
    assert (data["run_count"], data["policy"]["on_breach"], data["breach"]) == (2, "pause", None)
    assert "no policy any more" in project.here("policies", "delete", "mailer").out
    assert "nothing changed" in project.here("policies", "delete", "mailer").out
