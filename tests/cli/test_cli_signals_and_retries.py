from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from cli_project import Project

from waits import wait_until_sync


def test_a_signal_carries_json_or_a_plain_string(seeded: Project):
    for value in (['{"by": "ann"}'], ["call first"], []):
        done = seeded.here("signal", "order-7", "note", *value)
        assert done.code == 0
        assert "sent signal 'note' to run 'order-7'" in done.out
    signals = seeded.here("show", "order-7", "--json").json["pending_signals"]
    assert [signal["name"] for signal in signals] == ["note"] * 3
    assert [signal["value"] for signal in signals] == [{"by": "ann"}, "call first", None]


def test_a_signal_with_the_same_id_is_sent_once(seeded: Project):
    assert "sent signal" in seeded("signal", "order-7", "approved", "1", "--id", "ann").out
    again = seeded("signal", "order-7", "approved", "2", "--id", "ann")
    assert again.code == 0
    assert "nothing changed" in again.out
    assert [one["value"] for one in seeded("show", "order-7", "--json").json["pending_signals"]] == [1]


def test_a_signal_wakes_a_waiting_run_that_a_worker_serves(seeded: Project):
    worker = seeded.worker("app:order")
    try:
        assert seeded.here("signal", "order-7", "approved", "true").code == 0
        wait_until_sync(lambda: seeded.here("show", "order-7", "--json").json["state"] == "completed")
        assert seeded.here("show", "order-7", "--json").json["output"] == {"approved": True}
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    refused = seeded.here("signal", "order-7", "approved", "true")
    assert refused.code == 1
    assert "it has completed" in refused.err


def test_a_signal_for_an_unserved_run_reports_that(seeded: Project):
    assert "no live worker serves workflow 'order'" in seeded.here("signal", "order-7", "approved").out


def test_a_signal_that_the_run_does_not_wait_for_is_sent_with_a_warning(seeded: Project):
    done = seeded.here("signal", "order-7", "aproved", "true")
    assert done.code == 0
    assert "sent signal 'aproved' to run 'order-7'" in done.out
    assert done.err.startswith(
        "warning: run 'order-7' does not wait for signal 'aproved': it waits for signal 'approved'. The signal is kept"
    )
    data = seeded.here("signal", "order-7", "approved", "true", "--json")
    assert (data.json["signal"], data.json["warning"], data.err) == ("approved", None, "")
    data = seeded.here("signal", "order-7", "denied", "--json")
    assert "it waits for signal 'approved'" in data.json["warning"]
    assert [one["name"] for one in seeded.here("show", "order-7", "--json").json["pending_signals"]] == [
        "aproved", "approved", "denied",
    ]  # fmt: skip


def test_a_signal_to_an_unknown_run_suggests_the_right_one(seeded: Project):
    done = seeded.here("signal", "order-77", "approved")
    assert done.code == 1
    assert "Did you mean order-7?" in done.err


def test_retry_continues_a_failed_run_at_its_failed_step(seeded: Project):
    (seeded.folder / "mended").touch()
    done = seeded.here("retry", "etl-bad")
    assert done.code == 0
    assert "run 'etl-bad' continues (it was failed): its journal keeps 5 records" in done.out
    assert "step 5 (check) is tried again" in done.out
    assert "no live worker serves workflow 'etl'" in done.out
    worker = seeded.worker("app")
    try:
        wait_until_sync(lambda: seeded.here("show", "etl-bad", "--json").json["state"] == "completed")
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    journal = seeded.here("show", "etl-bad", "--json").json["journal"]
    assert [one["replay_count"] for one in journal] == [0] * 6, "no worker has died"
    assert "ok after 2 attempts\n" in seeded.here("show", "etl-bad").out


def test_settle_says_what_came_of_a_once_step_whose_worker_died(history: Project, tmp_path: Path):
    project = Project(shutil.copytree(history.folder, tmp_path / "unsettled"))
    worker = project.worker("app:payer")
    try:
        wait_until_sync(lambda: project.here("show", "payer", "--json").json["state"] == "failed")
        shown = " ".join(project.here("show", "payer").out.split())
        assert "check whether it happened. If it did: `holdfast settle payer 2 --output JSON`." in shown
        for wrong in ([], ["--output", "null", "--did-not-happen"]):
            refused = project.here("settle", "payer", "2", *wrong)
            assert (refused.code, "say one of the two: --output JSON" in refused.err) == (2, True)
        refused = project.here("settle", "payer", "extract", "--output", "1", "--json")
        assert (refused.code, refused.json["error"]["type"]) == (1, "SettleRefused")
        assert "What can be settled in run 'payer': step 2 ('pay')" in refused.json["error"]["message"]
        done = project.here("settle", "payer", "pay", "--output", "null")
        assert (done.code, done.err) == (0, "")
        assert "run 'payer' continues (it was failed): step 'pay' has returned what you gave" in done.out
        wait_until_sync(lambda: project.here("show", "payer", "--json").json["state"] == "completed")
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    assert "ok, settled by a person" in project.here("show", "payer").out
    [*_, record] = project.here("show", "payer", "--json").json["journal"]
    assert (record["name"], record["ok"], record["attempt_count"], record["worker_id"]) == ("pay", True, 0, 0)
    assert record["arguments"].startswith("settled by ")


def test_retry_refuses_a_run_that_has_not_failed(seeded: Project):
    done = seeded("retry", "etl-acme")
    assert (done.code, done.out) == (1, "")
    assert "run 'etl-acme' is completed; only a failed, cancelled or dead run can be retried" in done.err


INCIDENT = """
import asyncio

from holdfast import RunFailed, Runtime, step, workflow

@step
async def ask(number: int) -> None:
    raise ConnectionError("status 503: overloaded") if number % 2 else ValueError("no such thing")

@workflow(id="agent-{number}")
async def agent(number: int) -> None:
    await ask(number)

@workflow(id="boss-{number}")
async def boss(number: int) -> None:
    await agent(number)

async def main() -> None:
    async with Runtime("sqlite:///runs.db"):
        for number in range(5):
            try:
                await agent(number)
            except RunFailed:
                pass
        try:
            await boss(7)
        except RunFailed:
            pass

asyncio.run(main())
"""


@pytest.fixture
def incident(tmp_path: Path) -> Project:
    (tmp_path / "app.py").write_text(INCIDENT)
    project = Project(tmp_path)
    done = project.python("app.py")
    assert done.code == 0, done.err
    return project


def retried(project: Project, *arguments: str) -> list[str]:
    done = project.here("retry", *arguments, "--json")
    assert done.code == 0, done.err
    return sorted(json.loads(line)["id"] for line in done.out.splitlines())


def test_a_whole_incident_is_retried_at_once(incident: Project):
    assert retried(incident, "--workflow", "agent", "--error", "STATUS 503", "--yes") == [
        "agent-1",
        "agent-3",
        "agent-7",
    ]
    assert retried(incident, "--workflow", "agent", "--since", "1h", "--yes") == ["agent-0", "agent-2", "agent-4"]
    assert retried(incident, "--workflow", "agent", "--yes") == []


def test_a_run_takes_along_the_one_that_made_it_fail(incident: Project):
    assert "agent-7" not in retried(incident, "--state", "failed", "--error", "status 503", "--yes")
    states = {one["id"]: one["state"] for one in incident.here("runs", "--json").json}
    assert (states["boss-7"], states["agent-7"], states["agent-0"]) == ("pending", "pending", "failed")


def test_runs_that_ended_before_are_left_as_they_are(incident: Project):
    assert retried(incident, "--since", "2100-01-01", "--yes") == []
    assert retried(incident, "--state", "dead", "--yes") == []
    assert incident.here("retry", "--error", "nothing").out == "no run is failed and matches\n"


def test_no_run_is_retried_without_a_confirmation(incident: Project):
    refused = incident("retry", "--workflow", "agent")
    assert refused.code == 1
    assert "retrying 6 runs needs a confirmation: pass --yes." in refused.err
    for wrong in ([], ["agent-1", "--workflow", "agent"]):
        assert incident.here("retry", *wrong).code == 2
    assert incident.here("retry", "agent-1", "agent-3").code == 0


def test_the_question_says_how_many_runs_of_which_workflows(incident: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    done = incident.here("retry", "--since", "1d")
    assert done.code == 1
    assert "retry 6 failed runs, of agent (5) and boss (1)?" in done.err
    assert "nothing changed" in done.err
    assert {one["state"] for one in incident.here("runs", "--json").json} == {"failed"}
