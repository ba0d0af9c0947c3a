"""People in the tests of users: questions are answered by the test, and survive every crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import runner_approval_flows
from runner_approval_flows import asks_of_chance, patient_publishing, publishing

from holdfast import ApprovalTimedOut, RunNotFound, UnknownApproval, UsageError
from holdfast.core.drift import DriftContext
from holdfast.core.patches import Patches
from holdfast.core.records import Record, RecordKind
from holdfast.testing import CrashSafetyError, Journal, Runner, export_run, replay


@pytest.fixture(autouse=True)
def _nothing_sent() -> Iterator[None]:
    runner_approval_flows.sent.clear()
    yield
    runner_approval_flows.sent.clear()


def test_a_test_answers_one_question_after_the_other():
    runner = Runner()
    run = runner.start_sync(publishing)
    assert [one.question for one in run.approvals] == ["Publish?"]
    run = runner.approve_sync(run.run_id, by="ann")
    run = runner.approve_sync(run.run_id, "there")
    run = runner.approve_sync(run.run_id, {"days": 2})
    assert run.output == "published in there for 2 days"
    assert [(one.question, one.answered_by) for one in run.approvals] == [
        ("Publish?", "ann"), ("Where?", "tester"), ("How long?", "tester")
    ]  # fmt: skip
    assert run.steps[2].name == "approval start"
    with pytest.raises(IndexError, match=r"number 1 is an approval \(see `\.approvals`\)"):
        run.steps[1]


def test_a_no_is_an_answer_like_any_other():
    runner = Runner()
    run = runner.start_sync(publishing)
    assert runner.deny_sync(run.run_id, reason="not yet").output == "denied"


def test_answers_can_be_prepared():
    runner = Runner()
    runner.answer_approval("Publish?", True)
    runner.answer_approval("Where?", "here")
    runner.answer_approval("How long?", {"days": 13}, {"days": 3})
    run = runner.run_sync(publishing)
    assert run.output == "published in here for 3 days"
    assert len(run.approvals) == 4, "the form was asked for twice"
    runner.answer_approval("Publish?", False)
    assert runner.run_sync(publishing).output == "denied"


def test_nobody_answers_if_the_test_says_so():
    runner = Runner()
    runner.answer_approval("Publish?", None, True)
    run = runner.run_sync(publishing)
    assert isinstance(run.error, ApprovalTimedOut)
    assert runner_approval_flows.sent == ["requested", "reminder", "escalated", "reminder"]


def test_an_answer_without_an_open_approval_is_refused():
    runner = Runner()
    with pytest.raises(RunNotFound):
        runner.approve_sync("nobody")
    run = runner.start_sync(publishing)
    with pytest.raises(UnknownApproval):
        runner.deny_sync(run.run_id, id="zzz")
    runner.deny_sync(run.run_id)
    with pytest.raises(UsageError, match="has no open approval"):
        runner.deny_sync(run.run_id)


def test_a_workflow_that_asks_survives_a_crash_everywhere():
    runner = Runner(max_pairs=20, replay_processes=1)
    runner.before_each(runner_approval_flows.sent.clear)
    runner.answer_approval("Publish?", True)
    runner.answer_approval("Where?", "here")
    runner.answer_approval("How long?", {"days": 13}, {"days": 3})
    report = runner.crash_everywhere_sync(publishing)
    assert report.result.output == "published in here for 3 days"
    assert report.point_count > 20


def test_a_workflow_that_gives_up_survives_a_crash_everywhere():
    runner = Runner(max_pairs=20, replay_processes=1)
    mock = runner.mock("approval notification", return_value=None)
    runner.answer_approval("Publish?", None)
    report = runner.crash_everywhere_sync(patient_publishing)
    assert report.result.output == "published in the drawer"
    assert mock.calls
    assert runner_approval_flows.sent == []


def test_a_question_that_is_another_one_on_replay_is_found():
    runner = Runner(max_pairs=0, replay_processes=0)
    with pytest.raises(UsageError, match=r"set the answer with `runner\.answer_approval"):
        runner.crash_everywhere_sync(asks_of_chance)
    runner.answer_approval("Publish?", True)
    with pytest.raises(CrashSafetyError) as found:
        runner.crash_everywhere_sync(asks_of_chance)
    assert "approval 1" in str(found.value)
    assert "was called with" in str(found.value)


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_process_can_be_made_to_die_around_an_answer(place: str):
    runner = Runner()
    runner.answer_approval("Publish?", False)
    getattr(runner, f"simulate_crash_{place}")(approval=1)
    run = runner.run_sync(publishing)
    assert run.has_crashed
    run = runner.resume_sync(run.run_id)
    assert run.output == "denied"
    assert len(run.approvals) == 1
    with pytest.raises(UsageError, match="give its number"):
        runner.simulate_crash_after(approval="Publish?")  # type: ignore[arg-type]


@pytest.mark.parametrize("only", ["after question 1", "before question 1; before approval 1", "after approval 1"])
def test_a_schedule_that_names_questions_and_answers_can_be_tried_again(only: str):
    runner = Runner(only=only, replay_processes=0)
    runner.answer_approval("Publish?", False)
    assert runner.crash_everywhere_sync(publishing).result.output == "denied"


def test_an_approval_in_place_of_another_command_is_reported_as_drift():
    was = Record(0, RecordKind.APPROVAL, 0, "approval of #2", True, b"{}", 0.0)
    error = DriftContext("r", "", Patches()).make_error(was, {}, has_ended=False)
    assert "  ≠ #1 approval of #2   (nothing: no command yet)\n" in str(error)


def test_journals_with_answers_are_exported_read_back_and_replayed():
    runner = Runner()
    runner.answer_approval("Publish?", True)
    run = runner.run_sync(publishing)
    journal = asyncio.run(export_run(runner._world.store, run.run_id))
    again = Journal.loads(journal.dumps())
    assert [record for record in again.records if record.kind is RecordKind.APPROVAL]
    replayed = replay(again, publishing)
    assert (replayed.difference, replayed.waits_for) == ("", ("an answer to 'Where?'",))
