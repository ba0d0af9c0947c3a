"""Cancelling, pausing, retrying, forking and switching off, from the shell."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from cli_project import Outcome, Project
from store_values import new_worker

from holdfast.stores.sqlite import SqliteStore
from waits import wait_until_sync

FIELDS = {"id", "workflow", "state", "changed", "is_paused", "is_cancelling", "stall_reason", "message", "error"}


def objects(done: Outcome) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in done.out.splitlines()]
    assert all(set(one) >= FIELDS for one in found)
    return found


def test_cancelling_several_runs_reports_each_and_fails_if_one_does(seeded: Project):
    done = seeded.here("cancel", "order-7", "order-77", "etl-acme")
    assert done.code == 1
    assert done.out.splitlines() == [
        "cancellation of run 'order-7' requested: the next worker that claims it will stop it",
        "no live worker serves workflow 'order': start one with `holdfast worker MODULE`, or run its program again",
    ]
    unknown, ended = done.err.splitlines()
    assert unknown.startswith("error: there is no run 'order-77'")
    assert "Did you mean order-7?" in unknown
    assert ended == "error: run 'etl-acme' cannot be cancelled: it has completed"

    again = seeded.here("cancel", "order-7", "order-77", "etl-acme", "--json")
    assert (again.code, again.err) == (1, "")
    first, second, third = objects(again)
    assert (first["id"], first["state"], first["changed"], first["is_cancelling"]) == (
        "order-7",
        "waiting",
        False,
        True,
    )
    assert first["stall_reason"].startswith("no live worker serves workflow 'order'")
    assert (second["state"], second["changed"], second["error"]["type"]) == (None, False, "RunNotFound")
    assert (third["state"], third["changed"], third["error"]["type"]) == ("completed", False, "RunEnded")


def test_a_run_that_has_not_started_is_cancelled_at_once(seeded: Project):
    seeded.start("order", 8)
    assert seeded.here("cancel", "order-8").out == "run 'order-8' is cancelled: it had not started\n"
    assert seeded.here("cancel", "order-8").out == "run 'order-8' is cancelled already: nothing changed\n"
    assert (
        seeded.here("show", "order-8", "--json").json["retry"]["message"] == "`holdfast retry order-8` starts it again"
    )


def test_a_run_that_a_worker_holds_is_cancelled_by_that_worker(seeded: Project):
    seeded.start("nap", 61)
    store, loop = SqliteStore(seeded.database), asyncio.new_event_loop()

    async def hold() -> None:  # and never look at what is asked of the run, as a quick worker would
        await store.open()
        worker = await store.workers.register(new_worker(workflows=("nap",)), 10.0)
        assert [run.id for run in await store.claims.claim(worker, workflows=["nap"], queues=None, limit=1)] == [
            "nap-61"
        ]

    try:
        loop.run_until_complete(hold())
        asked = "cancellation of run 'nap-61' requested: its worker will stop it\n"
        assert seeded("cancel", "nap-61").out == asked
        assert seeded("cancel", "nap-61").out == "run 'nap-61' is being cancelled already: nothing changed\n"
    finally:
        loop.run_until_complete(store.close())
        loop.close()


def test_waiting_for_a_cancel_that_no_worker_carries_out_is_an_error(seeded: Project):
    done = seeded.here("cancel", "order-7", "--wait", "0.1")
    assert (done.code, done.out) == (1, "")
    assert "run 'order-7' has not ended within 100 ms; it is still to be cancelled" in done.err
    assert "no live worker serves workflow 'order'" in done.err


def test_pausing_and_resuming_a_run_that_waits(seeded: Project):
    assert seeded.here("pause", "order-7").out == "run 'order-7' is paused: it rests until `holdfast resume order-7`\n"
    [again] = objects(seeded.here("pause", "order-7", "--json"))
    assert (again["changed"], again["is_paused"], again["state"]) == (False, True, "waiting")
    assert "nothing changed" in again["message"]

    sent = seeded.here("signal", "order-7", "other").out
    assert (
        "it is kept until the run continues; run 'order-7' is paused: `holdfast resume order-7` lets it go on" in sent
    )
    assert "no live worker" not in sent
    shown = seeded.here("show", "order-7").out
    assert re.search(r"^paused +(now|\d+ s ago) \(", shown, re.M)
    assert shown.endswith("run 'order-7' is paused: `holdfast resume order-7` lets it go on\n")

    done = seeded.here("resume", "order-7", "etl-acme")
    assert done.code == 1
    assert "run 'order-7' is no longer paused: it continues when a worker claims it" in done.out
    assert "no live worker serves workflow 'order'" in done.out
    assert done.err == "error: run 'etl-acme' cannot be resumed: it has completed\n"
    assert "run 'order-7' was not paused: nothing changed" in seeded.here("resume", "order-7").out

    assert seeded.here("pause", "order-7").code == 0
    assert "; its pause is lifted" in seeded.here("cancel", "order-7").out


def test_runs_that_a_worker_executes_are_paused_stopped_and_cancelled(seeded: Project):
    seeded.start("nap", 60)
    worker = seeded.worker("app:nap")

    def sleeps() -> bool:
        run = seeded.here("show", "nap-60", "--json").json
        return run["state"] == "running" and len(run["journal"]) == 1

    try:
        wait_until_sync(sleeps)
        paused = seeded.here("pause", "nap-60").out
        assert paused.startswith("run 'nap-60' is being paused: steps in flight may end and are recorded")
        listed = seeded.here("runs", "--workflow", "nap").out
        assert "paused, once its steps in flight have ended" in listed
        assert "it rests once its steps in flight have ended" in seeded.here("show", "nap-60").out
        assert seeded.here("resume", "nap-60").out == "run 'nap-60' is no longer paused: it continues\n"

        off = seeded.here("disable", "nap").out
        assert off.startswith(
            "workflow 'nap' is disabled: 1 run stops once what it is doing is recorded, and no new run starts"
        )
        assert "workflow 'nap' is disabled" in seeded.here("show", "nap-60").out
        assert seeded.here("enable", "nap").out == "workflow 'nap' is enabled: 1 run can continue\n"
        wait_until_sync(sleeps)

        [ended] = objects(seeded.here("cancel", "nap-60", "--wait", "20", "--json"))
        assert (ended["state"], ended["changed"], ended["is_cancelling"]) == ("cancelled", True, False)
        assert ended["message"] == "run 'nap-60' is cancelled"
        assert seeded.here("cancel", "nap-60").out == "run 'nap-60' is cancelled already: nothing changed\n"
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    shown = seeded.here("show", "nap-60").out
    assert re.search(r"^ +–  cancel .* ok$", shown, re.M)
    assert re.search(r"^retry +`holdfast retry nap-60` takes back the cancel$", shown, re.M)
    [retried] = objects(seeded.here("retry", "nap-60", "--json"))
    assert (retried["changed"], retried["state"], retried["kept_count"]) == (True, "pending", 1)
    assert len(retried["rewound_seqs"]) == 1


def test_a_run_that_was_undone_cannot_be_retried_but_forked(undone: Project):
    refused = undone.here("retry", "trip-bad")
    assert (refused.code, refused.out) == (1, "")
    assert "compensations have undone what it" in refused.err
    assert "`holdfast fork trip-bad --at STEP`" in refused.err

    done = undone.here("fork", "trip-bad", "--at", "check")
    assert done.code == 0
    assert re.match(
        r"run 'trip-bad-fork-\w+' is a fork of 'trip-bad': it shares 1 record, and step 2 \(check\) runs", done.out
    )
    assert "no live worker serves workflow 'trip'" in done.out
    [fork] = objects(undone.here("fork", "trip-bad", "--at", "2", "--output", "null", "--id", "again", "--json"))
    assert (fork["id"], fork["state"], fork["changed"]) == ("again", "pending", True)
    assert (fork["forked_from"], fork["shared_count"]) == ("trip-bad", 1)
    shown = undone.here("show", "again").out
    assert re.search(r"^fork of +trip-bad$", shown, re.M)
    assert re.search(r"^ +2  check .* –  ok, given to the fork$", shown, re.M)
    assert "not known any more" not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at", "chek"], "run 'etl-acme' has no recorded step 'chek'; recorded: 1 (extract), "),
        (["--at", "9"], "run 'etl-acme' has no recorded step 9"),
        (["--at", "load"], "run 'etl-acme' has 3 steps named 'load': say which by its number, one of "),
        (["--id", "order-7"], "the id 'order-7' is taken: give the fork another one"),
    ],
)
def test_a_fork_that_cannot_be_made_says_why(seeded: Project, options: list[str], message: str):
    done = seeded.here("fork", "etl-acme", *options)
    assert (done.code, done.out) == (1, "")
    assert message in done.err


def test_a_retry_takes_the_failed_runs_that_it_had_started_along(undone: Project):
    done = undone.here("retry", "broken")
    assert done.code == 0
    assert "its journal keeps 4 records; run 'broken-leaf-2' is retried as well" in done.out
    assert undone.here("show", "broken-leaf-2", "--json").json["state"] == "pending"


def test_a_once_step_is_run_again_only_with_run_again(undone: Project):
    refused = undone.here("retry", "mailer", "--json")
    assert refused.code == 1
    [data] = objects(refused)
    assert (data["changed"], data["state"], data["error"]["type"]) == (False, "failed", "RetryRefused")
    done = undone.here("retry", "mailer", "--run-again")
    assert done.code == 0
    assert "step 1 (letter) is tried again" in done.out


def test_a_workflow_is_disabled_and_enabled(seeded: Project):
    assert seeded.here("disable").out == "no workflow is disabled\n"
    wrong = seeded.here("disable", "odrer")
    assert wrong.code == 1
    assert "there is no workflow 'odrer'" in wrong.err
    assert "so nothing changed: did you mean 'order'?" in wrong.err

    assert seeded.here("disable", "order").out == (
        "workflow 'order' is disabled: 1 run stops, and no new run starts; `holdfast enable order` enables it again\n"
    )
    again = seeded.here("disable", "order", "--json").json
    assert {**again, "message": ""} == {
        "workflow": "order", "disabled": True, "changed": False, "run_count": 1, "stall_reason": None, "message": "",
    }  # fmt: skip
    assert re.search(r"^order +\S+.* 1 run$", seeded.here("disable").out, re.M)
    assert [one["name"] for one in seeded.here("disable", "--json").json] == ["order"]

    listed = seeded.here("runs").out
    assert re.search(r"^order-7 .* workflow is disabled$", listed, re.M)
    assert listed.endswith("workflow 'order' is disabled: `holdfast enable order` lets its runs continue\n")
    shown = seeded.here("show", "order-7").out
    assert "workflow 'order' is disabled: `holdfast enable order` lets its runs continue" in shown
    assert "no live worker" not in shown
    checks = [check for check in seeded.here("doctor", "--json").json["checks"] if "'order'" in check["message"]]
    assert [(check["name"], check["status"]) for check in checks] == [("disabled", "warn")]
    assert "(1 unfinished run)" in checks[0]["message"]
    assert checks[0]["advice"] == "`holdfast enable order` lets its runs continue"

    enabled = seeded.here("enable", "order").out
    assert enabled.startswith("workflow 'order' is enabled: 1 run can continue\nno live worker serves")
    assert seeded.here("enable", "order").out == "workflow 'order' was not disabled: nothing changed\n"
    assert seeded.here("enable").code == 2
