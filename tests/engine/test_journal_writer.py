"""Group commit, and what happens when the store does not take writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from engine_world import FlakyStore, Replaced, VirtualClock, World, get_state, make_unavailable_error, read_journal
from shared_flows import define_calling, define_waiting

from holdfast import RunFailed, step, wait_for_signal, workflow
from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.engine.journal_writer import MAX_TRIES, JournalWriter
from holdfast.errors import StoreFull, StoreUnavailable
from holdfast.stores.operations import AppendRecord, CancelRun, FinishRun, NewRun, Op, RunLink, SendSignal, StartRun
from waits import wait_until

pytestmark = pytest.mark.asyncio


def appends(ops: Sequence[Op]) -> list[AppendRecord]:
    return [op for op in ops if isinstance(op, AppendRecord)]


async def test_outcomes_that_are_ready_together_share_a_commit(world: World):
    gate = asyncio.Event()
    waiting = 0

    @step
    async def work(n: int) -> int:
        nonlocal waiting
        waiting += 1
        await gate.wait()
        return n

    @workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*[work(n) for n in range(20)]))

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handles = [await runtime.start(flow.options(new=True)) for _ in range(5)]
    await wait_until(lambda: waiting == 100)
    store.commits.clear()
    gate.set()
    assert [await handle.result() for handle in handles] == [190] * 5
    sizes = [len(appends(ops)) for ops in store.commits if appends(ops)]
    assert sum(sizes) == 100
    assert len(sizes) <= 3


async def test_a_step_costs_one_write_and_so_do_a_start_and_an_end(world: World):
    @step
    async def work(n: int) -> int:
        return n

    @workflow
    async def flow() -> int:
        return sum([await work(n) for n in range(5)])

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    await (await runtime.start(flow)).result()
    assert [[type(op).__name__ for op in ops] for ops in store.commits] == [
        ["StartRun"], *[["AppendRecord"]] * 5, ["FinishRun"],
    ]  # fmt: skip


async def test_while_the_store_is_gone_runs_pause_and_then_go_on(world: World, clock: VirtualClock, caplog):
    calls: list[int] = []

    @step
    async def work(n: int) -> int:
        calls.append(n)
        return n

    @workflow
    async def flow() -> int:
        return sum([await work(n) for n in range(5)])

    store = FlakyStore(world.store())
    failures = 0

    def outage(ops: Sequence[Op]) -> BaseException | None:
        nonlocal failures
        if appends(ops) and appends(ops)[0].record.position == 2 and failures < 6:
            failures += 1
            return make_unavailable_error()
        return None

    store.fail_before = outage
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    assert await handle.result() == 10
    assert calls == [0, 1, 2, 3, 4]
    assert failures == 6
    assert clock.slept[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    messages = [record.getMessage() for record in caplog.records]
    assert sum("runs wait until it does: the disk is gone" in message for message in messages) == 1
    assert sum("takes writes again" in message for message in messages) == 1


async def test_a_client_that_starts_a_run_or_sends_a_signal_gets_an_error_at_once_when_the_store_is_gone(world: World):
    @workflow
    async def flow(n: int) -> Any:
        return await wait_for_signal("go")

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(flow, 0)
    store.fail_before = lambda _: StoreFull("no room left")
    started = time.monotonic()
    with pytest.raises(StoreFull, match="no room left"):
        await runtime.start(flow, 1)
    with pytest.raises(StoreFull):
        await handle.signal("go")
    assert time.monotonic() - started < 2
    store.fail_before = lambda _: None
    await handle.signal("go", "after all")
    assert await handle.result() == "after all"


async def test_a_client_gets_an_error_at_once_even_while_runs_wait_for_the_store(in_memory: World):
    from holdfast.engine.clock import SystemClock

    @step
    async def work() -> str:
        return "done"

    @workflow
    async def flow(n: int) -> str:
        return await work()

    store = FlakyStore(in_memory.store(SystemClock()))
    runtime = await in_memory.open(store=store, clock=SystemClock())
    handle = await runtime.start(flow, 0)
    store.fail_before = lambda _: make_unavailable_error()
    await wait_until(lambda: runtime._engine.writer._pause_s >= 0.4)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await runtime.start(flow, 1)
    assert time.monotonic() - started < 0.3
    store.fail_before = lambda _: None
    assert await handle.result(timeout=10) == "done"


async def test_a_commit_that_was_carried_out_but_reported_as_failed_is_harmless(world: World):
    """A cut connection: nobody knows whether it was committed, so it is handed in again."""
    calls: list[int] = []
    doubtful: set[int] = set()

    @step
    async def work(n: int) -> int:
        calls.append(n)
        return n

    @step(effect="once")
    async def pay() -> str:
        calls.append(99)
        return "paid"

    @workflow
    async def flow() -> list[Any]:
        return [await work(1), await pay(), await wait_for_signal("go"), await work(2)]

    def cut(ops: Sequence[Op]) -> BaseException | None:
        if isinstance(ops[0], StartRun) or id(ops[0]) in doubtful or ops[0] in seen:
            return None
        seen.append(ops[0])
        return make_unavailable_error("the connection was cut")

    seen: list[Op] = []
    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await handle.signal("go", "hello")
    store.fail_after = cut
    assert await handle.result() == [1, "paid", "hello", 2]
    assert calls == [1, 99, 2]
    assert len(await read_journal(runtime, handle)) == 4
    assert any(isinstance(op, FinishRun) for op in seen)


async def test_an_operation_that_breaks_the_commit_does_not_block_the_others(world: World, caplog):
    gate = asyncio.Event()

    @step
    async def work(n: int) -> int:
        await gate.wait()
        return n

    @workflow
    async def flow(n: int) -> int:
        return await work(n) + 100

    store = FlakyStore(world.store())
    runtime = await world.open(store=store)
    handles = [await runtime.start(flow, n) for n in range(4)]
    await wait_until(lambda: all(d.steps.started for d in runtime._engine.held_runs.drivers.values()))
    store.fail_before = lambda ops: (
        TypeError("this operation is poison") if any(op.record.payload == b"2" for op in appends(ops)) else None
    )
    gate.set()
    for n in (0, 1, 3):
        assert await handles[n].result(timeout=10) == n + 100
    with pytest.raises(RunFailed, match="poison"):
        await handles[2].result(timeout=10)
    assert any("could not be committed" in record.getMessage() for record in caplog.records)


async def test_reads_that_fail_for_a_while_do_not_stop_the_engine(world: World):
    @step
    async def work() -> str:
        return "done"

    flow = define_calling(work)

    class Unreadable(FlakyStore):
        broken = False

        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            self.claims = Replaced(inner.claims, get_next_wake_at=self._get_next_wake_at)
            self.workers = Replaced(inner.workers, reap_dead=self._reap_dead)

        async def _get_next_wake_at(self, **where: Any) -> float | None:
            if self.broken:
                raise make_unavailable_error("cannot read")
            return await self.inner.claims.get_next_wake_at(**where)

        async def _reap_dead(self, me: int | None = None, window: Any = None) -> Any:
            if self.broken:
                raise make_unavailable_error("cannot read")
            return await self.inner.workers.reap_dead(me, window)

    store = Unreadable(world.store())
    starter = await world.open(definitions={})
    runtime = await world.open(store=store)
    store.broken = True
    handle = await starter.start(flow)
    await asyncio.sleep(0.1)
    assert await get_state(runtime, handle) == "pending"
    store.broken = False
    assert await handle.result(timeout=10) == "done"


async def test_a_failed_poll_is_repeated_although_no_process_writes(world: World):
    """The signal was sent here, so the store tells of no change: only the failed look itself can be the reason."""

    flow = define_waiting()

    class Stumbling(FlakyStore):
        stumbles = 0

        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            self.claims = Replaced(inner.claims, get_new_signals=self._get_new_signals)

        async def _get_new_signals(self, worker: int, after: int) -> Any:
            if self.stumbles:
                self.stumbles -= 1
                raise make_unavailable_error("locked for a moment")
            return await self.inner.claims.get_new_signals(worker, after)

    store = Stumbling(world.store())
    runtime = await world.open(store=store)
    handle = await runtime.start(flow)
    await wait_until(lambda: runtime._engine._idle_runs)
    store.stumbles = 1
    await handle.signal("go", "seen")
    assert await handle.result(timeout=5) == "seen"


async def test_runs_that_no_caller_waits_for_are_recorded_all_the_same(world: World):
    done: list[int] = []

    @step
    async def work(n: int) -> int:
        done.append(n)
        return n

    @workflow
    async def flow(n: int) -> int:
        return await work(n)

    runtime = await world.open()
    handles = [await runtime.start(flow, n) for n in range(30)]
    await wait_until(lambda: len(done) == 30)
    await wait_until(lambda: not runtime._engine.held_runs.drivers)
    assert {await get_state(runtime, handle) for handle in handles} == {"completed"}


# The writer on its own


class Scripted:
    """A store whose commits fail as the test says."""

    min_overlap_count: int | None = None

    def __init__(self, *failures: BaseException | None) -> None:
        self.failures = list(failures)
        self.committed: list[Any] = []
        self.tries: list[list[Any]] = []
        self.stalls_at = 0
        """The number of the try that takes for ever."""

    async def commit(self, ops: Sequence[Any]) -> list[Any]:
        self.tries.append(list(ops))
        await asyncio.sleep(60 if len(self.tries) == self.stalls_at else 0)
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        self.committed += ops
        return list(ops)


async def write(store: Scripted, *ops: Any) -> list[Any]:
    """Hand in operations at once, and return the answers in the order they came."""
    answers: list[Any] = []
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    for op in ops:
        writer.submit(op, answers.append)
    await wait_until(lambda: len(answers) == len(ops))
    return answers


async def test_operations_are_committed_and_answered_in_the_order_they_came():
    store = Scripted(make_unavailable_error(), make_unavailable_error())
    assert await write(store, *range(50)) == list(range(50))
    assert store.committed == list(range(50))
    assert [len(ops) for ops in store.tries] == [50, 50, 50]


async def test_a_store_that_fails_while_a_broken_operation_is_looked_for_lets_nothing_overtake():
    """First the batch breaks, then, one by one, the store is gone for the second operation."""
    store = Scripted(TypeError("poison somewhere"), None, make_unavailable_error(), None)
    assert await write(store, "a", "b", "c", "d") == ["a", "b", "c", "d"]
    assert store.committed == ["a", "b", "c", "d"]


async def test_only_the_operation_that_breaks_is_answered_with_its_error():
    class Poisoned(Scripted):
        async def commit(self, ops: Sequence[Any]) -> list[Any]:
            if "poison" in ops:
                raise TypeError("poison")
            return await super().commit(ops)

    store = Poisoned()
    answers = await write(store, "a", "poison", "b")
    assert [answers[0], str(answers[1]), answers[2]] == ["a", "poison", "b"]


def append(run: int, seq: int) -> AppendRecord:
    return AppendRecord(run, Record(seq, RecordKind.STEP, seq, "work", True, b"1", 0.0, epoch=1))


async def test_nothing_of_its_run_overtakes_an_operation_that_is_repeated():
    class Poisoned(Scripted):
        async def commit(self, ops: Sequence[Any]) -> list[Any]:
            if first in ops and len(self.tries) < 5:
                self.tries.append(list(ops))
                raise TypeError("poison")
            return await super().commit(ops)

    link = RunLink(1, 1, 0)
    new = NewRun("child", "flow", b"[]", b"", b"seed", 0.0)
    first, second, cancel = StartRun(new, link=link), append(1, 0), CancelRun("child", 0.0, b"seed")
    other, people = append(2, 0), CancelRun("child", 0.0)
    store = Poisoned()
    await write(store, first, second, cancel, other, people)
    assert store.committed == [other, people, first, second, cancel]


async def test_nothing_overtakes_when_another_run_is_handed_in_again_while_the_store_is_gone():
    """What waited for its next try comes to the front of the queue while the writer waits for the store."""
    poison, first, second = append(1, 0), append(2, 0), append(2, 1)
    is_gone = asyncio.Event()

    class Troubled(Scripted):
        async def commit(self, ops: Sequence[Any]) -> list[Any]:
            if poison in ops and not is_gone.is_set():
                raise TypeError("poison")
            return await super().commit(ops)

    class UntilGone(VirtualClock):
        async def sleep(self, seconds: float) -> None:
            if writer._pause_s:
                is_gone.set()
                await asyncio.sleep(0.01)
            await is_gone.wait()

    store = Troubled(TypeError("an unknown outcome"), make_unavailable_error())
    writer = JournalWriter(store, asyncio.get_running_loop(), UntilGone())  # type: ignore[arg-type]
    answers: list[Any] = []
    writer.submit(poison, answers.append)
    await wait_until(lambda: writer._deferred)
    writer.submit(first, answers.append)
    writer.submit(second, answers.append)
    await wait_until(lambda: len(answers) == 3)
    assert [op for op in store.committed if op is not poison] == [first, second]


async def test_what_follows_a_record_that_cannot_be_written_is_refused_with_it():
    class Poisoned(Scripted):
        async def commit(self, ops: Sequence[Any]) -> list[Any]:
            if poison in ops:
                self.tries.append(list(ops))
                raise TypeError("poison")
            return await super().commit(ops)

    poison = append(1, 1)
    store = Poisoned()
    answers: list[Any] = []
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    end = FinishRun(1, 1, RunState.FAILED, None, b"{}", 0.0)

    def told(answer: Any) -> None:
        answers.append(answer)
        writer.submit(end, answers.append)  # as a driver does

    writer.submit(append(1, 0), answers.append)
    writer.submit(poison, told)
    writer.submit(append(1, 2), answers.append)
    writer.submit(append(2, 0), answers.append)
    await wait_until(lambda: len(answers) == 5)
    assert store.committed == [append(1, 0), append(2, 0), end]
    assert [str(answer) for answer in answers if isinstance(answer, Exception)] == ["poison", "poison"]
    assert sum(poison in ops for ops in store.tries) >= MAX_TRIES


async def test_what_is_repeated_is_handed_in_once_more_by_a_flush():
    class Stuck(VirtualClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(60)

    store = Scripted(TypeError("no store should do that"))
    answers: list[Any] = []
    writer = JournalWriter(store, asyncio.get_running_loop(), Stuck())  # type: ignore[arg-type]
    writer.submit(append(1, 0), answers.append)
    await wait_until(lambda: writer._deferred)
    assert writer.is_busy
    await writer.flush()
    assert answers == [append(1, 0)]
    assert not writer.is_busy
    writer.stop()


async def test_a_callback_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture):
    answers: list[Any] = []

    def broken(_: Any) -> None:
        raise RuntimeError("a defect of ours")

    writer = JournalWriter(Scripted(), asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    writer.submit("a", broken)  # type: ignore[arg-type]
    writer.submit("b", answers.append)  # type: ignore[arg-type]
    await wait_until(lambda: answers == ["b"])
    assert "taking the answer to a commit failed" in caplog.text


async def cancel_in_commit(store: Scripted, number: int, *ops: Any) -> tuple[JournalWriter, list[Any]]:
    """Hand in operations, and cancel the writer's task in its commit of this number, as the end of a loop does."""
    answers: list[Any] = []
    store.stalls_at = number
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    for op in ops:
        writer.submit(op, answers.append)
    await wait_until(lambda: len(store.tries) == number)
    assert writer._drain_task is not None
    writer._drain_task.cancel()
    await asyncio.wait([writer._drain_task])
    return writer, answers


async def test_what_was_being_committed_when_the_loop_ended_is_handed_in_again():
    store = Scripted()
    writer, answers = await cancel_in_commit(store, 1, "a", "b")
    assert answers == []
    await writer.flush()
    assert answers == ["a", "b"]


async def test_nothing_is_forgotten_when_the_loop_ends_while_a_broken_operation_is_looked_for():
    store = Scripted(TypeError("poison somewhere"))
    writer, answers = await cancel_in_commit(store, 3, "a", "b", "c", "d")
    assert answers == ["a"]
    await writer.flush()
    assert answers == ["a", "b", "c", "d"]


async def test_a_signal_without_an_id_is_not_sent_again_by_a_loop_that_ends():
    """It may have arrived, and nothing would tell the second from a new one."""
    plain = SendSignal("r", "go", b"1", None, 0.0)
    marked = SendSignal("r", "go", b"1", "key", 0.0)
    store = Scripted()
    writer, answers = await cancel_in_commit(store, 1, plain, marked)
    await writer.flush()
    assert isinstance(answers[0], StoreUnavailable)
    assert answers[1:] == [marked]
    assert store.committed == [marked]


async def test_a_client_request_during_a_store_failure_does_not_wait_for_the_next_try():
    class Slow(VirtualClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(60)

    store = Scripted(make_unavailable_error(), make_unavailable_error())
    writer = JournalWriter(store, asyncio.get_running_loop(), Slow())  # type: ignore[arg-type]
    writer.submit("outcome", lambda _: None)  # type: ignore[arg-type]
    await wait_until(lambda: len(store.tries) == 1)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(writer.perform(SendSignal("r", "go", b"1", None, 0.0)), 10)
    writer.stop()


class Gated:
    """A store on a server, whose commits take as long as a test says."""

    min_overlap_count = 8

    def __init__(self) -> None:
        self.committed: list[list[Any]] = []
        self.gate = asyncio.Semaphore(0)

    async def commit(self, ops: Sequence[Any]) -> list[Any]:
        self.committed.append(list(ops))
        await self.gate.acquire()
        return [*ops]


def submit_two_steps(writer: JournalWriter, run_count: int) -> list[Any]:
    """Each run submits its second record as soon as the first is answered. Returns what is answered, in order."""
    answers: list[Any] = []

    def on_first(answer: Any) -> None:
        answers.append(answer)
        writer.submit(append(answer.key, 1), answers.append)

    for key in range(run_count):
        writer.submit(append(key, 0), on_first)
    return answers


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_half_of_the_runs_are_answered_while_the_next_records_of_the_others_are_committed():
    store = Gated()
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    answers = submit_two_steps(writer, 10)
    await turn()
    store.gate.release()
    await turn()
    assert [len(ops) for ops in store.committed] == [10, 5]  # the second one is on its way
    assert answers == [append(key, 0) for key in range(10)]
    store.gate.release()
    store.gate.release()
    await writer.flush()
    assert answers[10:] == [append(key, 1) for key in range(10)]
    assert not writer.is_busy


@pytest.mark.parametrize(("is_stopped", "answer_count"), [(False, 10), (True, 5)])
async def test_answers_that_are_held_back_are_given_to_the_end_unless_the_writer_is_stopped(
    is_stopped: bool, answer_count: int
):
    store = Gated()
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    answers: list[Any] = []

    def on_answer(answer: Any) -> None:
        answers.append(answer)
        if len(answers) == 5:
            assert writer._drain_task is not None
            asyncio.get_running_loop().call_soon(writer.stop if is_stopped else writer._drain_task.cancel)

    for key in range(10):
        writer.submit(append(key, 0), on_answer)
    store.gate.release()
    await turn()
    assert len(answers) == answer_count


async def test_a_loop_that_ends_during_an_overlapping_commit_loses_no_answer_and_gives_none_twice():
    store = Gated()
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    answers = submit_two_steps(writer, 10)
    store.gate.release()
    await wait_until(lambda: len(store.committed) == 2)
    assert writer._drain_task is not None
    writer._drain_task.cancel()
    await turn()
    assert answers == [append(key, 0) for key in range(10)]
    for _ in range(3):
        store.gate.release()
    await writer.flush()
    assert sorted(answers[10:]) == [append(key, 1) for key in range(10)]


async def test_a_commit_that_takes_longer_than_the_answers_does_not_overlap():
    class Slow(VirtualClock):
        def monotonic(self) -> float:
            return 10.0 * len(store.committed)  # a commit takes 10 s, and answers take no time

    store = Gated()
    writer = JournalWriter(store, asyncio.get_running_loop(), Slow())  # type: ignore[arg-type]
    writer._answer_s = 0.1
    answers = submit_two_steps(writer, 10)
    for _ in range(2):
        store.gate.release()
    await writer.flush()
    assert [len(ops) for ops in store.committed] == [10, 10]
    assert len(answers) == 20


async def test_commits_overlap_again_once_answers_take_longer():
    clock = VirtualClock()
    seconds = 0.0
    clock.monotonic = lambda: seconds  # type: ignore[method-assign]

    class Timed(Gated):
        async def commit(self, ops: Sequence[Any]) -> list[Any]:
            nonlocal seconds
            seconds += 1.0
            return await super().commit(ops)

    store = Timed()
    writer = JournalWriter(store, asyncio.get_running_loop(), clock)  # type: ignore[arg-type]
    writer._answer_s = 0.01  # the last batch was easy

    def on_answer(number: int, answer: Any) -> None:
        nonlocal seconds
        seconds += 1.0
        if number < 2:
            writer.submit(append(answer.key, number + 1), partial(on_answer, number + 1))

    for key in range(10):
        writer.submit(append(key, 0), partial(on_answer, 0))
    for _ in range(10):
        store.gate.release()
    await writer.flush()
    assert [len(ops) for ops in store.committed][:3] == [10, 10, 5]


@pytest.mark.parametrize("failure", [StoreUnavailable("gone"), ValueError("a fault of the store")])
async def test_an_overlapping_commit_that_fails_loses_no_answer_and_gives_none_twice(failure: Exception):
    store = Scripted(None, failure)
    store.min_overlap_count = 8
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    answers = submit_two_steps(writer, 10)
    await wait_until(lambda: len(answers) == 20)
    assert [len(ops) for ops in store.tries[:2]] == [10, 5]
    assert answers[:10] == [append(key, 0) for key in range(10)]
    assert sorted(answers[10:]) == [append(key, 1) for key in range(10)]
    assert sorted(store.committed) == sorted(answers)


async def test_answers_are_not_held_back_when_all_that_follows_is_deferred():
    store = Gated()
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    answers: list[Any] = []
    writer._deferred[99] = []

    def on_answer(answer: Any) -> None:
        answers.append(answer)
        writer.submit(append(99, len(answers)), answers.append)

    for key in range(10):
        writer.submit(append(key, 0), on_answer)
    store.gate.release()
    await turn()
    assert answers == [append(key, 0) for key in range(10)]
    assert len(writer._deferred[99]) == 10
    assert not writer._is_draining
    writer.stop()


async def test_an_answer_that_stops_the_writer_is_the_last_one():
    store = Gated()
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    answers: list[Any] = []

    def on_answer(answer: Any) -> None:
        answers.append(answer)
        writer.stop()

    for key in range(10):
        writer.submit(append(key, 0), on_answer)
    store.gate.release()
    await turn()
    assert answers == [append(0, 0)]


async def test_a_commit_is_over_before_a_cancelled_batch_is_submitted_again():
    """The end of `asyncio.run` cancels the writer in the very turn in which a second commit starts."""
    running = most = 0

    class Slow(Gated):
        async def commit(self, ops: Sequence[Any]) -> list[Any]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if len(self.committed) == 1:
                assert writer._drain_task is not None
                writer._drain_task.cancel()
            try:
                return await super().commit(ops)
            finally:
                for _ in range(20):  # a cancelled statement takes a while to end
                    await asyncio.sleep(0)
                running -= 1

    store = Slow()
    writer = JournalWriter(store, asyncio.get_running_loop(), VirtualClock())  # type: ignore[arg-type]
    answers = submit_two_steps(writer, 10)
    store.gate.release()
    assert writer._drain_task is not None
    await asyncio.wait([writer._drain_task])
    for _ in range(5):
        store.gate.release()
    await writer.flush()
    assert most == 1
    assert sorted(answers[10:]) == [append(key, 1) for key in range(10)]
