"""The store over Temporal: what clients, handles and the command line see of runs that Temporal keeps.

**What is different from the other stores.** Nobody claims runs here and nobody appends records: Temporal's workers do
the work (``holdfast.temporal``). Operations from outside become messages to workflows. One call of ``commit`` is no
transaction: each operation is carried out by itself, one after the other. Lists and counts come from Temporal's
visibility store, which is a moment behind; what is asked about one run, by its id, is answered by the server itself.

Many capabilities are about what Temporal does by other means, or not at all: see ``unsupported``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from holdfast.admission.usage import Usage
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, Encryption, validate_size
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.errors import CodecError, RunNotFound, StoreError, StoreUnavailable, UsageError
from holdfast.stores import run_errors
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
from holdfast.stores.temporal.connection import connect
from holdfast.stores.temporal.end_watcher import EndWatcher
from holdfast.stores.temporal.errors import translate_errors
from holdfast.stores.temporal.history_cache import HistoryCache
from holdfast.stores.temporal.journals import infer_records
from holdfast.stores.temporal.memories import TemporalMemories
from holdfast.stores.temporal.payloads import get_max_value_size
from holdfast.stores.temporal.pollers import ServedWorkflow, list_polling_workers
from holdfast.stores.temporal.requests import find_run
from holdfast.stores.temporal.retry_and_fork import fork_run, reopen_run
from holdfast.stores.temporal.rows import ExecutionDescription, describe_execution, get_key, get_time_range, read_row
from holdfast.stores.temporal.run_details import (
    list_open_approvals,
    read_approvals,
    read_history,
    read_live_events,
    read_memo_usages,
    read_usage,
    set_first_epoch,
)
from holdfast.stores.temporal.run_start import TAGS_ATTRIBUTE, start_run
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
"""How many runs are looked at at a time."""
MAX_SEARCHED_RUNS = 500
"""How many a piece of a search looks at: each is a question to the server."""
MAX_REMEMBERED_IDS = 10_000
"""How many keys of runs, and ids of questions, are remembered."""

A = TypeVar("A")
T = TypeVar("T")


class TemporalStore(Store):
    """Runs in a namespace of a Temporal server.

    Args:
        target: where they are.
        clock: tells the time; the server has its own.
        encryption: makes what is recorded unreadable to the server; the keys in the environment do, if there are any.
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
        """What Temporal calls whoever comes; the process and the machine unless given."""
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
        """Ids of runs, by the keys that were told of them."""
        self._run_ids_by_approval = _RunIdCache[str]()
        """Ids of runs, by the ids of their questions."""
        self._served_workflows = _RunIdCache[ServedWorkflow]()
        """Where unfinished runs are that were told of."""

    # Life

    async def open(self) -> None:
        if self._client is None:
            # Not those of another loop.
            self._read_semaphore = asyncio.Semaphore(MAX_CONCURRENT_READS)
            self._memories.reset()
            client = await connect(self.target, encryption=self._encryption, identity=self._identity)
            self._has_tags = await _has_tags_attribute(client)
            self._history_cache = HistoryCache(client)
            self._end_watcher = EndWatcher(client)
            self._client = client

    async def close(self) -> None:
        self.abandon()
        await self._memories.close()

    def abandon(self) -> None:
        """Let go of the connection, which the SDK closes with its last user."""
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
        """Wait until a run has ended that was read lately, or until the time is over; other changes nobody tells."""
        if self._client is None:
            await asyncio.sleep(timeout_s)
            return False
        return await self._end_watcher.wait_for_any(timeout_s)

    # Changing

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Carry out one operation after the other."""
        for op in ops:
            self._check_size(op)
        with translate_errors(self.target):
            return [await self._apply(op) for op in ops]

    def _check_size(self, op: Op) -> None:
        """Refuse what does not fit before the server does, which may close the connection over it."""
        most = get_max_value_size(DEFAULT_MAX_VALUE_BYTES, has_external_payloads=bool(self.target.payload_location))
        match op:
            case StartRun():
                validate_size(op.run.inputs, f"the inputs of workflow {op.run.workflow!r}", most)
            case SendSignal():
                validate_size(op.payload, f"the value of signal {op.name!r} for run {op.run_id!r}", most)
            case AnswerApproval():
                validate_size(op.payload, f"the answer to approval {op.id}", most)
            case _:
                pass

    async def _apply(self, op: Op) -> OpResult:
        client, now, tags = self.client, self.now(), self._has_tags
        match op:
            case StartRun():
                return self._remember_started(await start_run(client, op, now, has_tags=tags))
            case ForkRun():
                return self._remember_started(await fork_run(client, self._history_cache, op, now, has_tags=tags))
            case SendSignal():
                return await requests.send_signal(client, self._history_cache, op)
            case CancelRun():
                return await requests.cancel_run(client, op)
            case PauseRun() | ResumeRun():
                return await requests.pause_or_resume_run(client, op)
            case ReopenRun():
                return await reopen_run(client, self._history_cache, op, now, has_tags=tags)
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
            told = await find_run(self.client, run_id)
            if told is None:
                return None
            self._watch_end(told)
            return self._remember_run(await read_row(self.client, told))

    async def wait_until_ended(self, run_id: str) -> Run:
        """A run's row, once it has ended. Raises ``RunNotFound``."""
        while True:
            with translate_errors(self.target):
                told = await find_run(self.client, run_id)
                if told is None:
                    raise RunNotFound(f"there is no run {run_id!r} in {self.url}", run_id)
                if not told.is_open:
                    return self._remember_run(await read_row(self.client, told))
                await self._end_watcher.wait(told)

    def _watch_end(self, execution: ExecutionDescription) -> None:
        """Whoever reads a run may wait for its end."""
        if execution.is_open:
            self._end_watcher.watch(execution)

    def _remember_run(self, run: Run) -> Run:
        self._run_ids_by_key[run.key] = run.id
        if not run.state.is_terminal:
            self._served_workflows[run.queue, run.workflow, run.version] = run.id
        return run

    async def get_runs(self, run_ids: Sequence[str]) -> list[Run]:
        found = await self._gather_limited(self._get_if_readable, dict.fromkeys(run_ids))
        return [run for run in found if run is not None]

    async def _get_if_readable(self, run_id: str) -> Run | None:
        try:
            return await self.get_run(run_id)
        except (StoreError, CodecError, ValueError, KeyError) as error:
            if isinstance(error, StoreUnavailable):
                raise
            log.warning("run %r in %s cannot be read, and is left out: %s", run_id, self.url, error)
            return None

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before_key: int | None = None) -> list[Run]:
        """Runs that match, those that were started (or retried) last first."""
        return (await self.search_runs(where, limit=limit, before_key=before_key, max_scanned=sys.maxsize)).runs

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before_key: int | None = None, max_scanned: int = 10_000
    ) -> RunSearchPage:
        """The same. Whatever Temporal does not search itself is asked for one by one: a piece is a small one."""
        if where.owner is not None or where.parent == "" or limit < 1:
            return RunSearchPage([], None)
        query, fits = visibility.make_query(where, has_tags=self._has_tags), visibility.make_matcher(where)
        found: dict[str, Run] = {}
        some: list[ExecutionDescription] = []
        last: ExecutionDescription | None = None
        looked_at, enough = 0, max_scanned if max_scanned == sys.maxsize else min(max_scanned, MAX_SEARCHED_RUNS)
        with translate_errors(self.target):
            async for told in visibility.list_newest_first(self.client, query, before_key, self.now()):
                if looked_at >= enough or len(found) >= limit:
                    break
                looked_at, last = looked_at + 1, told
                if not fits(told):
                    continue
                some.append(told)
                if len(some) >= MAX_CONCURRENT_READS:
                    await self._add_rows(some, where, found)
                    some = []
            else:
                last = None
            await self._add_rows(some, where, found)
        runs = list(found.values())[:limit]
        if len(found) > limit:
            return RunSearchPage(runs, runs[-1].key, runs[-1].created_at)
        return RunSearchPage(
            runs, *((None, None) if last is None else (last.key, last.info.start_time.ToNanoseconds() / 1e9))
        )

    async def _add_rows(
        self, executions: Sequence[ExecutionDescription], where: RunFilter, found: dict[str, Run]
    ) -> None:
        for run in await self._gather_limited(
            lambda told: self._read_listed_row(told, by_parent=where.parent is not None), executions
        ):
            if run is not None and run.id not in found and _is_match(run, where):
                found[run.id] = self._remember_run(run)

    async def _read_listed_row(self, execution: ExecutionDescription, *, by_parent: bool) -> Run | None:
        """The row of what was found; ``None`` if another execution of the same run has taken its place."""
        now = await describe_execution(self.client, execution.id)
        if now is None or (now.execution_id != execution.execution_id and not by_parent):
            return None
        try:
            row = await read_row(self.client, now, include_external=False)
        except (StoreError, CodecError, ValueError, KeyError) as error:
            if isinstance(error, StoreUnavailable):
                raise
            log.warning("run %r in %s cannot be read, and is left out: %s", execution.id, self.url, error)
            return None
        return replace(row, key=execution.key)  # where it was found is where the next page goes on

    async def _gather_limited(self, fetch: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
        """Ask about each of these, a few at a time."""

        async def limited(one: A) -> T:
            async with self._read_semaphore:
                return await fetch(one)

        return await asyncio.gather(*map(limited, items))

    async def count_runs(self, max_ended: int | None = None) -> Mapping[tuple[str, RunState], int]:
        """How many runs there are of each workflow that was announced; Temporal counts all of them in either case.

        Temporal counts by its own states: all that have not ended are told as ``running``, dead ones as ``failed``.
        Executions that were retried are counted, too.
        """
        names = sorted({spec.name for spec in (await self.get_workflow_specs()).values()})
        with translate_errors(self.target):
            counted = await self._gather_limited(lambda name: visibility.count_by_state(self.client, name), names)
        return {(name, state): n for name, states in zip(names, counted, strict=True) for state, n in states.items()}

    async def count_unfinished_runs(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        query = visibility.make_query(RunFilter(states=[RunState.RUNNING]), has_tags=False)
        found: dict[tuple[str, str], int] = {}
        with translate_errors(self.target):
            async for told in visibility.list_executions(self.client, query):
                place = told.info.type.name, str(told.run_memo.get("version", ""))
                if workflows is None or place[0] in workflows:
                    found[place] = found.get(place, 0) + 1
        return found

    # Journals

    async def get_histories(self, keys: Sequence[int]) -> list[History]:
        return [await self._read_history(await self._find_run_id(key)) for key in keys]

    async def read_journal(self, run: Run) -> History:
        """The journal of a run."""
        return await self._read_history(run.id)

    async def _read_history(self, run_id: str) -> History:
        with translate_errors(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                raise RunNotFound(f"run {run_id!r} is not in {self.url} any more", run_id)
            return await read_history(self.client, self._history_cache, told)

    async def _find_run_id(self, key: int) -> str:
        known = self._run_ids_by_key.get(key)
        if known is not None:
            return known
        query = visibility.limit_to_window(visibility.make_query(RunFilter(), has_tags=False), *get_time_range(key))
        with translate_errors(self.target):
            async for told in visibility.list_executions(self.client, query):
                if get_key(told.info) == key:
                    return told.id
        raise StoreError(f"no run in {self.url} has the key {key}")

    async def get_last_record(self, run_id: str, name: str) -> Record | None:
        with translate_errors(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                return None
            records, _ = infer_records(await self._history_cache.get_outcomes(told), run_id)
        return next((record for record in reversed(records) if record.name == name and record.ok), None)

    async def get_run_updates(
        self, run_id: str, after_seq: int, after_event_id: int, limit: int = 1000
    ) -> RunUpdates | None:
        with translate_errors(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                return None
            run = self._remember_run(await read_row(self.client, told, include_external=not told.is_open))
            outcomes = await self._history_cache.get_outcomes(told)
            records = set_first_epoch(infer_records(outcomes, run_id)[0])
            notices = await read_live_events(self.client, told, outcomes, records)
        return RunUpdates(
            run,
            [record for record in records if record.seq > after_seq][:limit],
            [(number, notice) for number, notice in notices if number > after_event_id][:limit],
        )

    async def get_journal_page(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, include_large_payloads: bool = True
    ) -> JournalPage | None:
        with translate_errors(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                return None
            run = self._remember_run(await read_row(self.client, told, include_external=include_large_payloads))
            return make_journal_page(run, await read_history(self.client, self._history_cache, told), after_seq, limit)

    async def get_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        found: dict[str, RunUsage] = {}
        with translate_errors(self.target):
            for run_id in run_ids:
                told = await find_run(self.client, run_id)
                if told is not None:
                    used = await read_usage(self.client, self._history_cache, told)
                    if used != RunUsage():
                        found[run_id] = used
        return found

    async def get_approximate_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        """The same for runs of a list, by what the visibility store has: without their histories."""
        with translate_errors(self.target):
            used = await read_memo_usages(self.client, run_ids)
        return {run_id: RunUsage(usage) for run_id, usage in used.items() if usage != Usage()}

    # Approvals

    async def list_approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        """Questions that match: of one run, all that it has asked; else those that are open.

        Of the others, only those are known that were told of here before.
        """
        with translate_errors(self.target):
            found = await self._find_approvals(where)
        for one in filter(where.matches, found):
            self._run_ids_by_approval[one.id] = one.run_id
        return select_approvals(found, where, limit)

    async def _find_approvals(self, where: ApprovalFilter) -> list[Approval]:
        if where.run_id is not None:
            return await self._find_run_approvals(where.run_id, only_open=where.only_open and not where.only_closed)
        known = [id for id in self._run_ids_by_approval if where.id_prefix and id.startswith(where.id_prefix)]
        found = {
            one.id: one
            for run_id in dict.fromkeys(self._run_ids_by_approval[id] for id in known)
            for one in await self._find_run_approvals(run_id, only_open=False)
        }
        query = visibility.make_query(RunFilter(states=[RunState.RUNNING], workflow=where.workflow), has_tags=False)
        async for told in visibility.list_executions(self.client, query):
            for one in list_open_approvals(told):
                found.setdefault(one.id, one)
        return list(found.values())

    async def _find_run_approvals(self, run_id: str, *, only_open: bool) -> list[Approval]:
        told = await find_run(self.client, run_id)
        if told is None:
            return []
        return list_open_approvals(told) if only_open else await read_approvals(self._history_cache, told)

    async def _answer_approval(self, op: AnswerApproval) -> OpStatus:
        run_id = self._run_ids_by_approval.get(op.id)
        if run_id is None:
            found = await self.list_approvals(ApprovalFilter(id_prefix=op.id))
            run_id = next((one.run_id for one in found if one.id == op.id), None)
        if run_id is None:
            return OpStatus.UNKNOWN_APPROVAL
        return await requests.answer_approval(self.client, self._history_cache, run_id, op)

    # Workflows and workers

    async def publish_workflows(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        with translate_errors(self.target):
            await announce(self.client, specs, self.now())

    async def get_workflow_specs(self) -> Mapping[str, WorkflowSpec]:
        with translate_errors(self.target):
            return await list_announced(self.client)

    async def list_workers(self, extra_ids: Collection[int] = ()) -> list[Worker]:
        """Those that poll for what was announced, and for unfinished runs that were told of here."""
        announced_at = [(spec.queue, spec.name, spec.version) for spec in (await self.get_workflow_specs()).values()]
        with translate_errors(self.target):
            return await list_polling_workers(self.client, [*announced_at, *self._served_workflows])


class _RunIdCache(OrderedDict[A, str]):
    """Ids of runs, the last ones that were put here."""

    def __setitem__(self, key: A, run_id: str) -> None:
        super().__setitem__(key, run_id)
        self.move_to_end(key)
        if len(self) > MAX_REMEMBERED_IDS:
            self.popitem(last=False)


async def _has_tags_attribute(client: Client) -> bool:
    """Whether the namespace has the search attribute for tags; it may be that we are not to know."""
    try:
        asked = ListSearchAttributesRequest(namespace=client.namespace)
        known = await client.operator_service.list_search_attributes(asked)
    except RPCError:
        return False
    return TAGS_ATTRIBUTE.name in known.custom_attributes


def _is_match(run: Run, where: RunFilter) -> bool:
    """What the visibility store cannot tell."""
    return (
        (not where.states or run.state in where.states)
        and (where.parent is None or run.parent == where.parent)
        and (where.text is None or run_errors.has_text(run, where.text))
    )
