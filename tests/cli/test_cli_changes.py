from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from cli_project import Project


def test_a_signal_carries_json_or_a_plain_string(seeded: Project):
    for value in (['{"by": "ann"}'], ["call first"], []):
        done = seeded.here("signal", "order-7", "note", *value)
        assert done.code == 0
        assert "sent signal 'note' to run 'order-7'" in done.out
    signals = seeded.here("show", "order-7", "--json").json["signals"]
    assert [signal["name"] for signal in signals] == ["note"] * 3
    assert [signal["value"] for signal in signals] == [{"by": "ann"}, "call first", None]


def test_a_signal_with_the_same_id_is_sent_once(seeded: Project):
    assert "sent signal" in seeded("signal", "order-7", "approved", "1", "--id", "ann").out
    again = seeded("signal", "order-7", "approved", "2", "--id", "ann")
    assert again.code == 0
    assert "nothing changed" in again.out
    assert [one["value"] for one in seeded("show", "order-7", "--json").json["signals"]] == [1]


def test_a_signal_wakes_a_waiting_run_that_a_worker_serves(seeded: Project, until: Callable[..., None]):
    worker = seeded.worker("app:order")
    try:
        assert seeded.here("signal", "order-7", "approved", "true").code == 0
        until(lambda: seeded.here("show", "order-7", "--json").json["state"] == "completed")
        assert seeded.here("show", "order-7", "--json").json["output"] == {"approved": True}
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    refused = seeded.here("signal", "order-7", "approved", "true")
    assert refused.code == 1
    assert "it has completed" in refused.err


def test_a_signal_for_a_run_that_nobody_serves_says_so(seeded: Project):
    assert "no live worker serves workflow 'order'" in seeded.here("signal", "order-7", "approved").out


def test_a_signal_to_an_unknown_run_suggests_the_right_one(seeded: Project):
    done = seeded.here("signal", "order-77", "approved")
    assert done.code == 1
    assert "Did you mean order-7?" in done.err


def test_retry_lets_a_failed_run_go_on_at_its_failed_step(seeded: Project, until: Callable[..., None]):
    (seeded.folder / "mended").touch()
    done = seeded.here("retry", "etl-bad")
    assert done.code == 0
    assert "run 'etl-bad' goes on (it was failed): its journal keeps 5 records" in done.out
    assert "step 5 (check) is tried anew" in done.out
    assert "no live worker serves workflow 'etl'" in done.out
    worker = seeded.worker("app")
    try:
        until(lambda: seeded.here("show", "etl-bad", "--json").json["state"] == "completed")
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    journal = seeded.here("show", "etl-bad", "--json").json["journal"]
    assert [one["replays"] for one in journal] == [1, 1, 1, 1, 1, 0]
    assert "ok after 2 attempts, replayed ×1" in seeded.here("show", "etl-bad").out


def test_settle_says_what_came_of_a_once_step_whose_worker_died(
    history: Project, tmp_path: Path, until: Callable[..., None]
):
    project = Project(shutil.copytree(history.folder, tmp_path / "unsettled"))
    worker = project.worker("app:payer")
    try:
        until(lambda: project.here("show", "payer", "--json").json["state"] == "failed")
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
        assert "run 'payer' goes on (it was failed): step 'pay' has returned what you gave" in done.out
        until(lambda: project.here("show", "payer", "--json").json["state"] == "completed")
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    assert "ok, settled by a person" in project.here("show", "payer").out
    [*_, record] = project.here("show", "payer", "--json").json["journal"]
    assert (record["name"], record["ok"], record["attempts"], record["worker"]) == ("pay", True, 0, 0)
    assert record["arguments"].startswith("settled by ")


def test_retry_refuses_a_run_that_has_not_failed(seeded: Project):
    done = seeded("retry", "etl-acme")
    assert (done.code, done.out) == (1, "")
    assert "run 'etl-acme' is completed; only a failed, cancelled or dead run can be retried" in done.err
