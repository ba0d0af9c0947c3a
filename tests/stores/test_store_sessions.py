"""Sessions: which run a new one continues."""

from __future__ import annotations

import pytest
from store_values import child_of, do, finish, hold, new_run, row, start

from holdfast.stores.contract import Store
from holdfast.stores.operations import ForkRun, StartRun

pytestmark = pytest.mark.asyncio


async def test_a_run_knows_the_newest_one_of_its_session(store: Store, elsewhere: Store):
    first = await hold(store, "a", session="talk")
    assert (first.session, first.previous_run) == ("talk", "")
    await do(store, finish(first))
    assert (await start(elsewhere, "b", session="talk")).previous_run == "a"
    assert (await start(store, "c", session="talk")).previous_run == "b"
    assert [(run.session, run.previous_run) for run in await store.get_runs(["c"])] == [("talk", "b")]


async def test_runs_that_are_started_together_follow_each_other(store: Store):
    answers = await do(store, *[StartRun(new_run(run_id, session="talk")) for run_id in ("a", "b", "c")])
    assert [answer.run.previous_run for answer in answers] == ["", "a", "b"]


async def test_neither_another_session_nor_another_workflow_is_continued(store: Store):
    await start(store, "a", session="talk")
    await start(store, "b", session="Talk")
    await start(store, "c", session="talk", workflow="mail")
    await start(store, "d")
    assert [(await row(store, run_id)).previous_run for run_id in "abcd"] == ["", "", "", ""]
    assert (await start(store, "e", session="talk")).previous_run == "a"


async def test_a_start_that_is_repeated_finds_its_run_as_it_is(store: Store):
    await start(store, "a", session="talk")
    ops = [StartRun(new_run(run_id, session="talk")) for run_id in ("b", "c")]
    first = await do(store, *ops)
    assert await do(store, *ops) == first
    assert [answer.run.previous_run for answer in first] == ["a", "b"]
    assert (await start(store, "d", session="talk")).previous_run == "c"


async def test_a_run_that_another_one_starts_can_be_in_a_session(store: Store):
    parent = await hold(store, "p")
    await start(store, "a", session="talk")
    [answer] = await do(store, child_of(parent, "b", session="talk"))
    assert (answer.run.session, answer.run.previous_run) == ("talk", "a")


async def test_a_fork_continues_what_its_origin_did_and_is_in_no_session(store: Store):
    await start(store, "a", session="talk")
    await start(store, "b", session="talk")
    [answer] = await do(store, ForkRun("b", new_run("f", forked_from="b", previous_run="a"), before_seq=0))
    assert (answer.run.session, answer.run.previous_run) == ("", "a")
    assert answer.run == await row(store, "f")
    assert (await start(store, "c", session="talk")).previous_run == "b"
