"""Reading: rows, lists, counts, announcements, and noticing change."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest
from store_values import FLOW, append, commit_ops, finish, new_worker, park, signal, start_claimed_run, start_run

from holdfast.codec import encode_error
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.contract import RunFilter, RunSearchPage, Store, WorkflowSpec
from holdfast.stores.operations import CancelRun, OpStatus, PauseRun, ReopenRun

pytestmark = pytest.mark.asyncio


async def listed(store: Store, *, limit: int = 50, before: int | None = None, **where) -> list[str]:
    return [run.id for run in await store.list_runs(RunFilter(**where), limit=limit, before_key=before)]


async def some_runs(store: Store) -> None:
    worker = await store.workers.register(new_worker(), 10.0)
    await start_run(store, "etl-1", tags=("eu", "daily"), created_at=10.0)
    await start_run(store, "etl-2", claim_as=worker, tags=("eu", 'say "hi"'), created_at=20.0)
    done = await start_run(store, "mail-1", workflow="mail", claim_as=worker, created_at=30.0)
    failed = await start_run(store, "etl-3", claim_as=worker, tags=("us",), created_at=40.0)
    error = encode_error(ConnectionError("refused by Über"))
    await commit_ops(store, finish(done), finish(failed, RunState.FAILED, error=error))
    await start_run(store, "mail-2", workflow="mail", tags=("eu",), created_at=50.0, parent="etl-1")


async def test_an_unknown_run_is_none(store: Store):
    assert await store.get_run("nobody") is None
    assert await store.get_runs([]) == []


async def test_get_many_returns_those_that_exist_once_each(store: Store):
    await some_runs(store)
    runs = await store.get_runs(["mail-1", "nobody", "etl-1", "mail-1"])
    assert sorted(run.id for run in runs) == ["etl-1", "mail-1"]
    assert await store.get_run("etl-1") in runs


@pytest.mark.parametrize("run_id", ["a b", "ü✓", "'; DROP TABLE runs; --", "%", "x" * 500, '"]', "a\\u0000b"])
async def test_any_text_can_be_an_id(store: Store, run_id: str):
    await start_run(store, run_id)
    assert (await store.get_run(run_id)).id == run_id  # type: ignore[union-attr]
    assert [run.id for run in await store.get_runs([run_id])] == [run_id]
    assert await listed(store, id_prefix=run_id[:1]) == [run_id]


async def test_runs_are_listed_newest_first(store: Store):
    await some_runs(store)
    assert await listed(store) == ["mail-2", "etl-3", "mail-1", "etl-2", "etl-1"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"states": [RunState.PENDING]}, ["mail-2", "etl-1"]),
        ({"states": {RunState.COMPLETED, RunState.FAILED}}, ["etl-3", "mail-1"]),
        ({"workflow": "mail"}, ["mail-2", "mail-1"]),
        ({"workflow": "mail", "states": [RunState.COMPLETED]}, ["mail-1"]),
        ({"workflow": "nobody"}, []),
        ({"tag": "eu"}, ["mail-2", "etl-2", "etl-1"]),
        ({"tag": "e"}, []),
        ({"tag": "eu", "workflow": FLOW}, ["etl-2", "etl-1"]),
        ({"id_prefix": "mail-"}, ["mail-2", "mail-1"]),
        ({"id_prefix": "mail-1"}, ["mail-1"]),
        ({"id_prefix": "%"}, []),
        ({"created_after": 30.0}, ["mail-2", "etl-3", "mail-1"]),
        ({"created_before": 30.0}, ["etl-2", "etl-1"]),
        ({"created_after": 20.0, "created_before": 50.0, "states": [RunState.RUNNING]}, ["etl-2"]),
        ({"tag": "eu", "id_prefix": "etl", "states": [RunState.RUNNING], "workflow": FLOW}, ["etl-2"]),
        ({"tag": "eu", "created_before": 40.0}, ["etl-2", "etl-1"]),
        ({"created_after": 60.0}, []),
        ({"parent": "etl-1"}, ["mail-2"]),
        ({"parent": ""}, []),
        ({"parent": "etl-1", "states": [RunState.FAILED]}, []),
        ({"owner": 1}, ["etl-2"]),
        ({"owner": 1, "workflow": "mail"}, []),
        ({"text": "MAIL"}, ["mail-2", "mail-1"]),
        ({"text": "daily"}, ["etl-1"]),
        ({"text": 'say "HI'}, ["etl-2"]),
        ({"text": 'eu", "'}, []),
        ({"text": "refused by über"}, ["etl-3"]),
        ({"text": "REFUSED BY ÜBER"}, ["etl-3"]),
        ({"text": "connectionerror refused"}, ["etl-3"]),
        ({"text": "traceback"}, []),
        ({"text": "%"}, []),
        ({"text": "_"}, []),
        ({"text": "\\"}, []),
        ({"text": "x" * 60_000}, []),
        ({"text": "\x00"}, []),
        ({"text": "\x00etl"}, []),
        ({"text": "etl", "states": [RunState.RUNNING]}, ["etl-2"]),
    ],
)
async def test_a_filter_lists_what_matches_in_every_field(store: Store, where, expected):
    await some_runs(store)
    assert await listed(store, **where) == expected


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"states": [RunState.PENDING]},
        {"workflow": FLOW},
        {"tag": "t"},
        {"parent": "p"},
        {"text": "R"},
        {"created_before": 2e9},
        {"created_before": 2e9, "states": [RunState.PENDING]},
    ],
    ids=str,
)
async def test_pages_follow_each_other_without_gaps_or_repeats(store: Store, where):
    for number in range(23):
        await start_run(store, f"r{number:02}", tags=("t",), parent="p")
    seen: list[str] = []
    before = None
    while page := await store.list_runs(RunFilter(**where), limit=5, before_key=before):
        seen += [run.id for run in page]
        before = page[-1].key
    assert seen == [f"r{number:02}" for number in reversed(range(23))]
    assert all(a > b for a, b in pairwise(seen))


@pytest.mark.parametrize(
    "where",
    [
        {"text": "09"},
        {"text": "09", "states": [RunState.PENDING]},
        {"text": "09", "workflow": FLOW},
        {"text": "09", "tag": "t"},
        {"text": "09", "created_after": 0.0},
        {"text": "09", "states": [RunState.PENDING, RunState.DEAD], "created_after": 0.0},
    ],
    ids=str,
)
async def test_a_search_in_pieces_finds_what_a_list_finds(store: Store, where, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.stores.sql.run_lists.MAX_SMALL_SET", 0)  # as if there were many of everything
    for number in range(23):
        await start_run(store, f"r{number:02}", tags=("t",))
    found, before, pieces = [], None, 0
    while pieces == 0 or before is not None:
        piece = await store.search_runs(RunFilter(**where), limit=5, before_key=before, max_scanned=4)
        found += [run.id for run in piece.runs]
        assert (piece.cursor is None) == (piece.cursor_created_at is None)
        assert piece.cursor is None or before is None or piece.cursor < before
        before, pieces = piece.cursor, pieces + 1
    assert found == ["r09"]
    assert pieces >= 23 // 4


async def test_a_search_that_an_index_answers_is_not_cut_into_pieces(store: Store):
    for number in range(9):
        await start_run(store, f"r{number}", tags=("t",))
    found = await store.search_runs(RunFilter(tag="t"), limit=50, max_scanned=10)
    assert (len(found.runs), found.cursor) == (9, None)
    page = await store.search_runs(RunFilter(), limit=5, max_scanned=10)
    assert (len(page.runs), page.cursor, page.cursor_created_at) == (5, page.runs[-1].key, page.runs[-1].created_at)


async def test_ended_runs_are_counted_up_to_a_bound_and_others_exactly(store: Store):
    worker = await store.workers.register(new_worker(), 10.0)
    for number in range(3):
        await start_run(store, f"pending{number}")
        await commit_ops(store, finish(await start_run(store, f"over{number}", claim_as=worker)))
    assert await store.count_runs(2) == {(FLOW, RunState.PENDING): 3, (FLOW, RunState.COMPLETED): 2}
    assert (await store.count_runs(100))[FLOW, RunState.COMPLETED] == 3
    assert await store.count_runs(0) == {(FLOW, RunState.PENDING): 3}
    assert await store.count_unfinished_runs() == await store.count_unfinished_runs([FLOW, "mail"]) == {(FLOW, ""): 3}
    assert await store.count_unfinished_runs(["mail"]) == await store.count_unfinished_runs([]) == {}


async def test_runs_are_counted_by_workflow_and_state(store: Store):
    assert await store.count_runs() == {}
    await some_runs(store)
    assert await store.count_runs() == {
        (FLOW, RunState.PENDING): 1,
        (FLOW, RunState.RUNNING): 1,
        (FLOW, RunState.FAILED): 1,
        ("mail", RunState.COMPLETED): 1,
        ("mail", RunState.PENDING): 1,
    }


async def test_announced_workflows_are_known_everywhere_and_the_last_announcement_counts(
    store: Store, second_store: Store
):
    full = WorkflowSpec(
        "etl",
        ("customer", "day"),
        "etl-{customer}",
        "slow",
        30.5,
        ("a", "b"),
        is_address=True,
        inputs_schema='{"type":"object"}',
    )
    await store.announce_workflows([WorkflowSpec("etl", ()), WorkflowSpec("mail", ()), full])
    assert await second_store.get_workflow_specs() == {"etl": full, "mail": WorkflowSpec("mail", ())}
    await second_store.announce_workflows([WorkflowSpec("mail", ("to",))])
    assert (await store.get_workflow_specs())["mail"].parameters == ("to",)
    await store.announce_workflows([])


async def quiet(store: Store) -> None:
    """Until the store has nothing more to tell of the past."""
    deadline = time.monotonic() + 5
    while await store.wait_for_change(0.1):
        assert time.monotonic() < deadline


async def test_a_wait_for_change_ends_when_another_process_has_written(store: Store, second_store: Store):
    await start_claimed_run(store)
    await quiet(store)
    waiting = asyncio.create_task(store.wait_for_change(5))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    began = time.monotonic()
    await commit_ops(second_store, signal())
    assert await waiting
    assert time.monotonic() - began < 0.5


async def test_a_wait_for_change_times_out_when_no_process_writes(store: Store):
    await quiet(store)
    began = time.monotonic()
    assert not await store.wait_for_change(0.1)
    assert 0.05 < time.monotonic() - began < 1


async def test_a_change_between_two_waits_is_not_missed(store: Store, second_store: Store):
    await quiet(store)
    await start_run(second_store)
    await asyncio.sleep(0.05)
    assert await store.wait_for_change(1)


async def test_every_kind_of_write_is_noticed(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    for op in (append(run, 1), signal(), park(run)):
        await quiet(second_store)
        await store.workers.reap_dead()  # a worker's look also shows it that somebody follows runs
        await commit_ops(store, op)
        assert await second_store.wait_for_change(1)


async def test_the_clock_is_the_one_that_was_given(store: Store, clock):
    clock.advance(5)
    assert store.now() == clock.now


async def test_closing_twice_is_harmless_and_a_closed_store_can_be_opened_again(store: Store):
    await start_run(store)
    if store.url != "memory://":
        await store.close()
        await store.close()
        await store.open()
    assert (await store.get_run("r")) is not None
    store.abandon()
    store.abandon()


HALF = "r\udc80"
"""Half of a character: no text that can be kept has one."""


async def test_a_lookup_by_an_impossible_name_finds_nothing(store: Store):
    await start_run(store)
    assert (
        await store.get_run(HALF)
        is await store.get_run_updates(HALF, -1, 0)
        is await store.get_journal_page(HALF)
        is None
    )
    assert [run.id for run in await store.get_runs([HALF, "r"])] == ["r"]
    assert await store.get_usages([HALF, "r"]) == {}
    assert await store.get_last_record(HALF, "step") is await store.get_last_record("r", HALF) is None
    for field in ("workflow", "tag", "id_prefix", "text", "parent"):
        assert await listed(store, **{field: HALF}) == [], field
        assert await store.search_runs(RunFilter(**{field: HALF})) == RunSearchPage([], None), field
    asked = (signal(HALF), CancelRun(HALF, 1.0), PauseRun(HALF, 1.0), ReopenRun(HALF, 1.0))
    assert await commit_ops(store, *asked, signal("r")) == [*[OpStatus.UNKNOWN_RUN] * len(asked), OpStatus.DONE]


async def test_a_text_that_cannot_be_written_down_is_refused_in_words(store: Store):
    if store.url == "memory://":
        pytest.skip("what is in memory is not written down")
    with pytest.raises(UsageError, match="half of a character"):
        await start_run(store, tags=(HALF,))
    await start_run(store)
