"""``ask``: questions to people in workflow code, in virtual time."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, field_validator

from holdfast import (
    ApprovalClosed,
    ApprovalDenied,
    ApprovalNotification,
    ApprovalPolicy,
    ApprovalTimedOut,
    DefinitionError,
    InputError,
    UnknownApproval,
    UsageError,
    ask,
    current_step,
    step,
    workflow,
)
from holdfast.authoring.approval_requests import RAISE, request_approval
from holdfast.core.execution import get_current_execution
from holdfast.core.records import RecordKind
from holdfast.stores.approvals import ApprovalRequest
from holdfast.testing import Runner

pytestmark = pytest.mark.asyncio


class Trip(BaseModel):
    days: int
    to: Literal["Rome", "Oslo"] = "Rome"

    @field_validator("days")
    @classmethod
    def _is_lucky(cls, days: int) -> int:
        if days == 13:
            raise ValueError("13 brings bad luck")
        return days


@pytest.fixture
def notifications() -> list[tuple[Any, ...]]:
    return []


# Answers


@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_plain_question_is_answered_with_yes_or_no(is_approved: bool):
    @workflow
    async def asks_plainly() -> bool:
        return await ask("Deploy?", to="ops")

    runner = Runner()
    run = await runner.start(asks_plainly)
    assert (run.status, run.waits_for) == ("waiting", f"approval {run.approvals[0].id}")
    [asked] = run.approvals
    assert (asked.question, asked.assignee, asked.state, asked.step_number) == ("Deploy?", "ops", "open", 1)
    answered = await (runner.approve(run.run_id) if is_approved else runner.deny(run.run_id, reason="late", by="ann"))
    assert answered.output is is_approved
    [asked] = answered.approvals
    assert asked.state == "answered"
    assert asked.answered_by == ("tester" if is_approved else "ann")
    assert asked.answer is not None
    assert asked.answer.reason == ("" if is_approved else "late")


async def test_the_chosen_one_of_several_choices_is_returned():
    @workflow
    async def asks_where() -> str:
        return await ask("Where to?", choices=["staging", "production"])

    runner = Runner()
    run = await runner.start(asks_where)
    with pytest.raises(InputError, match="needs a choice: choose one of staging, production"):
        await runner.approve(run.run_id)
    with pytest.raises(InputError, match="cannot be answered with 'mars'"):
        await runner.approve(run.run_id, "mars")
    assert (await runner.result(run.run_id)).approvals[0].state == "open"
    assert (await runner.approve(run.run_id, "production")).output == "production"


async def test_a_form_is_filled_in_and_comes_as_an_instance():
    @workflow
    async def plans_a_trip() -> list[Any]:
        trip = await ask("How long?", form=Trip)
        return [type(trip).__name__, trip.days, trip.to]

    runner = Runner()
    run = await runner.start(plans_a_trip)
    with pytest.raises(InputError, match=r"needs a value: an object with days \(integer\), to \("):
        await runner.approve(run.run_id)
    with pytest.raises(InputError, match=r"\$\.days: 'x' is not of type 'integer'; \$\.to: 'Mars' is not one of"):
        await runner.approve(run.run_id, {"days": "x", "to": "Mars"})
    assert (await runner.approve(run.run_id, Trip(days=3))).output == ["Trip", 3, "Rome"]


@pytest.mark.parametrize(
    ("form", "given", "output"),
    [
        pytest.param(int, 3, 3, id="int"),
        pytest.param(list[str], ["a"], ["a"], id="list"),
        pytest.param(int | None, None, None, id="null"),
        pytest.param(Annotated[int, {"not": "hashable"}], 4, 4, id="unhashable"),
    ],
)
async def test_a_form_may_be_any_type_with_a_schema(form: Any, given: Any, output: Any):
    @workflow
    async def asks_for_anything() -> Any:
        return await ask("How many?", form=form)

    runner = Runner()
    run = await runner.start(asks_for_anything)
    assert (await runner.approve(run.run_id, given)).output == output


async def test_a_value_that_the_types_own_validators_reject_is_requested_again():
    @workflow
    async def insists() -> int:
        return (await ask("How long?", form=Trip)).days

    runner = Runner()
    run = await runner.start(insists)
    again = await runner.approve(run.run_id, {"days": 13}, by="ann")
    first, second = again.approvals
    assert (again.status, first.state, second.state) == ("waiting", "answered", "open")
    assert first.id != second.id
    assert second.question.startswith("How long?\n\nThe answer of ann was not accepted: days: Value error, 13 brings")
    assert (await runner.approve(run.run_id, {"days": 12})).output == 12


@pytest.mark.parametrize("more", [{"choices": ["a", "b"]}, {"form": int}], ids=["choices", "form"])
async def test_a_no_to_a_choice_or_a_form_is_an_error_with_who_and_why(more: dict[str, Any]):
    @workflow
    async def cannot_be_denied() -> Any:
        try:
            return await ask("Which?", **more)
        except ApprovalDenied as denied:
            return [denied.by, denied.reason, denied.approval_id == (await which()), str(denied)]

    @step
    async def which() -> str:
        return run.approvals[0].id

    runner = Runner()
    run = await runner.start(cannot_be_denied)
    by, why, is_same, message = (await runner.deny(run.run_id, by="ann", reason="neither")).output
    assert (by, why, is_same) == ("ann", "neither", True)
    assert "ann said no to 'Which?'" in message
    assert message.endswith(": neither")


async def test_a_denied_run_asks_again_when_it_is_retried():
    @workflow
    async def fails_when_denied() -> str:
        return await ask("Which?", choices=["a"])

    runner = Runner()
    run = await runner.start(fails_when_denied)
    assert isinstance((await runner.deny(run.run_id)).error, ApprovalDenied)
    again = await runner.retry(run.run_id)
    assert (again.status, again.approvals[-1].state) == ("waiting", "open")
    assert (await runner.approve(run.run_id, "a")).output == "a"


async def test_questions_side_by_side_are_answered_in_any_order():
    @workflow
    async def asks_two() -> list[bool]:
        return list(await asyncio.gather(ask("First?"), ask("Second?")))

    runner = Runner()
    run = await runner.start(asks_two)
    first, second = run.approvals
    assert first.id != second.id
    with pytest.raises(UsageError, match="has 2 open approvals: choose one with id="):
        await runner.approve(run.run_id)
    await runner.deny(run.run_id, id=second.id)
    assert (await runner.approve(run.run_id, id=first.id)).output == [True, False]
    with pytest.raises(UsageError, match="has no open approval"):
        await runner.approve(run.run_id)


async def test_a_question_that_the_workflow_no_longer_waits_for_is_withdrawn():
    @workflow
    async def loses_patience() -> str:
        try:
            async with asyncio.timeout(60):
                await ask("Anybody?")
        except TimeoutError:
            pass
        await asyncio.sleep(60)
        return "went on"

    runner = Runner()
    run = await runner.start(loses_patience)
    await runner.advance(60)
    [asked] = (await runner.result(run.run_id)).approvals
    assert asked.state == "withdrawn"
    with pytest.raises(ApprovalClosed, match="does not wait for it any more"):
        await runner.approve(run.run_id, id=asked.id)
    assert (await runner.resume(run.run_id)).output == "went on"
    with pytest.raises(ApprovalClosed, match=f"run '{run.run_id}' has completed. Nobody waits for the answer"):
        await runner.approve(run.run_id, id=asked.id)


async def test_cancelling_a_run_closes_its_question():
    @workflow
    async def is_cancelled_while_it_asks() -> bool:
        return await ask("Go?")

    runner = Runner()
    run = await runner.start(is_cancelled_while_it_asks)
    ended = await runner.cancel(run.run_id)
    assert (ended.status, ended.approvals[0].state) == ("cancelled", "withdrawn")
    with pytest.raises(ApprovalClosed, match="was cancelled"):
        await runner.approve(run.run_id, id=ended.approvals[0].id)


async def test_an_answer_for_another_run_is_refused():
    @workflow
    async def asks_for_itself() -> bool:
        return await ask("Mine?")

    runner = Runner()
    one, other = await runner.start(asks_for_itself), await runner.start(asks_for_itself)
    with pytest.raises(UnknownApproval, match=f"was asked for by run '{one.run_id}', not by run '{other.run_id}'"):
        await runner.approve(other.run_id, id=one.approvals[0].id)


# Time


async def test_reminders_escalation_and_time_out_come_in_their_order(notifications: list[tuple[Any, ...]]):
    def tell(notice: ApprovalNotification) -> object:
        notifications.append((notice.kind, notice.assignee, notice.reminder_count, runner.clock.now() - began))
        assert (notice.question, notice.workflow, notice.choices, notice.arguments) == ("Deploy?", "waits", (), None)
        assert notice.run_id == current_step().run_id
        return object()  # nothing that could be recorded

    @workflow
    async def waits() -> bool:
        return await ask(
            "Deploy?", to="ops", timeout=timedelta(minutes=1), remind_every=25, escalate_to=["ann", "bob"], notify=tell
        )

    runner = Runner()
    began = runner.clock.now()
    run = await runner.run(waits)
    assert notifications == [
        ("requested", "ops", 0, 0.0), ("reminder", "ops", 1, 25.0), ("reminder", "ops", 2, 50.0),
        ("escalated", "ann", 3, 60.0), ("reminder", "ann", 4, 85.0), ("reminder", "ann", 5, 110.0),
        ("escalated", "bob", 6, 120.0), ("reminder", "bob", 7, 145.0), ("reminder", "bob", 8, 170.0),
    ]  # fmt: skip
    assert isinstance(run.error, ApprovalTimedOut)
    assert isinstance(run.error, TimeoutError)
    assert "within 60 s each (asked: ops, ann, bob)" in str(run.error)
    assert run.error.approval_id == run.approvals[0].id
    assert runner.clock.now() - began == 180.0
    [asked] = run.approvals
    assert (asked.state, asked.assignee, asked.reminder_count) == ("withdrawn", "bob", 8)
    assert run.steps["approval timeout"][0].output == {"id": asked.id, "withdrawn": True, "details": None}
    with pytest.raises(ApprovalClosed):
        await runner.approve(run.run_id, id=asked.id)


async def test_the_next_assignee_is_in_the_row_with_the_new_time():
    @workflow
    async def escalates() -> bool:
        return await ask("Deploy?", to="ops", timeout=60, escalate_to="ann")

    runner = Runner()
    run = await runner.start(escalates)
    [before] = run.approvals
    await runner.advance(60)
    [after] = (await runner.result(run.run_id)).approvals
    assert (before.assignee, after.assignee, after.state) == ("ops", "ann", "open")
    assert before.expires_at is not None
    assert after.expires_at is not None
    assert after.expires_at - before.expires_at == timedelta(seconds=60)
    assert (await runner.approve(run.run_id, by="ann")).output is True


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({"on_timeout": False}, False, id="bool"),
        pytest.param({"choices": ["a", "b"], "on_timeout": "b"}, "b", id="choice"),
        pytest.param({"form": Trip, "on_timeout": Trip(days=1)}, Trip(days=1), id="form"),
        pytest.param({"form": Trip, "on_timeout": {"days": 1}}, Trip(days=1), id="plain"),
        pytest.param({"form": int | None, "on_timeout": None}, None, id="none"),
    ],
)
async def test_a_value_for_the_time_out_counts_as_the_answer(more: dict[str, Any], expected: Any):
    @workflow
    async def goes_on_without() -> str:
        return repr(await ask("Go?", timeout=3600, **more))

    assert (await Runner().run(goes_on_without)).output == repr(expected)


async def test_an_answer_before_the_time_out_stops_reminders_and_time_out(notifications: list[tuple[Any, ...]]):
    async def tell(notice: ApprovalNotification) -> None:
        notifications.append((notice.kind,))

    @workflow
    async def is_answered_in_time() -> bool:
        answer = await ask("Deploy?", timeout=3600, remind_every=600, notify=tell)
        await asyncio.sleep(7200)
        return answer

    runner = Runner()
    run = await runner.start(is_answered_in_time)
    await runner.advance(700)
    await runner.approve(run.run_id)
    ended = await runner.resume(run.run_id)
    assert ended.output is True
    assert notifications == [("requested",), ("reminder",)]
    assert not ended.steps["approval timeout"]


async def test_a_process_that_was_away_for_long_reminds_once(notifications: list[tuple[Any, ...]]):
    def tell(notice: ApprovalNotification) -> None:
        notifications.append((notice.kind, notice.reminder_count))

    @workflow
    async def reminds_hourly() -> bool:
        return await ask("Deploy?", remind_every=3600, notify=tell)

    runner = Runner()
    run = await runner.start(reminds_hourly)
    runner.clock.advance_to(runner.clock.now() + 30 * 3600)  # and nobody was there
    await runner.advance(0)
    assert notifications == [("requested", 0), ("reminder", 1)]
    assert (await runner.approve(run.run_id)).output is True


async def test_a_timed_out_run_asks_again_when_it_is_retried_and_has_all_its_time():
    @workflow
    async def gives_up() -> bool:
        return await ask("Deploy?", timeout=60, remind_every=25, escalate_to="ann")

    runner = Runner()
    run = await runner.run(gives_up)
    again = await runner.retry(run.run_id)
    assert isinstance(again.error, ApprovalTimedOut)
    first, second = again.approvals
    assert (first.state, second.state, first.id != second.id) == ("withdrawn", "withdrawn", True)
    assert second.requested_at - first.requested_at == timedelta(seconds=120)
    runner.answer_approval("Deploy?", True)
    assert (await runner.retry(run.run_id)).output is True


async def test_people_have_all_their_time_however_long_the_run_was_not_executed_before():
    @step
    async def prepare() -> None: ...

    @workflow
    async def was_away() -> bool:
        await prepare()
        return await ask("Deploy?", timeout=3600)

    runner = Runner()
    runner.simulate_crash_after(prepare)
    run = await runner.run(was_away)
    assert run.has_crashed
    runner.clock.advance_to(runner.clock.now() + 36_000)
    await runner.advance(3599)
    [asked] = (await runner.result(run.run_id)).approvals
    assert asked.state == "open"
    assert asked.expires_at == asked.requested_at + timedelta(hours=1)
    assert (await runner.approve(run.run_id)).output is True


async def test_a_fork_asks_people_for_itself_with_all_the_time_that_they_have():
    @workflow
    async def is_forked() -> bool:
        return await ask("Deploy?", timeout=3600)

    runner = Runner()
    runner.answer_approval("Deploy?", False, True)
    run = await runner.run(is_forked)
    runner.clock.advance_to(runner.clock.now() + 36_000)
    fork = await runner.fork(run.run_id, at="approval")
    assert (run.output, fork.output) == (False, False), "each run is answered for itself"
    assert fork.approvals[0].id != run.approvals[0].id
    assert fork.approvals[0].state == "answered"
    given = await runner.fork(run.run_id, at="approval", with_output=True)
    assert (given.output, given.approvals) == (True, [])


async def test_other_work_during_a_question_is_kept_when_its_timeout_is_retried():
    done: list[int] = []

    @step
    async def dear(number: int) -> int:
        done.append(number)
        return number

    @workflow
    async def does_two_things() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(ask("Deploy?", timeout=60))
            numbers = [await dear(number) for number in range(3)]
        return [answer.result(), numbers]

    runner = Runner()
    run = await runner.run(does_two_things)
    assert run.status == "failed"
    await runner.retry(run.run_id)
    assert done == [0, 1, 2]


async def test_the_value_for_a_timeout_is_a_copy():
    default = Trip(days=1)

    @workflow
    async def changes_what_it_gets() -> int:
        trip = await ask("How long?", form=Trip, timeout=60, on_timeout=default)
        trip.days += 1
        return trip.days

    runner = Runner()
    assert [(await runner.run(changes_what_it_gets)).output for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("has_more", [True, False], ids=["more", "less"])
@pytest.mark.parametrize("when", ["open", "answered", "given up"])
async def test_a_deploy_may_change_who_is_asked_and_for_how_long(has_more: bool, when: str):
    """What holds for a question is recorded when it begins."""

    def tell(notice: ApprovalNotification) -> None: ...

    little: dict[str, Any] = {"timeout": 100, "on_timeout": False} if when == "given up" else {}
    much = {"timeout": 50, "remind_every": 20, "escalate_to": ["ann", "bob"], "notify": tell, "on_timeout": False}
    options, later = (little, much) if has_more else (much, little or {"timeout": 70, "on_timeout": False})

    @step
    async def deploy() -> None: ...

    @workflow
    async def is_changed() -> bool:
        answer = await ask("Deploy?", **options)
        await deploy()
        if when != "open":
            await ask("Again?")
        return answer

    runner = Runner()
    run = await runner.start(is_changed)
    await runner.advance(45)
    if when == "answered":
        run = await runner.approve(run.run_id)
    elif when == "given up":
        await runner.advance(200)
    options = later
    if when == "open":
        assert (await runner.approve(run.run_id)).output is True
        return
    run = await runner.approve(run.run_id)
    assert (run.status, run.output) == ("completed", when == "answered")


CALL = ApprovalRequest(
    "May it?", choices=("now", "never"), form_schema=b"{}", tool="rm", arguments=b'{"path":"a"}', reason="risky"
)


@pytest.mark.parametrize(
    ("later", "is_same"),
    [
        (CALL._replace(question="May they?"), False),
        (CALL._replace(choices=("now",)), False),
        (CALL._replace(tool="mv"), False),
        (CALL._replace(arguments=b'{"path":"b"}'), False),
        (CALL._replace(form_schema=b'{"type":"object"}', reason="very risky"), True),
    ],
    ids=["text", "choices", "tool", "arguments", "form and reason"],
)
async def test_an_answer_counts_only_for_its_question(later: ApprovalRequest, is_same: bool):
    question = CALL

    @workflow
    async def is_bound() -> str:
        execution = get_current_execution()
        assert execution is not None
        return (await request_approval(execution, question, ApprovalPolicy())).id

    runner = Runner()
    run = await runner.start(is_bound)
    [shown] = run.approvals
    question = later
    run = await runner.approve(run.run_id)
    if not is_same:
        assert run.status == "waiting"
        former, now = run.approvals
        assert (former.id, former.state, now.state) == (shown.id, "withdrawn", "open")
        run = await runner.approve(run.run_id)
    assert run.status == "completed"
    assert (run.output == shown.id) is is_same


# Notices


async def test_notify_may_be_a_step_with_retries_and_keeps_its_key(notifications: list[tuple[Any, ...]]):
    @step(retries=2, backoff=1)
    async def mail(notice: ApprovalNotification) -> None:
        notifications.append((current_step().idempotency_key, current_step().attempt))
        if current_step().attempt < 3:
            raise ConnectionError("no mail")

    @workflow
    async def mails() -> bool:
        return await ask("Deploy?", notify=mail)

    runner = Runner()
    run = await runner.start(mails)
    await runner.advance(60)
    assert [attempt for _, attempt in notifications] == [1, 2, 3]
    assert len({key for key, _ in notifications}) == 1
    assert (await runner.approve(run.run_id)).output is True


async def test_a_notice_that_fails_is_recorded_and_the_question_stays_open():
    def mail(notice: ApprovalNotification) -> None:
        raise ConnectionError("no mail")

    @workflow
    async def cannot_mail() -> bool:
        return await ask("Deploy?", notify=mail)

    runner = Runner()
    run = await runner.start(cannot_mail)
    [notice] = run.steps["approval notification"]
    assert isinstance(notice.error, ConnectionError)
    assert run.status == "waiting"
    assert (await runner.approve(run.run_id)).output is True


async def test_an_answer_that_comes_during_a_notification_does_not_wait():
    @step(retries=1000, backoff=60)
    async def mail(notice: ApprovalNotification) -> None:
        raise ConnectionError("no mail")

    @workflow
    async def is_quicker_than_the_mail() -> bool:
        return await ask("Deploy?", notify=mail)

    runner = Runner()
    run = await runner.start(is_quicker_than_the_mail)
    assert (await runner.approve(run.run_id)).output is True


# The lower level


async def test_request_approval_returns_the_deciding_record():
    @workflow
    async def decides() -> list[Any]:
        execution = get_current_execution()
        assert execution is not None
        asked = ApprovalRequest("Call it?", tool="call", arguments=b'{"a": 1}', form_schema=b'{"type": "object"}')
        one = await request_approval(execution, asked, ApprovalPolicy("ops"), details={"call": 7})
        other = await request_approval(execution, asked, ApprovalPolicy(timeout=5), name="second", details={"call": 8})
        assert one.answer is not None
        assert other.answer is None
        assert (one.record.kind, one.record.name) == (RecordKind.APPROVAL, "approval")
        assert other.record.name == "approval timeout"
        return [one.answer.arguments, one.record.preview == one.id, json.loads(other.record.payload or b"")["details"]]

    runner = Runner()
    run = await runner.start(decides)
    [asked] = run.approvals
    assert (asked.arguments, asked.tool, asked.assignee) == ({"a": 1}, "call", "ops")
    with pytest.raises(InputError, match="approve of it without a value"):
        await runner.approve(run.run_id, "yes")
    with pytest.raises(InputError, match="are an object, with a value for each"):
        await runner.approve(run.run_id, arguments=[1])  # type: ignore[arg-type]
    await runner.approve(run.run_id, arguments={"a": 2})
    assert (await runner.resume(run.run_id)).output == [{"a": 2}, True, {"call": 8}]


# What is refused


async def test_ask_outside_of_workflow_code_says_where_it_belongs():
    @step
    async def asks_in_a_step() -> None:
        await ask("Deploy?")

    @workflow
    async def asks_wrongly() -> None:
        await asks_in_a_step()

    with pytest.raises(UsageError, match="Ask in the workflow, and hand the answer to the step that needs it"):
        await ask("Deploy?")
    assert "only in workflow or program code" in str((await Runner().run(asks_wrongly)).error)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"question": " "}, "the question is a text"),
        ({"choices": ["a"], "form": int}, "exclude each other"),
        ({"choices": []}, "different texts"),
        ({"choices": "abc"}, "different texts"),
        ({"choices": ["a", "a"]}, "different texts"),
        ({"choices": ["a", 1]}, "different texts"),
        ({"form": object()}, "cannot be filled in by people"),
        ({"timeout": 0}, "timeout 0 is not a duration"),
        ({"remind_every": -1}, "remind_every -1 is not a duration"),
        ({"on_timeout": True}, "on_timeout=True is never used without a timeout="),
        ({"escalate_to": "ann"}, "never used without a timeout="),
        ({"timeout": 1, "escalate_to": [""]}, "names who is asked next"),
        ({"timeout": 1, "on_timeout": "yes"}, "must be True or False"),
        ({"timeout": 1, "on_timeout": "c", "choices": ["a"]}, "is none of the choices"),
        ({"timeout": 1, "on_timeout": {"days": 13}, "form": Trip}, "does not fit the form"),
        ({"notify": 3}, "a function or a step that tells people"),
        ({"notify": lambda: None}, "must take one argument"),
        ({"to": 7}, "assignee= is the name of somebody"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_an_invalid_question_is_an_error_before_people_are_asked(given: dict[str, Any], words: str):
    @workflow
    async def asks_nonsense() -> Any:
        return await ask(**{"question": "Deploy?", **given})

    run = await Runner().run(asks_nonsense)
    assert isinstance(run.error, UsageError)
    assert words in str(run.error)
    assert not run.approvals


async def test_a_policy_that_cannot_work_is_a_definition_error():
    with pytest.raises(DefinitionError, match="never used without a timeout="):
        ApprovalPolicy(escalate_to=["ann"])

    @step(1)
    async def numbered(self: Any, notice: ApprovalNotification) -> None: ...

    with pytest.raises(DefinitionError, match="numbered step of a class workflow"):
        ApprovalPolicy(notify=numbered)
    policy = ApprovalPolicy("ops", timedelta(hours=1), escalate_to="ann")
    assert (policy.timeout, policy.assignees, policy.on_timeout) == (3600.0, ("ops", "ann"), RAISE)
