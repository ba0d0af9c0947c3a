"""``Client``: runs by workflow name, in a store or behind a Holdfast server. It imports none of the user's code."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from typing import Any, TypeVar

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget, Usage
from holdfast.client.backend import Backend
from holdfast.client.backend_factory import choose_backend
from holdfast.client.delivery import Delivery
from holdfast.client.handle import Handle
from holdfast.client.listener import check_handler, check_listen_options, listen, serve
from holdfast.client.sync_listener import SyncDelivery, listen_sync
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption
from holdfast.core.states import RunState, parse_run_states
from holdfast.errors import UsageError
from holdfast.reports.budgets import BudgetInfo
from holdfast.reports.conversations import ConversationMessage
from holdfast.reports.dead_runs import DeadRun
from holdfast.reports.events import Event
from holdfast.reports.plans import Plan
from holdfast.reports.run_info import RunInfo
from holdfast.reports.run_tree import RunTree
from holdfast.reports.tail import TailEvent, TailFilter
from holdfast.reports.types import RunReport
from holdfast.reports.usage_report import UsageReport
from holdfast.services.addresses import ClientAddresses
from holdfast.services.api_keys import ClientKeys
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.audit_log import AuditEntry
from holdfast.services.bulk_start import CallArguments
from holdfast.services.forks import NOT_GIVEN
from holdfast.services.health import DisabledWorkflow, Health
from holdfast.services.journal_files import Journal
from holdfast.services.memories import ClientMemory
from holdfast.services.policies import ClientPolicies
from holdfast.services.queues import ClientQueues
from holdfast.services.retention import PruneReport
from holdfast.services.run_start import StartOptions, make_start_options
from holdfast.services.schedules import ClientSchedules
from holdfast.services.workers import WorkerInfo
from holdfast.stores.contract import RunFilter
from holdfast.sync_methods import is_loop_running, run_sync, sync_method

T = TypeVar("T")


class Client:
    """Starts, follows and signals runs of workflows that workers elsewhere execute.

    It connects when it is first used, and again when it is used under another event loop. ``close`` it, or use it as
    ``async with Client(url) as client:``.

    Args:
        url: the store, such as ``sqlite:///runs.db``, or a Holdfast server, such as ``https://holdfast.example``;
            ``HOLDFAST_URL`` or the default file unless given.
        namespace: whose runs, where several programs or tenants share a store; what the URL says unless given, else
            ``HOLDFAST_NAMESPACE``, else ``default``. Of a server, the key says it.
        max_value: the largest value that is sent, in bytes; 64 MiB unless given.
        encryption: what the workers of the store seal with, such as ``AesEncryption(key)``; the keys in
            ``HOLDFAST_ENCRYPTION_KEYS`` unless given. A server has keys of its own.
        api_key: what a server knows the caller by; ``HOLDFAST_API_KEY`` unless given.
        insecure: send the key over plain ``http://`` to another machine all the same, where whoever stands between can
            read it; ``HOLDFAST_INSECURE=1`` says the same.
    """

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
        self._backend = choose_backend(
            url, namespace, max_value=max_value, encryption=encryption, api_key=api_key, insecure=insecure
        )
        self._options = StartOptions()

    @classmethod
    def from_backend(cls, backend: Backend) -> Client:
        """A client over a backend that somebody has made. To close the one is to close the other."""
        client = object.__new__(cls)
        client._backend = backend
        client._options = StartOptions()
        return client

    @property
    def url(self) -> str:
        """The URL of the store or the server, as people may see it."""
        return self._backend.url

    @property
    def max_value(self) -> int:
        """The largest value that is sent, in bytes."""
        return self._backend.max_value

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

        A run is of the newest version of its workflow that a live worker serves, unless ``version`` says which.
        """
        view = Client.from_backend(self._backend)
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

    async def __aenter__(self) -> Client:
        await self._backend.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. The client connects again if it is used again."""
        await self._backend.close()

    async def start(self, workflow: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Start a run of the workflow of this name (or join the one that is there) and return a handle to it."""
        return self.handle(await self._backend.start(workflow, args, kwargs, self._options))

    async def start_many(self, workflow: str, calls: Iterable[CallArguments]) -> list[str]:
        """Start (or join) a run for each of ``calls``, a thousand in one commit, and return their ids in order.

        A call is a tuple of arguments, or a mapping of them. If one cannot be started, what ``start`` would raise is
        raised; those before it are started. With an id template, the same call may then be made again.
        """
        return await self._backend.start_many(workflow, calls, self._options)

    async def send(
        self, address: str, payload: Any = None, *, deadline: Duration | None = None, id: str | None = None
    ) -> Handle[Any]:
        """Send work to an address, where whoever listens takes it, and return a handle to its run.

        The work is a run like any other: it waits until somebody listens, survives whoever works on it, and its result
        is what they completed it with.

        Args:
            address: where to. It is there as soon as somebody sends to it or listens on it.
            payload: what is sent.
            deadline: by when it must have ended, from its beginning on: seconds, a ``timedelta``, or words such as
                ``15 min``; what the address says unless given.
            id: of the run: what was sent before under this id is not sent twice.
        """
        seconds = None if deadline is None else duration_to_seconds(deadline, f"address {address!r}: deadline")
        options = self._options if id is None else replace(self._options, id=id)
        if options.id is not None and options.dedup is not None:
            raise UsageError(
                f"address {address!r}: id={options.id!r} and dedup={options.dedup!r} name two runs to join: give one"
            )
        return self.handle(await self._backend.send(address, payload, options, seconds))

    async def run(self, workflow: str, /, *args: Any, **kwargs: Any) -> Any:
        """Start a run and wait for its result: plain data, or the ``AgentResult`` of an agent with plain data in it."""
        return await (await self.start(workflow, *args, **kwargs)).result()

    def handle(self, run_id: str) -> Handle[Any]:
        """A handle to a run that was started before."""
        return Handle(self._backend, run_id)

    async def wait(self, run: str | Handle[Any], timeout: float | None = None) -> Any:
        """The result of a run, by its id or its handle, once it has ended, whoever executes it."""
        return await (self.handle(run) if isinstance(run, str) else run).result(timeout)

    async def get(self, run_id: str) -> RunInfo:
        """What can be told of a run now."""
        return await self._backend.info(run_id)

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
            limit: at most so many.
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
        return await self._backend.list(where, limit, before)

    async def signal(self, run_id: str, name: str, value: Any = None, *, id: str | None = None) -> bool:
        """Send a value into a run. With an ``id``, sending it again changes nothing (and returns false)."""
        return await self._backend.signal(run_id, name, value, id)

    async def cancel(self, run_id: str) -> bool:
        """Ask for a run to be cancelled; false when that was asked before. ``RunEnded`` if it has ended."""
        return await self._backend.cancel(run_id)

    async def pause(self, run_id: str) -> bool:
        """Keep a run from going on; false when it was paused before. Steps in flight may end, and are recorded."""
        return await self._backend.pause(run_id)

    async def resume(self, run_id: str) -> bool:
        """Let a paused run go on; false when it was not paused."""
        return await self._backend.resume(run_id)

    async def approvals(
        self,
        run_id: str | None = None,
        *,
        workflow: str | None = None,
        assignee: str | None = None,
        all: bool = False,
        limit: int = 1000,
    ) -> builtins.list[ApprovalInfo]:
        """Questions that wait for a person's answer, the longest open first; with ``all``, also those that are closed.

        Args:
            run_id: only those of this run.
            workflow: only those of runs of this workflow.
            assignee: only those that this person is asked now.
            all: also what was answered or withdrawn.
            limit: at most so many.
        """
        return await self._backend.approvals(run_id, workflow=workflow, assignee=assignee, all=all, limit=limit)

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
            by: who answers; unless given, the user of the operating system, or of a server, the name of the key.
            reason: why, for people to read.

        Raises ``InputError`` if the answer does not fit (the question stays open), ``ApprovalClosed`` if it was
        answered before or nobody waits for it any more, and ``UnknownApproval``.
        """
        return await self._backend.approve(id, value, arguments=arguments, by=by, reason=reason)

    async def deny(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """Say no to a question; false when the same person has said the very same before. Errors as for ``approve``."""
        return await self._backend.deny(id, by=by, reason=reason)

    async def approval(self, id: str) -> ApprovalInfo:
        """One question, and what has become of it; the beginning of its id will do. Raises ``UnknownApproval``."""
        return await self._backend.approval(id)

    def events(self, run_id: str, after: str | None = None, *, follow: bool = True) -> AsyncGenerator[Event]:
        """What happens in a run, whoever executes it, from its beginning or behind ``after``: see ``Handle.events``."""
        return self._backend.events(run_id, after, follow=follow)

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
        return self._backend.tail(TailFilter(workflow, tag, tuple(parse_run_states(state))), since)

    async def usage(self, run_id: str) -> Usage:
        """What the model calls of a run have used so far, with those of the runs that it has started."""
        return await self._backend.usage(run_id)

    async def usage_report(
        self, since: date | None = None, until: date | None = None, *, workflow: str | None = None
    ) -> UsageReport:
        """What the model calls of all runs have used, by day, agent and model; and how many runs were created.

        Args:
            since: the first day, of UTC; 29 days before the last one unless given.
            until: the last day, included; today unless given.
            workflow: only what runs of this agent or workflow have used.
        """
        return await self._backend.usage_report(since, until, workflow)

    async def plan(self, run_id: str) -> Plan:
        """What an agent's run means to do, and how far it is; empty as long as it has written no plan."""
        return await self._backend.plan(run_id)

    async def budget(self, run_id: str) -> BudgetInfo:
        """What a run may use and has used, with the budgets above it and the runs that it has started."""
        return await self._backend.budget(run_id)

    async def describe(
        self, run_id: str, after: int | None = None, limit: int | None = 500, *, full: bool = False
    ) -> RunReport:
        """Everything known about a run now: what `holdfast show` prints, as data.

        Its state and what keeps it from continuing, its journal, its usage, and the runs and workers related to it;
        `summary` describes what it did, and `advice` what to do next.

        Args:
            run_id: the run.
            after: return records after this `seq`; default: from the beginning.
            limit: maximum number of records (`has_more` says whether there are others); `None`: all of them.
            full: include large values. By default, only their beginning is included, and `is_truncated` is set.
        """
        return await self._backend.describe(run_id, after, limit, full=full)

    async def conversation(self, run_id: str) -> builtins.list[ConversationMessage]:
        """What was said in an agent's run so far; empty for other runs."""
        return await self._backend.conversation(run_id)

    async def tree(self, run_id: str) -> RunTree:
        """The tree of runs that a run is in, from its topmost ancestor down, at most 500 of them."""
        return await self._backend.tree(run_id)

    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Give a run another budget in place of the one that it was started with; it goes on if that was used up."""
        await self._backend.set_budget(run_id, budget)

    async def retry(self, run_id: str, *, run_again: bool = False, version: str | None = None) -> None:
        """Let a failed, cancelled or dead run go on from where it went wrong.

        The records that ended it are taken back from its journal, with what the workflow did because of them; a run
        that it had started, and that failed, is retried as well. If a ``once`` step would thereby run a second time,
        ``run_again=True`` says that it may. ``version`` lets the code of another version of its workflow go on with it
        (not with the runs that it had started). Raises ``RetryRefused`` if the run cannot go on.
        """
        await self._backend.retry(run_id, run_again=run_again, version=version)

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
        await self._backend.settle(run_id, step, output=output, happened=happened, by=by)

    async def dead(
        self, *, workflow: str | None = None, limit: int = 50, before: str | None = None
    ) -> builtins.list[DeadRun]:
        """Runs whose workers died too often while they held nothing else, newest first, and what was in flight.

        They are left alone until somebody retries them (``retry``).

        Args:
            workflow: only those of this workflow.
            limit: at most so many.
            before: the id of the last one of the page before, to go on from there.
        """
        return await self._backend.dead(workflow, limit, before)

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
            keep: not the newest so many of each workflow.
            unclaimed: also those whose result nobody has had, because the process that started them was killed.
            run_ids: only these.
            dry_run: delete nothing, only tell.
            report: is brought up to date after every piece, for whoever may be interrupted; by a server, at the end.
        """
        return await self._backend.prune(
            older_than,
            parse_run_states(state),
            workflow=workflow,
            keep=keep,
            unclaimed=unclaimed,
            run_ids=run_ids,
            dry_run=dry_run,
            report=PruneReport() if report is None else report,
        )

    async def export(self, run_id: str) -> Journal:
        """A run outside its store, as it is now: its row and all that is recorded of it, for ``replay`` and files."""
        return await self._backend.export(run_id)

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
        return self.handle(await self._backend.fork(run_id, at=at, with_output=with_output, id=id))

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
        return listen(
            self._backend.create_listener(address, concurrency=concurrency, name=name), concurrency=concurrency
        )

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
        await serve(self._backend.create_listener(address, concurrency=concurrency, name=name), handler)

    def listen_sync(self, address: str, *, concurrency: int = 1, name: str | None = None) -> Iterator[SyncDelivery]:
        """``listen`` without an event loop: ``for delivery in client.listen_sync("pipeline"): with delivery: ...``.

        The connection and the heartbeats live on a thread beside, so that a function that blocks loses nothing.
        """
        check_listen_options(address, concurrency, name)
        return listen_sync(
            lambda: self._backend.create_listener(address, concurrency=concurrency, name=name),
            self.close,
            concurrency=concurrency,
        )

    async def workers(self) -> builtins.list[WorkerInfo]:
        """The processes that take up runs: those that are live, and those that unfinished runs refer to."""
        return await self._backend.workers()

    async def health(self) -> builtins.list[Health]:
        """How it is with every agent and workflow that is known: who serves it, by its workers' heartbeats."""
        return await self._backend.health()

    async def inputs_schema(self, workflow: str, *, version: str | None = None) -> Mapping[str, Any]:
        """A JSON schema of the inputs of a workflow or an agent; an empty one if its workers have announced none.

        A start is checked by it before anything is stored. Raises ``UnknownWorkflow``.

        Args:
            workflow: its name.
            version: of its code; the newest that is served unless given.
        """
        return await self._backend.inputs_schema(workflow, version)

    async def disable(self, workflow: str, *, reason: str = "", by: str | None = None) -> bool:
        """Stop a workflow or an agent everywhere: its runs stop at the next recorded point, and none is started.

        It stays disabled until someone enables it, even if a policy had disabled it for the rest of the day. False
        when it was disabled before.

        Args:
            workflow: its name.
            reason: why, for others to read.
            by: who does it; default: the user of the operating system, or the name of the API key.
        """
        return await self._backend.disable(workflow, reason, by)

    async def enable(self, workflow: str) -> bool:
        """Enable a workflow again: its runs continue; false when it was not disabled."""
        return await self._backend.enable(workflow)

    async def disabled_workflows(self) -> dict[str, DisabledWorkflow]:
        """The workflows and agents that are disabled: since when, by whom, and why."""
        return await self._backend.disabled_workflows()

    async def audit(self, limit: int = 100) -> builtins.list[AuditEntry]:
        """Who asked servers for what, the newest first, at most ``limit``; also what was refused."""
        return await self._backend.audit(limit)

    @property
    def memory(self) -> ClientMemory:
        """Values that outlive runs: ``put``, ``get``, ``search``, ``list`` and ``delete``."""
        return ClientMemory(self._backend.memory, self._run_sync)

    @property
    def schedules(self) -> ClientSchedules:
        """What is started at set times: ``create``, ``list``, ``pause``, ``resume``, ``trigger`` and so on."""
        return ClientSchedules(self._backend.schedules, self._run_sync)

    @property
    def queues(self) -> ClientQueues:
        """Queues with limits: ``list``, ``get``, ``set``, ``reset``, ``pause`` and ``resume``."""
        return ClientQueues(self._backend.queues, self._run_sync)

    @property
    def addresses(self) -> ClientAddresses:
        """Where work is sent to: ``list``, ``set`` and ``delete``."""
        return ClientAddresses(self._backend.addresses, self._run_sync)

    @property
    def policies(self) -> ClientPolicies:
        """What agents may use up in a day: ``list``, ``set`` and ``delete``."""
        return ClientPolicies(self._backend.policies, self._run_sync)

    @property
    def keys(self) -> ClientKeys:
        """API keys for servers: ``create``, ``list`` and ``revoke``."""
        return ClientKeys(self._backend.keys, self._run_sync)

    # The same, for code without an event loop

    start_many_sync = sync_method(start_many)
    run_sync = sync_method(run)
    wait_sync = sync_method(wait)
    get_sync = sync_method(get)
    list_sync = sync_method(list)
    signal_sync = sync_method(signal)
    cancel_sync = sync_method(cancel)
    pause_sync = sync_method(pause)
    resume_sync = sync_method(resume)
    approvals_sync = sync_method(approvals)
    approval_sync = sync_method(approval)
    approve_sync = sync_method(approve)
    deny_sync = sync_method(deny)
    usage_sync = sync_method(usage)
    usage_report_sync = sync_method(usage_report)
    plan_sync = sync_method(plan)
    budget_sync = sync_method(budget)
    describe_sync = sync_method(describe)
    conversation_sync = sync_method(conversation)
    tree_sync = sync_method(tree)
    set_budget_sync = sync_method(set_budget)
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
