"""Cancellation and compensation in a bare execution: what the records lead to, and that replay leads there too."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scripted_execution import START, Failed, Flow, Replay, World

from holdfast.core.commands import Command
from holdfast.core.execution import Execution
from holdfast.core.failure_origin import mark_origin
from holdfast.core.records import Record, RecordKind, Rewind
from holdfast.errors import UnreadableRecord


class Call:
    """The call of a step that can be undone, or may run only once."""

    def __init__(self, name: str, *, undoable: bool = True, once: bool = False, unfit: bool = False) -> None:
        self.name = name
        self.has_compensation = undoable
        self.is_noted = undoable or once
        self.is_once = once
        self._unfit = unfit

    def build_compensation(self, payload: bytes) -> tuple[str, Any]:
        if self._unfit:
            raise UnreadableRecord(f"the output of {self.name!r} cannot be read")
        return f"undo {json.loads(payload)}", Call("undo", undoable=False)


class Saga(World):
    """A world whose steps can be undone, and that is driven by hand."""

    def __init__(self, flow: Flow, journal: Sequence[Record] = (), after: Sequence[Record] = ()) -> None:
        """With a journal, it is replayed; ``after`` is what it goes on with."""
        super().__init__(flow)
        self.journal: list[Record] = []
        self.late: list[Command] = []
        """Steps that the workflow has cancelled, and that have an outcome all the same."""
        self.lands: Callable[[Command], bool] = lambda _: False
        """Whether a step that is cancelled has one."""
        self.upcoming = [*journal, *after]
        self.start()
        for record in journal:
            self.replay(record)

    def replay(self, record: Record) -> None:
        self.journal.append(record)
        self.upcoming = self.upcoming[1:]
        self.deliver(record)

    def _settle(self) -> None:
        while not self.execution.turn():
            pass
        landing = [one for one in self.execution.take_withdrawn() if self.lands(one)]
        self.late += landing
        self.expected.update(one.position for one in landing)
        super()._settle()

    async def step(self, name: str) -> str:
        return await self.call(Call(name))

    async def plain(self, name: str) -> str:
        return await self.call(Call(name, undoable=False))

    async def call(self, call: Call) -> str:
        outcome = await self.execution.issue(RecordKind.STEP, call.name, call)
        text = json.loads(outcome.record.payload or b"null")
        if not outcome.record.ok:
            error = Failed(text)
            mark_origin(error, outcome.origin)
            raise error
        return text

    # For the test

    def happen(
        self, kind: RecordKind, position: int = 0, name: str = "", value: Any = None, *, ok: bool = True
    ) -> Saga:
        payload = (
            None if kind in (RecordKind.TIMER, RecordKind.DEADLINE, RecordKind.CANCEL) else json.dumps(value).encode()
        )
        seq = self.journal[-1].seq + 1 if self.journal else 0
        record = Record(seq, kind, position, name or kind.label, ok, payload, START + len(self.journal))
        self.journal.append(record)
        self.expected.discard(position)
        self.deliver(record)
        return self

    def did(self, position: int, name: str) -> Saga:
        return self.happen(RecordKind.STEP, position, name, name)

    def failed(self, position: int, name: str) -> Saga:
        return self.happen(RecordKind.STEP, position, name, "went wrong", ok=False)

    def undid(self, position: int, name: str, *, ok: bool = True) -> Saga:
        return self.happen(RecordKind.COMPENSATION, position, f"undo {name}", None, ok=ok)

    def cancel(self) -> Saga:
        return self.happen(RecordKind.CANCEL, 0, "cancel")

    @property
    def open(self) -> list[str]:
        return [f"{command.kind.label} {command.name}" for command in self.execution.open_commands.values()]

    @property
    def end(self) -> Any:
        assert self.execution.fatal_error is None, self.execution.fatal_error
        assert self.execution.result is not None
        return self.execution.result


def check_replay(flow: Flow, saga: Saga) -> None:
    """From every prefix of the journal, the same things are asked for, and the end is the same."""
    for length in range(len(saga.journal) + 1):
        again = Saga(flow, saga.journal[:length], saga.journal[length:])
        assert again.marks == saga.marks[: length + 1]
        for record in saga.journal[length:]:
            again.replay(record)
        assert again.story == saga.story
        one, other = again.execution.result, saga.execution.result
        assert (one and (one.rewind, one.is_cancelled, one.failed_compensation)) == (
            other and (other.rewind, other.is_cancelled, other.failed_compensation)
        )
        again.leave()
    saga.leave()


async def three(w: Any) -> str:
    for name in "abc":
        await w.step(name)
    return "done"


# Cancelling


def test_a_cancel_interrupts_the_code_and_undoes_what_was_done():
    saga = Saga(three).did(0, "a").did(1, "b").cancel()
    assert saga.open == ["compensation undo b"]
    saga.undid(3, "b")
    assert saga.open == ["compensation undo a"]
    saga.undid(4, "a")
    assert saga.end.is_cancelled
    assert isinstance(saga.end.error, asyncio.CancelledError)
    assert saga.end.rewind == Rewind((2,), 3, 0, is_compensated=True)
    check_replay(three, saga)


def test_a_cancel_before_anything_was_done():
    saga = Saga(three).cancel()
    assert saga.end.is_cancelled
    assert saga.end.rewind == Rewind((0,), 1, 0)
    check_replay(three, saga)


def test_the_outcome_of_a_step_that_was_cancelled_in_flight_is_waited_for_and_undone_first():
    saga = Saga(three).did(0, "a")
    saga.lands = lambda _: True
    saga.cancel()
    assert saga.open == []
    saga.did(1, "b")  # it was on its way
    assert saga.open == ["compensation undo b"]
    saga.undid(2, "b")
    assert saga.open == ["compensation undo a"]
    saga.undid(3, "a")
    assert saga.end.rewind == Rewind((1,), 2, 0, is_compensated=True)
    check_replay(three, saga)


def test_an_unexpected_outcome_is_compensated_when_it_comes():
    """So did an older release write it: undoing had begun by then, and the first compensation was recorded before."""
    saga = Saga(three).did(0, "a").cancel()
    assert saga.open == ["compensation undo a"]
    saga.undid(2, "a")
    assert saga.end.is_cancelled
    saga.did(1, "b")
    assert saga.open == ["compensation undo b"]
    saga.undid(3, "b")
    assert saga.end.rewind == Rewind((1,), 2, 0, is_compensated=True)
    check_replay(three, saga)


def test_such_an_outcome_is_waited_for_although_nothing_else_is_to_be_undone():
    saga = Saga(three)
    saga.lands = lambda _: True
    saga.cancel()
    assert saga.execution.is_compensation_held
    assert saga.execution.result is None
    saga.did(0, "a")
    assert saga.open == ["compensation undo a"]
    saga.undid(1, "a")
    assert saga.end.is_cancelled
    assert saga.end.rewind is not None
    assert saga.end.rewind.is_compensated
    check_replay(three, saga)


def test_a_failure_of_a_step_that_was_cancelled_in_flight_is_taken_back_too():
    async def group(w: Any) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in ("x", "y", "z"):
                tasks.create_task(w.plain(name))

    saga = Saga(group).failed(1, "y")
    assert saga.end.rewind == Rewind((0,), 3, 0)
    saga.failed(2, "z")
    assert saga.end.rewind == Rewind((0, 1), 3, 0)
    saga.did(0, "x")
    assert saga.end.rewind == Rewind((0, 1), 3, 0)
    check_replay(group, saga)


def test_a_second_cancel_and_a_deadline_do_not_hit_the_clean_up():
    async def cleaning(w: Any) -> None:
        try:
            await w.plain("work")
        finally:
            await w.plain("one")
            await w.plain("two")

    saga = Saga(cleaning).cancel()
    assert saga.open == ["step one"]
    saga.cancel().happen(RecordKind.DEADLINE, 0, "deadline")
    assert saga.open == ["step one"]
    saga.did(1, "one")
    assert saga.open == ["step two"]
    saga.did(2, "two")
    assert saga.end.is_cancelled
    assert saga.end.rewind == Rewind((0,), 1, 0)
    check_replay(cleaning, saga)


def test_a_deadline_before_the_cancel_is_what_ended_the_run():
    saga = Saga(three).happen(RecordKind.DEADLINE, 0, "deadline")
    assert not saga.end.is_cancelled
    saga.cancel()
    assert not saga.end.is_cancelled
    assert type(saga.end.error).__name__ == "RunTimedOut"
    assert saga.end.rewind == Rewind((0,), 1, 0)
    check_replay(three, saga)


def test_a_cancel_that_is_swallowed_is_no_end():
    async def stubborn(w: Any) -> str:
        try:
            await w.step("a")
        except asyncio.CancelledError:
            w.note("swallowed")
        return await w.step("b")

    saga = Saga(stubborn).cancel().did(1, "b")
    assert (saga.end.value, saga.end.error) == ("b", None)
    check_replay(stubborn, saga)


def test_a_cancel_after_the_code_has_returned_undoes():
    saga = Saga(three).did(0, "a").did(1, "b").did(2, "c")
    assert saga.end.value == "done"
    saga.cancel()
    assert saga.execution.result is None
    for position, name in ((3, "c"), (4, "b"), (5, "a")):
        assert saga.open == [f"compensation undo {name}"]
        saga.undid(position, name)
    assert saga.end.is_cancelled
    assert saga.end.rewind == Rewind((3,), 3, 0, is_compensated=True)
    check_replay(three, saga)


def test_a_cancel_after_the_code_has_failed_changes_nothing():
    async def failing(w: Any) -> None:
        await w.plain("a")

    saga = Saga(failing).failed(0, "a")
    before = saga.end
    saga.cancel()
    assert saga.end == before
    assert not saga.end.is_cancelled
    check_replay(failing, saga)


def test_a_cancel_while_leftover_tasks_end():
    async def leaving(w: Any) -> str:
        async def aside() -> None:
            try:
                await w.plain("aside")
            finally:
                await w.plain("clean up")

        task = asyncio.ensure_future(aside())
        await w.step("a")
        del task
        return "done"

    saga = Saga(leaving).did(0, "a")
    assert saga.open == ["step clean up"]
    saga.cancel()
    assert saga.open == ["step clean up"]
    saga.did(2, "clean up")
    assert saga.open == ["compensation undo a"]
    saga.undid(3, "a")
    assert saga.end.is_cancelled
    check_replay(leaving, saga)


# Undoing


async def failing_after_three(w: Any) -> None:
    await asyncio.gather(w.step("a"), w.step("b"), w.step("c"))
    await w.plain("bad")


def test_the_order_is_that_of_the_records_reversed():
    saga = Saga(failing_after_three).did(2, "c").did(0, "a").did(1, "b").failed(3, "bad")
    for position, name in ((4, "b"), (5, "a"), (6, "c")):
        assert saga.open == [f"compensation undo {name}"]
        saga.undid(position, name)
    assert saga.end.rewind == Rewind((3,), 4, 0, is_compensated=True)
    check_replay(failing_after_three, saga)


def test_a_compensation_that_fails_ends_the_undoing():
    saga = Saga(failing_after_three).did(0, "a").did(1, "b").did(2, "c").failed(3, "bad").undid(4, "c")
    saga.undid(5, "b", ok=False)
    assert saga.open == []
    step, record = saga.end.failed_compensation
    assert (step, record.name) == ("b", "undo b")
    assert saga.end.rewind == Rewind((5,), 6, 0)
    check_replay(failing_after_three, saga)


def test_without_the_failed_compensation_compensating_continues_from_there():
    saga = Saga(failing_after_three).did(0, "a").did(1, "b").did(2, "c").failed(3, "bad").undid(4, "c")
    saga.undid(5, "b", ok=False)
    rewind = saga.end.rewind
    kept = [record for record in saga.journal if not rewind.should_remove(record)]
    assert [record.seq for record in kept] == [0, 1, 2, 3, 4]
    saga.leave()
    again = Saga(failing_after_three, kept)
    assert again.open == ["compensation undo b"]
    again.undid(5, "b").undid(6, "a")
    assert again.end.failed_compensation is None
    assert again.end.rewind.is_compensated
    check_replay(failing_after_three, again)


def test_a_cancel_in_the_middle_of_undoing_changes_nothing():
    saga = Saga(failing_after_three).did(0, "a").did(1, "b").did(2, "c").failed(3, "bad").undid(4, "c")
    saga.cancel()
    assert saga.open == ["compensation undo b"]
    saga.undid(5, "b").undid(6, "a")
    assert not saga.end.is_cancelled
    assert isinstance(saga.end.error, Failed)
    assert saga.end.rewind == Rewind((3,), 4, 0, is_compensated=True)
    check_replay(failing_after_three, saga)


def test_a_compensation_under_another_name_is_drift():
    saga = Saga(failing_after_three).did(0, "a").did(1, "b").did(2, "c").failed(3, "bad")
    saga.undid(4, "another")
    assert saga.ending is not None
    assert saga.ending[0] == "fault"
    assert "NonDeterminismError" in saga.ending[1]
    saga.leave()


def test_an_output_that_cannot_be_decoded_for_compensation_fails_with_that_error():
    async def unfit(w: Any) -> None:
        await w.call(Call("a", unfit=True))
        await w.plain("bad")

    saga = Saga(unfit).did(0, "a").failed(1, "bad")
    assert saga.ending == ("fault", "UnreadableRecord: the output of 'a' cannot be read")
    saga.leave()


def test_code_that_ends_because_a_record_cannot_be_decoded_undoes_nothing():
    async def unfit(w: Any) -> None:
        await w.call(Call("a"))
        raise UnreadableRecord("the answer cannot be read")

    saga = Saga(unfit).did(0, "a")
    assert saga.ending == ("fault", "UnreadableRecord: the answer cannot be read")
    saga.leave()


def test_a_step_that_failed_because_it_could_not_decode_something_is_a_failure_like_any_other():
    async def unfit(w: Any) -> None:
        await w.call(Call("a"))
        outcome = await w.execution.issue(RecordKind.STEP, "bad", Call("bad", undoable=False))
        error = UnreadableRecord("a file cannot be read")
        mark_origin(error, outcome.origin)
        raise error

    saga = Saga(unfit).did(0, "a").failed(1, "bad").undid(2, "a")
    assert isinstance(saga.end.error, UnreadableRecord)
    check_replay(unfit, saga)


def test_a_once_step_among_what_a_retry_would_take_back():
    async def handled(w: Any) -> None:
        await w.call(Call("kept", undoable=False, once=True))
        try:
            await w.plain("bad")
        finally:
            await w.call(Call("fine", undoable=False, once=True))

    saga = Saga(handled).did(0, "kept").failed(1, "bad")
    saga.did(2, "fine")
    assert saga.end.rewind == Rewind((1,), 2, 0, once_seqs=(2,))
    check_replay(handled, saga)


@pytest.mark.parametrize("ok", [True, False])
def test_a_once_step_that_was_cancelled_and_done_all_the_same_counts(ok: bool):
    async def handled(w: Any) -> None:
        try:
            await w.plain("bad")
        finally:
            async with asyncio.timeout(10):
                await w.call(Call("fine", undoable=False, once=True))

    saga = Saga(handled).failed(0, "bad")
    timer = saga.execution.loop.get_next_timer()
    assert timer is not None
    saga.lands = lambda _: True
    saga.happen(RecordKind.TIMER, 0, timer.name)
    saga.happen(RecordKind.STEP, 1, "fine", "fine", ok=ok)
    assert saga.end.rewind is not None
    assert saga.end.rewind.once_seqs
    check_replay(handled, saga)


# At random


async def random_saga(w: Any) -> str:
    async def branch(n: int) -> None:
        try:
            for step in range(3):
                await w.step(f"{'fail' if (n, step) == (2, 2) else 'do'} {n} {step}")
        finally:
            await w.plain(f"clean {n}")

    async with asyncio.TaskGroup() as group:
        for n in range(3):
            group.create_task(branch(n))
    return "done"


def test_whatever_the_order_of_outcomes_and_whenever_the_cancel_comes_replay_comes_to_the_same_end():
    ends: set[str] = set()
    for seed in range(60):
        draw = random.Random(seed)
        saga, cancelled = Saga(random_saga), draw.random() < 0.3
        saga.lands, late = lambda _, draw=draw: draw.random() < 0.5, saga.late
        while saga.execution.result is None or late:
            execution = saga.execution
            assert execution.fatal_error is None, execution.fatal_error
            assert len(saga.journal) < 60
            if not cancelled and draw.random() < 0.05:
                cancelled = True
                saga.cancel()
                continue
            if late and (not execution.open_commands or draw.random() < 0.3):
                command = late.pop(draw.randrange(len(late)))
            elif execution.open_commands:
                command = draw.choice(list(execution.open_commands.values()))
            else:
                break
            ok = not command.name.startswith("fail")
            if command.kind is RecordKind.COMPENSATION:
                ok = draw.random() > 0.05
            saga.happen(command.kind, command.position, command.name, command.name, ok=ok)
        ending = saga.end
        undone = [record for record in saga.journal if record.kind is RecordKind.COMPENSATION and record.ok]
        done = [
            record for record in saga.journal
            if record.kind is RecordKind.STEP and record.ok and not record.name.startswith("clean")
        ]  # fmt: skip
        if ending.error is not None and ending.failed_compensation is None:
            assert [record.name for record in undone] == [f"undo {record.name}" for record in reversed(done)]
        ends.add("not undone" if ending.failed_compensation else "cancelled" if ending.is_cancelled else "failed")
        check_replay(random_saga, saga)
    assert ends >= {"not undone", "cancelled", "failed"}


def test_a_mended_run_completes_when_it_is_retried_whatever_the_order_of_its_outcomes():
    """What a retry leaves of a journal is a journal: it replays without drift, and the failed step is open again."""

    async def flow(w: Any) -> str:
        async def branch(n: int) -> None:
            for step in range(3):
                try:
                    await w.plain(f"{'fail' if step == 2 and n else 'do'} {n} {step}")
                except Failed:
                    await w.plain(f"handle {n}")
                    raise

        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(branch(n))
        return "done"

    for seed in range(60):
        draw = random.Random(seed)
        saga = Saga(flow)
        saga.lands, late = lambda _, draw=draw: draw.random() < 0.5, saga.late
        while saga.execution.result is None or late:
            if late and (saga.execution.result is not None or draw.random() < 0.3):
                command = late.pop()
            else:
                command = draw.choice(list(saga.execution.open_commands.values()))
            ok = not command.name.startswith("fail")
            saga.happen(command.kind, command.position, command.name, command.name, ok=ok)
        retries = 0
        while saga.end.error is not None:  # a failure that was being handled when another one ended the run stays
            rewind = saga.end.rewind
            assert rewind is not None
            kept = [record for record in saga.journal if not rewind.should_remove(record)]
            assert all(record.ok for record in kept if record.seq > rewind.failed_seqs[0])
            assert len([record for record in kept if not record.ok]) <= 1 - retries
            saga.leave()
            saga, retries = Saga(flow, kept), retries + 1
            assert saga.execution.fatal_error is None, saga.execution.fatal_error
            while saga.execution.result is None:
                command = draw.choice(list(saga.execution.open_commands.values()))
                saga.did(command.position, command.name)
        assert saga.end.value == "done"
        check_replay(flow, saga)


def test_a_plain_execution_takes_a_cancel_without_any_call():
    async def flow(w: World) -> str:
        return await w.step("a")

    journal = [Record(0, RecordKind.CANCEL, 0, "cancel", True, None, START + 1)]
    world = Replay(flow, journal)
    assert world.ending == ("error", "CancelledError: ")
    assert isinstance(world.execution, Execution)
    world.leave()
