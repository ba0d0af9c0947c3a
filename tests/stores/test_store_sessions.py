"""Sessions: which run a new one continues."""

from __future__ import annotations

import pytest
from store_values import commit_ops, finish, new_run, read_run, start_child, start_claimed_run, start_run

from holdfast.stores.contract import Store
from holdfast.stores.operations import ForkRun, StartRun

pytestmark = pytest.mark.asyncio


async def test_a_run_knows_the_newest_one_of_its_session(store: Store, second_store: Store):
    first = await start_claimed_run(store, "a", session="talk")
    assert (first.session, first.previous_run) == ("talk", "")
    await commit_ops(store, finish(first))
    assert (await start_run(second_store, "b", session="talk")).previous_run == "a"
    assert (await start_run(store, "c", session="talk")).previous_run == "b"
    assert [(run.session, run.previous_run) for run in await store.get_runs(["c"])] == [("talk", "b")]


async def test_runs_that_are_started_together_follow_each_other(store: Store):
    answers = await commit_ops(store, *[StartRun(new_run(run_id, session="talk")) for run_id in ("a", "b", "c")])
    assert [answer.run.previous_run for answer in answers] == ["", "a", "b"]


async def test_neither_another_session_nor_another_workflow_is_continued(store: Store):
    await start_run(store, "a", session="talk")
    await start_run(store, "b", session="Talk")
    await start_run(store, "c", session="talk", workflow="mail")
    await start_run(store, "d")
    assert [(await read_run(store, run_id)).previous_run for run_id in "abcd"] == ["", "", "", ""]
    assert (await start_run(store, "e", session="talk")).previous_run == "a"


async def test_a_start_that_is_repeated_finds_its_run_as_it_is(store: Store):
    await start_run(store, "a", session="talk")
    ops = [StartRun(new_run(run_id, session="talk")) for run_id in ("b", "c")]
    first = await commit_ops(store, *ops)
    assert await commit_ops(store, *ops) == first
    assert [answer.run.previous_run for answer in first] == ["a", "b"]
    assert (await start_run(store, "d", session="talk")).previous_run == "c"


async def test_a_run_that_another_one_starts_can_be_in_a_session(store: Store):
    parent = await start_claimed_run(store, "p")
    await start_run(store, "a", session="talk")
    [answer] = await commit_ops(store, start_child(parent, "b", session="talk"))
    assert (answer.run.session, answer.run.previous_run) == ("talk", "a")


async def test_a_fork_continues_what_its_origin_did_and_is_in_no_session(store: Store):
    await start_run(store, "a", session="talk")
    await start_run(store, "b", session="talk")
    [answer] = await commit_ops(store, ForkRun("b", new_run("f", forked_from="b", previous_run="a"), before_seq=0))
    assert (answer.run.session, answer.run.previous_run) == ("", "a")
    assert answer.run == await read_run(store, "f")
    assert (await start_run(store, "c", session="talk")).previous_run == "b"
