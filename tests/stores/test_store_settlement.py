"""Reopening a run with the outcome of a step that a person has settled: both at once, or neither."""

from __future__ import annotations

import pytest
from store_values import (
    DONE,
    REFUSED,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    list_record_seqs,
    read_run,
    rewind,
    start_child,
    start_claimed_run,
)

from holdfast.core.records import Record, RecordKind, Rewind, RewindPoint
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.live_events import REOPENED
from holdfast.stores.operations import OpStatus, ReopenRun, Run, Settlement

pytestmark = pytest.mark.asyncio

FAILED = RunState.FAILED


def settling(run: Run, back: Rewind, payload: bytes | None = b'"paid"', *, position: int = 1) -> ReopenRun:
    given = Record(0, RecordKind.STEP, position, "pay", True, payload, 1_000_008.0, 5.0, attempts=0, preview="by ada")
    record = None if payload is None else given
    return ReopenRun(run.id, 1_000_009.0, settlement=Settlement(run.epoch, back, record))


async def records(store: Store, run: Run) -> list[Record]:
    [history] = await store.get_histories([run.key])
    return list(history.records)


async def test_the_outcome_follows_the_kept_records_before_any_worker_can_claim_the_run(store: Store):
    run = await start_claimed_run(store)
    ops = [
        append(run, 0, position=0),
        append(run, 1, position=1, ok=False),  # of unknown outcome
        append(run, 2, position=2),  # issued before: kept
        append(run, 3, position=3),  # issued after
    ]
    ended = rewind(1, command_count=3, once_seqs=(1,))
    await commit_ops(store, *ops, finish(run, FAILED, rewind=ended))
    assert await commit_ops(store, settling(run, ended._replace(once_seqs=()))) == [DONE]
    assert await list_record_seqs(store, run) == [0, 2, 3]
    settled = (await records(store, run))[-1]
    assert settled == Record(3, RecordKind.STEP, 1, "pay", True, b'"paid"', 1_000_008.0, 5.0, 0, 0, 0, "by ada")
    opened = await read_run(store)
    assert (opened.state, opened.rewind, opened.rewind_points) == (RunState.PENDING, None, (RewindPoint(3, 1),))
    again = await claim_run(store)
    assert await commit_ops(store, append(again, 4, position=3)) == [DONE]


async def test_followers_of_the_run_see_the_new_outcome(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(
        store, append(run, 0), append(run, 1, ok=False), finish(run, FAILED, rewind=rewind(1, once_seqs=(1,)))
    )
    await commit_ops(store, settling(run, rewind(1)))
    feed = await store.get_run_updates("r", 0, 0)
    assert feed is not None
    assert [record.seq for record in feed.records] == [1]
    assert [(one.kind, one.data) for _, one in feed.live_events if one.kind == REOPENED] == [(REOPENED, b"0")]


async def test_the_only_record_of_a_run_is_settled(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0, position=1, ok=False), finish(run, FAILED, rewind=rewind(0, once_seqs=(0,))))
    assert await commit_ops(store, settling(run, rewind(0))) == [DONE]
    assert [(one.seq, one.ok, one.is_settled) for one in await records(store, run)] == [(0, True, True)]


async def test_a_large_outcome_is_kept(store: Store):
    run, large = await start_claimed_run(store), b'"' + b"x" * 300_000 + b'"'
    await commit_ops(store, append(run, 0, position=1, ok=False), finish(run, FAILED, rewind=rewind(0, once_seqs=(0,))))
    assert await commit_ops(store, settling(run, rewind(0), large)) == [DONE]
    assert [one.payload for one in await records(store, run)] == [large]


async def test_a_step_that_did_not_happen_has_no_outcome_and_only_the_given_rewind_is_removed(store: Store):
    run = await start_claimed_run(store)
    both = [append(run, 0, position=0, ok=False), append(run, 1, position=1, ok=False)]
    await commit_ops(store, *both, finish(run, FAILED, rewind=rewind(0, 1, command_count=2, once_seqs=(0, 1))))
    assert await commit_ops(store, settling(run, rewind(1, command_count=2), None)) == [DONE]
    assert await list_record_seqs(store, run) == [0]
    assert await get_state(store) is RunState.PENDING


async def test_a_stale_settlement_changes_nothing(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0, position=1, ok=False), finish(run, FAILED, rewind=rewind(0, once_seqs=(0,))))
    late = settling(run, rewind(0), b'"late"')
    assert await commit_ops(store, settling(run, rewind(0)), late) == [DONE, OpStatus.ENDED]
    again = await claim_run(store)
    assert await commit_ops(store, late) == [OpStatus.ENDED]
    await commit_ops(store, finish(again, FAILED, rewind=rewind(0, once_seqs=(0,))))
    assert await commit_ops(store, late) == [OpStatus.ENDED], "it has failed anew, and that person has not seen how"
    assert [one.payload for one in await records(store, run)] == [b'"paid"']
    assert await commit_ops(store, settling(again, rewind(0), b'"anew"')) == [DONE]
    assert [one.payload for one in await records(store, run)] == [b'"anew"']


async def test_a_compensated_or_unknown_run_cannot_be_settled(store: Store):
    run = await start_claimed_run(store)
    ended = rewind(0, is_compensated=True, once_seqs=(0,))
    await commit_ops(store, append(run, 0, position=1, ok=False), finish(run, FAILED, rewind=ended))
    assert await commit_ops(store, settling(run, ended)) == [OpStatus.COMPENSATED]
    assert await list_record_seqs(store, run) == [0]
    nobody = settling(run, ended)._replace(run_id="nobody")
    assert await commit_ops(store, nobody) == [OpStatus.UNKNOWN_RUN]


async def test_a_run_that_is_reopened_with_it_keeps_its_own_once_steps(store: Store):
    parent = await start_claimed_run(store, "p")
    [answer] = await commit_ops(store, start_child(parent, claim_as=parent.owner))
    child = answer.run
    await commit_ops(store, append(child, 0, ok=False), finish(child, FAILED, rewind=rewind(0, once_seqs=(0,))))
    ended = rewind(0, 1, command_count=2, once_seqs=(1,))
    await commit_ops(
        store,
        append(parent, 0, position=0, kind=RecordKind.CHILD, ok=False),
        append(parent, 1, position=1, ok=False),
        finish(parent, FAILED, rewind=ended),
    )
    op = settling(parent, ended._replace(once_seqs=()))
    assert await commit_ops(store, op) == [REFUSED]
    assert (await list_record_seqs(store, parent), await get_state(store, "p")) == ([0, 1], FAILED)
    assert await commit_ops(store, ReopenRun("c", 1_000_009.0, True), op) == [DONE, DONE]
    assert [one.is_settled for one in await records(store, parent)] == [True]
