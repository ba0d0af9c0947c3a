"""``Client``: runs by workflow name, over a store. It imports none of the user's code."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Collection, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from holdfast.client.agent_result import plain_result
from holdfast.client.control import cancel_run, pause_run, resume_run, retry_run, send_signal, set_budget
from holdfast.client.forking import GIVEN, fork_run
from holdfast.client.handle import Handle, RunInfo
from holdfast.client.starting import StartOptions, accept, new_run
from holdfast.codec import LARGEST, bind_by_name
from holdfast.core.states import RunState
from holdfast.core.usage import Budget, Usage
from holdfast.errors import RunNotFound, StoreError, UnknownWorkflow, UsageError
from holdfast.stores.arrivals import Arrivals
from holdfast.stores.contract import RunFilter, RunUsage, Store, WorkflowSpec
from holdfast.stores.operations import Change, Run, StartRun, Verdict
from holdfast.stores.urls import open_store, store_url

T = TypeVar("T")

POLL = 0.5
"""Seconds after which the store is asked again although it told of no change."""


class Client:
    """Starts, follows and signals runs of workflows that workers elsewhere execute.

    It connects when it is first used, and again when it is used under another event loop. ``close`` it, or use it as
    ``async with Client(url) as client:``.

    Args:
        url: the store, such as ``sqlite:///runs.db``; ``HOLDFAST_URL`` or the default file unless given.
        max_value: the largest value that is sent, in bytes; 64 MiB unless given.
    """

    def __init__(self, url: str | None = None, *, max_value: int = LARGEST) -> None:
        self.url = store_url(url)
        self.max_value = max_value
        self._options = StartOptions()
        self._connection = _Connections(self.url)

    def options(
        self,
        *,
        id: str | None = None,
        queue: str | None = None,
        delay: float = 0.0,
        priority: int = 0,
        tags: Collection[str] = (),
        budget: Budget | None = None,
    ) -> Client:
        """The same client, with options for the runs that are started through it."""
        view = object.__new__(Client)
        view.url = self.url
        view.max_value = self.max_value
        view._connection = self._connection
        view._options = StartOptions(
            id=id, queue=queue, delay=delay, priority=priority, tags=tuple(tags), budget=budget
        )
        return view

    async def __aenter__(self) -> Client:
        await self._connection.store()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. The client connects again if it is used again."""
        await self._connection.close()

    async def start(self, workflow: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Start a run of the workflow of this name (or join the one that is there) and return a handle to it."""
        store = await self._connection.store()
        spec = await _spec(store, workflow)
        inputs = bind_by_name(workflow, spec.parameters, args, kwargs)
        new = new_run(spec, inputs, self._options, now=store.now(), max_value=self.max_value)
        [answer] = await store.commit([StartRun(new)])
        return self.handle(accept(answer, new).id)

    async def run(self, workflow: str, /, *args: Any, **kwargs: Any) -> Any:
        """Start a run and wait for its result: plain data, or the ``AgentResult`` of an agent with plain data in it."""
        return await (await self.start(workflow, *args, **kwargs)).result()

    def handle(self, run_id: str) -> Handle[Any]:
        """A handle to a run that was started before."""
        return Handle(self._connection, run_id, plain_result)

    async def wait(self, run_id: str, timeout: float | None = None) -> Any:
        """The result of a run, once it has ended, whoever executes it."""
        return await self.handle(run_id).result(timeout)

    async def get(self, run_id: str) -> RunInfo:
        """What can be told of a run now."""
        return RunInfo.of(await self._connection.read(run_id))

    async def list(
        self,
        *,
        state: RunState | str | Collection[RunState | str] = (),
        workflow: str | None = None,
        tag: str | None = None,
        text: str | None = None,
        parent: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunInfo]:
        """Runs that match, newest first.

        Args:
            state: one of the run states, or several.
            workflow: the workflow's name.
            tag: a tag of the run.
            text: something in its id, its workflow's name, its tags or its error.
            parent: the id of the run that started it.
            created_after: created at this time or later (a time with a time zone).
            created_before: created earlier than this.
            limit: at most so many.
            before: the id of the last run of the page before, to go on from there.
        """
        states = [state] if isinstance(state, str) else state
        try:
            where = RunFilter(
                states=[RunState(one) for one in states],
                workflow=workflow,
                tag=tag,
                text=text,
                parent=parent,
                created_after=None if created_after is None else created_after.timestamp(),
                created_before=None if created_before is None else created_before.timestamp(),
            )
        except ValueError as error:
            raise UsageError(f"{error}; the states are {', '.join(RunState)}") from None
        store = await self._connection.store()
        key = None if before is None else (await self._connection.read(before)).key
        return [RunInfo.of(run) for run in await store.list_runs(where, limit=limit, before=key)]

    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """Send a value into a run. With an ``id``, sending it again changes nothing (and returns false)."""
        return await send_signal(self._connection, run_id, name, value, id, self.max_value)

    async def cancel(self, run_id: str) -> bool:
        """Ask for a run to be cancelled; false when that was asked before. ``RunEnded`` if it has ended."""
        return await cancel_run(self._connection, run_id)

    async def pause(self, run_id: str) -> bool:
        """Keep a run from going on; false when it was paused before. Steps in flight may end, and are recorded."""
        return await pause_run(self._connection, run_id)

    async def resume(self, run_id: str) -> bool:
        """Let a paused run go on; false when it was not paused."""
        return await resume_run(self._connection, run_id)

    async def usage(self, run_id: str) -> Usage:
        """What the model calls of a run have used so far, with those of the runs that it has started."""
        return (await self._connection.usage(run_id)).used

    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Give a run another budget in place of the one that it was started with; it goes on if that was used up."""
        await set_budget(self._connection, run_id, budget)

    async def retry(self, run_id: str, *, run_again: bool = False) -> None:
        """Let a failed, cancelled or dead run go on from where it went wrong.

        The records that ended it are taken back from its journal, with what the workflow did because of them; a run
        that it had started, and that failed, is retried as well. If a ``once`` step would thereby run a second time,
        ``run_again=True`` says that it may. Raises ``RetryRefused`` if the run cannot go on.
        """
        await retry_run(self._connection, run_id, run_again=run_again)

    async def fork(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = GIVEN, id: str | None = None
    ) -> Handle[Any]:
        """A new run that shares what was recorded of another one before a step.

        Args:
            run_id: the run to begin like.
            at: the step to go on from: its number (see ``holdfast show``), or its name if only one has it. It runs
                again. Without it, everything that is recorded is shared.
            with_output: what the step is taken to have returned; then it does not run again.
            id: the id of the new run; made up unless given.
        """
        store = await self._connection.store()
        run = await fork_run(store, run_id, at=at, with_output=with_output, new_id=id, max_value=self.max_value)
        return self.handle(run.id)

    async def switch_off(self, workflow: str) -> bool:
        """Stop a workflow everywhere: its runs stand still, what they are doing is interrupted, and none is started.

        False when it was switched off before.
        """
        return await (await self._connection.store()).switch_off(workflow)

    async def switch_on(self, workflow: str) -> bool:
        """Let the runs of a workflow go on that was switched off; false when it was not."""
        return await (await self._connection.store()).switch_on(workflow)

    # The same, for code without an event loop

    def start_sync(self, workflow: str, /, *args: Any, **kwargs: Any) -> str:
        """``start`` without an event loop: returns the run's id."""

        async def start() -> str:
            return (await self.start(workflow, *args, **kwargs)).run_id

        return self._sync(start())

    def run_sync(self, workflow: str, /, *args: Any, **kwargs: Any) -> Any:
        """``run`` without an event loop."""
        return self._sync(self.run(workflow, *args, **kwargs))

    def wait_sync(self, run_id: str, timeout: float | None = None) -> Any:
        """``wait`` without an event loop."""
        return self._sync(self.wait(run_id, timeout))

    def get_sync(self, run_id: str) -> RunInfo:
        """``get`` without an event loop."""
        return self._sync(self.get(run_id))

    def signal_sync(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """``signal`` without an event loop."""
        return self._sync(self.signal(run_id, name, value, id=id))

    def cancel_sync(self, run_id: str) -> bool:
        """``cancel`` without an event loop."""
        return self._sync(self.cancel(run_id))

    def pause_sync(self, run_id: str) -> bool:
        """``pause`` without an event loop."""
        return self._sync(self.pause(run_id))

    def resume_sync(self, run_id: str) -> bool:
        """``resume`` without an event loop."""
        return self._sync(self.resume(run_id))

    def usage_sync(self, run_id: str) -> Usage:
        """``usage`` without an event loop."""
        return self._sync(self.usage(run_id))

    def set_budget_sync(self, run_id: str, budget: Budget) -> None:
        """``set_budget`` without an event loop."""
        self._sync(self.set_budget(run_id, budget))

    def retry_sync(self, run_id: str, *, run_again: bool = False) -> None:
        """``retry`` without an event loop."""
        self._sync(self.retry(run_id, run_again=run_again))

    def fork_sync(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = GIVEN, id: str | None = None
    ) -> str:
        """``fork`` without an event loop: returns the new run's id."""

        async def fork() -> str:
            return (await self.fork(run_id, at=at, with_output=with_output, id=id)).run_id

        return self._sync(fork())

    def switch_off_sync(self, workflow: str) -> bool:
        """``switch_off`` without an event loop."""
        return self._sync(self.switch_off(workflow))

    def switch_on_sync(self, workflow: str) -> bool:
        """``switch_on`` without an event loop."""
        return self._sync(self.switch_on(workflow))

    def _sync(self, call: Coroutine[Any, Any, T]) -> T:
        async def once() -> T:
            try:
                return await call
            finally:
                await self.close()

        try:
            return run_sync(once())
        finally:
            call.close()  # it was never begun if an event loop is running here


class _Connections:
    """A connection for each event loop that the client is used under: a thread may bring one of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._by_loop: dict[asyncio.AbstractEventLoop, _Connection] = {}

    def _here(self) -> _Connection:
        loop = asyncio.get_running_loop()
        connection = self._by_loop.get(loop)
        if connection is None:
            for other in [other for other in list(self._by_loop) if other.is_closed()]:
                self._by_loop.pop(other).abandon()
            connection = self._by_loop[loop] = _Connection(self._url)
        return connection

    async def store(self) -> Store:
        return await self._here().store()

    async def close(self) -> None:
        connection = self._by_loop.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.close()

    async def read(self, run_id: str) -> Run:
        return await self._here().read(run_id)

    async def wait_for_end(self, run_id: str) -> Run:
        return await self._here().wait_for_end(run_id)

    async def usage(self, run_id: str) -> RunUsage:
        return (await (await self.store()).usages([run_id])).get(run_id, RunUsage())

    async def change(self, op: Change) -> Verdict:
        return await self._here().change(op)

    def now(self) -> float:
        return self._here().now()


class _Connection:
    """An open store, and one watcher for everybody who waits for a run to end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._arrivals = Arrivals()
        self._watcher: asyncio.Task[None] | None = None

    async def store(self) -> Store:
        async with self._opening:
            if self._store is None:
                store = open_store(self._url)
                await store.open()
                self._store = store
        return self._store

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()
        self._arrivals.give_up(UsageError("the client was closed; the run goes on without it"))

    def abandon(self) -> None:
        """The loop that this connection belonged to has closed."""
        if self._store is not None:
            self._store.abandon()

    async def read(self, run_id: str) -> Run:
        run = await (await self.store()).get(run_id)
        if run is None:
            raise RunNotFound(f"there is no run {run_id!r} in {self._url}", run_id)
        return run

    async def wait_for_end(self, run_id: str) -> Run:
        await self.store()
        future = self._arrivals.expect(run_id)
        try:
            run = await self.read(run_id)
            if run.state.is_terminal:
                return run
            if self._watcher is None or self._watcher.done():
                self._watcher = asyncio.get_running_loop().create_task(self._watch())
            return await future
        finally:
            self._arrivals.forget(run_id, future)

    async def change(self, op: Change) -> Verdict:
        store = await self.store()
        [verdict] = await store.commit([op])
        assert isinstance(verdict, Verdict)
        return verdict

    def now(self) -> float:
        return time.time() if self._store is None else self._store.now()

    async def _watch(self) -> None:
        store = await self.store()
        while awaited := self._arrivals.awaited(except_for=()):
            try:
                for at in range(0, len(awaited), 500):
                    for run in await store.get_many(awaited[at : at + 500]):
                        if run.state.is_terminal:
                            self._arrivals.arrived(run)
                await store.changed(POLL)
            except StoreError:
                await asyncio.sleep(POLL)  # the wait goes on: the store may be back in a moment


async def _spec(store: Store, workflow: str) -> WorkflowSpec:
    specs = await store.specs()
    if workflow in specs:
        return specs[workflow]
    near = difflib.get_close_matches(workflow, specs, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(specs)) or 'none yet'}."
    raise UnknownWorkflow(
        f"no worker has announced a workflow {workflow!r} to {store.url}: {hint} "
        f"A workflow is announced when a worker that knows it starts: `holdfast worker module:{workflow}`."
    )


def run_sync(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end where no event loop is running."""
    if not _is_loop_running():
        return asyncio.run(call)  # not in an `except` block: it would be the context of whatever the call raises
    call.close()
    raise UsageError("an event loop is running in this thread: use the async form and `await` it")


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
