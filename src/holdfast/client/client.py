"""``Client``: runs by workflow name, in a store or over a Holdfast server. It imports none of the user's code.

``Client(url)`` returns a ``StoreClient`` or an ``HttpClient``, whichever the URL means. The other one is not imported.
"""

from __future__ import annotations

import asyncio
import builtins
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from typing import Any, Self, TypeVar, cast

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.client.delivery import Delivery
from holdfast.client.handle import Handle
from holdfast.client.http.server_endpoint import is_server_url
from holdfast.client.listener import Listener, check_handler, check_listen_options, listen, serve
from holdfast.client.resources import (
    ClientAddresses,
    ClientKeys,
    ClientMemory,
    ClientPolicies,
    ClientQueues,
    ClientSchedules,
)
from holdfast.client.run_operations import RunOperations
from holdfast.client.sync_listener import SyncDelivery, listen_sync
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption
from holdfast.core.states import RunState, parse_run_states
from holdfast.errors import UsageError
from holdfast.reports.budgets import BudgetInfo
from holdfast.reports.dead_runs import DeadRun
from holdfast.reports.events import Event
from holdfast.reports.run_info import RunInfo
from holdfast.reports.tail import TailEvent, TailFilter
from holdfast.reports.usage_report import UsageReport
from holdfast.services.audit_log import AuditEntry
from holdfast.services.bulk_start import CallArguments
from holdfast.services.forks import NOT_GIVEN
from holdfast.services.health import DisabledWorkflow, Health
from holdfast.services.journal_files import Journal
from holdfast.services.retention import PruneReport
from holdfast.services.run_start import StartOptions, make_start_options
from holdfast.services.workers import WorkerInfo
from holdfast.stores.contract import RunFilter
from holdfast.sync_methods import is_loop_running, run_sync, sync_method

T = TypeVar("T")


class Client(RunOperations):
    """Starts, follows, and signals runs of workflows that workers elsewhere execute.

    It connects when it is first used, and again when it is used under another event loop. ``close`` it, or use it as
    ``async with Client(url) as client:``.

    Args:
        url: a store, such as ``sqlite:///runs.db``, or a Holdfast server, such as ``https://holdfast.example``;
            default: ``HOLDFAST_URL``, else the default file.
        namespace: whose runs, where several programs or tenants share a store; default: what the URL says, else
            ``HOLDFAST_NAMESPACE``, else ``default``. On a server, the key determines it.
        max_value: the largest value that is sent, in bytes; default: 64 MiB.
        encryption: what the workers of the store encrypt with, such as ``AesEncryption(key)``; default: the keys in
            ``HOLDFAST_ENCRYPTION_KEYS``. A server has keys of its own.
        api_key: the key for a server; default: ``HOLDFAST_API_KEY``.
        insecure: send the key over plain ``http://`` to another machine, where anyone on the way can read it;
            ``HOLDFAST_INSECURE=1`` does the same.
    """

    url: str
    """The URL of the store or the server, without secrets."""
    max_value: int
    """The largest value that is sent, in bytes."""
    memory: ClientMemory
    """Values that outlive runs."""
    schedules: ClientSchedules
    """Workflows that start at set times."""
    queues: ClientQueues
    """Queues with limits."""
    addresses: ClientAddresses
    """The addresses that work is sent to."""
    policies: ClientPolicies
    """Daily limits of agents, workflows, and addresses."""
    keys: ClientKeys
    """API keys for servers."""
    _options = StartOptions()

    def __new__(cls, url: str | None = None, *_: Any, **__: Any) -> Self:
        """An instance of the subclass that the URL means; its ``__init__`` gets the same arguments."""
        if cls is not Client:
            return super().__new__(cls)
        if url is not None and not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"Client({url!r}): the URL is a text, such as 'sqlite:///runs.db' or 'https://...'")
        if is_server_url(url):
            from holdfast.client.http.client import HttpClient as Implementation
        else:
            from holdfast.client.store_client import StoreClient as Implementation
        return cast("Self", object.__new__(Implementation))

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
        encryption: Encryption | None = None,
        api_key: str | None = None,
        insecure: bool = False,
    ) -> None: ...

    def options(
        self,
        *,
        id: str | None = None,
        queue: str | Queue | None = None,
        key: str | int | None = None,
        dedup: str | int | None = None,
        debounce: Duration | None = None,
        max_debounce: Duration | None = None,
        delay: Duration = 0.0,
        priority: int = 0,
        tags: Collection[str] = (),
        budget: Budget | None = None,
        max_deliveries: int | None = None,
        version: str | None = None,
    ) -> Client:
        """The same client, with options for the runs that are started through it: see ``Workflow.options``.

        ``version`` chooses a version of the workflow; default: the newest one that a live worker serves.
        """
        view = copy.copy(self)
        view._options = make_start_options(
            "",
            id=id,
            queue=queue,
            key=key,
            dedup=dedup,
            debounce=debounce,
            max_debounce=max_debounce,
            delay=delay,
            priority=priority,
            tags=tags,
            budget=budget,
            max_deliveries=max_deliveries,
            version=version,
        )
        return view

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, timeout: Duration | None = None) -> None:
        """Connect now, not with the first call. A server gets ``timeout`` to answer; default: some retries."""
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect. The client connects again if it is used again."""
        raise NotImplementedError

    # Starting runs

    async def start(self, workflow: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Start a run of the workflow of this name (or join the existing one) and return a handle to it."""
        return self.handle(await self._start(workflow, args, kwargs))

    async def _start(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        raise NotImplementedError

    async def start_many(self, workflow: str, calls: Iterable[CallArguments]) -> list[str]:
        """Start (or join) a run for each of ``calls``, a thousand in one commit, and return their ids in order.

        A call is a tuple of arguments, or a mapping of them. If one cannot be started, this raises what ``start`` would
        raise, and those before it are started. With an id template, the same call may then be made again.
        """
        raise NotImplementedError

    async def send(
        self, address: str, payload: Any = None, *, deadline: Duration | None = None, id: str | None = None
    ) -> Handle[Any]:
        """Send work to an address, where a listener takes it, and return a handle to its run.

        The work is a run like any other: it waits for a listener, survives the listener's death, and its result is what
        the listener completed it with.

        Args:
            address: the address; it exists as soon as it is used.
            payload: what is sent.
            deadline: when the run must have ended, counted from its start: seconds, a ``timedelta``, or words such as
                ``15 min``; default: the deadline of the address.
            id: of the run. What was already sent under this id is not sent twice.
        """
        deadline_s = None if deadline is None else duration_to_seconds(deadline, f"address {address!r}: deadline")
        options = self._options if id is None else replace(self._options, id=id)
        if options.id is not None and options.dedup is not None:
            raise UsageError(
                f"address {address!r}: id={options.id!r} and dedup={options.dedup!r} name two runs to join: give one"
            )
        return self.handle(await self._send(address, payload, options, deadline_s))

    async def _send(self, address: str, payload: Any, options: StartOptions, deadline_s: float | None) -> str:
        raise NotImplementedError

    async def run(self, workflow: str, /, *args: Any, **kwargs: Any) -> Any:
        """Start a run and wait for its result: plain data, or the ``AgentResult`` of an agent with plain data in it."""
        return await (await self.start(workflow, *args, **kwargs)).result()

    def handle(self, run_id: str) -> Handle[Any]:
        """A handle to a run that was started before."""
        return Handle(self, run_id)

    async def list(
        self,
        *,
        state: RunState | str | Collection[RunState | str] = (),
        workflow: str | None = None,
        tag: str | None = None,
        text: str | None = None,
        parent: str | None = None,
        id_prefix: str | None = None,
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
            id_prefix: how its id begins.
            created_after: created at this time or later (a time with a time zone).
            created_before: created earlier than this.
            limit: maximum number of results.
            before: the id of the last run of the page before, to go on from there.
        """
        where = RunFilter(
            states=parse_run_states(state),
            workflow=workflow,
            tag=tag,
            text=text,
            parent=parent,
            id_prefix=id_prefix,
            created_after=None if created_after is None else created_after.timestamp(),
            created_before=None if created_before is None else created_before.timestamp(),
        )
        return await self._list(where, limit, before)

    async def _list(self, run_filter: RunFilter, limit: int, before: str | None) -> builtins.list[RunInfo]:
        raise NotImplementedError

    def tail(
        self,
        *,
        workflow: str | None = None,
        tag: str | None = None,
        state: RunState | str | Collection[RunState | str] = (),
        since: datetime | None = None,
    ) -> AsyncGenerator[TailEvent]:
        """What happens in all runs, as it happens: ``async for one in client.tail():``. It goes on until it is closed.

        Runs that begin, steps that end, answers, questions, failures, takeovers, ends; of one run, ``events`` tells
        more. It goes on over broken connections and restarts of the server.

        Args:
            workflow: only of runs of this workflow.
            tag: only of runs with this tag.
            state: only of runs that are in this state, or in one of these, when it is told.
            since: also what has happened since this time (a time with a time zone); from now on unless given.
        """
        return self._tail(TailFilter(workflow, tag, tuple(parse_run_states(state))), since)

    def _tail(self, tail_filter: TailFilter, since: datetime | None) -> AsyncGenerator[TailEvent]:
        raise NotImplementedError

    async def usage_report(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        """What the model calls of all runs have used, by day, agent and model; and how many runs were created.

        Args:
            since: the first day, of UTC; 29 days before the last one unless given.
            until: the last day, included; today unless given.
            workflow: only what runs of this agent or workflow have used.
        """
        raise NotImplementedError

    async def budget(self, run_id: str) -> BudgetInfo:
        """What a run may use and has used, with the budgets above it and the runs that it has started."""
        raise NotImplementedError

    async def retry(self, run_id: str, *, run_again: bool = False, version: str | None = None) -> None:
        """Let a failed, cancelled or dead run go on from where it went wrong.

        The records that ended it are taken back from its journal, with what the workflow did because of them; a run
        that it had started, and that failed, is retried as well. If a ``once`` step would thereby run a second time,
        ``run_again=True`` says that it may. ``version`` lets the code of another version of its workflow go on with it
        (not with the runs that it had started). Raises ``RetryRefused`` if the run cannot go on.
        """
        raise NotImplementedError

    async def settle(
        self, run_id: str, step: int | str, output: Any = NOT_GIVEN, *, happened: bool = True, by: str | None = None
    ) -> None:
        """Say what came of a ``once`` step whose worker died in it, and let the run go on that failed because of it.

        With ``output``, the step has returned that: it is recorded as its outcome, and the step does not run again.
        With ``happened=False``, it did not happen, and is run again; no other ``once`` step is. A value that the step
        cannot have returned is found out by the worker: the run then fails as before, and can be settled anew.

        Args:
            run_id: the run whose step it is. If another run has failed because of this one's failure, retry that
                afterwards.
            step: its number, as ``holdfast show`` tells it, or its name.
            output: what it has returned; ``None``, if it returns nothing.
            happened: whether it has happened at all.
            by: who says so, kept with the record; the user of this process, or the server's key, unless given.

        Raises ``SettleRefused`` if the step's outcome is known, if that is not what ended the run, if the run goes on,
        and if another ``once`` step, which the run has come to since, would thereby run a second time.
        """
        raise NotImplementedError

    async def dead(
        self, *, workflow: str | None = None, limit: int = 50, before: str | None = None
    ) -> builtins.list[DeadRun]:
        """Runs whose workers died too often while they held nothing else, newest first, and what was in flight.

        They are left alone until somebody retries them (``retry``).

        Args:
            workflow: only those of this workflow.
            limit: maximum number of results.
            before: the id of the last one of the page before, to go on from there.
        """
        raise NotImplementedError

    async def prune(
        self,
        older_than: Duration,
        *,
        state: RunState | str | Collection[RunState | str] = (),
        workflow: str | None = None,
        keep: int = 0,
        unclaimed: bool = False,
        run_ids: Collection[str] | None = None,
        dry_run: bool = False,
        report: PruneReport | None = None,
    ) -> PruneReport:
        """Delete runs that ended longer ago than that, with all that belongs to them; never one that is still needed.

        A run goes with its family (the runs that it has started, and the one that started it) and with its
        conversation, or stays with them: as long as one of them has not ended, or has ended since. In short
        transactions, so that workers are not held up; stopped in the middle, it goes on the next time.

        Args:
            older_than: seconds, a ``timedelta``, or words such as ``30 days``; 0: whenever they ended.
            state: the states of those that are deleted; completed and cancelled ones unless given.
            workflow: only those of this workflow.
            keep: number of newest runs of each workflow to keep.
            unclaimed: also those whose result nobody has had, because the process that started them was killed.
            run_ids: only these.
            dry_run: delete nothing, only tell.
            report: updated after every batch, so that it is complete if you interrupt this; by a server, at the end.
        """
        raise NotImplementedError

    async def export(self, run_id: str) -> Journal:
        """A run outside its store, as it is now: its row and all that is recorded of it, for ``replay`` and files."""
        raise NotImplementedError

    async def fork(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = NOT_GIVEN, id: str | None = None
    ) -> Handle[Any]:
        """A new run that shares what was recorded of another one before a step.

        Args:
            run_id: the run to begin like.
            at: the step to go on from: its number (see ``holdfast show``), or its name if only one has it. It runs
                again. Without it, everything that is recorded is shared.
            with_output: what the step is taken to have returned; then it does not run again.
            id: the id of the new run; made up unless given.
        """
        return self.handle(await self._fork(run_id, at=at, with_output=with_output, id=id))

    async def _fork(self, run_id: str, *, at: int | str | None, with_output: Any, id: str | None) -> str:
        raise NotImplementedError

    def listen(self, address: str, *, concurrency: int = 1, name: str | None = None) -> AsyncGenerator[Delivery]:
        """Deliveries of what is sent to an address, as they come: ``async for delivery in client.listen("pipeline"):``.

        It goes on over broken connections and restarts of the server, until the loop is left. What is held is kept by
        heartbeats. Raises ``Unauthenticated`` and ``NotAllowed`` if the server does not let this key listen.

        Args:
            address: where to listen. One that nobody has used is there from now on.
            concurrency: how many deliveries can be held; the next one comes when one of them is over.
            name: what people call this process; its host and number unless given.
        """
        check_listen_options(address, concurrency, name)
        return listen(self._create_listener(address, concurrency=concurrency, name=name), concurrency=concurrency)

    async def serve(
        self,
        address: str,
        handler: Callable[[Delivery], Awaitable[Any]],
        *,
        concurrency: int = 1,
        name: str | None = None,
    ) -> None:
        """Call an async function with each delivery of an address, and end its run with what it returns.

        Goes on until it is cancelled, and gives back then what it holds. Arguments as for ``listen``.
        """
        check_listen_options(address, concurrency, name)
        check_handler(handler)
        await serve(self._create_listener(address, concurrency=concurrency, name=name), handler)

    def listen_sync(self, address: str, *, concurrency: int = 1, name: str | None = None) -> Iterator[SyncDelivery]:
        """``listen`` without an event loop: ``for delivery in client.listen_sync("pipeline"): with delivery: ...``.

        The connection and the heartbeats live on a thread beside, so that a function that blocks loses nothing.
        """
        check_listen_options(address, concurrency, name)
        return listen_sync(
            lambda: self._create_listener(address, concurrency=concurrency, name=name),
            self.close,
            concurrency=concurrency,
        )

    def _create_listener(self, address: str, *, concurrency: int, name: str | None) -> Listener:
        """A new listener, which belongs to the event loop that first uses it."""
        raise NotImplementedError

    async def workers(self) -> builtins.list[WorkerInfo]:
        """The processes that take up runs: those that are live, and those that unfinished runs refer to."""
        raise NotImplementedError

    async def health(self) -> builtins.list[Health]:
        """How it is with every agent and workflow that is known: who serves it, by its workers' heartbeats."""
        raise NotImplementedError

    async def inputs_schema(self, workflow: str, *, version: str | None = None) -> Mapping[str, Any]:
        """A JSON schema of the inputs of a workflow or an agent; an empty one if its workers have announced none.

        A start is checked by it before anything is stored. Raises ``UnknownWorkflow``.

        Args:
            workflow: its name.
            version: of its code; the newest that is served unless given.
        """
        raise NotImplementedError

    async def disable(self, workflow: str, *, reason: str = "", by: str | None = None) -> bool:
        """Stop a workflow or an agent everywhere: its runs stop at the next recorded point, and none is started.

        It stays disabled until someone enables it, even if a policy had disabled it for the rest of the day. False
        when it was disabled before.

        Args:
            workflow: its name.
            reason: why, for others to read.
            by: who does it; default: the user of the operating system, or the name of the API key.
        """
        raise NotImplementedError

    async def enable(self, workflow: str) -> bool:
        """Enable a workflow again: its runs continue; false when it was not disabled."""
        raise NotImplementedError

    async def disabled_workflows(self) -> dict[str, DisabledWorkflow]:
        """The workflows and agents that are disabled: since when, by whom, and why."""
        raise NotImplementedError

    async def audit(self, limit: int = 100) -> builtins.list[AuditEntry]:
        """Who asked servers for what, the newest first, at most ``limit``; also what was refused."""
        raise NotImplementedError

    # The same, for code without an event loop

    start_many_sync = sync_method(start_many)
    run_sync = sync_method(run)
    wait_sync = sync_method(RunOperations.wait)
    get_sync = sync_method(RunOperations.get)
    list_sync = sync_method(list)
    signal_sync = sync_method(RunOperations.signal)
    cancel_sync = sync_method(RunOperations.cancel)
    pause_sync = sync_method(RunOperations.pause)
    resume_sync = sync_method(RunOperations.resume)
    approvals_sync = sync_method(RunOperations.approvals)
    approval_sync = sync_method(RunOperations.approval)
    approve_sync = sync_method(RunOperations.approve)
    deny_sync = sync_method(RunOperations.deny)
    usage_sync = sync_method(RunOperations.usage)
    usage_report_sync = sync_method(usage_report)
    plan_sync = sync_method(RunOperations.plan)
    budget_sync = sync_method(budget)
    describe_sync = sync_method(RunOperations.describe)
    conversation_sync = sync_method(RunOperations.conversation)
    tree_sync = sync_method(RunOperations.tree)
    set_budget_sync = sync_method(RunOperations.set_budget)
    retry_sync = sync_method(retry)
    settle_sync = sync_method(settle)
    dead_sync = sync_method(dead)
    prune_sync = sync_method(prune)
    export_sync = sync_method(export)
    workers_sync = sync_method(workers)
    health_sync = sync_method(health)
    inputs_schema_sync = sync_method(inputs_schema)
    disable_sync = sync_method(disable)
    enable_sync = sync_method(enable)
    disabled_workflows_sync = sync_method(disabled_workflows)
    audit_sync = sync_method(audit)

    def start_sync(self, workflow: str, /, *args: Any, **kwargs: Any) -> str:
        """``start`` without an event loop: returns the run's id."""

        async def start() -> str:
            return (await self.start(workflow, *args, **kwargs)).run_id

        return self._run_sync(start())

    def send_sync(
        self, address: str, payload: Any = None, *, deadline: Duration | None = None, id: str | None = None
    ) -> str:
        """``send`` without an event loop: returns the run's id."""

        async def send() -> str:
            return (await self.send(address, payload, deadline=deadline, id=id)).run_id

        return self._run_sync(send())

    def fork_sync(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = NOT_GIVEN, id: str | None = None
    ) -> str:
        """``fork`` without an event loop: returns the new run's id."""

        async def fork() -> str:
            return (await self.fork(run_id, at=at, with_output=with_output, id=id)).run_id

        return self._run_sync(fork())

    def events_sync(self, run_id: str, after: str | None = None, *, follow: bool = True) -> Iterator[Event]:
        """``events`` without an event loop: to be read with a plain ``for``."""
        if is_loop_running():
            raise UsageError("an event loop is running in this thread: use `async for event in client.events(...)`")
        return self._iterate(self.events(run_id, after, follow=follow))

    def tail_sync(self, **filters: Any) -> Iterator[TailEvent]:
        """``tail`` without an event loop: to be read with a plain ``for``."""
        if is_loop_running():
            raise UsageError("an event loop is running in this thread: use `async for one in client.tail(...)`")
        return self._iterate(self.tail(**filters))

    def _iterate(self, events: AsyncGenerator[T]) -> Iterator[T]:
        async def following() -> T | None:
            return await anext(events, None)

        with asyncio.Runner() as runner:
            try:
                while (one := runner.run(following())) is not None:
                    yield one
            finally:
                runner.run(self.close())

    def _run_sync(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Run a call to its end in an event loop of its own, and disconnect."""

        async def once() -> T:
            try:
                return await coroutine
            finally:
                await self.close()

        try:
            return run_sync(once())
        finally:
            coroutine.close()  # it was never begun if an event loop is running here


Client.__new__.__wrapped__ = Client.__init__  # pyright: ignore[reportFunctionMemberAccess]  # what help() shows
