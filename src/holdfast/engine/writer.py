"""Group commit: one writer per engine drains whatever is ready into one transaction.

Operations are handed in with a callback and are committed in the order they came. While one commit is under way, the
next batch gathers; a slow disk therefore makes batches larger instead of everybody slower.

**When the store fails** the two kinds of callers want different things. Somebody who starts a run or sends a signal is
told at once, with a typed error. A run in progress must not lose its place: its operations stay at the head of the
queue, and the same batch is handed in again with growing pauses until the store takes it (repeating a commit is
harmless, see the store contract). Nothing else of that run happens meanwhile, because the workflow only goes on when
its outcome is durable. So a full disk stops progress, and progress resumes when there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from holdfast.engine.clock import Clock
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.approvals import AnswerApproval
from holdfast.stores.contract import Store
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import (
    Answer,
    CancelRun,
    ForkRun,
    Op,
    PauseRun,
    ReopenRun,
    ResumeRun,
    SendSignal,
    SetBudget,
    StartRun,
)

log = logging.getLogger("holdfast.engine")

Done = Callable[[Answer | BaseException], None]

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

_ASKED_BY_PEOPLE = (
    *(StartRun, SendSignal, CancelRun, PauseRun, ResumeRun, ReopenRun, SetBudget, ForkRun, AnswerApproval),
    *(PutMemory, DeleteMemory),
)


def asked_by_people(op: Op) -> bool:
    """Whether the caller is told of a failure instead of being kept waiting.

    A run that starts another one, or cancels one that it has started, is kept waiting: it must not lose its place.
    """
    if isinstance(op, StartRun):
        return op.link is None
    if isinstance(op, CancelRun):
        return op.seed is None
    return isinstance(op, _ASKED_BY_PEOPLE)


class Writer:
    """The one place through which an engine writes journals."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._store = store
        self._loop = loop
        self._clock = clock
        self._queue: list[tuple[Op, Done]] = []
        self._pump: asyncio.Task[None] | None = None
        self._pause = 0.0
        self._asked = asyncio.Event()

    def submit(self, op: Op, done: Done) -> None:
        """Commit ``op`` with whatever else is ready; ``done`` gets the store's answer, or why there is none."""
        self._queue.append((op, done))
        if not self._is_pumping:
            self._begin()
        elif asked_by_people(op):
            self._asked.set()

    async def perform(self, op: Op) -> Answer:
        """Commit ``op`` and return the store's answer."""
        return await self.answer_to(partial(self.submit, op))

    async def answer_to(self, submit: Callable[[Done], None]) -> Answer:
        """The store's answer to what ``submit`` hands in."""
        future: asyncio.Future[Answer] = self._loop.create_future()

        def done(answer: Answer | BaseException) -> None:
            if future.done():
                return
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        submit(done)
        return await future

    async def flush(self) -> None:
        """Wait until everything submitted so far has been answered (or the store has failed once more)."""
        while (self._queue or self._is_pumping) and not self._pause:
            pump = self._pump if self._is_pumping else self._begin()
            assert pump is not None
            await asyncio.wait([pump], timeout=0.05)

    def stop(self) -> list[asyncio.Task[None]]:
        """Give up: whatever is not committed yet is dropped (its runs are taken up again from their journals).

        Returns the writer's own task, if there is one.
        """
        self._queue.clear()
        if self._pump is None:
            return []
        self._pump.cancel()
        return [self._pump]

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way to the store."""
        return bool(self._queue) or self._is_pumping

    @property
    def _is_pumping(self) -> bool:
        # Asked of the task itself: one that is cancelled before its first turn (the end of `asyncio.run`) has no chance
        # to say that it has ended.
        return self._pump is not None and not self._pump.done()

    def _begin(self) -> asyncio.Task[None]:
        # It begins with the loop's next turn, so that every outcome of this turn shares the commit. Hence not
        # `create_task`, which a loop with an eager task factory would begin at once.
        self._pump = pump = asyncio.Task(self._drain(), loop=self._loop)
        return pump

    async def _drain(self) -> None:
        while self._queue:
            batch, self._queue = self._queue, []
            await self._commit(batch)

    async def _commit(self, batch: list[tuple[Op, Done]]) -> None:
        try:
            answers = await self._store.commit([op for op, _ in batch])
        except asyncio.CancelledError:
            # `asyncio.run` cancels every task at its end, and `close` then flushes: this is handed in once more.
            self._queue[:0] = [one for one in batch if not _tell_if_unrepeatable(*one)]
            raise
        except StoreError as error:
            await self._hold(batch, error)
            return
        except Exception as error:
            await self._isolate(batch, error)
            return
        if self._pause:
            log.warning("the store takes writes again; runs go on")
            self._pause = 0.0
        for (_, done), answer in zip(batch, answers, strict=True):
            _tell(done, answer)

    async def _hold(self, batch: list[tuple[Op, Done]], error: StoreError) -> None:
        """The store failed: tell those who asked, keep the runs' operations for the next try, and wait a while."""
        held: list[tuple[Op, Done]] = []
        for op, done in batch:
            if asked_by_people(op):
                _tell(done, error)
            else:
                held.append((op, done))
        self._queue[:0] = held
        if not held:
            return
        if not self._pause:
            log.warning("the store does not take writes, runs wait until it does: %s", error)
        self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        await self._rest(self._pause)

    async def _rest(self, seconds: float) -> None:
        """Let time pass, but no longer than until somebody asks who is not to be kept waiting."""
        self._asked.clear()
        if any(asked_by_people(op) for op, _ in self._queue):
            return  # they came while the store was failing
        ends = [self._loop.create_task(end) for end in (self._clock.sleep(seconds), self._asked.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _isolate(self, batch: list[tuple[Op, Done]], error: Exception) -> None:
        """An operation broke the commit in a way that no store should: find out which, and let the others through."""
        if len(batch) == 1:
            log.exception("operation %s could not be committed", type(batch[0][0]).__name__)
            _tell(batch[0][1], error)
            return
        for at, one in enumerate(batch, 1):
            try:
                await self._commit([one])
            except asyncio.CancelledError:
                behind = 1 if self._queue[:1] == [one] else 0  # it may have been put back to be handed in again
                self._queue[behind:behind] = batch[at:]
                raise
            if self._queue[:1] == [one]:  # the store is gone as well: what comes after it must not overtake it
                self._queue[1:1] = batch[at:]
                return


def _tell_if_unrepeatable(op: Op, done: Done) -> bool:
    """Answer an operation that would take effect twice if it were handed in again; true when it was one."""
    if not (isinstance(op, SendSignal) and op.dedup is None):
        return False
    _tell(done, StoreUnavailable(f"the process stopped while a signal to run {op.run_id!r} was being written"))
    return True


def _tell(done: Done, answer: Answer | BaseException) -> None:
    try:
        done(answer)
    except Exception:  # a defect of ours in one run must not stop the others
        log.exception("taking the answer to a commit failed")
