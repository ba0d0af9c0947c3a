"""People are asked by processes that die: each is told once, an answer counts once, and giving up happens once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime

import pytest
from app_processes import TIMEOUT_S, World
from ledger import Journal, check_crash, check_end

import forked_python
from holdfast import ApprovalClosed
from holdfast.core.records import RecordKind
from waits import wait_until_sync

SILENT = ("approval start", "approval reminder", "approval timeout")


def command(world: World, *args: str) -> subprocess.Popen[str]:
    """``holdfast ...``, in a process of its own."""
    return forked_python.start(
        [sys.executable, "-m", "holdfast.cli", *args, "--json"],
        env={**os.environ, "HOLDFAST_URL": world.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_stdout(process: subprocess.Popen[str]) -> tuple[int, object]:
    """Its exit code, and what it told as JSON."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert out, err
    return process.returncode, json.loads(out)


def named(journal: Journal, name: str) -> int:
    """How many records of this name there are."""
    return sum(record.name == name for record in journal.records)


def read_notices(world: World) -> Counter[str]:
    """What people were told, to the end."""
    return Counter(line.label for line in world.lines("approval notification", "finish"))


def test_two_people_answer_at_once_while_nobody_lives_and_the_answer_of_one_is_carried_out_once(world: World):
    first = world.worker()
    run = world.client.start_sync("painting", "x")
    world.wait_for_run(run, lambda journal: named(journal, "approval notification"), "has told people")
    before = world.snapshot()
    first.kill()

    code, listed = read_stdout(command(world, "approvals"))
    assert code == 0
    [asked] = listed  # type: ignore[misc]
    assert (asked["question"], asked["choices"], asked["run_id"]) == (
        "Which colour for x?", ["red", "green", "blue"], run
    )  # fmt: skip
    answers = [command(world, "approve", asked["id"], colour, "--by", by) for colour, by in
               (("red", "ann"), ("blue", "bob"))]  # fmt: skip
    (ann, by_ann), (bob, by_bob) = [read_stdout(one) for one in answers]
    assert sorted([ann, bob]) == [0, 1]
    winner, loser, colour = ("ann", by_bob, "red") if ann == 0 else ("bob", by_ann, "blue")
    assert loser["error"]["type"] == "ApprovalClosed"  # type: ignore[index]
    assert f"{winner} answered it" in loser["error"]["message"]  # type: ignore[index]

    world.worker()
    journal = world.wait_for_end(run)
    assert journal.output == f"painted {colour}"
    assert [line.label for line in world.lines("paint", "start")] == [colour]
    assert read_notices(world) == {"requested ann 0": 1}
    assert len(journal.list_records(RecordKind.APPROVAL)) == 1
    assert not journal.signals
    [closed] = world.client.approvals_sync(all=True)
    assert (closed.id, closed.answered_by, closed.requested_at) == (
        asked["id"],
        winner,
        datetime.fromisoformat(asked["requested_at"]),
    )
    check_crash(before, world.snapshot(), max_in_flight=0)
    check_end(world.snapshot(), killed=[first.pid], silent=SILENT)


def test_reminders_go_on_over_deaths_and_each_is_sent_once(world: World):
    victim = world.worker()
    run = world.client.start_sync("reminding", "x")
    for number in (1, 2):  # each dies with a reminder on its way
        label = f"reminder {number}"
        wait_until_sync(
            lambda label=label: [one for one in world.lines() if one.label == label], label, describe=world.describe
        )
        before = world.snapshot()
        victim.kill()
        world.open_gate(label)
        victim = world.worker()
        wait_until_sync(lambda label=label: read_notices(world)[label], f"{label} is sent", describe=world.describe)
        check_crash(before, world.snapshot())
    [asked] = world.client.approvals_sync()
    assert asked.reminder_count in (2, 3)
    assert world.client.approve_sync(asked.id, by="ann")
    journal = world.wait_for_end(run)
    assert journal.output is True
    sent = world.lines("approval notification", "finish")
    assert [line.label for line in sent] == ["requested 0", "reminder 1", "reminder 2"]
    assert {line.key for line in sent} == {key for key, record in journal.steps.items() if record.name == sent[0].step}
    assert Counter(line.label for line in world.lines("approval notification", "start"))["requested 0"] == 1


def test_passing_a_question_on_and_giving_up_happen_once_over_deaths(world: World):
    victims = [world.worker()]
    run = world.client.start_sync("giving_up", "x")
    world.wait_for_run(run, lambda journal: named(journal, "approval notification") == 1, "has told ann")
    victims[-1].kill()
    victims.append(world.worker())
    world.wait_for_run(run, lambda journal: named(journal, "approval notification") == 2, "has told bob")
    victims[-1].kill()
    [asked] = world.client.approvals_sync()
    assert asked.assignee == "bob"
    victims.append(world.worker())
    world.wait_for_line("give_up", "start", run=run)
    before = world.snapshot()
    victims[-1].kill()
    world.open_gate("x")
    world.worker()
    journal = world.wait_for_end(run)
    assert journal.output == "gave x up"
    assert read_notices(world) == {"requested ann 0": 1, "escalated bob 1": 1}
    assert named(journal, "approval timeout") == 1
    assert not journal.list_records(RecordKind.APPROVAL)
    with pytest.raises(ApprovalClosed):
        world.client.approve_sync(asked.id)
    assert Counter(line.phase for line in world.lines("give_up")) == {"start": 2, "finish": 1}
    check_crash(before, world.snapshot())
    check_end(world.snapshot(), killed=[one.pid for one in victims], silent=SILENT)
