from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    Client,
    NonDeterminismError,
    RunCancelled,
    RunFailed,
    RunState,
    Runtime,
    UnknownWorkflow,
    UsageError,
    step,
    workflow,
)
from holdfast.authoring.registry import definitions
from holdfast.codec import encode_error
from holdfast.core import loop as loops
from holdfast.core.records import Attempt, Record, RecordKind
from holdfast.errors import ForbiddenInWorkflow, InputError, RunDead, StoreCorrupt, UnreadableRecord, WorkflowStuck
from holdfast.services.journal_files import Journal, export_run
from holdfast.stores.urls import create_store
from holdfast.testing.journal_replay import JournalMismatch, replay, replay_journal

executed: list[str] = []


@pytest.fixture(autouse=True)
def _own_workflows() -> Iterator[None]:
    """A new version of a workflow has the name of the old one."""
    before = dict(definitions)
    definitions.clear()
    executed.clear()
    yield
    definitions.clear()
    definitions.update(before)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    zombies = len(loops.leaked_tasks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unraisable: list[Any] = []
        hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
        yield
        gc.collect()
        sys.unraisablehook = hook
    assert not unraisable
    assert len(loops.leaked_tasks) == zombies


@dataclass
class Row:
    number: int


class Declined(Exception):
    pass


@step
async def extract(customer: str) -> list[Row]:
    executed.append("extract")
    return [Row(1), Row(2)]


@step
async def load(row: Row) -> int:
    executed.append("load")
    return row.number * 10


@step
async def check(customer: str) -> None:
    if customer == "bad":
        raise Declined("no such customer")


def etl_of_yesterday() -> Any:
    @workflow
    async def etl(customer: str) -> list[int]:
        rows = await extract(customer)
        await asyncio.sleep(0.01)
        parts = await asyncio.gather(*[load(row) for row in rows])
        await check(customer)
        logging.getLogger("etl").warning("loaded %s", parts)
        return parts

    return etl


def record(customer: str, folder: Path) -> Journal:
    """Run it for real, on a file, and export it."""

    async def main() -> Journal:
        url = f"sqlite:///{folder}/runs.db"
        async with Runtime(url) as runtime:
            handle = await runtime.start(etl.options(id="r1"), customer)
            try:
                await handle.result()
            except RunFailed:
                pass
        store = create_store(url)
        await store.open()
        try:
            return await export_run(store, "r1")
        finally:
            await store.close()

    etl = etl_of_yesterday()
    try:
        return asyncio.run(main())
    finally:
        del definitions["etl"]


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return record("acme", tmp_path_factory.mktemp("completed"))


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return record("bad", tmp_path_factory.mktemp("failed"))


def cut(journal: Journal, records: int, **fields: Any) -> Journal:
    """The journal of the same run, before it went so far."""
    given: dict[str, Any] = {"state": RunState.RUNNING, "output": None, "error": None, "finished_at": None, **fields}
    return Journal(replace(journal.run, **given), journal.records[:records])


# What fits


def test_unchanged_code_comes_to_the_recorded_result_and_executes_nothing(completed: Journal):
    replayed = replay(completed, etl_of_yesterday())
    assert replayed.is_match
    assert (replayed.run_id, replayed.workflow, replayed.recorded_state) == ("r1", "etl", RunState.COMPLETED)
    assert (replayed.state, replayed.output, replayed.output_bytes) == ("completed", [10, 20], b"[10,20]")
    assert (replayed.error, replayed.replay_error, replayed.waits_for) == (None, None, ())
    assert replayed.replayed_count == len(completed.records) == 5
    assert executed == []


def test_a_replay_has_the_issued_commands_with_their_arguments(completed: Journal):
    replayed = replay(completed, etl_of_yesterday())
    assert [(one.kind, one.position, one.name, one.arguments) for one in replayed.commands] == [
        (RecordKind.STEP, 0, "extract", b'{"customer":"acme"}'),
        (RecordKind.STEP, 1, "load", b'{"row":{"number":1}}'),
        (RecordKind.STEP, 2, "load", b'{"row":{"number":2}}'),
        (RecordKind.STEP, 3, "check", b'{"customer":"acme"}'),
    ]
    assert len(set(replayed.idempotency_keys.values())) == 4


def test_a_failed_run_fails_again_with_the_same_error(failed: Journal):
    replayed = replay(failed, etl_of_yesterday())
    assert replayed.is_match
    assert (replayed.recorded_state, replayed.state, replayed.output_bytes) == (RunState.FAILED, "failed", None)
    assert isinstance(replayed.error, Declined)
    assert replayed.replay_error is None


def test_an_exception_class_of_a_script_may_have_moved_to_a_module(failed: Journal):
    error = encode_error(Declined("no such customer")).replace(__name__.encode(), b"__main__")
    assert replay(replace(failed, run=replace(failed.run, error=error)), etl_of_yesterday()).is_match


def test_a_missing_exception_class_is_reported_with_the_step_that_raised_it(failed: Journal):
    *before, last = failed.records
    gone = last._replace(payload=(last.payload or b"").replace(b"Declined", b"Vanished"))
    fault = replay(replace(failed, records=(*before, gone)), etl_of_yesterday()).replay_error
    assert isinstance(fault, UnreadableRecord)
    assert str(fault).startswith("The error of step 'check' (#4) of run 'r1' is a `test_journal_replay.Vanished`")


def test_an_unfinished_run_continues_and_shows_what_it_waits_for(completed: Journal):
    waits = [replay(cut(completed, length), etl_of_yesterday()).waits_for for length in range(4)]
    assert waits == [
        ("step 'extract' (#1)",),
        ("a timer (0.01 s)",),
        ("step 'load' (#2)", "step 'load' (#3)"),
        ("step 'load' (#3)",) if completed.records[2].position == 1 else ("step 'load' (#2)",),
    ]


def test_a_run_that_waits_for_a_signal_says_which(completed: Journal):
    @workflow
    async def etl(customer: str) -> Any:
        async with asyncio.timeout(3600):
            return await asyncio.gather(holdfast.wait_for_signal("paid"), holdfast.wait_for_signal("sent"))

    replayed = replay(cut(completed, 0), etl)
    assert (replayed.state, replayed.waits_for) == ("waiting", ("signal 'paid'", "signal 'sent'", "a timer (3600 s)"))
    assert replayed.is_match


def test_new_commands_after_the_recorded_ones_are_not_drift_in_an_unfinished_run(completed: Journal):
    @workflow
    async def etl(customer: str) -> list[int]:
        await extract(customer)
        await load(Row(3))
        return []

    assert replay(cut(completed, 1), etl).waits_for == ("step 'load' (#2)",)


def test_a_dead_run_fits_when_it_can_go_on(completed: Journal):
    dead = cut(completed, 1, state=RunState.DEAD, error=encode_error(RunDead("took its worker down")))
    replayed = replay(dead, etl_of_yesterday())
    assert (replayed.is_match, replayed.state) == (True, "waiting")


@pytest.mark.parametrize("error", [NonDeterminismError("drift"), UnreadableRecord("type"), StoreCorrupt("disk")])
def test_a_run_that_failed_for_no_reason_of_its_own_fits_when_it_can_go_on(completed: Journal, error: Exception):
    stopped = cut(completed, 3, state=RunState.FAILED, error=encode_error(error))
    replayed = replay(stopped, etl_of_yesterday())
    assert (replayed.is_match, replayed.state) == (True, "waiting")


# What does not


def drifted() -> Any:
    @workflow
    async def etl(customer: str) -> list[int]:
        await extract(customer)
        await check(customer)
        return []

    return etl


def test_code_that_drifted_has_a_fault_that_shows_journal_and_code(completed: Journal):
    replayed = replay(completed, drifted())
    assert not replayed.is_match
    assert isinstance(replayed.replay_error, NonDeterminismError)
    assert (replayed.state, replayed.error, replayed.difference) == ("failed", replayed.replay_error, "")
    assert replayed.replayed_count == 1
    assert "(no such timer)" in str(replayed.replay_error)
    assert [one.name for one in replayed.commands] == ["extract", "check"]


def test_a_run_that_failed_by_drift_does_not_fit_the_code_that_drifted(completed: Journal):
    stopped = cut(completed, 3, state=RunState.FAILED, error=encode_error(NonDeterminismError("drift")))
    assert isinstance(replay(stopped, drifted()).replay_error, NonDeterminismError)


def test_code_that_ends_before_its_journal_drifted(completed: Journal):
    @workflow
    async def etl(customer: str) -> list[int]:
        await extract(customer)
        await asyncio.sleep(0.01)
        return [10, 20]

    replayed = replay(completed, etl)
    assert isinstance(replayed.replay_error, NonDeterminismError)
    assert "(the workflow has ended)" in str(replayed.replay_error)


def test_another_result_is_shown_next_to_the_recorded_one(completed: Journal):
    @workflow
    async def etl(customer: str) -> list[int]:
        rows = await extract(customer)
        await asyncio.sleep(0.01)
        parts = await asyncio.gather(*[load(row) for row in rows])
        await check(customer)
        return [-part for part in parts]

    replayed = replay(completed, etl)
    assert replayed.replay_error is None
    assert "recorded: [10, 20]" in replayed.difference
    assert "today:    [-10, -20]" in replayed.difference


def test_the_first_difference_of_two_long_results_is_shown(completed: Journal):
    long = replace(completed, run=replace(completed.run, output=b'"' + b"x" * 5000 + b'y"'))

    @workflow
    async def etl(customer: str) -> str:
        await asyncio.gather(extract(customer), asyncio.sleep(0.01))
        await asyncio.gather(load(Row(1)), load(Row(2)))
        await check(customer)
        return "x" * 5000 + "z"

    assert "from byte 5001 on" in replay(long, etl).difference


def test_code_that_goes_on_where_the_run_had_completed_differs(completed: Journal):
    @workflow
    async def etl(customer: str) -> list[int]:
        rows = await extract(customer)
        await asyncio.sleep(0.01)
        parts = await asyncio.gather(*[load(row) for row in rows])
        await check(customer)
        await check(customer)
        return parts

    assert replay(completed, etl).difference.endswith("recorded as completed, but today it waits for step 'check' (#5)")


def test_another_error_than_the_recorded_one_differs(failed: Journal):
    @workflow
    async def etl(customer: str) -> list[int]:
        rows = await extract(customer)
        await asyncio.sleep(0.01)
        parts = await asyncio.gather(*[load(row) for row in rows])
        try:
            await check(customer)
        except Declined:
            raise Declined("sorry") from None
        return parts

    assert "Declined: no such customer), but today it fails with Declined: sorry" in replay(failed, etl).difference


def test_a_failure_that_is_caught_now_differs(failed: Journal):
    @workflow
    async def etl(customer: str) -> list[int]:
        rows = await extract(customer)
        await asyncio.sleep(0.01)
        parts = await asyncio.gather(*[load(row) for row in rows])
        try:
            await check(customer)
        except Declined:
            pass
        return parts

    assert replay(failed, etl).difference.endswith("but today it completes")


def test_a_step_in_flight_must_still_be_asked_for(completed: Journal):
    in_flight = cut(completed, 1)
    fitting = replace(in_flight, attempts=(Attempt(0, 1, name="extract"),))
    assert replay(fitting, drifted()).is_match
    for name, position, today in (("load", 1, "step 'check'"), ("load", 2, "nothing")):
        journal = replace(in_flight, attempts=(Attempt(position, 1, name=name),))
        told = f"step 'load' (#{position + 1}) in flight, but today's code asks for {today} there"
        assert told in replay(journal, drifted()).difference


def test_inputs_that_do_not_fit_the_signature_are_a_fault(completed: Journal):
    @workflow
    async def etl(client: str) -> list[int]:
        return []

    replayed = replay(completed, etl)
    assert isinstance(replayed.replay_error, InputError)
    assert (replayed.state, replayed.replayed_count, replayed.commands) == ("failed", 0, ())


def test_a_record_that_today_has_another_type_is_a_fault(completed: Journal):
    first = completed.records[0]._replace(payload=b'"text"')
    journal = replace(completed, records=(first, *completed.records[1:]))
    assert isinstance(replay(journal, etl_of_yesterday()).replay_error, UnreadableRecord)


def test_code_that_does_what_only_a_step_may_do_is_a_fault(completed: Journal):
    @workflow
    async def etl(customer: str) -> None:
        await asyncio.to_thread(print)

    assert isinstance(replay(completed, etl).replay_error, ForbiddenInWorkflow)


def test_code_that_waits_for_nothing_recorded_is_a_fault(completed: Journal):
    @workflow
    async def etl(customer: str) -> None:
        await asyncio.Event().wait()

    assert isinstance(replay(completed, etl).replay_error, WorkflowStuck)


def test_a_result_that_cannot_be_recorded_fails_as_it_would_on_a_worker(completed: Journal):
    @workflow
    async def etl(customer: str) -> Any:
        await extract(customer)
        return object()

    replayed = replay(cut(completed, 1), etl)
    assert (replayed.state, type(replayed.error)) == ("failed", holdfast.UnrecordableValue)


# In tests


def another() -> Any:
    @workflow
    async def order() -> None:
        return None

    return order


def test_a_file_is_replayed_by_the_workflow_of_its_name(completed: Journal, tmp_path: Path):
    completed.write(tmp_path / "etl.json")
    etl_of_yesterday()
    assert replay_journal(tmp_path / "etl.json").output == [10, 20]
    assert replay_journal(str(tmp_path / "etl.json")).output == [10, 20]


def test_a_file_that_today_does_not_fit_raises(completed: Journal, tmp_path: Path):
    completed.write(tmp_path / "etl.json")
    with pytest.raises(NonDeterminismError, match="no longer does what its journal says"):
        replay_journal(tmp_path / "etl.json", drifted())
    other = replace(completed, run=replace(completed.run, output=b"[1]"))
    other.write(tmp_path / "other.json")
    definitions.clear()
    with pytest.raises(JournalMismatch, match="comes to another result today") as raised:
        replay_journal(tmp_path / "other.json", etl_of_yesterday())
    assert isinstance(raised.value, AssertionError)


def test_an_unknown_workflow_is_reported_with_the_known_ones(completed: Journal):
    another()
    with pytest.raises(UnknownWorkflow, match=r"workflow 'etl', and no such workflow is .* \(known: order\)"):
        replay(completed)


def test_a_journal_of_another_workflow_is_refused(completed: Journal):
    with pytest.raises(UsageError, match=r"a run of workflow 'etl', not of 'order'.*@workflow\(name='etl'\)"):
        replay(completed, another())


# How it is done


@pytest.mark.asyncio
async def test_it_works_under_a_running_loop_and_leaves_that_as_it_was(completed: Journal):
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert replay(cut(completed, 0), waiting()).waits_for == ("step 'extract' (#1)",)
    assert asyncio.get_running_loop() is loop
    assert asyncio.current_task() is task
    assert asyncio.all_tasks() == {task}


class Mark:
    """Something that can be watched going away."""


marks: list[weakref.ref[Mark]] = []


def waiting() -> Any:
    @workflow
    async def etl(customer: str) -> None:
        mine = Mark()
        marks.append(weakref.ref(mine))
        try:
            await extract("acme")
        finally:
            await load(Row(len(repr(mine))))

    return etl


def test_workflow_code_does_not_stay_in_memory(completed: Journal):
    marks.clear()
    replayed = replay(cut(completed, 0), waiting())
    gc.collect()
    assert marks[0]() is None
    assert [one.name for one in replayed.commands] == ["extract"], "a `finally` block issues nothing on the way out"


def test_workflow_code_does_not_stay_in_memory_after_a_fault(completed: Journal):
    marks.clear()
    stranger = Record(0, RecordKind.STEP, 0, "stranger", True, b"1", 1.0)
    replayed = replay(replace(completed, records=(stranger,)), waiting())
    assert isinstance(replayed.replay_error, NonDeterminismError)
    del replayed
    gc.collect()
    assert marks[0]() is None


def test_the_workflow_logs_nothing_while_it_is_replayed(completed: Journal, caplog: pytest.LogCaptureFixture):
    assert replay(completed, etl_of_yesterday()).is_match
    assert caplog.records == []


def test_the_time_is_that_of_the_records(completed: Journal, monkeypatch: pytest.MonkeyPatch):
    @workflow
    async def etl(customer: str) -> list[float]:
        before = holdfast.now().timestamp()
        await extract(customer)
        return [before, holdfast.now().timestamp()]

    def no_clock() -> float:
        raise AssertionError("replay looked at the clock")

    monkeypatch.setattr(time, "time", no_clock)
    monkeypatch.setattr(time, "monotonic", no_clock)
    output = replay(cut(completed, 1), etl).output
    assert output == pytest.approx([completed.run.created_at, completed.records[0].at], abs=1e-5)


def test_replaying_twice_gives_the_same(completed: Journal):
    etl = etl_of_yesterday()
    assert replay(completed, etl) == replay(completed, etl)


# Other runs, undoing, cancelling and forks


@step
async def give_back(receipt: str) -> None:
    executed.append("give_back")


@step(compensate=give_back)
async def buy(item: str) -> str:
    executed.append("buy")
    return f"receipt for {item}"


def family_of_yesterday(*, result: Any = "done", waits: bool = False, undoes: bool = True) -> Any:
    @workflow
    async def replayed_child(number: int) -> int:
        await load(Row(number))
        if number == 3:
            raise Declined("not three")
        return number

    @workflow
    async def replayed_parent(numbers: list[int]) -> Any:
        handle = await replayed_child.start(0)
        if undoes:
            await buy("tea")
        began = holdfast.now()
        parts = await asyncio.gather(*[replayed_child(number) for number in numbers])
        if waits:
            await holdfast.wait_for_signal("go")
        return f"{sum(parts)} {await handle.result()} {began.isoformat()}" if result == "done" else result

    return replayed_parent


async def _recorded(folder: Path, numbers: list[int], *, cancel: bool = False, **how: Any) -> Journal:
    url = f"sqlite:///{folder}/runs.db"
    async with Runtime(url) as runtime:
        handle = await runtime.start(family_of_yesterday(**how).options(id="p1"), numbers)
        if cancel:
            for _ in range(500):  # until it waits for its signal
                if len((await export_of(url, "p1")).records) == 3:
                    break
                await asyncio.sleep(0.02)
            await handle.cancel()
        try:
            await handle.result()
        except (RunFailed, RunCancelled):
            pass
    return await export_of(url, "p1")


async def export_of(url: str, run_id: str) -> Journal:
    store = create_store(url)
    await store.open()
    try:
        return await export_run(store, run_id)
    finally:
        await store.close()


def recorded_family(folder: Path, numbers: list[int], **how: Any) -> Journal:
    journal = asyncio.run(_recorded(folder, numbers, **how))
    definitions.clear()
    executed.clear()
    return Journal.loads(journal.dumps())


def kinds(journal: Journal) -> list[str]:
    return sorted({record.kind.label for record in journal.records})


def test_a_run_with_children_is_replayed_without_them(tmp_path: Path):
    journal = recorded_family(tmp_path, [1, 2])
    assert kinds(journal) == ["child", "start", "step"]
    replayed = replay(journal, family_of_yesterday())
    assert (replayed.state, replayed.is_match, replayed.output_bytes) == ("completed", True, journal.run.output)
    assert executed == []
    half = Journal(replace(journal.run, state=RunState.RUNNING, output=None), journal.records[:2])
    waits = replay(half, family_of_yesterday()).waits_for
    assert waits == ("run 'p1:replayed_child-3'", "run 'p1:replayed_child-4'")


def test_a_run_that_was_undone_is_replayed_to_its_error(tmp_path: Path):
    journal = recorded_family(tmp_path, [1, 3])
    assert kinds(journal) == ["child", "compensation", "start", "step"]
    replayed = replay(journal, family_of_yesterday())
    assert (replayed.state, replayed.is_match, replayed.replayed_count) == ("failed", True, len(journal.records))
    assert isinstance(replayed.error, RunFailed)
    assert [one.name for one in replayed.commands if one.kind is RecordKind.COMPENSATION] == ["give_back"]
    assert {one.position for one in replayed.commands if one.kind is RecordKind.COMPENSATION} <= set(
        replayed.idempotency_keys
    )
    assert executed == []
    assert isinstance(replay(journal, family_of_yesterday(undoes=False)).replay_error, NonDeterminismError)


def test_a_result_that_cannot_be_recorded_undoes_what_was_done_in_replay_too(tmp_path: Path):
    journal = recorded_family(tmp_path, [1], result=object())
    assert kinds(journal) == ["child", "compensation", "start", "step"]
    replayed = replay(journal, family_of_yesterday(result=object()))
    assert (replayed.state, replayed.replay_error, replayed.replayed_count) == ("failed", None, len(journal.records))


def test_a_cancelled_run_must_give_in_to_its_cancellation(tmp_path: Path):
    journal = recorded_family(tmp_path, [1], waits=True, cancel=True)
    assert journal.run.state is RunState.CANCELLED
    assert kinds(journal) == ["cancel", "child", "compensation", "start", "step"]
    replayed = replay(journal, family_of_yesterday(waits=True))
    assert (replayed.state, replayed.error, replayed.is_match) == ("cancelled", None, True)

    @workflow
    async def stubborn() -> str:
        try:
            await holdfast.wait_for_signal("go")
        except asyncio.CancelledError:
            return "no"
        return "yes"

    cancel = Record(0, RecordKind.CANCEL, 0, "cancel", True, None, journal.run.created_at)
    row = replace(journal.run, workflow="stubborn", inputs=b"{}")
    differs = replay(Journal(row, (cancel,)), stubborn).difference
    assert differs == "run 'p1' is recorded as cancelled, but today it completes"
    # One that was cancelled before anybody had begun it has nothing to be compared with.
    assert replay(Journal(row, ()), stubborn).is_match


def test_a_fork_is_replayed_by_the_clock_of_its_origin(tmp_path: Path):
    journal = recorded_family(tmp_path, [1], undoes=False)
    fork = replace(journal.run, created_at=journal.run.created_at + 3600, forked_from="p0")
    assert replay(Journal(fork, journal.records), family_of_yesterday(undoes=False)).is_match
    assert Journal.loads(Journal(fork, ()).dumps()).run.clock_started_at == journal.run.clock_started_at


def retried_flow() -> Any:
    @workflow
    async def drawing_after_a_retry() -> str:
        await once_declined()
        return str(holdfast.uuid4())

    return drawing_after_a_retry


@step
async def once_declined() -> str:
    executed.append("once_declined")
    if len(executed) == 1:
        raise Declined("come back later")
    return "accepted"


@pytest.mark.asyncio
async def test_a_run_that_was_retried_draws_in_replay_what_it_drew_after_the_retry(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Runtime(url) as runtime:
        handle = await runtime.start(retried_flow().options(id="r1"))
        with pytest.raises(RunFailed):
            await handle.result()
        async with Client(url) as client:
            await client.retry("r1")
        drawn = await handle.result()
    journal = Journal.loads((await export_of(url, "r1")).dumps())
    assert journal.run.rewind_points
    replayed = replay(journal)
    assert (replayed.difference, replayed.output) == ("", drawn)
