"""``Client``: starts runs by workflow name and operates on them, in a store or on a Holdfast server.

It imports none of the user's code.

``Client`` works on a store, with the functions in ``services`` and ``reports``. ``Client(url)`` returns an
``HttpClient`` instead if the URL is that of a server: a subclass that overrides every operation with a request.
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.client.admin_operations import AdminOperations
from holdfast.client.delivery import Delivery
from holdfast.client.handle import Handle
from holdfast.client.http.server_endpoint import is_server_url
from holdfast.client.listener import check_handler, check_listen_options, listen, serve
from holdfast.client.loop_thread import SyncLoop
from holdfast.client.resources import (
    ClientAddresses,
    ClientKeys,
    ClientMemory,
    ClientPolicies,
    ClientQueues,
    ClientSchedules,
)
from holdfast.client.run_operations import RunOperations
from holdfast.client.store_connections import LoopConnections
from holdfast.client.sync_listener import SyncDelivery, listen_sync
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption
from holdfast.core.states import RunState, parse_run_states
from holdfast.errors import StoreNotFound, UsageError
from holdfast.reports.run_info import RunInfo, read_run_infos
from holdfast.reports.tail import TailEvent, TailFilter, read_tail
from holdfast.services.addresses import send_to_address
from holdfast.services.bulk_start import CallArguments, start_many
from holdfast.services.forks import NOT_GIVEN, fork_run
from holdfast.services.input_validation import bind_inputs
from holdfast.services.run_start import StartOptions, build_new_run, find_spec, make_start_options, resolve_start
from holdfast.stores.contract import DEFAULT_NAMESPACE, RunFilter, Store
from holdfast.stores.operations import StartRun
from holdfast.stores.queues import NewQueue
from holdfast.stores.urls import create_store, redact_url, resolve_store_url, split_namespace, with_namespace
from holdfast.sync_methods import sync_iterator, sync_method

if TYPE_CHECKING:
    from holdfast.client.http.listener import HttpListener

T = TypeVar("T")


def _get_run_id(handle: Handle[Any]) -> str:
    return handle.run_id


async def _disconnect(*connections: LoopConnections) -> None:
    for one in connections:
        await one.close()


class Client(RunOperations, AdminOperations):
    """Starts, follows, and signals runs of workflows that workers elsewhere execute.

    It connects when it is first used, and again when it is used under another event loop. ``close`` it, or use it as
    ``async with Client(url) as client:``.

    Args:
        url: a store, such as ``sqlite:///runs.db``, or a Holdfast server, such as ``https://holdfast.example``;
            default: ``HOLDFAST_URL``, else the default file.
        namespace: the namespace, if several programs or tenants share a store; default: what the URL says, else
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
        """An ``HttpClient`` for the URL of a server; its ``__init__`` gets the same arguments."""
        if cls is not Client:
            return super().__new__(cls)
        if url is not None and not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"Client({url!r}): the URL is a text, such as 'sqlite:///runs.db' or 'https://...'")
        if not is_server_url(url):
            return super().__new__(cls)
        from holdfast.client.http.client import HttpClient

        return cast("Self", object.__new__(HttpClient))

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        max_value: int = DEFAULT_MAX_VALUE_BYTES,
        encryption: Encryption | None = None,
        api_key: str | None = None,
        insecure: bool = False,
    ) -> None:
        connections = LoopConnections(resolve_store_url(url, namespace), partial(create_store, encryption=encryption))
        if api_key is not None or insecure:
            option = "api_key" if api_key is not None else "insecure"
            store = redact_url(connections.url)
            raise UsageError(f"Client({option}=...) is for a Holdfast server (https://...), and {store} is a store")
        self._use_connections(connections, max_value)

    @classmethod
    def from_connections(cls, connections: LoopConnections) -> Client:
        """A client that shares connections to a store; ``close`` closes them."""
        client = object.__new__(Client)
        client._use_connections(connections, DEFAULT_MAX_VALUE_BYTES)
        return client

    def _use_connections(self, connections: LoopConnections, max_value: int) -> None:
        super().__init__(connections, max_value=max_value)
        self.url = redact_url(connections.url)
        self.connections = connections
        database_url, namespace = split_namespace(connections.url)
        self._default_connections = connections.for_url(with_namespace(database_url, DEFAULT_NAMESPACE))
        """Connections to the default namespace of the same database, which holds the API keys."""
        self._sync_loop = SyncLoop(partial(_disconnect, connections, self._default_connections))
        self.memory = ClientMemory(connections, self._run_sync, max_value)
        self.schedules = ClientSchedules(connections, self._run_sync)
        self.queues = ClientQueues(connections, self._run_sync)
        self.addresses = ClientAddresses(connections, self._run_sync)
        self.policies = ClientPolicies(connections, self._run_sync)
        self.keys = ClientKeys(self._default_connections, self._run_sync, namespace or DEFAULT_NAMESPACE)
        self._announced_queues: WeakKeyDictionary[Store, WeakSet[Queue]] = WeakKeyDictionary()
        """The queues whose limits were announced, by connection."""

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
        try:
            await self.connections.store()
        except StoreNotFound:
            pass  # a first write creates it, and anything else raises this again

    async def close(self) -> None:
        """Disconnect. The client connects again if it is used again."""
        await _disconnect(self.connections, self._default_connections)

    # Starting runs

    async def start(self, workflow: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Start a run of the workflow of this name (or join the existing one) and return a handle to it."""
        return self.handle(await self._start(workflow, args, kwargs))

    async def _start(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        store = await self.connections.created_store()
        spec = await find_spec(store, workflow, self._options.version)
        inputs = bind_inputs(spec, args, kwargs)
        await self._announce_queue(store, self._options.queue)
        new = build_new_run(spec, inputs, self._options, now=store.now(), max_value=self.max_value)
        [answer] = await store.commit([StartRun(new)])
        return resolve_start(answer, new).id

    async def start_many(self, workflow: str, calls: Iterable[CallArguments]) -> list[str]:
        """Start (or join) a run for each of ``calls``, a thousand in one commit, and return their ids in order.

        A call is a tuple of arguments, or a mapping of them. One that cannot be started raises what ``start`` would
        raise. If its arguments are invalid, no run of its batch of up to 1000 is started; if it cannot join an existing
        run, the rest of its batch is. Earlier batches stay started. With an id template, you can safely call this
        again.
        """
        store = await self.connections.created_store()
        spec = await find_spec(store, workflow, self._options.version)
        await self._announce_queue(store, self._options.queue)
        return await start_many(store, spec, calls, self._options, self.max_value)

    async def _announce_queue(self, store: Store, queue: str | Queue | None) -> None:
        """Declare the limits of a queue, if the client was given some, before a run is in it."""
        if not isinstance(queue, Queue):
            return
        announced = self._announced_queues.setdefault(store, WeakSet())
        if queue not in announced:
            await store.queues.declare([NewQueue(queue.name, queue.limits)])
            announced.add(queue)

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
        store = await self.connections.created_store()
        await self._announce_queue(store, options.queue)
        run, _ = await send_to_address(
            store, address, payload, options, deadline_s=deadline_s, max_value=self.max_value
        )
        return run.id

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
            text: part of its id, its workflow's name, its tags, or its error.
            parent: the id of the run that started it.
            id_prefix: how its id begins.
            created_after: created at this time or later (a time with a time zone).
            created_before: created earlier than this.
            limit: maximum number of results.
            before: the id of the last run of the previous page, to continue from there.
        """
        run_filter = RunFilter(
            states=parse_run_states(state),
            workflow=workflow,
            tag=tag,
            text=text,
            parent=parent,
            id_prefix=id_prefix,
            created_after=None if created_after is None else created_after.timestamp(),
            created_before=None if created_before is None else created_before.timestamp(),
        )
        return await self._list(run_filter, limit, before)

    async def _list(self, run_filter: RunFilter, limit: int, before: str | None) -> builtins.list[RunInfo]:
        store = await self.connections.store()
        key = None if before is None else (await self.connections.read(before)).key
        rows = await store.list_runs(run_filter, limit=limit, before_key=key)
        return await read_run_infos(store, rows, allow_stale_usage=True)

    def tail(
        self,
        *,
        workflow: str | None = None,
        tag: str | None = None,
        state: RunState | str | Collection[RunState | str] = (),
        since: datetime | None = None,
    ) -> AsyncGenerator[TailEvent]:
        """What happens in all runs, as it happens: ``async for event in client.tail():``. It continues until closed.

        Yields run starts, step ends, answers, approvals, failures, takeovers, and run ends. For a single run,
        ``events`` has more detail. It continues across broken connections and restarts of the server.

        Args:
            workflow: only runs of this workflow.
            tag: only runs with this tag.
            state: only runs that are in this state, or in one of these, when the event is read.
            since: include what has happened since this time (a time with a time zone); default: now.
        """
        return self._tail(TailFilter(workflow, tag, tuple(parse_run_states(state))), since)

    async def _tail(self, tail_filter: TailFilter, since: datetime | None) -> AsyncGenerator[TailEvent]:
        start = await self.connections.now() if since is None else since.timestamp()
        async with aclosing(read_tail(self.connections, tail_filter, start)) as events:
            async for event in events:
                yield event

    async def fork(
        self, run_id: str, *, at: int | str | None = None, with_output: Any = NOT_GIVEN, id: str | None = None
    ) -> Handle[Any]:
        """A new run that shares the records of another one up to a step.

        Args:
            run_id: the run to fork.
            at: the step to continue from: its number (see ``holdfast show``), or its name if only one step has it. It
                runs again. Without ``at``, the fork shares all records.
            with_output: use this as the output of the step; then the step does not run again.
            id: the id of the new run; default: generated.
        """
        return self.handle(await self._fork(run_id, at=at, with_output=with_output, id=id))

    async def _fork(self, run_id: str, *, at: int | str | None, with_output: Any, id: str | None) -> str:
        store = await self.connections.store()
        run = await fork_run(store, run_id, at=at, with_output=with_output, new_id=id, max_value=self.max_value)
        return run.id

    def listen(self, address: str, *, concurrency: int = 1, name: str | None = None) -> AsyncGenerator[Delivery]:
        """Deliveries of an address, as they come: ``async for delivery in client.listen("pipeline"):``.

        It continues across broken connections and restarts of the server, until you leave the loop. Heartbeats keep
        the claimed deliveries. Raises ``Unauthenticated`` and ``NotAllowed`` if this key may not listen there.

        Args:
            address: where to listen. An address exists as soon as it is used.
            concurrency: how many deliveries can be claimed at once; the next one comes when one of them has ended.
            name: what people call this process; default: its host and process id.
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
        """Call an async function with each delivery of an address. Its return value completes the delivery's run.

        Continues until it is cancelled, and then releases the deliveries that it holds. Arguments as for ``listen``.
        """
        check_listen_options(address, concurrency, name)
        check_handler(handler)
        await serve(self._create_listener(address, concurrency=concurrency, name=name), handler)

    def listen_sync(self, address: str, *, concurrency: int = 1, name: str | None = None) -> Iterator[SyncDelivery]:
        """``listen`` without an event loop: ``for delivery in client.listen_sync("pipeline"): with delivery: ...``.

        The connection and the heartbeats live on a thread of their own, so a function that blocks loses no delivery.
        """
        check_listen_options(address, concurrency, name)
        return listen_sync(
            lambda: self._create_listener(address, concurrency=concurrency, name=name),
            self.close,
            concurrency=concurrency,
        )

    def _create_listener(self, address: str, *, concurrency: int, name: str | None) -> HttpListener:
        """A new listener, which belongs to the event loop that first uses it."""
        raise UsageError(
            f"{self.url} is a store, and deliveries are handed out by a server: start one over it with `holdfast "
            f"serve`, and listen with Client('http://...'). Code that can reach the store itself needs no deliveries: "
            f"make it a workflow"
        )

    # The same, for code without an event loop

    start_sync = sync_method(start, _get_run_id)
    send_sync = sync_method(send, _get_run_id)
    fork_sync = sync_method(fork, _get_run_id)
    events_sync = sync_iterator(RunOperations.events)
    tail_sync = sync_iterator(tail)
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
    usage_report_sync = sync_method(AdminOperations.usage_report)
    plan_sync = sync_method(RunOperations.plan)
    budget_sync = sync_method(RunOperations.budget)
    describe_sync = sync_method(RunOperations.describe)
    conversation_sync = sync_method(RunOperations.conversation)
    tree_sync = sync_method(RunOperations.tree)
    set_budget_sync = sync_method(RunOperations.set_budget)
    retry_sync = sync_method(RunOperations.retry)
    settle_sync = sync_method(RunOperations.settle)
    dead_sync = sync_method(AdminOperations.dead)
    prune_sync = sync_method(AdminOperations.prune)
    erase_sync = sync_method(AdminOperations.erase)
    export_sync = sync_method(RunOperations.export)
    workers_sync = sync_method(AdminOperations.workers)
    health_sync = sync_method(AdminOperations.health)
    inputs_schema_sync = sync_method(AdminOperations.inputs_schema)
    disable_sync = sync_method(AdminOperations.disable)
    enable_sync = sync_method(AdminOperations.enable)
    disabled_workflows_sync = sync_method(AdminOperations.disabled_workflows)
    audit_sync = sync_method(AdminOperations.audit)

    def close_sync(self) -> None:
        """Disconnect what the ``..._sync`` methods use, which otherwise stays open as long as the client."""
        self._sync_loop.close()

    def _iterate_sync(self, events: AsyncGenerator[T]) -> Iterator[T]:
        async def read_next() -> T | None:
            return await anext(events, None)

        try:
            while (event := self._sync_loop.run(read_next())) is not None:
                yield event
        finally:
            self._sync_loop.submit(events.aclose())

    def _run_sync(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        __tracebackhide__ = True
        return self._sync_loop.run(coroutine)


Client.__new__.__wrapped__ = Client.__init__  # pyright: ignore[reportFunctionMemberAccess]  # what help() shows
