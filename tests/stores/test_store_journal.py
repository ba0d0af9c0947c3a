"""Journals: records, the fence, harmless repeats, attempts, and batches of them."""

from __future__ import annotations

import pytest
from store_values import (
    ALL,
    DONE,
    FENCED,
    TOLD,
    a_worker,
    append,
    claim_one,
    do,
    finish,
    hold,
    journal,
    note,
    park,
    record,
    release,
    row,
    signal,
    start,
    state_of,
)

from holdfast.core.records import Attempt, RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import MAX_INLINE_BYTES, Store
from holdfast.stores.journal_pages import group_segments
from holdfast.stores.operations import AppendRecord, FinishRun

pytestmark = pytest.mark.asyncio


async def test_a_record_is_read_back_as_it_was_appended(store: Store):
    run = await hold(store)
    made = [
        record(1, position=0, payload=b"\x00\xff" * 500, attempts=3),
        record(2, position=0, kind=RecordKind.TIMER, name="", payload=None, preview="", started_at=0.0),
        record(3, position=1, kind=RecordKind.SIGNAL, name="approve", payload=b""),
        record(4, position=2, ok=False, payload=b'{"type":"ValueError"}', name="lädt ✓", preview="x='\x00'"),
        record(5, position=0, kind=RecordKind.DEADLINE, name="", payload=None),
    ]
    for one in made:
        assert await do(store, AppendRecord(run.key, one)) == [DONE]
    [history] = await store.get_histories([run.key])
    assert list(history.records) == made
    assert all(type(one.kind) is RecordKind and type(one.ok) is bool for one in history.records)


async def test_histories_come_in_the_order_asked_for_and_are_empty_for_a_fresh_run(store: Store):
    first, second, third = [await hold(store, name) for name in "abc"]
    await do(store, append(second, 1), append(first, 1), append(second, 2))
    assert [len(h.records) for h in await store.get_histories([third.key, second.key, first.key])] == [0, 2, 1]
    assert await store.get_histories([]) == []


async def test_a_journal_is_read_in_the_order_of_seq_when_runs_are_interleaved(store: Store):
    runs = [await hold(store, f"r{i}") for i in range(3)]
    for seq in range(1, 30):
        await do(store, *[append(run, seq) for run in runs])
    for run in runs:
        assert await journal(store, run) == list(range(1, 30))


async def test_an_append_under_a_stale_epoch_is_fenced_and_changes_nothing(store: Store):
    run = await hold(store)
    await do(store, append(run, 1), release(run))
    successor = await claim_one(store)
    assert successor.epoch == run.epoch + 1
    assert await do(store, append(run, 2)) == [FENCED]
    assert await do(store, append(run, 2), append(run, 3)) == [FENCED, FENCED]
    assert await journal(store, run) == [1]
    assert await do(store, append(successor, 2)) == [DONE]


async def test_an_append_to_a_run_that_nobody_holds_is_fenced(store: Store):
    run = await hold(store)
    await do(store, release(run))
    assert await do(store, append(run, 1)) == [FENCED]
    run = await claim_one(store)
    await do(store, park(run))
    assert await do(store, append(run, 1)) == [FENCED]


async def test_an_append_to_an_ended_or_unknown_run_is_fenced(store: Store):
    run = await hold(store)
    await do(store, finish(run))
    assert await do(store, append(run, 1)) == [FENCED]
    assert await do(store, AppendRecord(run.key + 99, record(1))) == [FENCED]
    assert await do(store, FinishRun(run.key + 99, 1, RunState.COMPLETED, None, None, 0.0)) == [FENCED]


async def test_an_epoch_from_the_future_is_fenced(store: Store):
    run = await hold(store)
    assert await do(store, append(run, 1, epoch=run.epoch + 1)) == [FENCED]


async def test_repeating_a_lone_append_is_answered_as_done_and_adds_nothing(store: Store):
    run = await hold(store)
    for _ in range(3):
        assert await do(store, append(run, 1)) == [DONE]
    assert await journal(store, run) == [1]


async def test_repeating_a_whole_batch_is_harmless(store: Store):
    run, other = await hold(store), await hold(store, "other")
    batch = [append(run, 1), append(other, 1), append(run, 2), finish(run), park(other, 1_000_500.0)]
    assert await do(store, *batch) == [DONE] * 5
    for _ in range(2):
        assert await do(store, *batch) == [DONE, DONE, DONE, TOLD, DONE]
    assert await journal(store, run) == [1, 2]
    assert await state_of(store) is RunState.COMPLETED
    assert await state_of(store, "other") is RunState.WAITING


async def test_a_batch_of_which_a_part_was_committed_before_is_completed(store: Store):
    run = await hold(store)
    await do(store, append(run, 1), append(run, 2))
    assert await do(store, append(run, 1), append(run, 2), append(run, 3)) == [DONE] * 3
    assert await journal(store, run) == [1, 2, 3]


async def test_a_repeat_is_recognised_even_after_a_takeover(store: Store):
    run = await hold(store)
    await do(store, append(run, 1), release(run))
    await claim_one(store)
    assert await do(store, append(run, 1)) == [DONE]
    assert await do(store, append(run, 1), append(run, 2)) == [DONE, FENCED]


async def test_a_seq_that_another_epoch_has_written_is_not_overwritten(store: Store):
    run = await hold(store)
    await do(store, append(run, 1, payload=b"first"), release(run))
    successor = await claim_one(store)
    await do(store, signal())
    [(_, sent)] = (await store.get_new_signals(successor.owner or 0, 0)).signals
    assert await do(store, append(successor, 1, payload=b"second", consume=sent.id)) == [FENCED]
    [history] = await store.get_histories([run.key])
    assert [r.payload for r in history.records] == [b"first"]
    assert [s.id for s in history.signals] == [sent.id]


async def test_fenced_operations_do_not_hold_up_the_rest_of_a_batch(store: Store):
    lost, kept = await hold(store, "lost"), await hold(store, "kept")
    await do(store, release(lost))
    answers = await do(store, append(lost, 1), append(kept, 1), note(lost, 2), finish(lost), finish(kept))
    assert answers == [FENCED, DONE, FENCED, FENCED, DONE]
    assert await state_of(store, "lost") is RunState.PENDING
    assert await state_of(store, "kept") is RunState.COMPLETED


async def test_operations_of_a_batch_see_what_earlier_ones_have_done(store: Store):
    run = await hold(store)
    answers = await do(store, append(run, 1), finish(run), append(run, 2), append(run, 1), release(run), park(run))
    assert answers == [DONE, DONE, FENCED, DONE, FENCED, FENCED]
    assert await journal(store, run) == [1]


async def test_a_large_batch_over_many_runs_is_carried_out_in_full(store: Store):
    runs = [await hold(store, f"r{i}") for i in range(40)]
    ops = [append(run, seq) for seq in range(1, 11) for run in runs]
    assert await do(store, *ops) == [DONE] * 400
    for run in runs:
        assert await journal(store, run) == list(range(1, 11))


async def test_no_operations_are_answered_with_nothing(store: Store):
    assert await store.commit([]) == []


async def test_an_attempt_is_kept_until_its_outcome_is_recorded(store: Store):
    run = await hold(store)
    await do(store, note(run, 1, 1, intent=True, at=5.0), note(run, 2, 4, progress=b"half", error="refused", at=6.5))
    [history] = await store.get_histories([run.key])
    assert history.attempts == {1: Attempt(1, 1, True, None, "", 5.0), 2: Attempt(2, 4, False, b"half", "refused", 6.5)}
    await do(store, append(run, 1, position=2, clear=True))
    [history] = await store.get_histories([run.key])
    assert list(history.attempts) == [1]


async def test_the_last_note_of_an_attempt_wins(store: Store):
    run = await hold(store)
    await do(store, note(run, 1, 1, error="a"), note(run, 1, 2, error="b"))
    await do(store, note(run, 1, 3, error="c"))
    [history] = await store.get_histories([run.key])
    assert history.attempts[1].attempt == 3
    assert history.attempts[1].error == "c"


async def test_within_a_batch_an_outcome_clears_the_attempts_noted_before_it_only(store: Store):
    run = await hold(store)
    await do(store, note(run, 1), append(run, 1, position=1, clear=True), note(run, 2))
    [history] = await store.get_histories([run.key])
    assert list(history.attempts) == [2]


async def test_a_fenced_note_is_not_kept(store: Store):
    run = await hold(store)
    await do(store, release(run))
    assert await do(store, note(run, 1)) == [FENCED]
    [history] = await store.get_histories([run.key])
    assert history.attempts == {}


async def test_a_record_that_resets_the_deliveries_does_so_in_the_same_commit(store: Store, kill, clock):
    run = await hold(store)
    kill(run.owner)
    await store.reap_dead_workers()
    run = await claim_one(store)
    assert run.delivery_count == 1
    assert await do(store, append(run, 1, reset=True)) == [DONE]
    assert (await row(store)).delivery_count == 0


async def test_what_one_process_commits_another_reads_at_once(store: Store, elsewhere: Store):
    run = await hold(store)
    for seq in range(1, 20):
        await do(store, append(run, seq))
        assert await journal(elsewhere, run) == list(range(1, seq + 1))


async def test_a_successor_elsewhere_fences_the_first_holder(store: Store, elsewhere: Store):
    run = await hold(store)
    await do(store, release(run))
    worker = await elsewhere.register_worker(a_worker("elsewhere"), 10.0)
    [taken] = await elsewhere.claim_runs(worker, **ALL, limit=1)
    assert await do(store, append(run, 1)) == [FENCED]
    assert await do(elsewhere, append(taken, 1)) == [DONE]
    assert await start(store, "another")


async def test_a_repeated_commit_of_a_note_and_its_outcome_leaves_no_attempt_behind(store: Store):
    run = await hold(store)
    batch = [note(run, 1, error="failed once"), append(run, 1, position=1, clear=True)]
    assert await do(store, *batch) == [DONE, DONE]
    assert await do(store, *batch) == [DONE, DONE]
    [history] = await store.get_histories([run.key])
    assert history.attempts == {}


# Outlines


async def test_an_outline_has_a_page_and_counts_the_rest(store: Store):
    run = await hold(store)
    await do(store, *[append(run, seq) for seq in range(1, 6)], release(run))
    heir = await claim_one(store)
    timer = record(6, position=0, epoch=heir.epoch, kind=RecordKind.TIMER, name="", payload=None)
    await do(store, AppendRecord(heir.key, timer), append(heir, 7), note(heir, 9), signal())
    outline = await store.get_journal_page("r", 2, 3)
    assert outline is not None
    [history] = await store.get_histories([run.key])
    assert [one.seq for one in outline.records] == [3, 4, 5]
    assert list(outline.records) == [one for one in history.records if 2 < one.seq < 6]
    assert (outline.attempts, outline.signals) == (history.attempts, history.signals)
    assert outline.run == await row(store)
    assert [(part.epoch, part.kind, part.record_count, part.first_seq, part.last_seq) for part in outline.segments] == [
        (1, RecordKind.STEP, 5, 1, 5),
        (2, RecordKind.TIMER, 1, 6, 6),
        (2, RecordKind.STEP, 1, 7, 7),
    ]
    assert list(outline.segments) == group_segments(history.records)
    whole = await store.get_journal_page("r")
    assert whole is not None
    assert list(whole.records) == list(history.records)
    assert await store.get_journal_page("another") is None


async def test_an_outline_that_is_not_whole_may_leave_large_values_out(store: Store):
    large = b'"' + b"x" * (MAX_INLINE_BYTES + 10) + b'"'
    run = await hold(store, inputs=large)
    await do(store, append(run, 1, payload=large), append(run, 2))
    short, whole = await store.get_journal_page("r", include_large_payloads=False), await store.get_journal_page("r")
    assert short is not None
    assert whole is not None
    assert [one.payload == large for one in whole.records] == [True, False]
    assert whole.run.inputs == large
    assert whole.omitted_sizes == {}
    for one, told in zip(whole.records, short.records, strict=True):
        assert (told.payload is None) == (one.seq in short.omitted_sizes)
        assert told._replace(payload=one.payload) == one
    assert set(short.omitted_sizes) <= {1}
