"""``Client``: runs by workflow name, over a store. It imports none of the user's code."""

from __future__ import annotations

import asyncio
import builtins
import difflib
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakSet

from holdfast.client.agent_result import plain_result
from holdfast.client.approvals import ApprovalInfo, approve, deny, list_approvals
from holdfast.client.bulk import Call, start_many
from holdfast.client.connections import Connections
from holdfast.client.control import cancel_run, pause_run, resume_run, retry_run, send_signal, set_budget
from holdfast.client.dead import DeadRun, dead_runs
from holdfast.client.events import Event, read_events
from holdfast.client.forking import GIVEN, fork_run
from holdfast.client.handle import Handle, RunInfo, info_of
from holdfast.client.health import Health, read_health
from holdfast.client.memories import ClientMemory
from holdfast.client.plans import Plan, read_plan
from holdfast.client.pruning import PruneReport, prune_runs, pruning
from holdfast.client.queues import ClientQueues
from holdfast.client.reports import UsageReport, usage_report
from holdfast.client.schedules import ClientSchedules
from holdfast.client.stalls import look_around
from holdfast.client.starting import StartOptions, accept, new_run, start_options
from holdfast.codec import LARGEST, bind_by_name
from holdfast.core.queues import Queue
from holdfast.core.spans import Span
from holdfast.core.states import RunState
from holdfast.core.usage import Budget, Usage
from holdfast.errors import UnknownWorkflow, UsageError
from holdfast.stores.contract import RunFilter, Store, WorkflowSpec
from holdfast.stores.operations import StartRun
from holdfast.stores.queues import NewQueue
from holdfast.stores.serving import announced, spec_to_start
from holdfast.stores.urls import shown_url, store_url

T = TypeVar("T")


class Client:
    """Starts, follows and signals runs of workflows that workers elsewhere execute.

    It connects when it is first used, and again when it is used under another event loop. ``close`` it, or use it as
    ``async with Client(url) as client:``.

    Args:
        url: the store, such as ``sqlite:///runs.db``; ``HOLDFAST_URL`` or the default file unless given.
        namespace: whose runs, where several programs or tenants share a store; what the URL says unless given, else
            ``HOLDFAST_NAMESPACE``, else ``default``.
        max_value: the largest value that is sent, in bytes; 64 MiB unless given.
    """

    def __init__(self, url: str | None = None, *, namespace: str | None = None, max_value: int = LARGEST) -> None:
        target = store_url(url, namespace)
        self.url = shown_url(target)
        """The store's URL, as people may see it."""
        self.max_value = max_value
        self._options = StartOptions()
        self._told: WeakSet[Store] = WeakSet()
        """The connections over which the queue of these options was announced."""
        self._connection = Connections(target)

    @classmethod
    def over(cls, connections: Connections, url: str) -> Client:
        """A client that shares the connections of somebody else, who closes them."""
        client = object.__new__(cls)
        client.url = shown_url(url)
        client.max_value = LARGEST
        client._options = StartOptions()
        client._told = WeakSet()
        client._connection = connections
        return client

    def options(
        self,
        *,
        id: str | None = None,
        queue: str | Queue | None = None,
        key: str | int | None = None,
        dedup: str | int | None = None,
        debounce: Span | None = None,
        debounce_most: Span | None = None,
        delay: float = 0.0,
        priority: int = 0,
        tags: Collection[str] = (),
        budget: Budget | None = None,
        max_deliveries: int | None = None,
        version: str | None = None,
    ) -> Client:
        """The same client, with options for the runs that are started through it: see ``Workflow.options``.

        A run is of the newest version of its workflow that a live worker serves, unless ``version`` says which.
        """
        view = object.__new__(Client)
        view.url = self.url
        view.max_value = self.max_value
        view._told = WeakSet()
        view._connection = self._connection
        view._options = start_options(
            "",
            id=id,
            queue=queue,
            key=key,
            dedup=dedup,
            debounce=debounce,
            debounce_most=debounce_most,
            delay=delay,
            priority=priority,
            tags=tags,
            budget=budget,
            max_deliveries=max_deliveries,
            version=version,
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
        spec = await find_spec(store, workflow, self._options.version)
        await self._announce_queue(store)
        inputs = bind_by_name(workflow, spec.parameters, args, kwargs)
        new = new_run(spec, inputs, self._options, now=store.now(), max_value=self.max_value)
        [answer] = await store.commit([StartRun(new)])
        return self.handle(accept(answer, new).id)

    async def start_many(self, workflow: str, calls: Iterable[Call]) -> list[str]:
        """Start (or join) a run for each of ``calls``, a thousand in one commit, and return their ids in order.

        A call is a tuple of arguments, or a mapping of them. If one cannot be started, what ``start`` would raise is
        raised; those before it are started. With an id template, the same call may then be made again.
        """
        store = await self._connection.store()
        spec = await find_spec(store, workflow, self._options.version)
        await self._announce_queue(store)
        return await start_many(store, spec, calls, self._options, self.max_value)

    async def _announce_queue(self, store: Store) -> None:
        """Make the limits of the queue known, if the client was handed some, before a run is in it."""
        queue = self._options.queue
        if isinstance(queue, Queue) and store not in self._told:
            await store.put_queues([NewQueue(queue.name, queue.limits)])
            self._told.add(store)

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
        return await info_of(self._connection, run_id)

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
        runs = await store.list_runs(where, limit=limit, before=key)
        around = None if all(run.state.is_terminal for run in runs) else await look_around(store, runs)
        return [RunInfo.of(run, around) for run in runs]

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

    async def approvals(
        self,
        run_id: str | None = None,
        *,
        workflow: str | None = None,
        asked_of: str | None = None,
        all: bool = False,
        limit: int = 1000,
    ) -> builtins.list[ApprovalInfo]:
        """Questions that wait for a person's answer, the longest open first; with ``all``, also those that are closed.

        Args:
            run_id: only those of this run.
            workflow: only those of runs of this workflow.
            asked_of: only those that this person is asked now.
            all: also what was answered or withdrawn.
            limit: at most so many.
        """
        return await list_approvals(
            self._connection, run_id, workflow=workflow, asked_of=asked_of, all=all, limit=limit
        )

    async def approve(
        self,
        id: str,
        value: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Say yes to a question; false when the same person has said the very same before.

        Args:
            id: the approval's id; its beginning will do, as long as it names one.
            value: the choice, or what is filled into the form, if the question is not answered with yes or no.
            arguments: for the call of a tool, arguments in place of those that it was called with.
            by: who answers; the user of the operating system unless given.
            reason: why, for people to read.

        Raises ``InputError`` if the answer does not fit (the question stays open), ``ApprovalClosed`` if it was
        answered before or nobody waits for it any more, and ``UnknownApproval``.
        """
        return await approve(
            self._connection, id, value, arguments=arguments, by=by, reason=reason, max_value=self.max_value
        )

    async def deny(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """Say no to a question; false when the same person has said the very same before. Errors as for ``approve``."""
        return await deny(self._connection, id, by=by, reason=reason, max_value=self.max_value)

    def events(self, run_id: str, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        """What happens in a run, whoever executes it, from its beginning or behind ``after``: see ``Handle.events``."""
        return read_events(self._connection, run_id, after, follow=follow)

    async def usage(self, run_id: str) -> Usage:
        """What the model calls of a run have used so far, with those of the runs that it has started."""
        return (await self._connection.usage(run_id)).used

    async def usage_report(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        """What the model calls of all runs have used, by day, agent and model; and how many runs were created.

        Args:
            since: the first day, of UTC; 29 days before the last one unless given.
            until: the last day, included; today unless given.
            workflow: only what runs of this agent or workflow have used.
        """
        return await usage_report(await self._connection.store(), since, until, workflow)

    async def plan(self, run_id: str) -> Plan:
        """What an agent's run means to do, and how far it is; empty as long as it has written no plan."""
        return await read_plan(self._connection, run_id)

    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Give a run another budget in place of the one that it was started with; it goes on if that was used up."""
        await set_budget(self._connection, run_id, budget)

    async def retry(self, run_id: str, *, run_again: bool = False, version: str | None = None) -> None:
        """Let a failed, cancelled or dead run go on from where it went wrong.

        The records that ended it are taken back from its journal, with what the workflow did because of them; a run
        that it had started, and that failed, is retried as well. If a ``once`` step would thereby run a second time,
        ``run_again=True`` says that it may. ``version`` lets the code of another version of its workflow go on with it
        (not with the runs that it had started). Raises ``RetryRefused`` if the run cannot go on.
        """
        await retry_run(self._connection, run_id, run_again=run_again, version=version)

    async def dead(
        self, *, workflow: str | None = None, limit: int = 50, before: str | None = None
    ) -> builtins.list[DeadRun]:
        """Runs that took their workers down too often in a row, newest first, and what they were doing.

        They are left alone until somebody retries them (``retry``).

        Args:
            workflow: only those of this workflow.
            limit: at most so many.
            before: the id of the last one of the page before, to go on from there.
        """
        return await dead_runs(await self._connection.store(), workflow, limit, before)

    async def prune(
        self,
        older_than: timedelta | float,
        *,
        state: RunState | str | Collection[RunState | str] = (),
        workflow: str | None = None,
        keep: int = 0,
        unclaimed: bool = False,
        run_ids: Collection[str] | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Delete runs that ended longer ago than that, with all that belongs to them; never one that is still needed.

        A run goes with its family (the runs that it has started, and the one that started it) and with its
        conversation, or stays with them: as long as one of them has not ended, or has ended since. In short
        transactions, so that workers are not held up; stopped in the middle, it goes on the next time.

        Args:
            older_than: a ``timedelta``, or a number of seconds.
            state: the states of those that are deleted; completed and cancelled ones unless given.
            workflow: only those of this workflow.
            keep: not the newest so many of each workflow.
            unclaimed: also those whose result nobody has had, because the process that started them was killed.
            run_ids: only these.
            dry_run: delete nothing, only tell.
        """
        store = await self._connection.store()
        states = [state] if isinstance(state, str) else state
        what = pruning(
            store.now(), older_than, states, workflow=workflow, keep=keep, unclaimed=unclaimed, run_ids=run_ids,
            dry_run=dry_run,
        )  # fmt: skip
        return await prune_runs(store, what)

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

    async def health(self) -> list[Health]:
        """How it is with every agent and workflow that was announced: who serves it, by its workers' heartbeats."""
        return await read_health(await self._connection.store())

    async def switch_off(self, workflow: str) -> bool:
        """Stop a workflow or an agent everywhere: its runs stop at the next recorded point, and none is started.

        False when it was switched off before.
        """
        return await (await self._connection.store()).switch_off(workflow)

    async def switch_on(self, workflow: str) -> bool:
        """Let the runs of a workflow go on that was switched off; false when it was not."""
        return await (await self._connection.store()).switch_on(workflow)

    @property
    def memory(self) -> ClientMemory:
        """Values that outlive runs: ``put``, ``get``, ``search``, ``list`` and ``delete``."""
        return ClientMemory(self._connection, self.max_value)

    @property
    def schedules(self) -> ClientSchedules:
        """What is started at set times: ``create``, ``list``, ``pause``, ``resume``, ``trigger`` and so on."""

        async def spec_of(store: Store, workflow: str) -> WorkflowSpec:
            return await find_spec(store, workflow, None)

        return ClientSchedules(self._connection, spec_of, self._sync)

    @property
    def queues(self) -> ClientQueues:
        """Queues with limits: ``list``, ``get``, ``set``, ``reset``, ``pause`` and ``resume``."""
        return ClientQueues(self._connection, self._sync)

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

    def approvals_sync(
        self,
        run_id: str | None = None,
        *,
        workflow: str | None = None,
        asked_of: str | None = None,
        all: bool = False,
        limit: int = 1000,
    ) -> builtins.list[ApprovalInfo]:
        """``approvals`` without an event loop."""
        return self._sync(self.approvals(run_id, workflow=workflow, asked_of=asked_of, all=all, limit=limit))

    def approve_sync(
        self,
        id: str,
        value: Any = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """``approve`` without an event loop."""
        return self._sync(self.approve(id, value, arguments=arguments, by=by, reason=reason))

    def deny_sync(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """``deny`` without an event loop."""
        return self._sync(self.deny(id, by=by, reason=reason))

    def events_sync(self, run_id: str, after: str | None = None, *, follow: bool = True) -> Iterator[Event]:
        """``events`` without an event loop: to be read with a plain ``for``."""
        if _is_loop_running():
            raise UsageError("an event loop is running in this thread: use `async for event in client.events(...)`")
        return self._each(self.events(run_id, after, follow=follow))

    def _each(self, events: AsyncGenerator[Event]) -> Iterator[Event]:
        async def following() -> Event | None:
            return await anext(events, None)

        with asyncio.Runner() as runner:
            try:
                while (event := runner.run(following())) is not None:
                    yield event
            finally:
                runner.run(self.close())

    def usage_sync(self, run_id: str) -> Usage:
        """``usage`` without an event loop."""
        return self._sync(self.usage(run_id))

    def usage_report_sync(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        """``usage_report`` without an event loop."""
        return self._sync(self.usage_report(since, until, workflow=workflow))

    def plan_sync(self, run_id: str) -> Plan:
        """``plan`` without an event loop."""
        return self._sync(self.plan(run_id))

    def set_budget_sync(self, run_id: str, budget: Budget) -> None:
        """``set_budget`` without an event loop."""
        self._sync(self.set_budget(run_id, budget))

    def retry_sync(self, run_id: str, *, run_again: bool = False) -> None:
        """``retry`` without an event loop."""
        self._sync(self.retry(run_id, run_again=run_again))

    def dead_sync(
        self, *, workflow: str | None = None, limit: int = 50, before: str | None = None
    ) -> builtins.list[DeadRun]:
        """``dead`` without an event loop."""
        return self._sync(self.dead(workflow=workflow, limit=limit, before=before))

    def prune_sync(self, older_than: timedelta | float, **wanted: Any) -> PruneReport:
        """``prune`` without an event loop."""
        return self._sync(self.prune(older_than, **wanted))

    def fork_sync(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = GIVEN, id: str | None = None
    ) -> str:
        """``fork`` without an event loop: returns the new run's id."""

        async def fork() -> str:
            return (await self.fork(run_id, at=at, with_output=with_output, id=id)).run_id

        return self._sync(fork())

    def health_sync(self) -> list[Health]:
        """``health`` without an event loop."""
        return self._sync(self.health())

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


async def find_spec(store: Store, workflow: str, version: str | None) -> WorkflowSpec:
    """What was announced of a workflow, in the version that a start by name means. Raises ``UnknownWorkflow``."""
    spec = await spec_to_start(store, workflow, version)
    if spec is not None:
        return spec
    specs = await store.specs()
    if versions := announced(workflow, specs):
        known = ", ".join(repr(one.version) for one in versions)
        raise UnknownWorkflow(
            f"no worker has announced version {version!r} of workflow {workflow!r} to {store.url} (known: {known}). "
            f"A version is announced when a worker that has it starts: `holdfast worker module:{workflow}`."
        )
    names = sorted({one.name for one in specs.values()})
    near = difflib.get_close_matches(workflow, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none yet'}."
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
