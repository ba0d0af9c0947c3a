"""Documents, the audit log, and what was used on which day: what a store must do, whatever its kind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest
from store_values import (
    DONE,
    FENCED,
    append,
    claim_run,
    commit_ops,
    finish,
    new_run,
    new_worker,
    rewind,
    start_claimed_run,
    start_run,
)

from holdfast.admission.usage import NANO_PER_USD, Usage
from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.audit_log import AuditEvent, AuditRow
from holdfast.stores.contract import Store
from holdfast.stores.daily_usage import DailyRunCount, DailyUsage
from holdfast.stores.documents import Document
from holdfast.stores.operations import ForkRun, Op, OpStatus, ReopenRun, Run, StartResult, StartRun
from holdfast.stores.retention import PruneRequest

pytestmark = pytest.mark.asyncio

DAY = 86_400.0
FIRST, SECOND = "1970-01-12", "1970-01-13"
"""The day of the clock that the suite has, and the next one."""
EVER = ("0001-01-01", "9999-12-31")
CALL = Usage(calls=1, input_tokens=100, output_tokens=20, cached_tokens=40, nano_usd=NANO_PER_USD // 4, unpriced=0)
TWICE = CALL + CALL


# Documents


async def test_a_document_is_stored_by_kind_and_name_and_its_version_rises(store: Store, second_store: Store, clock):
    first = await store.documents.put("key", "ann", b'{"a":1}')
    assert first == Document("key", "ann", b'{"a":1}', 1, 1_000_000.0, 1_000_000.0)
    clock.advance(5)
    second = await second_store.documents.put("key", "ann", b"{}")
    assert second == Document("key", "ann", b"{}", 2, 1_000_000.0, 1_000_005.0)
    assert await store.documents.list("key") == [second]
    assert await store.documents.list("address") == []
    assert await store.documents.delete("key", "ann")
    assert not await second_store.documents.delete("key", "ann")
    assert await second_store.documents.list("key") == []
    again = await store.documents.put("key", "ann", b"{}")
    assert again is not None
    assert again.version == 1


async def test_documents_are_listed_in_the_order_of_their_names_page_by_page(store: Store):
    names = ["b", "B", "é", "a/b", "😀", "\uffee", "a b"]
    for name in names:
        await store.documents.put("address", name, name.encode())
    await store.documents.put("other", "a", b"")

    async def listed(*args, **kwargs) -> list[str]:
        return [document.name for document in await store.documents.list("address", *args, **kwargs)]

    assert await listed() == sorted(names)
    assert await listed(limit=2) == sorted(names)[:2]
    assert await listed(after="b", limit=2) == ["é", "\uffee"]
    assert await listed(["é", "b", "none", "\udc80"]) == ["b", "é"]
    assert await listed({"é", "b", "a b"}, after="a b", limit=1) == ["b"]
    assert await listed([]) == []


async def test_a_change_of_another_version_than_the_one_that_is_there_is_refused(store: Store, second_store: Store):
    assert await store.documents.put("key", "ann", b"0", if_version=1) is None, "there is none yet"
    first = await store.documents.put("key", "ann", b"1", if_version=0)
    assert first is not None
    assert first.version == 1
    assert await second_store.documents.put("key", "ann", b"2", if_version=0) is None, "there is one now"
    assert await second_store.documents.put("key", "ann", b"2", if_version=2) is None
    assert await store.documents.list("key") == [first]
    second = await second_store.documents.put("key", "ann", b"2", if_version=1)
    assert second is not None
    assert (second.data, second.version) == (b"2", 2)


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
async def test_of_two_changes_of_the_same_version_one_wins(store: Store, second_store: Store, there: bool):
    for number in range(8):
        name, version = f"d{number}", int(there)
        if there:
            await store.documents.put("key", name, b"0")
        told = await asyncio.gather(
            *(
                one.documents.put("key", name, f"{at}".encode(), if_version=version)
                for at, one in enumerate((store, second_store, store, second_store))
            )
        )
        [winner] = [document for document in told if document is not None]
        assert winner.version == version + 1
        assert await second_store.documents.list("key", [name]) == [winner]


@pytest.mark.parametrize(("kind", "name"), [("", "a"), ("key", ""), ("key", "\udc80")])
async def test_a_name_that_no_store_can_keep_is_refused_with_an_explanation(store: Store, kind: str, name: str):
    with pytest.raises(UsageError, match="document"):
        await store.documents.put(kind, name, b"{}")
    assert await store.documents.list(kind, [name]) == []
    assert not await store.documents.delete(kind, name)


# The audit log


def entry(number: int, at: float = 1_000_000.0) -> AuditEvent:
    return AuditEvent(at, "k1", "Ann's laptop", "cancelRun", f"run {number}", "allowed", "10.0.0.1")


async def test_an_entry_of_the_audit_log_is_committed_together_with_operations(store: Store, second_store: Store):
    answers = await store.commit([entry(0), StartRun(new_run("first")), entry(1), StartRun(new_run("second"))])
    assert [answers[0], answers[2]] == [OpStatus.DONE, OpStatus.DONE]
    assert [isinstance(answer, StartResult) for answer in answers] == [False, True, False, True]
    assert len(await second_store.get_runs(["first", "second"])) == 2
    assert [audit.event for audit in await second_store.audit_log.list()] == [entry(1), entry(0)]


async def test_the_audit_log_is_read_from_its_end_page_by_page(store: Store, second_store: Store):
    await store.audit_log.append([])
    await store.audit_log.append([entry(0), entry(1)])
    await second_store.audit_log.append([entry(2)])
    await store.audit_log.append([entry(number) for number in range(3, 7)])
    newest = await second_store.audit_log.list()
    assert [audit.event for audit in newest] == [entry(number) for number in (6, 5, 4, 3, 2, 1, 0)]
    ids = [audit.id for audit in newest]
    assert ids == sorted(set(ids), reverse=True)
    assert await store.audit_log.list(limit=3) == newest[:3]
    assert await store.audit_log.list(before_id=ids[2], limit=3) == newest[3:6]
    assert await store.audit_log.list(before_id=ids[-1]) == []


async def test_old_entries_go_and_their_ids_are_never_used_again(store: Store):
    await store.audit_log.append([entry(number, 1_000_000.0 + number) for number in range(6)])
    newest = await store.audit_log.list()
    assert await store.audit_log.trim(1_000_004.0, limit=3) == 3
    assert await store.audit_log.list() == newest[:3]
    assert await store.audit_log.trim(2_000_000.0) == 3
    assert await store.audit_log.trim(2_000_000.0) == 0
    await store.audit_log.append([entry(9)])
    [last] = await store.audit_log.list()
    assert last == AuditRow(last.id, entry(9))
    assert last.id > newest[0].id


async def test_any_text_can_be_in_the_audit_log(store: Store):
    strange = AuditEvent(1.0, "", "nul \x00", "a", "half \udc80 of it", "denied", "::1")
    await store.audit_log.append([strange])
    assert [audit.event for audit in await store.audit_log.list()] == [replace(strange, target="half ? of it")]


# Spending


def spend(run: Run, seq: int, used: Usage = CALL, model: str = "openai:gpt-5", **fields) -> Op:
    return append(run, seq, used=used, **fields)._replace(model=model)


async def test_usage_is_summed_by_day_workflow_and_model(store: Store, second_store: Store):
    run = await start_claimed_run(store, "r")
    other = await start_claimed_run(store, "other", workflow="chat")
    midnight = 12 * DAY
    await commit_ops(
        store,
        spend(run, 0, at=midnight - 0.001),
        spend(run, 1, at=midnight),
        spend(run, 2, at=midnight + 1, model="anthropic:claude"),
        spend(run, 3, at=midnight + 2, model=""),
        spend(other, 0, at=midnight + DAY - 0.001),
        append(other, 1),
    )
    await commit_ops(store, spend(run, 4, replace(CALL, unpriced=1, seconds=2.5), at=midnight))
    expected = [
        DailyUsage(FIRST, "etl", "openai:gpt-5", CALL),
        DailyUsage(SECOND, "chat", "openai:gpt-5", CALL),
        DailyUsage(SECOND, "etl", "", CALL),
        DailyUsage(SECOND, "etl", "anthropic:claude", CALL),
        DailyUsage(SECOND, "etl", "openai:gpt-5", replace(TWICE, unpriced=1)),
    ]
    assert await second_store.daily_usage.get(*EVER) == expected
    assert await store.daily_usage.get(FIRST, FIRST) == expected[:1]
    assert await store.daily_usage.get(SECOND, SECOND) == expected[1:]
    assert await store.daily_usage.get(FIRST, SECOND, workflow="chat") == expected[1:2]
    assert await store.daily_usage.get(SECOND, FIRST) == []


async def test_usage_without_calls_has_no_row(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, spend(run, 0, Usage()), spend(run, 1, Usage(seconds=3.0)))
    assert await store.daily_usage.get(*EVER) == []
    assert (await store.get_usages(["r"]))["r"].used == Usage(seconds=3.0)


async def test_an_append_that_is_repeated_is_counted_once(store: Store, second_store: Store):
    run, other = await start_claimed_run(store), await start_claimed_run(store, "other")
    batch = [spend(run, 0), spend(other, 0)]
    assert await commit_ops(store, *batch) == [DONE, DONE]
    assert await commit_ops(store, *batch) == [DONE, DONE]
    assert await commit_ops(second_store, batch[0]) == [DONE]
    assert await commit_ops(store, batch[1], spend(run, 1), batch[0], batch[1]) == [DONE] * 4
    assert await commit_ops(store, spend(run, 0, epoch=7)) == [FENCED]
    assert await commit_ops(store, finish(run), spend(run, 2)) == [DONE, FENCED]
    assert await commit_ops(store, spend(run, 1)) == [DONE]
    assert await store.daily_usage.get(*EVER) == [DailyUsage(FIRST, "etl", "openai:gpt-5", TWICE + CALL)]


async def test_usage_stays_when_records_are_deleted(store: Store):
    """A retry that takes them back, a fork that begins with nothing used, and pruning."""
    run = await start_claimed_run(store)
    failed = finish(run, RunState.FAILED, rewind=rewind(0, command_count=0))
    assert await commit_ops(store, spend(run, 0), failed, ReopenRun("r", 1_000_003.0)) == [DONE] * 3
    again = await claim_run(store)
    assert await commit_ops(store, spend(again, 0), finish(again)) == [DONE, DONE], (
        "it is made once more, and paid once more"
    )
    await commit_ops(store, ForkRun("r", new_run("f", forked_from="r"), 1))
    expected = [DailyUsage(FIRST, "etl", "openai:gpt-5", TWICE)]
    assert await store.daily_usage.get(*EVER) == expected
    pruned = await store.retention.prune(PruneRequest(finished_before=3_000_000.0, include_unclaimed=True))
    assert pruned.run_ids == ("r",)
    await store.retention.sweep()
    assert await store.daily_usage.get(*EVER) == expected


async def test_concurrent_usage_adds_up(store: Store, second_store: Store):
    """In group commits of two processes, in any order of models: nothing is lost, and nobody waits in a circle."""
    models, draw = ["a:1", "b:2", "c:3"], random.Random(7)
    expected: Counter[str] = Counter()

    async def work(place: Store, name: str) -> None:
        worker = await place.workers.register(new_worker(), 100.0)
        runs = [await start_run(place, f"{name}{number}", claim_as=worker) for number in range(5)]
        for seq in range(12):
            chosen = [(run, draw.choice(models)) for run in draw.sample(runs, 5)]
            expected.update(model for _, model in chosen)
            batch = [spend(run, seq, model=model) for run, model in chosen]
            assert await commit_ops(place, *batch) == [DONE] * 5
            if seq % 4 == 0:
                assert await commit_ops(place, *batch) == [DONE] * 5

    await asyncio.gather(work(store, "one"), work(second_store, "two"))
    told = await store.daily_usage.get(FIRST, FIRST)
    assert {line.model: line.used.calls for line in told} == expected
    assert sum((line.used for line in told), Usage()) == Usage(120, 12_000, 2_400, 4_800, 30 * NANO_PER_USD)


# Runs by day


async def test_runs_are_counted_on_the_day_of_their_creation(store: Store, second_store: Store):
    assert await store.daily_usage.get_run_counts(*EVER) == []
    midnight = 12 * DAY
    for number, (at, flow) in enumerate(
        [(midnight - 0.001, "etl"), (midnight, "etl"), (midnight + 9, "chat"), (midnight + 5, "etl"), (30 * DAY, "etl")]
    ):
        await start_run(store, f"r{number}", created_at=at, workflow=flow)
    expected = [
        DailyRunCount(FIRST, "etl", 1), DailyRunCount(SECOND, "chat", 1), DailyRunCount(SECOND, "etl", 2),
        DailyRunCount("1970-01-31", "etl", 1)
    ]  # fmt: skip
    assert await second_store.daily_usage.get_run_counts(*EVER) == expected
    assert await store.daily_usage.get_run_counts(FIRST, SECOND) == expected[:3]
    assert await store.daily_usage.get_run_counts("1970-01-14", "1970-01-30") == []
    assert await store.daily_usage.get_run_counts(*EVER, workflow="chat") == expected[1:2]
    assert await store.daily_usage.get_run_counts(SECOND, FIRST) == []


async def test_deleted_runs_are_no_longer_counted(store: Store, second_store: Store):
    worker = await store.workers.register(new_worker(), 100.0)
    for name in ("one", "two", "three"):
        run = await start_run(store, name, claim_as=worker)
        await commit_ops(store, finish(run))
    assert [line.run_count for line in await second_store.daily_usage.get_run_counts(*EVER)] == [3]
    pruned = await store.retention.prune(PruneRequest(3_000_000.0, run_ids=("one", "three"), include_unclaimed=True))
    assert len(pruned.run_ids) == 2
    assert [line.run_count for line in await second_store.daily_usage.get_run_counts(*EVER)] == [1]
    await store.retention.prune(PruneRequest(3_000_000.0, run_ids=("two",), include_unclaimed=True))
    assert await second_store.daily_usage.get_run_counts(*EVER) == []


async def test_a_start_that_is_repeated_is_counted_once(store: Store, second_store: Store):
    for place in (store, second_store, store):
        await start_run(place, "same")
    assert [line.run_count for line in await store.daily_usage.get_run_counts(*EVER)] == [1]


async def test_concurrent_starts_are_all_counted(store: Store, second_store: Store):
    async def work(place: Store, name: str) -> None:
        for number in range(20):
            flows = random.Random(number).sample(["a", "b", "c"], 3)
            await commit_ops(place, *(StartRun(new_run(f"{name}-{number}-{flow}", workflow=flow)) for flow in flows))

    await asyncio.gather(work(store, "one"), work(second_store, "two"))
    counts = await store.daily_usage.get_run_counts(*EVER)
    assert {line.workflow: line.run_count for line in counts} == {"a": 40, "b": 40, "c": 40}
