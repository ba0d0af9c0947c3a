"""Journals: records, the fence, harmless repeats, attempts, and batches of them."""

from __future__ import annotations

import pytest
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    NOTIFIED,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    list_record_seqs,
    make_record,
    new_worker,
    park,
    read_run,
    release,
    save_attempt,
    signal,
    start_claimed_run,
    start_run,
)

from holdfast.core.records import Attempt, RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import MAX_INLINE_BYTES, Store
from holdfast.stores.journal_pages import group_segments
from holdfast.stores.operations import AppendRecord, FinishRun, OpStatus

pytestmark = pytest.mark.asyncio


async def test_a_record_is_read_back_as_it_was_appended(store: Store):
    run = await start_claimed_run(store)
    made = [
        make_record(1, position=0, payload=b"\x00\xff" * 500, attempts=3),
        make_record(2, position=0, kind=RecordKind.TIMER, name="", payload=None, preview="", started_at=0.0),
        make_record(3, position=1, kind=RecordKind.SIGNAL, name="approve", payload=b""),
        make_record(4, position=2, ok=False, payload=b'{"type":"ValueError"}', name="lädt ✓", preview="x='\x00'"),
        make_record(5, position=0, kind=RecordKind.DEADLINE, name="", payload=None),
    ]
    for one in made:
        assert await commit_ops(store, AppendRecord(run.key, one)) == [DONE]
    [history] = await store.get_histories([run.key])
    assert list(history.records) == made
    assert all(type(one.kind) is RecordKind and type(one.ok) is bool for one in history.records)


async def test_histories_come_in_the_given_order_and_are_empty_for_a_new_run(store: Store):
    first, second, third = [await start_claimed_run(store, name) for name in "abc"]
    await commit_ops(store, append(second, 1), append(first, 1), append(second, 2))
    assert [len(h.records) for h in await store.get_histories([third.key, second.key, first.key])] == [0, 2, 1]
    assert await store.get_histories([]) == []


async def test_a_journal_is_read_in_the_order_of_seq_when_runs_are_interleaved(store: Store):
    runs = [await start_claimed_run(store, f"r{i}") for i in range(3)]
    for seq in range(1, 30):
        await commit_ops(store, *[append(run, seq) for run in runs])
    for run in runs:
        assert await list_record_seqs(store, run) == list(range(1, 30))


async def test_an_append_under_a_stale_epoch_is_fenced_and_changes_nothing(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 1), release(run))
    successor = await claim_run(store)
    assert successor.epoch == run.epoch + 1
    assert await commit_ops(store, append(run, 2)) == [FENCED]
    assert await commit_ops(store, append(run, 2), append(run, 3)) == [FENCED, FENCED]
    assert await list_record_seqs(store, run) == [1]
    assert await commit_ops(store, append(successor, 2)) == [DONE]


async def test_an_append_to_a_run_that_no_worker_holds_is_fenced(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, release(run))
    assert await commit_ops(store, append(run, 1)) == [FENCED]
    run = await claim_run(store)
    await commit_ops(store, park(run))
    assert await commit_ops(store, append(run, 1)) == [FENCED]


async def test_an_append_to_an_ended_or_unknown_run_is_fenced(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, finish(run))
    assert await commit_ops(store, append(run, 1)) == [FENCED]
    assert await commit_ops(store, AppendRecord(run.key + 99, make_record(1))) == [FENCED]
    assert await commit_ops(store, FinishRun(run.key + 99, 1, RunState.COMPLETED, None, None, 0.0)) == [FENCED]


async def test_an_epoch_from_the_future_is_fenced(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, append(run, 1, epoch=run.epoch + 1)) == [FENCED]


async def test_repeating_a_lone_append_is_answered_as_done_and_adds_nothing(store: Store):
    run = await start_claimed_run(store)
    for _ in range(3):
        assert await commit_ops(store, append(run, 1)) == [DONE]
    assert await list_record_seqs(store, run) == [1]


async def test_a_record_that_must_be_new_is_a_duplicate_if_its_number_exists(store: Store):
    run = await start_claimed_run(store)
    new = append(run, 1)._replace(must_be_new=True)
    assert await commit_ops(store, new) == [OpStatus.DONE]
    assert await commit_ops(store, new) == [OpStatus.DUPLICATE]
    assert await commit_ops(store, new, append(run, 2)) == [OpStatus.DUPLICATE, OpStatus.DONE]
    assert await list_record_seqs(store, run) == [1, 2]
    await commit_ops(store, release(run))
    again = await claim_run(store)
    stale = append(run, 3)._replace(must_be_new=True)
    assert await commit_ops(store, stale) == [OpStatus.FENCED]
    assert await list_record_seqs(store, again) == [1, 2]


async def test_repeating_a_whole_batch_is_harmless(store: Store):
    run, other = await start_claimed_run(store), await start_claimed_run(store, "other")
    batch = [append(run, 1), append(other, 1), append(run, 2), finish(run), park(other, 1_000_500.0)]
    assert await commit_ops(store, *batch) == [DONE] * 5
    for _ in range(2):
        assert await commit_ops(store, *batch) == [DONE, DONE, DONE, NOTIFIED, DONE]
    assert await list_record_seqs(store, run) == [1, 2]
    assert await get_state(store) is RunState.COMPLETED
    assert await get_state(store, "other") is RunState.WAITING


async def test_a_batch_of_which_a_part_was_committed_before_is_completed(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 1), append(run, 2))
    assert await commit_ops(store, append(run, 1), append(run, 2), append(run, 3)) == [DONE] * 3
    assert await list_record_seqs(store, run) == [1, 2, 3]


async def test_a_repeat_is_recognised_even_after_a_takeover(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 1), release(run))
    await claim_run(store)
    assert await commit_ops(store, append(run, 1)) == [DONE]
    assert await commit_ops(store, append(run, 1), append(run, 2)) == [DONE, FENCED]


async def test_a_seq_that_another_epoch_has_written_is_not_overwritten(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 1, payload=b"first"), release(run))
    successor = await claim_run(store)
    await commit_ops(store, signal())
    [(_, sent)] = (await store.claims.get_new_signals(successor.owner or 0, 0)).signals
    assert await commit_ops(store, append(successor, 1, payload=b"second", consume=sent.id)) == [FENCED]
    [history] = await store.get_histories([run.key])
    assert [r.payload for r in history.records] == [b"first"]
    assert [s.id for s in history.signals] == [sent.id]


async def test_fenced_operations_do_not_hold_up_the_rest_of_a_batch(store: Store):
    lost, kept = await start_claimed_run(store, "lost"), await start_claimed_run(store, "kept")
    await commit_ops(store, release(lost))
    answers = await commit_ops(
        store, append(lost, 1), append(kept, 1), save_attempt(lost, 2), finish(lost), finish(kept)
    )
    assert answers == [FENCED, DONE, FENCED, FENCED, DONE]
    assert await get_state(store, "lost") is RunState.PENDING
    assert await get_state(store, "kept") is RunState.COMPLETED


async def test_operations_of_a_batch_see_what_earlier_ones_have_done(store: Store):
    run = await start_claimed_run(store)
    answers = await commit_ops(
        store, append(run, 1), finish(run), append(run, 2), append(run, 1), release(run), park(run)
    )
    assert answers == [DONE, DONE, FENCED, DONE, FENCED, FENCED]
    assert await list_record_seqs(store, run) == [1]


async def test_a_large_batch_over_many_runs_is_carried_out_in_full(store: Store):
    runs = [await start_claimed_run(store, f"r{i}") for i in range(40)]
    ops = [append(run, seq) for seq in range(1, 11) for run in runs]
    assert await commit_ops(store, *ops) == [DONE] * 400
    for run in runs:
        assert await list_record_seqs(store, run) == list(range(1, 11))


async def test_no_operations_are_answered_with_nothing(store: Store):
    assert await store.commit([]) == []


async def test_an_attempt_is_stored_until_its_outcome_is_recorded(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(
        store,
        save_attempt(run, 1, 1, intent=True, at=5.0),
        save_attempt(run, 2, 4, progress=b"half", error="refused", at=6.5),
    )
    [history] = await store.get_histories([run.key])
    assert history.attempts == {1: Attempt(1, 1, True, None, "", 5.0), 2: Attempt(2, 4, False, b"half", "refused", 6.5)}
    await commit_ops(store, append(run, 1, position=2, clear=True))
    [history] = await store.get_histories([run.key])
    assert list(history.attempts) == [1]


async def test_the_last_note_of_an_attempt_wins(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, save_attempt(run, 1, 1, error="a"), save_attempt(run, 1, 2, error="b"))
    await commit_ops(store, save_attempt(run, 1, 3, error="c"))
    [history] = await store.get_histories([run.key])
    assert history.attempts[1].attempt == 3
    assert history.attempts[1].error == "c"


async def test_within_a_batch_an_outcome_clears_the_attempts_noted_before_it_only(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, save_attempt(run, 1), append(run, 1, position=1, clear=True), save_attempt(run, 2))
    [history] = await store.get_histories([run.key])
    assert list(history.attempts) == [2]


async def test_a_fenced_attempt_is_not_stored(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, release(run))
    assert await commit_ops(store, save_attempt(run, 1)) == [FENCED]
    [history] = await store.get_histories([run.key])
    assert history.attempts == {}


async def test_a_record_that_resets_the_deliveries_does_so_in_the_same_commit(store: Store, kill_worker, clock):
    run = await start_claimed_run(store)
    kill_worker(run.owner)
    await store.workers.reap_dead()
    run = await claim_run(store)
    assert run.delivery_count == 1
    assert await commit_ops(store, append(run, 1, reset=True)) == [DONE]
    assert (await read_run(store)).delivery_count == 0


async def test_what_one_process_commits_another_reads_at_once(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    for seq in range(1, 20):
        await commit_ops(store, append(run, seq))
        assert await list_record_seqs(second_store, run) == list(range(1, seq + 1))


async def test_a_successor_elsewhere_fences_the_first_holder(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, release(run))
    worker = await second_store.workers.register(new_worker("elsewhere"), 10.0)
    [taken] = await second_store.claims.claim(worker, **CLAIM_FILTER, limit=1)
    assert await commit_ops(store, append(run, 1)) == [FENCED]
    assert await commit_ops(second_store, append(taken, 1)) == [DONE]
    assert await start_run(store, "another")


async def test_a_repeated_commit_of_an_attempt_and_its_outcome_leaves_no_attempt(store: Store):
    run = await start_claimed_run(store)
    batch = [save_attempt(run, 1, error="failed once"), append(run, 1, position=1, clear=True)]
    assert await commit_ops(store, *batch) == [DONE, DONE]
    assert await commit_ops(store, *batch) == [DONE, DONE]
    [history] = await store.get_histories([run.key])
    assert history.attempts == {}


# Outlines


async def test_an_outline_has_a_page_and_counts_the_rest(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, *[append(run, seq) for seq in range(1, 6)], release(run))
    heir = await claim_run(store)
    timer = make_record(6, position=0, epoch=heir.epoch, kind=RecordKind.TIMER, name="", payload=None)
    await commit_ops(store, AppendRecord(heir.key, timer), append(heir, 7), save_attempt(heir, 9), signal())
    outline = await store.get_journal_page("r", 2, 3)
    assert outline is not None
    [history] = await store.get_histories([run.key])
    assert [one.seq for one in outline.records] == [3, 4, 5]
    assert list(outline.records) == [one for one in history.records if 2 < one.seq < 6]
    assert (outline.attempts, outline.signals) == (history.attempts, history.signals)
    assert outline.run == await read_run(store)
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
    run = await start_claimed_run(store, inputs=large)
    await commit_ops(store, append(run, 1, payload=large), append(run, 2))
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
