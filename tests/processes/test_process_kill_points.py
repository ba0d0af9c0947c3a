"""A run is killed with SIGKILL before and after every commit it makes, and goes on each time as if it had not been."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from app_processes import World
from ledger import SIGNAL, TIMER, Snapshot, check_crash, check_end

RUN = "the-run"
RESULTS: dict[str, Any] = {
    "sequential": ["a", "b", "c"],
    "gathered": ["first", "m0", "m1", "m2", "plain", "last"],
    "timed": ["before", "after"],
    "parked": ["before", "after"],
    "signalled": ["before", "signal 0", "after 0", "signal 1", "after 1"],
    "retried": ["before", 3, "after"],
    "paying": ["before", "paid", "after"],
    "remembering": ["before", 2, "after"],
}
FEWEST_COMMITS = {
    "sequential": 5,
    "gathered": 5,
    "timed": 5,
    "parked": 6,
    "signalled": 7,
    "retried": 7,
    "paying": 6,
    "remembering": 9,
}
"""Start, outcomes, notes and end; more when outcomes of one moment do not share a commit."""


def max_in_flight(flow: str) -> int:
    return 4 if flow == "gathered" else 1


def kill_everywhere(world: World, flow: str, **settings: object) -> list[dict[str, Any]]:
    """The points at which the flow was killed. The runs that got through to their end are checked here."""
    points = world.spawn("kill_everywhere.py", "kill", flow, **settings).read_answers()
    killed = [point for point in points if point["status"] == -signal.SIGKILL]
    unharmed = [point for point in points if point["status"] == 0]
    assert [point["result"] for point in unharmed] == [RESULTS[flow]] * 2
    assert len(killed) == len(points) - 2 >= 2 * FEWEST_COMMITS[flow], points
    for point in unharmed:
        end = Snapshot.read(Path(point["folder"]))
        check_end(end)
        keys = [line.key for line in end.lines if line.phase == "finish"]
        assert len(keys) == len(set(keys)) == len(end.journals[RUN].steps)
    return killed


def recover(world: World, flow: str, folders: dict[Path, str], **settings: object) -> dict[Path, dict[str, Any]]:
    arguments = [word for folder, how in folders.items() for word in (str(folder), how)]
    reports = world.spawn("kill_everywhere.py", "recover", flow, *arguments, **settings).read_answers()
    return {Path(report["folder"]): report for report in reports}


@pytest.mark.parametrize(
    ("flow", "settings"),
    [*((flow, {}) for flow in RESULTS), ("gathered", {"THREADS": 1})],
    ids=[*RESULTS, "gathered, committed in a thread"],
)
def test_a_run_killed_at_any_commit_goes_on_and_repeats_nothing_that_was_recorded(
    world: World, flow: str, settings: dict[str, object]
):
    folders: dict[Path, str] = {}
    pids: dict[Path, int] = {}
    for point in kill_everywhere(world, flow, **settings):
        folder = Path(point["folder"])
        folders[folder], pids[folder] = "again", point["pid"]
        if Snapshot.read(folder).journals:  # killed before its start was recorded, there is no run for a peer to find
            copy = folder.with_name(f"{folder.name}-peer")
            shutil.copytree(folder, copy)
            folders[copy], pids[copy] = "peer", point["pid"]
    before = {folder: Snapshot.read(folder) for folder in folders}

    for folder, report in recover(world, flow, folders, **settings).items():
        assert report["status"] == 0, f"{folder.name} ended with {report['status']}: {world.apps[-1]}"
        after = Snapshot.read(folder)
        check_crash(before[folder], after, max_in_flight=max_in_flight(flow))
        check_end(after, killed=[pids[folder]])
        check_flow(flow, report["result"], after, before[folder], folder.name)


def check_flow(flow: str, result: Any, end: Snapshot, before: Snapshot, where: str) -> None:
    """What is particular to a flow."""
    journal = end.journals[RUN]
    assert journal.output == result
    if flow == "paying":
        _check_payment(result, end, before, where)
        return
    assert result == RESULTS[flow], where
    assert not journal.attempts, where
    if flow in ("timed", "parked"):
        (timer,) = journal.list_records(TIMER)
        assert timer.at - journal.records[0].at >= {"timed": 0.1, "parked": 0.2}[flow], where
    if flow == "signalled":
        assert len(journal.list_records(SIGNAL)) == 2, where
        assert not journal.signals, where
    if flow == "retried":
        assert journal.steps[journal.derive_key(1, "flaky")].attempts == 3, where


def _check_payment(result: Any, end: Snapshot, before: Snapshot, where: str) -> None:
    """Paid at most once; when nobody can know, the workflow was told so."""
    starts = [line for line in end.lines if (line.step, line.phase) == ("pay", "start")]
    assert len(starts) <= 1, where
    was = before.journals.get(RUN)
    in_doubt = was is not None and any(noted.intent for noted in was.attempts.values())
    assert result == ["before", "unknown" if in_doubt else "paid", "after"], where
    assert len(starts) == 1 or in_doubt, where


SECOND_KILLS = ["after-register:1", "after-reap_dead:1", "before-claim:1"]
SECOND_KILLS += ["after-claim:1", "after-get_histories:1"]
SECOND_KILLS += [f"{moment}-commit:{number}" for number in (1, 2) for moment in ("before", "after")]


def test_a_run_whose_second_worker_is_killed_as_well_goes_on_in_the_third(world: World):
    seconds: dict[Path, str] = {}
    killed: dict[Path, list[int]] = {}
    for point in kill_everywhere(world, "gathered"):
        folder = Path(point["folder"])
        unfinished = [run for run in Snapshot.read(folder).journals.values() if run.state == "running"]
        if unfinished and point["point"].startswith("after"):
            for second in SECOND_KILLS:
                copy = folder.with_name(f"{folder.name}-{second}")
                shutil.copytree(folder, copy)
                seconds[copy], killed[copy] = second, [point["pid"]]
    assert len(seconds) >= 4 * len(SECOND_KILLS)

    first = {folder: Snapshot.read(folder) for folder in seconds}
    for folder, report in recover(world, "gathered", seconds).items():
        killed[folder].append(report["pid"])
        done = report["status"] == 0 and seconds[folder].endswith(":2")  # there was one commit left to make
        assert done or report["status"] == -signal.SIGKILL, f"{folder}: {report} {world.apps[-1]}"
    second = {folder: Snapshot.read(folder) for folder in seconds}
    for folder, report in recover(world, "gathered", dict.fromkeys(seconds, "peer")).items():
        end = Snapshot.read(folder)
        check_crash(first[folder], second[folder], max_in_flight=4)
        check_crash(second[folder], end, max_in_flight=4)
        check_end(end, killed=killed[folder])
        assert (report["status"], report["result"]) == (0, RESULTS["gathered"]), folder.name
