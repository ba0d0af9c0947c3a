"""Group commit: one writer per engine drains whatever is ready into one transaction.

Operations are submitted with a callback and are committed in their order. While one commit is running, the next batch
gathers, so a slow disk makes batches larger instead of slowing down every run.

**Overlap.** Many runs that take their steps together would all wait for the store, and then the store for all of them.
So if the store allows it, and answering all takes longer than a commit, half of the answers are held back:
the runs that were answered submit what comes next, and the others are answered while that is committed. There is still
only one commit at a time, and answers are given in order.

**When the store fails**, the two kinds of callers need different things. A client that starts a run or sends a signal
gets a typed error at once. A run in progress must not lose its place: its operations stay at the head of the queue, and
the same batch is submitted again with growing pauses until the store takes it (repeating a commit is harmless, see the
store contract). Nothing else of that run happens meanwhile, because the workflow continues only when its outcome is
durable. So a full disk stops progress, and progress resumes when there is space.

**When a commit fails with anything but a ``StoreError``**, which no store should raise, its outcome is unknown, and one
operation may be the reason. The operations of the batch are committed one by one. An operation that fails alone is
*deferred*, with all later operations of the same run, which must not overtake it; other runs continue. It is submitted
again with growing pauses, until the store gives an answer. After ``MAX_TRIES`` its caller gets the error, which means
that it cannot be recorded. So do the callers of what follows a record, because a journal has no gaps. A ``CodecError``
means that at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from holdfast.engine.clock import Clock
from holdfast.errors import CodecError, StoreError, StoreUnavailable
from holdfast.stores.approvals import AnswerApproval
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import (
    AppendRecord,
    AwaitRun,
    CancelRun,
    ForkRun,
    Op,
    OpResult,
    PauseRun,
    ReopenRun,
    ResumeRun,
    SendSignal,
    SetBudget,
    StartRun,
)
from holdfast.telemetry.metrics import Metrics

log = logging.getLogger("holdfast.engine")

AnswerCallback = Callable[[OpResult | BaseException], None]

MIN_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0

MAX_TRIES = 10
"""How often an operation that fails alone is tried. With the pauses in between, this takes about 11 s."""

_CLIENT_OPERATIONS = (
    *(StartRun, SendSignal, CancelRun, PauseRun, ResumeRun, ReopenRun, SetBudget, ForkRun, AnswerApproval),
    *(PutMemory, DeleteMemory),
)


def is_client_operation(op: Op) -> bool:
    """Whether the caller gets an error when the store fails, instead of waiting.

    A run that starts another one, or cancels a run that it has started, waits: it must not lose its place.
    """
    if isinstance(op, StartRun):
        return op.link is None
    if isinstance(op, CancelRun):
        return op.seed is None
    return isinstance(op, _CLIENT_OPERATIONS)


def get_run_key(op: Op) -> int | str | None:
    """The key of the held run that submits this operation; ``None`` for client operations.

    The cancel of a child does not contain its parent's key: then this is the id of the child.
    """
    if is_client_operation(op):
        return None
    if isinstance(op, StartRun | AwaitRun):
        return op.link.parent_key if op.link is not None else None
    return op.run_id if isinstance(op, CancelRun) else getattr(op, "key", None)


class OperationLog(Protocol):
    """What a writer writes to: a store, or the workflow that has a program's journal in Temporal."""

    min_overlap_count: int | None
    """See ``Store.min_overlap_count``."""

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Commit these operations, in order; a repeat is harmless."""
        ...


class JournalWriter:
    """The one place through which an engine writes journals."""

    def __init__(self, store: OperationLog, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._store = store
        self._loop = loop
        self._clock = clock
        self._queue: list[tuple[Op, AnswerCallback]] = []
        self._drain_task: asyncio.Task[None] | None = None
        self._pause_s = 0.0
        self._unanswered: deque[tuple[tuple[Op, AnswerCallback], OpResult]] = deque()
        """Committed operations whose answers are held back."""
        self._answer_s = float("inf")
        """Seconds for one answer and what the run did next, measured in the last large batch."""
        self._client_waiting = asyncio.Event()
        self._deferred: dict[int | str, list[tuple[Op, AnswerCallback]]] = {}
        """By run, in order: operations that wait for the next try of the first one."""
        self._try_counts: Counter[int | str] = Counter()
        """By run: how often the deferred operation has failed."""
        self._retry_tasks: set[asyncio.Task[None]] = set()
        self.metrics: Metrics | None = None
        self._unrecordable: dict[int | str, Exception] = {}
        """By run: why a record of the current batch could not be recorded."""

    def submit(self, op: Op, on_answer: AnswerCallback) -> None:
        """Commit ``op`` with everything else that is ready; ``on_answer`` gets the store's answer, or an exception."""
        self._queue.append((op, on_answer))
        if self._drain_task is None or self._drain_task.done():
            self._start_drain()
        elif self._pause_s and is_client_operation(op):
            self._client_waiting.set()

    async def perform(self, op: Op) -> OpResult:
        """Commit ``op`` and return the store's answer."""
        return await self.await_answer(partial(self.submit, op))

    async def await_answer(self, submit: Callable[[AnswerCallback], None]) -> OpResult:
        """The store's answer to the operation that ``submit`` submits."""
        future: asyncio.Future[OpResult] = self._loop.create_future()

        def done(answer: OpResult | BaseException) -> None:
            if future.done():
                return
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        submit(done)
        return await future

    async def flush(self) -> None:
        """Wait until all operations so far have been answered, or have failed once more."""
        for key in list(self._deferred):
            self._resubmit(key)
        while (self._queue or self._is_draining) and not self._pause_s:
            task = self._drain_task if self._is_draining else self._start_drain()
            assert task is not None
            await asyncio.wait([task], timeout=0.05)

    def stop(self) -> list[asyncio.Task[None]]:
        """Drop everything that is not answered yet: its runs continue from their journals. Returns the tasks."""
        self._queue.clear()
        self._unanswered.clear()
        self._deferred.clear()
        tasks = [*self._retry_tasks] if self._drain_task is None else [self._drain_task, *self._retry_tasks]
        for task in tasks:
            task.cancel()
        return tasks

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way to the store."""
        return bool(self._queue or self._deferred) or self._is_draining

    @property
    def holds_answers(self) -> bool:
        """Whether the answers of committed operations are held back."""
        return bool(self._unanswered)

    @property
    def _is_draining(self) -> bool:
        # The task itself says so: one that is cancelled before its first turn (the end of `asyncio.run`) cannot set a
        # flag.
        return self._drain_task is not None and not self._drain_task.done()

    def _start_drain(self) -> asyncio.Task[None]:
        # It starts in the loop's next turn, so that every outcome of this turn shares the commit. So it is not made
        # with `create_task`: a loop with an eager task factory would start it at once. Its context is empty: the
        # context of the step that ends just now would keep the step and its run in memory.
        self._drain_task = task = asyncio.Task(self._drain(), loop=self._loop, context=contextvars.Context())
        return task

    async def _drain(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                self._unrecordable.clear()
                if not (batch := self._admit(batch)):
                    self._give_answers(len(self._unanswered))
                elif count := await self._commit(batch):
                    await self._measure_answers(count)
                if not self._queue:  # there is nothing to commit meanwhile
                    self._give_answers(len(self._unanswered))
        finally:
            self._give_answers(len(self._unanswered))

    async def _measure_answers(self, count: int) -> None:
        """Give that many answers, and let these runs submit what comes next."""
        began_at = self._clock.monotonic()
        self._give_answers(count)
        await asyncio.sleep(0)
        self._answer_s = (self._clock.monotonic() - began_at) / count

    def _give_answers(self, count: int) -> None:
        """Give that many of the answers that are held back."""
        unanswered = self._unanswered
        for _ in range(count):
            if not unanswered:
                return  # an answer stopped this writer
            (op, done), answer = unanswered.popleft()
            if self._try_counts and (key := get_run_key(op)) is not None:
                self._try_counts.pop(key, None)
            try:
                done(answer)
            except Exception:  # as in `_answer`; each step makes this call
                _log_failed_callback()

    async def _commit(self, batch: list[tuple[Op, AnswerCallback]]) -> int:
        """Commit, and give small batches their answers. Returns how many answers of a large one are due now."""
        began_at = self._clock.monotonic()
        held_count = len(self._unanswered)
        task: asyncio.Task[list[OpResult]] | None = None
        try:
            commit = self._store.commit([op for op, _ in batch])
            if held_count:
                commit = task = self._loop.create_task(commit)
                await asyncio.sleep(0)  # the commit starts
                self._give_answers(held_count)
            answers = await commit
            if len(answers) != len(batch):
                raise AssertionError(f"the store gave {len(answers)} answers to {len(batch)} operations")
        except asyncio.CancelledError:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])  # the batch must not be submitted again before that
            # `asyncio.run` cancels every task at its end, and `close` then flushes: this is submitted once more.
            self._queue[:0] = [entry for entry in batch if not _reject_unrepeatable(*entry)]
            raise
        except StoreError as error:
            await self._handle_store_failure(batch, error)
            return 0
        except Exception as error:
            await self._commit_one_by_one(batch, error)
            return 0
        if self._pause_s:
            log.warning("the store takes writes again; runs go on")
            self._pause_s = 0.0
        if self.metrics is not None:
            self.metrics.commit_duration.observe(self._clock.monotonic() - began_at)
            self.metrics.commit_operations.observe(len(batch))
        self._unanswered.extend(zip(batch, answers, strict=True))
        count, min_overlap_count = len(batch), self._store.min_overlap_count
        if min_overlap_count is None or count < min_overlap_count:
            self._give_answers(count)
            return 0
        # All runs of this batch, and of the part that was answered meanwhile, take turns with the commit.
        is_commit_quick = self._clock.monotonic() - began_at <= self._answer_s * (count + held_count)
        return count // 2 if is_commit_quick else count

    async def _handle_store_failure(self, batch: list[tuple[Op, AnswerCallback]], error: StoreError) -> None:
        """The store failed: answer clients, keep the runs' operations for the next try, and wait a while."""
        retained: list[tuple[Op, AnswerCallback]] = []
        for op, on_answer in batch:
            if is_client_operation(op):
                _answer(on_answer, error)
            else:
                retained.append((op, on_answer))
        self._queue[:0] = retained
        if not retained:
            return
        if not self._pause_s:
            log.warning("the store does not take writes, runs wait until it does: %s", error)
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2 or MIN_PAUSE_S)
        await self._back_off(self._pause_s)

    async def _back_off(self, seconds: float) -> None:
        """Sleep, but stop when a client submits an operation, because clients do not wait."""
        self._client_waiting.clear()
        if any(is_client_operation(op) for op, _ in self._queue):
            return  # submitted while the store was failing
        ends = [self._loop.create_task(end) for end in (self._clock.sleep(seconds), self._client_waiting.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _commit_one_by_one(self, batch: list[tuple[Op, AnswerCallback]], error: Exception) -> None:
        """The commit failed in a way that no store should: find the operations that fail alone."""
        if len(batch) == 1:
            self._defer(batch[0], error)
            return
        for index, entry in enumerate(batch, 1):
            if not self._admit([entry]):
                continue
            try:
                await self._commit([entry])
            except asyncio.CancelledError:
                self._requeue_after(entry, batch[index:])  # the entry itself may be in the queue again
                raise
            if entry in self._queue:  # the store fails as well: the rest must not overtake the entry
                self._requeue_after(entry, batch[index:])
                return

    def _requeue_after(self, entry: tuple[Op, AnswerCallback], rest: list[tuple[Op, AnswerCallback]]) -> None:
        """Put the rest of a batch back into the queue, after this entry if the queue contains it."""
        # It need not be the first: deferred operations are put at the front, too.
        index = self._queue.index(entry) + 1 if entry in self._queue else 0
        self._queue[index:index] = self._admit(rest)

    # Operations that failed alone, with an unknown outcome

    def _defer(self, entry: tuple[Op, AnswerCallback], error: Exception) -> None:
        (op, on_answer), op_name = entry, type(entry[0]).__name__
        key = get_run_key(op)
        if key is None:
            _answer(on_answer, error)
            return
        self._try_counts[key] += 1
        if self._try_counts[key] >= MAX_TRIES or isinstance(error, CodecError):
            log.error("%s could not be committed", op_name, exc_info=error)
            del self._try_counts[key]
            if isinstance(op, AppendRecord):
                self._unrecordable[key] = error
                self._queue = self._admit(self._queue)
            _answer(on_answer, error)
            return
        if self._try_counts[key] == 1:
            log.warning("%s could not be committed; trying again: %r", op_name, error)
        self._deferred[key] = [entry]
        task = self._loop.create_task(self._wait_and_resubmit(key))
        self._retry_tasks.add(task)
        task.add_done_callback(self._retry_tasks.discard)

    def _admit(self, batch: list[tuple[Op, AnswerCallback]]) -> list[tuple[Op, AnswerCallback]]:
        """The operations that follow neither a deferred operation nor a record that could not be recorded."""
        if not (self._deferred or self._unrecordable):
            return batch
        admitted: list[tuple[Op, AnswerCallback]] = []
        for op, on_answer in batch:
            key = self._find_starter(op) or get_run_key(op)
            if key in self._deferred:
                self._deferred[key].append((op, on_answer))
            elif key in self._unrecordable:
                self._loop.call_soon(_answer, on_answer, self._unrecordable[key])  # not now: it may submit more
            else:
                admitted.append((op, on_answer))
        return admitted

    def _find_starter(self, cancel: Op) -> int | str | None:
        """The run that cancels a child before it was able to start it."""
        if isinstance(cancel, CancelRun) and cancel.seed is not None:
            for key, waiting in self._deferred.items():
                if any(isinstance(op, StartRun) and op.run.id == cancel.run_id for op, _ in waiting):
                    return key
        return None

    async def _wait_and_resubmit(self, key: int | str) -> None:
        await self._clock.sleep(min(MAX_PAUSE_S, MIN_PAUSE_S * 2 ** (self._try_counts[key] - 1)))
        self._resubmit(key)

    def _resubmit(self, key: int | str) -> None:
        self._queue[:0] = self._deferred.pop(key, ())
        if self._queue and not self._is_draining:
            self._start_drain()


def _reject_unrepeatable(op: Op, on_answer: AnswerCallback) -> bool:
    """Answer an operation that would take effect twice if it were submitted again; true when it is one."""
    if not (isinstance(op, SendSignal) and op.dedup_key is None):
        return False
    _answer(on_answer, StoreUnavailable(f"the process stopped while a signal to run {op.run_id!r} was being written"))
    return True


def _answer(on_answer: AnswerCallback, answer: OpResult | BaseException) -> None:
    try:
        on_answer(answer)
    except Exception:  # a bug in Holdfast that hits one run must not stop the others
        _log_failed_callback()


def _log_failed_callback() -> None:
    log.exception("taking the answer to a commit failed")
