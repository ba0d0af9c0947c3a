"""The store over Temporal, for clients, handles and the command line.

**Differences from the other stores.** There are no claims and no appended records: Temporal's workers execute the runs
(``holdfast.temporal``). Operations from outside become messages to workflows. A call of ``commit`` is not a
transaction: it performs its operations one after the other. Lists and counts come from Temporal's visibility store,
which lags a moment behind; requests about one run, by its id, go to the server itself.

Temporal does not support all capabilities: see ``unsupported``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from temporalio.client import Client

from holdfast.admission.usage import Usage
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption, validate_size
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.errors import CodecError, RunNotFound, StoreError, StoreUnavailable, UsageError
from holdfast.stores.approvals import AnswerApproval, Approval, ApprovalFilter, select_approvals
from holdfast.stores.contract import History, RunFilter, RunSearchPage, RunUsage, Store, WorkflowSpec
from holdfast.stores.journal_pages import JournalPage, make_journal_page
from holdfast.stores.live_events import RunUpdates
from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.operations import (
    CancelRun,
    ForkRun,
    Op,
    OpResult,
    OpStatus,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    SendSignal,
    SetBudget,
    StartResult,
    StartRun,
)
from holdfast.stores.temporal import requests, visibility
from holdfast.stores.temporal.announcements import announce, list_announced
from holdfast.stores.temporal.approvals import list_open_approvals, read_approvals
from holdfast.stores.temporal.connection import connect
from holdfast.stores.temporal.end_watcher import EndWatcher
from holdfast.stores.temporal.errors import translate_errors
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.journals import infer_records
from holdfast.stores.temporal.memories import TemporalMemories
from holdfast.stores.temporal.payloads import get_max_value_size
from holdfast.stores.temporal.pollers import ServedWorkflow, list_polling_workers
from holdfast.stores.temporal.retry_and_fork import fork_run, reopen_run
from holdfast.stores.temporal.rows import ExecutionDescription, describe_execution, find_run, get_time_range, read_row
from holdfast.stores.temporal.run_details import (
    read_history,
    read_live_events,
    read_memo_usages,
    read_usage,
    set_first_epoch,
)
from holdfast.stores.temporal.run_start import has_tags_attribute, start_run
from holdfast.stores.temporal.targets import Target
from holdfast.stores.temporal.unsupported import (
    NoDisabledWorkflows,
    NoDocuments,
    UnlimitedQueues,
    unsupported_capability_error,
)
from holdfast.stores.workers import Worker

log = logging.getLogger("holdfast.stores")

MAX_CONCURRENT_READS = 16
MAX_SEARCHED_RUNS = 500
"""The maximum number of runs that one page of a search reads: each is a request to the server."""
MAX_REMEMBERED_IDS = 10_000

A = TypeVar("A")
T = TypeVar("T")


class TemporalStore(Store):
    """Runs in a namespace of a Temporal server.

    Args:
        target: the server and the namespace.
        clock: the client's clock; the server has its own.
        encryption: encrypts payloads before they reach the server (default: with the keys in the environment, if any).
        identity: the client's name in Temporal (default: its process and host).
    """

    def __init__(
        self,
        target: Target,
        *,
        clock: Callable[[], float] = time.time,
        encryption: Encryption | None = None,
        identity: str | None = None,
    ) -> None:
        self.target = target
        self._identity = identity
        self.url = target.url
        self.namespace = target.namespace
        self._clock = clock
        self._encryption = encryption
        self._client: Client | None = None
        self._has_tags = False
        self._read_semaphore = asyncio.Semaphore(MAX_CONCURRENT_READS)
        self.memories = self._memories = TemporalMemories(target, encryption)
        self.queues = UnlimitedQueues()
        self.disabled_workflows = NoDisabledWorkflows()
        self.documents = NoDocuments()
        self._run_ids_by_key = _RunIdCache[int]()
        self._run_ids_by_approval = _RunIdCache[str]()
        self._served_workflows = _RunIdCache[ServedWorkflow]()
        """The queues, workflows and versions of unfinished runs that were read here."""

    # Opening and closing

    async def open(self) -> None:
        if self._client is None:
            # These belong to one event loop, and the store may have been open on another one.
            self._read_semaphore = asyncio.Semaphore(MAX_CONCURRENT_READS)
            self._memories.reset()
            client = await connect(self.target, encryption=self._encryption, identity=self._identity)
            self._has_tags = await has_tags_attribute(client)
            self._history_cache = HistoryCache(client)
            self._end_watcher = EndWatcher(client)
            self._client = client

    async def close(self) -> None:
        self.abandon()
        await self._memories.close()

    def abandon(self) -> None:
        """Drop the connection. The SDK closes it with its last user."""
        if self._client is not None:
            self._client = None
            self._end_watcher.stop()

    def make_unsupported_error(self, name: str) -> UsageError:
        return unsupported_capability_error(name)

    @property
    def client(self) -> Client:
        """The SDK's own client."""
        if self._client is None:
            raise StoreUnavailable(f"{self.url} is not open")
        return self._client

    def now(self) -> float:
        return self._clock()

    async def wait_for_change(self, timeout_s: float, *, follow_runs: bool = True) -> bool:
        """Wait until a recently read run has ended, or until the timeout. Temporal reports no other changes."""
        if self._client is None:
            await asyncio.sleep(timeout_s)
            return False
        return await self._end_watcher.wait_for_any(timeout_s)

    # Changing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Perform one operation after the other."""
        for op in ops:
            self._check_size(op)
        with translate_errors(self.target):
            return [await self._apply(op) for op in ops]

    def _check_size(self, op: Op) -> None:
        """Refuse a value that is too large before the server does, which may close the connection."""
        limit = get_max_value_size(DEFAULT_MAX_VALUE_BYTES, has_external_payloads=bool(self.target.payload_location))
        match op:
            case StartRun():
                validate_size(op.run.inputs, f"the inputs of workflow {op.run.workflow!r}", limit)
            case SendSignal():
                validate_size(op.payload, f"the value of signal {op.name!r} for run {op.run_id!r}", limit)
            case AnswerApproval():
                validate_size(op.payload, f"the answer to approval {op.id}", limit)
            case _:
                pass

    async def _apply(self, op: Op) -> OpResult:
        client, histories, now, tags = self.client, self._history_cache, self.now(), self._has_tags
        match op:
            case StartRun():
                return self._remember_started(await start_run(client, op, now, has_tags=tags))
            case ForkRun():
                return self._remember_started(await fork_run(histories, op, now, has_tags=tags))
            case SendSignal():
                return await requests.send_signal(histories, op)
            case CancelRun():
                return await requests.cancel_run(client, op)
            case PauseRun() | ResumeRun():
                return await requests.pause_or_resume_run(client, op)
            case ReopenRun():
                return await reopen_run(histories, op, now, has_tags=tags)
            case AnswerApproval():
                return await self._answer_approval(op)
            case PutMemory() | DeleteMemory():
                return (await (await self._memories.get_store()).commit([op]))[0]
            case SetBudget():
                return await requests.set_budget(client, op)
            case _:
                raise unsupported_capability_error("claims")

    def _remember_started(self, answer: StartResult | OpStatus) -> OpResult:
        if isinstance(answer, StartResult):
            self._remember_run(answer.run)
        return answer

    async def update_run(self, run_id: str, name: str, *args: Any) -> Any:
        """Send an update to a run, and return what it answers."""
        with translate_errors(self.target):
            handle = self.client.get_workflow_handle(run_id)
            return await handle.execute_update(name, args=list(args))  # pyright: ignore[reportUnknownMemberType]

    # Reading

    async def get_run(self, run_id: str) -> Run | None:
        with translate_errors(self.target):
            execution = await find_run(self.client, run_id)
            if execution is None:
                return None
            if execution.is_open:
                self._end_watcher.watch(execution)  # the caller may wait for its end
            return self._remember_run(await read_row(self.client, execution))

    async def wait_until_ended(self, run_id: str) -> Run:
        """A run's row, once it has ended. Raises ``RunNotFound``."""
        while True:
            with translate_errors(self.target):
                execution = await find_run(self.client, run_id)
                if execution is None:
                    raise RunNotFound(f"there is no run {run_id!r} in {self.url}", run_id)
                if not execution.is_open:
                    return self._remember_run(await read_row(self.client, execution))
                await self._end_watcher.wait(execution)

    def _remember_run(self, run: Run) -> Run:
        self._run_ids_by_key[run.key] = run.id
        if not run.state.is_terminal:
            self._served_workflows[run.queue, run.workflow, run.version] = run.id
        return run

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        runs = await self._gather_limited(
            lambda id: self._skip_unreadable(id, self.get_run(id)), dict.fromkeys(run_ids)
        )
        return [run for run in runs if run is not None]

    async def _skip_unreadable(self, run_id: str, row: Awaitable[Run | None]) -> Run | None:
        try:
            return await row
        except (StoreError, CodecError, ValueError, KeyError) as error:
            if isinstance(error, StoreUnavailable):
                raise
            log.warning("run %r in %s cannot be read, and is left out: %s", run_id, self.url, error)
            return None

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        """Runs that match, ordered by their last start or retry, newest first."""
        return (await self.search_runs(where, limit=limit, before_key=before_key, max_scanned=sys.maxsize)).runs

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        """The same. Temporal cannot search for everything, so this may read rows one by one; hence small pages."""
        if where.owner is not None or where.parent == "" or limit < 1:
            return RunSearchPage([], None)
        if max_scanned != sys.maxsize:
            max_scanned = min(max_scanned, MAX_SEARCHED_RUNS)
        query = visibility.make_query(where, has_tags=self._has_tags)
        found: dict[str, Run] = {}
        batch: list[ExecutionDescription] = []
        last: ExecutionDescription | None = None
        scanned_count = 0
        with translate_errors(self.target):
            async for execution in visibility.list_newest_first(self.client, query, before_key, self.now()):
                if scanned_count >= max_scanned or len(found) >= limit:
                    break
                scanned_count, last = scanned_count + 1, execution
                if not visibility.is_match(execution, where):
                    continue
                batch.append(execution)
                if len(batch) >= MAX_CONCURRENT_READS:
                    await self._add_rows(batch, where, found)
                    batch = []
            else:
                last = None
            await self._add_rows(batch, where, found)
        runs = list(found.values())[:limit]
        if len(found) > limit:
            return RunSearchPage(runs, runs[-1].key, runs[-1].created_at)
        return RunSearchPage(runs, None) if last is None else RunSearchPage(runs, last.key, last.started_at)

    async def _add_rows(
        self, executions: Sequence[ExecutionDescription], where: RunFilter, found: dict[str, Run]
    ) -> None:
        async def read(execution: ExecutionDescription) -> Run | None:
            row = self._read_listed_row(execution, by_parent=where.parent is not None)
            return await self._skip_unreadable(execution.id, row)

        for run in await self._gather_limited(read, executions):
            if run is not None and run.id not in found and visibility.is_row_match(run, where):
                found[run.id] = self._remember_run(run)

    async def _read_listed_row(self, listed: ExecutionDescription, *, by_parent: bool) -> Run | None:
        """The row of a listed execution; ``None`` if another execution of the same run has replaced it."""
        execution = await describe_execution(self.client, listed.id)
        if execution is None or (execution.execution_id != listed.execution_id and not by_parent):
            return None
        row = await read_row(self.client, execution, include_external=False)
        return replace(row, key=listed.key)  # the next page continues from the listed execution

    async def _gather_limited(self, fetch: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
        """The results for these items, a few at a time."""

        async def fetch_one(item: A) -> T:
            async with self._read_semaphore:
                return await fetch(item)

        return await asyncio.gather(*map(fetch_one, items))

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        """The number of runs of each announced workflow; Temporal counts all of them, whatever ``max_ended`` is.

        Temporal counts by its own states: all unfinished runs count as ``running``, dead ones as ``failed``. Executions
        that were retried count as well.
        """
        names = sorted({spec.name for spec in (await self.get_workflow_specs()).values()})
        with translate_errors(self.target):
            counts = await self._gather_limited(lambda name: visibility.count_by_state(self.client, name), names)
        return {(name, state): n for name, states in zip(names, counts, strict=True) for state, n in states.items()}

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        query = visibility.make_query(RunFilter(states=[RunState.RUNNING]), has_tags=False)
        counts = Counter[tuple[str, str]]()
        with translate_errors(self.target):
            async for execution in visibility.list_executions(self.client, query):
                if workflows is None or execution.workflow in workflows:
                    counts[execution.workflow, str(execution.run_memo.get("version", ""))] += 1
        return counts

    # Journals

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return [await self.read_journal(await self._find_run_id(key)) for key in keys]

    async def read_journal(self, run_id: str) -> History:
        """The journal of a run. Raises ``RunNotFound``."""
        with translate_errors(self.target):
            execution = await find_run(self.client, run_id)
            if execution is None:
                raise RunNotFound(f"run {run_id!r} is not in {self.url} any more", run_id)
            return await read_history(self._history_cache, execution)

    async def _find_run_id(self, key: int) -> str:
        run_id = self._run_ids_by_key.get(key)
        if run_id is not None:
            return run_id
        query = visibility.limit_to_window(visibility.make_query(RunFilter(), has_tags=False), *get_time_range(key))
        with translate_errors(self.target):
            async for execution in visibility.list_executions(self.client, query):
                if execution.key == key:
                    return execution.id
        raise StoreError(f"no run in {self.url} has the key {key}")

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        with translate_errors(self.target):
            execution = await find_run(self.client, run_id)
            if execution is None:
                return None
            records, _ = infer_records(await self._history_cache.get_outcomes(execution), run_id)
        return next((record for record in reversed(records) if record.name == name and record.ok), None)

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        with translate_errors(self.target):
            execution = await find_run(self.client, run_id)
            if execution is None:
                return None
            row = await read_row(self.client, execution, include_external=not execution.is_open)
            outcomes = await self._history_cache.get_outcomes(execution)
            records = set_first_epoch(infer_records(outcomes, run_id)[0])
            events = await read_live_events(self.client, execution, outcomes, records)
        return RunUpdates(
            self._remember_run(row),
            [record for record in records if record.seq > after_seq][:limit],
            [(number, event) for number, event in events if number > after_event_id][:limit],
        )

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        with translate_errors(self.target):
            execution = await find_run(self.client, run_id)
            if execution is None:
                return None
            row = await read_row(self.client, execution, include_external=include_large_payloads)
            history = await read_history(self._history_cache, execution)
        return make_journal_page(self._remember_run(row), history, after_seq, limit)

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        usages: dict[str, RunUsage] = {}
        with translate_errors(self.target):
            for run_id in run_ids:
                execution = await find_run(self.client, run_id)
                if execution is not None:
                    usages[run_id] = await read_usage(self._history_cache, execution)
        return {run_id: usage for run_id, usage in usages.items() if usage != RunUsage()}

    async def get_approximate_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        """The same for a list of runs, from the visibility store, without reading histories."""
        with translate_errors(self.target):
            usages = await read_memo_usages(self.client, run_ids)
        return {run_id: RunUsage(usage) for run_id, usage in usages.items() if usage != Usage()}

    # Approvals

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        """Approvals that match: all of one run, or the open ones of all runs.

        Of the closed approvals of all runs, it knows only those that this object has listed before.
        """
        with translate_errors(self.target):
            approvals = await self._find_approvals(where)
        for approval in filter(where.matches, approvals):
            self._run_ids_by_approval[approval.id] = approval.run_id
        return select_approvals(approvals, where, limit)

    async def _find_approvals(self, where: ApprovalFilter) -> list[Approval]:
        if where.run_id is not None:
            return await self._find_run_approvals(where.run_id, only_open=where.only_open and not where.only_closed)
        remembered = [id for id in self._run_ids_by_approval if where.id_prefix and id.startswith(where.id_prefix)]
        approvals = {
            approval.id: approval
            for run_id in dict.fromkeys(self._run_ids_by_approval[id] for id in remembered)
            for approval in await self._find_run_approvals(run_id, only_open=False)
        }
        query = visibility.make_query(RunFilter(states=[RunState.RUNNING], workflow=where.workflow), has_tags=False)
        async for execution in visibility.list_executions(self.client, query):
            for approval in list_open_approvals(execution):
                approvals.setdefault(approval.id, approval)
        return list(approvals.values())

    async def _find_run_approvals(self, run_id: str, *, only_open: bool) -> list[Approval]:
        execution = await find_run(self.client, run_id)
        if execution is None:
            return []
        return list_open_approvals(execution) if only_open else await read_approvals(self._history_cache, execution)

    async def _answer_approval(self, op: AnswerApproval) -> OpStatus:
        if op.id not in self._run_ids_by_approval:
            await self.list_approvals(ApprovalFilter(id_prefix=op.id))  # which remembers it
        run_id = self._run_ids_by_approval.get(op.id)
        if run_id is None:
            return OpStatus.UNKNOWN_APPROVAL
        return await requests.answer_approval(self._history_cache, run_id, op)

    # Workflows and workers

    async def announce_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        with translate_errors(self.target):
            await announce(self.client, specs, self.now())

    async def get_workflow_specs(self, workflow: str | None = None) -> Mapping[str, WorkflowSpec]:
        with translate_errors(self.target):
            specs = await list_announced(self.client)
        return {name: spec for name, spec in specs.items() if workflow in (None, spec.name)}

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        """The workers that poll for announced workflows, and for unfinished runs that were read here."""
        announced = [(spec.queue, spec.name, spec.version) for spec in (await self.get_workflow_specs()).values()]
        with translate_errors(self.target):
            return await list_polling_workers(self.client, [*announced, *self._served_workflows])


class _RunIdCache(OrderedDict[A, str]):
    """The most recently added run ids."""

    def __setitem__(self, key: A, run_id: str) -> None:
        super().__setitem__(key, run_id)
        self.move_to_end(key)
        if len(self) > MAX_REMEMBERED_IDS:
            self.popitem(last=False)
