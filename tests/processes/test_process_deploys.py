"""A run begins with one version of its code, is killed at any of its commits, and goes on with the next version."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from app_processes import World
from ledger import PATCH, STEP, Journal, Snapshot, check_crash, check_end

RUN = "the-run"
ON_POSTGRES = ("test_a_rolled_back_deploy_leaves_no_run_waiting_for_the_new_name_of_a_signal",)
"""What always runs on PostgreSQL, too."""


def kill_everywhere(world: World, code: str) -> list[dict[str, Any]]:
    points = world.spawn("kill_everywhere.py", "kill", "repriced", CODE=code).read_answers()
    return [point for point in points if point["status"] == -signal.SIGKILL]


def has_visited_gate(journal: Journal | None) -> bool:
    """Whether old code has begun to pay, as far as the store knows."""
    if journal is None:
        return False
    positions = [record.position for record in journal.list_records(STEP)]
    return any(position >= 1 for position in (*positions, *journal.attempts))


@pytest.mark.parametrize("begun_with", ["old", "new"])
def test_a_run_that_is_killed_at_any_commit_and_goes_on_with_new_code_pays_in_one_way_only(
    world: World, begun_with: str
):
    killed = kill_everywhere(world, begun_with)
    assert len(killed) >= 12
    before = {Path(point["folder"]): Snapshot.read(Path(point["folder"])) for point in killed}
    pids = {Path(point["folder"]): point["pid"] for point in killed}
    arguments = [word for folder in before for word in (str(folder), "again")]
    reports = world.spawn("kill_everywhere.py", "recover", "repriced", *arguments, CODE="new").read_answers()
    ways: set[tuple[str, str]] = set()
    for report in reports:
        folder = Path(report["folder"])
        assert report["status"] == 0, f"{folder.name}: {world.apps[-1]}"
        after = Snapshot.read(folder)
        check_crash(before[folder], after)
        check_end(after, killed=[pids[folder]])

        was, journal = before[folder].journals.get(RUN), after.journals[RUN]
        new_way = begun_with == "new" or not has_visited_gate(was)
        assert [record.name for record in journal.list_records(PATCH)] == ["in cents"] * new_way, folder.name
        paid = [line.step for line in after.lines if line.step.startswith("pay") and line.phase == "start"]
        assert paid in ([], ["pay_cents" if new_way else "pay"]), folder.name
        in_doubt = was is not None and any(noted.intent for noted in was.attempts.values())
        expected = "unknown" if in_doubt else "paid in cents" if new_way else "paid"
        assert report["result"] == ["before", expected, "after"], folder.name
        ways.add((expected, "new" if new_way else "old"))
    both = {("paid in cents", "new"), ("unknown", "new" if begun_with == "new" else "old")}
    assert ways == (both if begun_with == "new" else both | {("paid", "old")})


@pytest.mark.parametrize("stopped_by", [signal.SIGTERM, signal.SIGKILL])
def test_a_rolled_back_deploy_leaves_no_run_waiting_for_the_new_name_of_a_signal(
    world: World, stopped_by: signal.Signals
):
    old = world.worker(CODE="old")
    run = world.client.start_sync("renamed", "x")
    before = world.wait_for_run(run, lambda journal: journal.state == "waiting", "is parked by the old code")
    old.send(signal.SIGTERM)
    old.ends()

    new = world.worker(CODE="new")
    assert world.client.signal_sync(run, "paid", "7 euros")
    world.wait_for_run(
        run,
        lambda journal: journal.state == "waiting" and journal.epoch > before.epoch,
        "is parked again, by code that does not wait for this signal",
    )
    rolled_back = world.worker(CODE="old")
    new.send(stopped_by)

    ended = world.wait_for_end(run)
    assert ended.output == ["x before", "7 euros", "x after"]
    assert not ended.signals
    assert ended.deliveries == 0
    assert [line.pid for line in world.lines("call", "finish", run=run)] == [old.pid, rolled_back.pid]
    check_end(world.snapshot(), killed=[new.pid] if stopped_by is signal.SIGKILL else [])
