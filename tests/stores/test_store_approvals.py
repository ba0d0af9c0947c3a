"""Questions to people: asked once, answered once, and never answered with the answer to another question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from store_values import (
    DONE,
    FENCED,
    FLOW,
    REFUSED,
    Clock,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    list_record_seqs,
    list_signals,
    new_run,
    new_worker,
    park,
    read_run,
    release,
    rewind,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import RecordKind, Signal
from holdfast.core.states import RunState
from holdfast.stores.approvals import (
    AnswerApproval,
    Approval,
    ApprovalFilter,
    ApprovalRequest,
    ApprovalState,
    RemindApproval,
    RequestApproval,
    WithdrawApproval,
    make_answer_name,
)
from holdfast.stores.contract import MAX_INLINE_BYTES, Store
from holdfast.stores.operations import CancelRun, ForkRun, OpStatus, PauseRun, ReopenRun, ResumeRun, Run, StartResult

pytestmark = pytest.mark.asyncio

A1 = make_answer_name("a1")
DUPLICATE, ENDED, UNKNOWN = OpStatus.DUPLICATE, OpStatus.ENDED, OpStatus.UNKNOWN_APPROVAL
OPEN, ANSWERED, WITHDRAWN = ApprovalState.OPEN, ApprovalState.ANSWERED, ApprovalState.WITHDRAWN
QUESTION = ApprovalRequest("Send the mail?", "ann", tool="send_mail", arguments=b'{"to":"bob"}')
FULL = ApprovalRequest("Which?", "ann", ("this", "that"), b'{"type":"string"}', "pick", b'{"of":2}', "it costs money")
OTHER = QUESTION._replace(question="Send the money?")
LATER = 1_000_050.0


def ask(
    run: Run, position: int = 3, approval: str = "a1", question: ApprovalRequest = QUESTION, **fields: Any
) -> RequestApproval:
    return RequestApproval(run.key, run.epoch, position, approval, question, **{"at": 1_000_010.0, **fields})


def remind(run: Run, count: int = 1, assignee: str = "bob", **fields: Any) -> RemindApproval:
    return RemindApproval(run.key, run.epoch, "a1", count, assignee, **{"at": 1_000_020.0, **fields})


def withdraw(run: Run, approval: str = "a1") -> WithdrawApproval:
    return WithdrawApproval(run.key, run.epoch, approval, 1_000_030.0)


def answer(approval: str = "a1", payload: bytes = b"true", by: str = "ann") -> AnswerApproval:
    return AnswerApproval(approval, payload, by, 1_000_040.0)


async def the(store: Store, approval: str = "a1") -> Approval:
    [found] = await store.list_approvals(ApprovalFilter(id_prefix=approval, only_open=False))
    return found


async def opened(store: Store, **where: Any) -> list[str]:
    return [approval.id for approval in await store.list_approvals(ApprovalFilter(**where))]


def answers(found: Sequence[Signal]) -> list[tuple[str, int | None, bytes]]:
    return [(signal.name, signal.position, signal.payload) for signal in found]


# Asking


async def test_an_approval_is_stored_as_it_was_requested(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, ask(run, question=FULL, expires_at=LATER)) == [DONE]
    assert await store.list_approvals(ApprovalFilter()) == [
        Approval("a1", "r", FLOW, 3, FULL, OPEN, 1_000_010.0, LATER, "ann", 0, None)
    ]


async def test_requesting_again_changes_nothing_also_after_a_takeover(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run, expires_at=LATER), remind(run))
    before = await the(store)
    assert await commit_ops(store, ask(run, at=1_000_099.0)) == [DONE]
    await commit_ops(store, release(run))
    taken = await claim_run(store)
    assert await commit_ops(store, ask(taken, at=1_000_099.0), ask(run)) == [DONE, FENCED]
    assert await the(store) == before


async def test_asking_again_after_the_answer_neither_loses_nor_doubles_it(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), answer())
    assert await commit_ops(store, ask(run)) == [DONE]
    [signal] = await list_signals(store, run)
    await commit_ops(store, append(run, 0, kind=RecordKind.APPROVAL, position=3, consume=signal.id))
    assert await commit_ops(store, ask(run)) == [DONE]
    assert await list_signals(store, run) == []
    assert (await the(store)).state is ANSWERED


async def test_a_withdrawn_approval_is_open_again_when_it_is_requested_after_a_takeover(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), remind(run), withdraw(run), release(run))
    assert await opened(store) == []
    taken = await claim_run(store)
    assert await commit_ops(store, ask(taken, at=1_000_060.0, expires_at=LATER)) == [DONE]
    found = await the(store)
    assert (found.state, found.requested_at, found.expires_at) == (OPEN, 1_000_060.0, LATER)
    assert (found.assignee, found.reminder_count, found.reminded_at) == ("ann", 0, None)
    assert await commit_ops(store, answer()) == [DONE]


async def test_a_request_that_arrives_after_its_withdrawal_opens_nothing(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), withdraw(run))
    assert await commit_ops(store, ask(run)) == [DONE]
    assert await commit_ops(store, answer()) == [ENDED], "nobody waits for it"
    await commit_ops(store, release(run))
    taken = await claim_run(store)
    assert await commit_ops(store, ask(taken), withdraw(taken), ask(taken)) == [DONE] * 3
    assert await opened(store) == []


async def test_another_approval_replaces_an_open_one(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), ask(run, 4, "beside"), release(run))
    taken = await claim_run(store)
    assert await commit_ops(store, ask(taken, approval="a2", question=OTHER)) == [DONE]
    assert await opened(store) == ["beside", "a2"]
    assert (await the(store)).request == QUESTION, "people still see what they were shown"
    assert await commit_ops(second_store, answer(), answer("a2")) == [ENDED, DONE]
    assert answers(await list_signals(store, run)) == [(make_answer_name("a2"), 3, b"true")]


async def test_an_answer_is_never_taken_for_the_answer_to_another_question(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), ask(run, 4, "beside"), answer(), answer("beside"), release(run))
    taken = await claim_run(store)
    parked = await commit_ops(store, ask(taken, approval="a2", question=OTHER), park(taken, approval_ids=("a2",)))
    assert parked == [DONE, DONE], "it waits for another answer"
    assert answers(await list_signals(store, run)) == [(make_answer_name("beside"), 4, b"true")]
    former = await the(store)
    assert (former.state, former.answer, former.answered_by) == (WITHDRAWN, b"true", "ann"), "who had said what"
    assert await commit_ops(store, answer("a2", by="bob")) == [DONE]


async def test_a_park_looks_for_the_answer_to_its_own_question_alone(store: Store):
    """The answer came before whoever holds the run now had asked anything."""
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), answer())
    assert await commit_ops(store, park(run, awaited_positions=(3,), approval_ids=("a2",))) == [DONE]


@pytest.mark.parametrize("was_answered", [False, True])
async def test_a_replaced_approval_can_be_requested_again(store: Store, was_answered: bool):
    """A deploy is rolled back."""
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), *([answer()] if was_answered else []), release(run))
    taken = await claim_run(store)
    await commit_ops(store, ask(taken, approval="a2", question=OTHER))
    assert await commit_ops(store, ask(taken)) == [DONE], "a repeat that comes late"
    assert await opened(store) == ["a2"]
    await commit_ops(store, answer("a2"), release(taken))
    back = await claim_run(store)
    assert await commit_ops(store, ask(back), park(back, approval_ids=("a1",))) == [DONE, DONE]
    assert await opened(store) == ["a1"]
    assert (await the(store)).answered_by == ""
    assert await list_signals(store, run) == []
    assert await commit_ops(store, answer("a2"), answer(by="bob")) == [ENDED, DONE]


async def test_followers_see_that_an_approval_was_replaced(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), ask(run, approval="a2", question=OTHER))
    feed = await store.get_run_updates("r", -1, 0, 10)
    assert feed is not None
    assert [(one.kind, one.data) for _, one in feed.live_events] == [
        ("requested", b'"a1"'),
        ("withdrawn", b'"a1"'),
        ("requested", b'"a2"'),
    ]


async def test_the_reason_form_and_assignee_do_not_make_an_approval_another_one(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), answer())
    assert await commit_ops(
        store, ask(run, question=QUESTION._replace(reason="new", form_schema=b"{}", assignee="bob"))
    ) == [DONE]
    assert answers(await list_signals(store, run)) == [(A1, 3, b"true")]


async def test_the_id_of_another_runs_question_is_refused(store: Store):
    run = await start_claimed_run(store)
    other = await start_run(store, "other", claim_as=run.owner)
    await commit_ops(store, ask(run))
    assert await commit_ops(store, ask(other)) == [REFUSED]
    assert await commit_ops(store, RemindApproval(other.key, 1, "a1", 1, "eve", 1.0)) == [UNKNOWN]
    assert await commit_ops(store, withdraw(other)) == [UNKNOWN]
    assert (await the(store)).run_id == "r"


async def test_a_zombie_requests_reminds_and_withdraws_nothing(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), release(run))
    await claim_run(store)
    assert await commit_ops(store, ask(run, 4, "a2"), remind(run), withdraw(run)) == [FENCED] * 3
    assert await opened(store) == ["a1"]
    assert (await the(store)).reminder_count == 0


# Reminding and withdrawing


async def test_a_reminder_is_counted_once_and_may_change_the_assignee(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run, expires_at=LATER))
    assert await commit_ops(store, remind(run), remind(run), remind(run, 2, "cleo", expires_at=LATER + 1)) == [DONE] * 3
    assert await commit_ops(store, remind(run, 1, "late")) == [DONE]
    found = await the(store)
    assert (found.reminder_count, found.assignee, found.expires_at) == (2, "cleo", LATER + 1)
    assert (found.reminded_at, found.request.assignee) == (1_000_020.0, "ann")


async def test_a_withdrawal_after_the_answer_is_refused(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), answer())
    assert await commit_ops(store, withdraw(run), remind(run)) == [REFUSED, REFUSED]
    assert answers(await list_signals(store, run)) == [(A1, 3, b"true")]


async def test_withdrawing_twice_is_harmless_and_a_withdrawn_one_is_not_reminded_of(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run))
    assert await commit_ops(store, withdraw(run), withdraw(run), remind(run)) == [DONE, DONE, REFUSED]
    assert await commit_ops(store, withdraw(run, "none")) == [UNKNOWN]


# Answering


async def test_an_answer_is_in_the_mailbox_and_wakes_the_run(store: Store, second_store: Store, clock: Clock):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), park(run, approval_ids=("a1",)))
    clock.advance(5.0)
    assert await commit_ops(second_store, answer(payload=b'{"ok":true}', by="bob")) == [DONE]
    found = await the(store)
    assert (found.state, found.answer, found.answered_by) == (ANSWERED, b'{"ok":true}', "bob")
    assert (found.answered_at, found.request) == (1_000_040.0, QUESTION)
    taken = await claim_run(store)
    assert taken.id == "r"
    assert answers(await list_signals(store, taken)) == [(A1, 3, b'{"ok":true}')]


async def test_the_holder_gets_an_answer(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    assert run.owner is not None
    await commit_ops(store, ask(run))
    await commit_ops(second_store, answer())
    [(key, signal)] = (await store.claims.get_new_signals(run.owner, 0)).signals
    assert (key, *answers([signal])) == (run.key, (A1, 3, b"true"))


async def test_a_run_does_not_park_while_its_answer_is_there(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), answer())
    assert await commit_ops(store, park(run, approval_ids=("a1",))) == [REFUSED]
    other = park(run, None, A1, "a1", awaited_positions=(3,), approval_ids=("a2",))
    assert await commit_ops(store, other) == [DONE], (
        "it is no signal that somebody has sent, no end, no answer to another one"
    )


async def test_a_question_is_answered_once(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run))
    assert await commit_ops(store, answer(payload=b"1", by="ann"), answer(payload=b"2", by="bob")) == [DONE, DUPLICATE]
    assert await commit_ops(second_store, answer(payload=b"3", by="cleo")) == [DUPLICATE]
    found = await the(store)
    assert (found.answered_by, found.answer) == ("ann", b"1")
    assert answers(await list_signals(store, run)) == [(A1, 3, b"1")]


async def test_a_closed_or_unknown_approval_takes_no_answer(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), ask(run, 4, "a2"), withdraw(run))
    assert await commit_ops(store, answer(), answer("none"), answer("half \udc80")) == [ENDED, UNKNOWN, UNKNOWN]
    await commit_ops(store, finish(run))
    assert await commit_ops(store, answer("a2")) == [ENDED]
    assert await list_signals(store, run) == []


async def test_an_approval_can_be_requested_and_answered_in_one_commit(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, ask(run), answer(), park(run, approval_ids=("a1",))) == [DONE, DONE, REFUSED]


async def test_a_paused_run_has_the_answer_and_stays_paused(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), park(run, approval_ids=("a1",)), PauseRun("r", 1.0))
    assert await commit_ops(store, answer()) == [DONE]
    worker = await store.workers.register(new_worker("idle"), 10.0)
    assert await store.claims.claim(worker, workflows=[FLOW], queues=None, limit=1) == []
    await commit_ops(store, ResumeRun("r", 2.0))
    assert (await claim_run(store, worker)).id == "r"


async def test_large_questions_and_answers_survive(store: Store):
    run = await start_claimed_run(store)
    large = b'"' + b"x" * (MAX_INLINE_BYTES + 1) + b'"'
    question = QUESTION._replace(arguments=large, form_schema=large + b" ")
    assert await commit_ops(store, ask(run, question=question)) == [DONE]
    assert await commit_ops(store, ask(run, question=question)) == [DONE]
    assert (await the(store)).request == question
    assert await commit_ops(store, answer(payload=large)) == [DONE]
    assert (await the(store)).answer == large
    assert answers(await list_signals(store, run)) == [(A1, 3, large)]


async def test_odd_characters_survive_or_become_question_marks(store: Store):
    run = await start_claimed_run(store)
    odd = ApprovalRequest("may\x00I \udc80 'do' \"it\"?", "ann \udc80", ("\udc80",), tool="x", reason="\U0001f600")
    await commit_ops(store, ask(run, question=odd), answer(by="\udcffbob"))
    found = await the(store)
    assert (found.request, found.assignee, found.answered_by) == (odd, "ann ?", "?bob")


# Ends


async def test_the_questions_of_a_run_that_has_ended_are_open_no_more(store: Store, kill_worker: Callable[[int], None]):
    first = await start_claimed_run(store, max_deliveries=1)
    assert first.owner is not None
    worker = await store.workers.register(new_worker("second"), 10.0)
    second = await start_run(store, "s", claim_as=worker)
    await commit_ops(store, ask(first), ask(second, approval="b1"), ask(second, 4, "b2"), answer("b2"))
    await commit_ops(store, finish(second))
    assert await opened(store) == ["a1"]
    kill_worker(first.owner)
    await store.workers.reap_dead()
    assert await get_state(store) is RunState.DEAD
    assert await opened(store) == []
    states = {one.id: one.state for one in await store.list_approvals(ApprovalFilter(only_open=False))}
    assert states == {"a1": WITHDRAWN, "b1": WITHDRAWN, "b2": ANSWERED}


async def test_a_question_of_a_cancelled_run_stays_open_until_the_run_has_ended(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), CancelRun("r", 1.0))
    assert await opened(store) == ["a1"]
    await commit_ops(store, finish(run, RunState.CANCELLED))
    assert await opened(store) == []


# Retries


async def test_an_answer_in_the_journal_that_a_retry_removes_is_requested_again(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), answer())
    [signal] = await list_signals(store, run)
    await commit_ops(store, append(run, 0, kind=RecordKind.APPROVAL, position=3, consume=signal.id))
    await commit_ops(store, finish(run, RunState.FAILED, rewind=rewind(0, command_count=4)))
    assert await commit_ops(store, ReopenRun("r", 1.0)) == [DONE]
    assert await list_record_seqs(store, run) == []
    assert await list_signals(store, run) == []
    found = await the(store)
    assert (found.state, found.answered_by) == (WITHDRAWN, "ann"), "people still see who had said what"
    taken = await claim_run(store)
    given = answer(payload=b"false", by="bob")
    assert await commit_ops(store, ask(taken), park(taken, approval_ids=("a1",)), given) == [DONE] * 3
    assert answers(await list_signals(store, run)) == [(A1, 3, b"false")]


async def test_an_answer_in_the_mailbox_for_a_command_that_a_retry_removes_is_deleted(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run, 1, "a1"), ask(run, 3, "a3"), answer("a1"), answer("a3"), append(run, 0, ok=False))
    await commit_ops(store, finish(run, RunState.FAILED, rewind=rewind(0, command_count=2)))
    await commit_ops(store, ReopenRun("r", 1.0))
    assert answers(await list_signals(store, run)) == [(A1, 1, b"true")], "what was asked before keeps its answer"
    assert [(await the(store, one)).state for one in ("a1", "a3")] == [ANSWERED, WITHDRAWN]
    taken = await claim_run(store)
    parked = await commit_ops(store, ask(taken, 3, "a4"), park(taken, approval_ids=("a4",)))
    assert parked == [DONE, DONE], "another question at that place has no answer yet"


async def test_a_retry_that_takes_nothing_back_keeps_the_answer(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), ask(run, 4, "a2"), answer())
    await commit_ops(store, finish(run, RunState.FAILED))
    await commit_ops(store, ReopenRun("r", 1.0))
    assert answers(await list_signals(store, run)) == [(A1, 3, b"true")]
    taken = await claim_run(store)
    assert await opened(store) == []
    assert await commit_ops(store, ask(taken, 4, "a2"), ask(taken)) == [DONE, DONE]
    assert await opened(store) == ["a2"]
    assert answers(await list_signals(store, run)) == [(A1, 3, b"true")]


async def test_a_fork_has_the_records_but_no_questions(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0, kind=RecordKind.APPROVAL), ask(run), answer())
    [forked] = await commit_ops(store, ForkRun("r", new_run("f"), 1))
    assert isinstance(forked, StartResult)
    assert await opened(store, run_id="f", only_open=False) == []
    assert await list_signals(store, forked.run) == []
    [history] = await store.get_histories([forked.run.key])
    assert [record.kind for record in history.records] == [RecordKind.APPROVAL]


# Listing


async def test_approvals_are_listed_by_filter(store: Store):
    run = await start_claimed_run(store)
    other = await start_run(store, "s", claim_as=run.owner, workflow="mail")
    await commit_ops(store, ask(run, 1, "b%1", at=30.0), ask(run, 2, "b_2", at=20.0), ask(other, 1, "c1", at=10.0))
    await commit_ops(store, ask(other, 2, "c2", at=5.0), withdraw(other, "c2"))
    await commit_ops(store, RemindApproval(other.key, 1, "c1", 1, "bob", 1.0))
    assert await opened(store) == ["c1", "b_2", "b%1"]
    assert await opened(store, only_open=False) == ["c2", "c1", "b_2", "b%1"]
    assert await opened(store, run_id="s") == ["c1"]
    assert await opened(store, workflow="mail") == ["c1"]
    assert await opened(store, assignee="bob") == ["c1"]
    assert await opened(store, assignee="ann", workflow=FLOW) == ["b_2", "b%1"]
    assert await opened(store, id_prefix="b") == ["b_2", "b%1"]
    assert [await opened(store, id_prefix=odd) for odd in ("b%", "b_", "%", "_", "\udc80")] == [
        ["b%1"],
        ["b_2"],
        [],
        [],
        [],
    ]
    assert [one.id for one in await store.list_approvals(ApprovalFilter(), limit=2)] == ["c1", "b_2"]
    await commit_ops(store, withdraw(run, "b_2"))
    assert await opened(store, only_closed=True) == ["b_2", "c2"]
    assert await opened(store, only_closed=True, run_id="s") == ["c2"]
    assert await opened(store, run_id="none") == []


async def test_a_list_continues_after_a_cursor_whatever_became_of_that_approval(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(
        store, *(ask(run, number, f"a{number}", at=10.0 if number < 4 else 20.0) for number in range(1, 7))
    )
    assert await opened(store, after=(10.0, "a2")) == ["a3", "a4", "a5", "a6"]
    assert await opened(store, after=(20.0, "a6")) == []
    await commit_ops(store, withdraw(run, "a2"), withdraw(run, "a5"))
    assert await opened(store, after=(10.0, "a2")) == ["a3", "a4", "a6"]
    assert await opened(store, after=(20.0, "a5")) == ["a6"]
    assert await opened(store, after=(10.0, "a1"), only_open=False) == ["a2", "a3", "a4", "a5", "a6"]
    assert await opened(store, only_closed=True) == ["a5", "a2"]
    assert await opened(store, only_closed=True, after=(20.0, "a5")) == ["a2"]
    assert await opened(store, only_closed=True, after=(20.0, "a4")) == ["a2"]
    # What is gone leaves a time: nothing is left out, and a tie may come again.
    assert await opened(store, after=(10.0, "gone")) == ["a1", "a3", "a4", "a6"]
    assert await opened(store, after=(15.0, "\udc80")) == ["a4", "a6"]
    assert await opened(store, only_closed=True, after=(15.0, "gone")) == ["a2"]


async def test_a_run_that_was_answered_waits_no_longer_than_it_takes_to_claim_it(store: Store, clock: Clock):
    run = await start_claimed_run(store)
    await commit_ops(store, ask(run), park(run, clock.now + 1000, approval_ids=("a1",)))
    assert (await read_run(store)).wake_at == clock.now + 1000
    clock.advance(7.0)
    await commit_ops(store, answer())
    assert (await read_run(store)).wake_at == clock.now
