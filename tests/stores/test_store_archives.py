"""Runs from one store in another: every backend to every backend."""

from __future__ import annotations

import io
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from store_values import (
    DONE,
    NOTIFIED,
    Clock,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    link,
    new_run,
    new_worker,
    park,
    read_run,
    reserve,
    rewind,
    save_attempt,
    signal,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.services.archive_files import archive_run, iter_archive_lines, read_archive
from holdfast.stores.approvals import AnswerApproval, ApprovalRequest, RequestApproval
from holdfast.stores.archives import NOT_ACTIVATED
from holdfast.stores.contract import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import OpStatus, PauseRun, ReopenRun, StartRun

pytestmark = pytest.mark.asyncio

PAIRS = [("memory", "sqlite"), ("sqlite", "postgres"), ("postgres", "memory"), ("postgres", "sqlite")]
PAIRS += [("memory", "encrypted"), ("encrypted", "memory")]
FAILED = RunState.FAILED


@pytest_asyncio.fixture(params=PAIRS, ids="-to-".join)
async def two(
    request: pytest.FixtureRequest, backends: dict[str, Any], tmp_path: Path, clock: Clock
) -> AsyncIterator[tuple[Store, Store]]:
    async with AsyncExitStack() as stack:
        stores: list[Store] = []
        for name in request.param:
            backend = backends[name]
            store = backend.make(stack.enter_context(backend.place(tmp_path)), clock)
            await store.open()
            stack.push_async_callback(store.close)
            stores.append(store)
        yield stores[0], stores[1]


async def exported(store: Store, *run_ids: str) -> str:
    return "".join([line + "\n" async for line in iter_archive_lines(store, list(run_ids))])


async def move(source: Store, target: Store, *run_ids: str) -> None:
    text = await exported(source, *run_ids)
    runs = list(read_archive(io.StringIO(text), "f"))
    for run in runs:
        assert await target.archives.restore(run)
    for run in runs:
        await target.archives.activate(run)


async def test_export_import_export_is_the_same(two: tuple[Store, Store]):
    """Whatever a run can have: large values, questions, answers, budgets, links of every kind, odd text."""
    source, target = two
    large = b'"' + secrets.token_bytes(50_000).hex().encode() + b'"'
    odd = 'ü\x01"\\ \u2028'
    budget = BudgetLimits(10**9, 5, None, 1.5)
    top = await start_claimed_run(
        source, "top", tags=("a", odd), budget=budget, session="s", max_deliveries=7, inputs=large, is_delivery=True
    )
    question = ApprovalRequest("may I?", "ann", ("yes", "no"), b'{"form":1}', "tool", large, odd)
    await commit_ops(
        source,
        signal("top", "go", large, dedup="one"),
        signal("top", odd, b"1", dedup=odd),
        append(top, 0, payload=large, used=Usage(calls=2, input_tokens=5, nano_usd=7, seconds=0.25), name=odd),
        append(top, 1, payload=b"\x01[1]", ok=False, kind=RecordKind.SIGNAL),
        append(top, 2, payload=None, kind=RecordKind.TIMER),
        save_attempt(top, 3, 2, intent=True, progress=b"[3]", error=odd, at=5.0, name="load"),
        RequestApproval(top.key, top.epoch, 4, "q1", question, 1_000_001.0, 2_000_000.0),
        RequestApproval(top.key, top.epoch, 5, "q2", ApprovalRequest("and?"), 1_000_001.5),
        start_child(top, "below", 6),
        StartRun(new_run("apart", parent="top"), link=link(top, 7, awaited=False)),
        reserve(top, 8, 100),
    )
    await commit_ops(source, AnswerApproval("q2", b'"yes"', "bob", 1_000_002.0))
    below = await claim_run(source)
    await commit_ops(source, finish(below, FAILED, rewind=rewind(0)))
    apart = await claim_run(source)
    await commit_ops(source, park(apart, 1_500_000.0, "sig"), PauseRun("apart", 1_000_009.0))
    await commit_ops(source, park(top, None, "other"))
    for name in ("below", "apart", "top"):
        assert (await read_run(source, name)).state is not RunState.RUNNING
    ids = ("top", "below", "apart")
    text = await exported(source, *ids)
    await move(source, target, *ids)
    assert await exported(target, *ids) == text


async def test_a_run_that_was_held_continues_and_repeats_nothing(two: tuple[Store, Store]):
    source, target = two
    run = await start_claimed_run(source, "r")
    await commit_ops(source, append(run, 0), append(run, 1), save_attempt(run, 2, 1))
    await move(source, target, "r")
    taken = await claim_run(target)
    assert (taken.id, taken.epoch, taken.seed) == ("r", run.epoch + 1, run.seed)
    [history] = await target.get_histories([taken.key])
    assert [record.seq for record in history.records] == [0, 1]
    assert await commit_ops(target, append(taken, 2, clear=True), finish(taken)) == [DONE, DONE]


async def test_no_worker_claims_a_restored_run_before_its_children_exist(two: tuple[Store, Store]):
    source, target = two
    parent = await start_claimed_run(source, "p", workflow="main", budget=BudgetLimits(None, 100, None, None))
    await commit_ops(source, start_child(parent, "c"), park(parent, None, awaited_positions=(0,)))
    p, c = await archive_run(source, "p"), await archive_run(source, "c")
    assert await target.archives.restore(p)
    assert (await read_run(target, "p")).paused_at == NOT_ACTIVATED
    worker = await target.workers.register(new_worker(workflows=("main", "etl")), 10.0)
    wanted = {"workflows": ["main", "etl"], "queues": None, "limit": 9}
    assert await target.archives.restore(c)
    assert await target.claims.claim(worker, **wanted) == []
    for one in (p, c, p):  # the second step may be repeated
        await target.archives.activate(one)
    [child] = await target.claims.claim(worker, **wanted)
    assert child.id == "c"
    used = append(child, 0, used=Usage(calls=1, input_tokens=9))
    assert await commit_ops(target, used, finish(child)) == [DONE, NOTIFIED]
    [woken] = await target.claims.claim(worker, **wanted)
    [history] = await target.get_histories([woken.key])
    assert [(sent.name, sent.position) for sent in history.signals] == [("completed", 0)]
    assert (await target.get_usages(["p"]))["p"].used.input_tokens == 9


async def test_a_retry_finds_what_had_failed(two: tuple[Store, Store]):
    source, target = two
    parent = await start_claimed_run(source, "p", workflow="main")
    await commit_ops(source, start_child(parent, "c"))
    child = await claim_run(source)
    await commit_ops(source, append(child, 0, ok=False), finish(child, FAILED, rewind=rewind(0)))
    failed = append(parent, 0, kind=RecordKind.CHILD, position=0, ok=False, preview="c")
    await commit_ops(source, failed, finish(parent, FAILED, rewind=rewind(0)))
    await move(source, target, "p", "c")
    assert await commit_ops(target, ReopenRun("p", 1_000_005.0)) == [DONE]
    assert (await get_state(target, "p"), await get_state(target, "c")) == (RunState.PENDING, RunState.PENDING)


async def test_a_run_that_is_there_is_never_overwritten(two: tuple[Store, Store]):
    source, target = two
    await start_run(source, "r", inputs=b'"theirs"')
    mine = await start_run(target, "r", inputs=b'"mine"')
    assert not await target.archives.restore(await archive_run(source, "r"))
    assert await read_run(target, "r") == mine


async def test_signals_are_still_distinguished(two: tuple[Store, Store]):
    source, target = two
    await start_run(source, "r")
    await commit_ops(source, signal("r", dedup="once"))
    await move(source, target, "r")
    assert await commit_ops(target, signal("r", dedup="once")) == [OpStatus.DUPLICATE]
    [archived] = [await archive_run(target, "r")]
    assert [sent.name for sent in archived.signals] == ["go"]


async def test_a_script_that_is_started_again_joins_its_run(two: tuple[Store, Store]):
    source, target = two
    starter = await source.workers.register(new_worker("script"), 10.0)
    await start_run(source, "made-up", has_generated_id=True, starter=starter)
    await move(source, target, "made-up")
    again = new_run("other", has_generated_id=True, starter=await target.workers.register(new_worker("script"), 10.0))
    [answer] = await commit_ops(target, StartRun(again, join_orphan=True))
    assert (answer.run.id, answer.is_new) == ("made-up", False)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace("holdfast-archive", "else", 1), 'no "format": "holdfast-archive"'),
        (lambda text: text.replace('"version": 1', '"version": 2', 1), "newer Holdfast"),
        (lambda text: text.rsplit("\n", 2)[0] + "\n", "was cut off after 2 runs"),
        (lambda text: text.replace('{"runs": 2}', '{"runs": 3}'), "f, line 4, says that there are 3 runs"),
        (lambda text: text.replace('"epoch": 0', '"epoch": "0"', 1), "f, line 2, cannot be read: run.epoch:"),
        (
            lambda text: text.replace('{"run": {"id": "b"', '{"run: {"id": "b"'),
            "f, line 3, is not an archive of runs: it is not JSON",
        ),
    ],
)
async def test_a_damaged_archive_is_refused_with_the_line(change: Callable[[str], str], told: str, clock: Clock):
    store = MemoryStore(clock=clock)
    await start_run(store, "a")
    await start_run(store, "b")
    text = await exported(store, "a", "b")
    assert len(list(read_archive(io.StringIO(text), "f"))) == 2
    with pytest.raises(UsageError, match=told):
        list(read_archive(io.StringIO(change(text)), "f"))
