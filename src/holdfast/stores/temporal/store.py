"""The store over Temporal: what clients, handles and the command line see of runs that Temporal keeps.

**What is different from the other stores.** Nobody claims runs here and nobody appends records: Temporal's workers do
the work (``holdfast.temporal``). Operations from outside become messages to workflows. One call of ``commit`` is no
transaction: each operation is carried out by itself, one after the other. Lists and counts come from Temporal's
visibility store, which is a moment behind; what is asked about one run, by its id, is answered by the server itself.

Large parts of the contract are about what Temporal does by other means, or not at all: see ``unsupported``.
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
from holdfast.codec import LARGEST, Encryption, check_size
from holdfast.core.records import Record
from holdfast.core.states import RunState
from holdfast.errors import CodecError, RunNotFound, StoreError, StoreUnavailable, UsageError
from holdfast.stores import rules
from holdfast.stores.approvals import AnswerApproval, Approval, ApprovalFilter, listed
from holdfast.stores.contract import Found, History, RunFilter, RunUsage, Store, Worker, WorkflowSpec
from holdfast.stores.journal_pages import Outline, outline_of
from holdfast.stores.live_events import Feed
from holdfast.stores.memories import DeleteMemory, Memory, PutMemory
from holdfast.stores.operations import (
    Answer,
    CancelRun,
    ForkRun,
    Op,
    PauseRun,
    ReopenRun,
    ResumeRun,
    Run,
    SendSignal,
    SetBudget,
    Started,
    StartRun,
    Verdict,
)
from holdfast.stores.temporal import requests, visibility
from holdfast.stores.temporal.announcements import announce, announced
from holdfast.stores.temporal.connection import connect
from holdfast.stores.temporal.end_watcher import Ends
from holdfast.stores.temporal.errors import translating
from holdfast.stores.temporal.history_cache import Histories
from holdfast.stores.temporal.journals import told_records
from holdfast.stores.temporal.payloads import largest
from holdfast.stores.temporal.pollers import Place, workers_at
from holdfast.stores.temporal.requests import find_run
from holdfast.stores.temporal.retry_and_fork import fork_run, reopen_run
from holdfast.stores.temporal.rows import Described, describe, key_of, row_of, span_of
from holdfast.stores.temporal.run_details import (
    all_questions,
    held,
    history_of,
    notices_of,
    open_questions,
    shown_usages,
    usage_of,
)
from holdfast.stores.temporal.run_start import TAGS, start_run
from holdfast.stores.temporal.targets import Target
from holdfast.stores.temporal.unsupported import Lacking, no_work

log = logging.getLogger("holdfast.stores")

AT_ONCE = 16
"""How many runs are looked at at a time."""
LOOKED_AT = 500
"""How many a piece of a search looks at: each is a question to the server."""
REMEMBERED = 10_000
"""How many keys of runs, and ids of questions, are remembered."""

A = TypeVar("A")
T = TypeVar("T")


class TemporalStore(Lacking):
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
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._memory: Store | None = None
        self._opening_memory = asyncio.Lock()
        self._ids = _Remembered[int]()
        """Ids of runs, by the keys that were told of them."""
        self._askers = _Remembered[str]()
        """Ids of runs, by the ids of their questions."""
        self._places = _Remembered[Place]()
        """Where unfinished runs are that were told of."""

    # Life

    async def open(self) -> None:
        """Connect."""
        if self._client is None:
            # Not those of another loop.
            self._at_once, self._opening_memory = asyncio.Semaphore(AT_ONCE), asyncio.Lock()
            client = await connect(self.target, encryption=self._encryption, identity=self._identity)
            self._has_tags = await _has_tags(client)
            self._histories = Histories(client)
            self._ends = Ends(client)
            self._client = client

    async def close(self) -> None:
        """Disconnect."""
        self.abandon()
        if self._memory is not None:
            memory, self._memory = self._memory, None
            await memory.close()

    def abandon(self) -> None:
        """Let go of the connection, which the SDK closes with its last user."""
        if self._client is not None:
            self._client = None
            self._ends.stop()

    @property
    def client(self) -> Client:
        """The SDK's own client."""
        if self._client is None:
            raise StoreUnavailable(f"{self.url} is not open")
        return self._client

    def now(self) -> float:
        """The time here."""
        return self._clock()

    async def changed(self, timeout: float, *, follows: bool = True) -> bool:
        """Wait until a run has ended that was read lately, or until the time is over; other changes nobody tells."""
        if self._client is None:
            await asyncio.sleep(timeout)
            return False
        return await self._ends.heard(timeout)

    # Changing

    async def commit(self, ops: Sequence[Op]) -> list[Answer]:
        """Carry out one operation after the other."""
        for op in ops:
            self._measure(op)
        with translating(self.target):
            return [await self._carry_out(op) for op in ops]

    def _measure(self, op: Op) -> None:
        """Refuse what does not fit before the server does, which may close the connection over it."""
        most = largest(LARGEST, apart=bool(self.target.payloads))
        match op:
            case StartRun():
                check_size(op.run.inputs, f"the inputs of workflow {op.run.workflow!r}", most)
            case SendSignal():
                check_size(op.payload, f"the value of signal {op.name!r} for run {op.run_id!r}", most)
            case AnswerApproval():
                check_size(op.payload, f"the answer to approval {op.id}", most)
            case _:
                pass

    async def _carry_out(self, op: Op) -> Answer:
        client, now, tags = self.client, self.now(), self._has_tags
        match op:
            case StartRun():
                return self._noted(await start_run(client, op, now, has_tags=tags))
            case ForkRun():
                return self._noted(await fork_run(client, self._histories, op, now, has_tags=tags))
            case SendSignal():
                return await requests.send_signal(client, self._histories, op)
            case CancelRun():
                return await requests.cancel_run(client, op)
            case PauseRun() | ResumeRun():
                return await requests.pause_run(client, op)
            case ReopenRun():
                return await reopen_run(client, self._histories, op, now, has_tags=tags)
            case AnswerApproval():
                return await self._answer(op)
            case PutMemory() | DeleteMemory():
                return (await (await self._memories()).commit([op]))[0]
            case SetBudget():
                return await requests.set_budget(client, op)
            case _:
                raise no_work()

    def _noted(self, answer: Started | Verdict) -> Answer:
        if isinstance(answer, Started):
            self._note(answer.run)
        return answer

    async def update(self, run_id: str, name: str, *args: Any) -> Any:
        """Send an update to a run, and return what it answers."""
        with translating(self.target):
            handle = self.client.get_workflow_handle(run_id)
            return await handle.execute_update(name, args=list(args))  # pyright: ignore[reportUnknownMemberType]

    # Reading

    async def get(self, run_id: str) -> Run | None:
        """One run's row."""
        with translating(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                return None
            self._watch(told)
            return self._note(await row_of(self.client, told))

    async def wait(self, run_id: str) -> Run:
        """A run's row, once it has ended. Raises ``RunNotFound``."""
        while True:
            with translating(self.target):
                told = await find_run(self.client, run_id)
                if told is None:
                    raise RunNotFound(f"there is no run {run_id!r} in {self.url}", run_id)
                if not told.is_open:
                    return self._note(await row_of(self.client, told))
                await self._ends.wait(told)

    def _watch(self, told: Described) -> None:
        """Whoever reads a run may wait for its end."""
        if told.is_open:
            self._ends.watch(told)

    def _note(self, run: Run) -> Run:
        self._ids[run.key] = run.id
        if not run.state.is_terminal:
            self._places[run.queue, run.workflow, run.version] = run.id
        return run

    async def get_many(self, run_ids: Sequence[str]) -> list[Run]:
        """The rows of those that there are and can be read."""
        found = await self._each(self._get_if_readable, dict.fromkeys(run_ids))
        return [run for run in found if run is not None]

    async def _get_if_readable(self, run_id: str) -> Run | None:
        try:
            return await self.get(run_id)
        except (StoreError, CodecError, ValueError, KeyError) as error:
            if isinstance(error, StoreUnavailable):
                raise
            log.warning("run %r in %s cannot be read, and is left out: %s", run_id, self.url, error)
            return None

    async def list_runs(self, where: RunFilter, *, limit: int = 50, before: int | None = None) -> list[Run]:
        """Runs that match, those that were started (or retried) last first."""
        return (await self.search_runs(where, limit=limit, before=before, most=sys.maxsize)).runs

    async def search_runs(
        self, where: RunFilter, *, limit: int = 50, before: int | None = None, most: int = 10_000
    ) -> Found:
        """The same. Whatever Temporal does not search itself is asked for one by one: a piece is a small one."""
        if where.owner is not None or where.parent == "" or limit < 1:
            return Found([], None)
        query, fits = visibility.query_of(where, has_tags=self._has_tags), visibility.matcher(where)
        found: dict[str, Run] = {}
        some: list[Described] = []
        last: Described | None = None
        looked_at, enough = 0, most if most == sys.maxsize else min(most, LOOKED_AT)
        with translating(self.target):
            async for told in visibility.newest_first(self.client, query, before, self.now()):
                if looked_at >= enough or len(found) >= limit:
                    break
                looked_at, last = looked_at + 1, told
                if not fits(told):
                    continue
                some.append(told)
                if len(some) >= AT_ONCE:
                    await self._add_rows(some, where, found)
                    some = []
            else:
                last = None
            await self._add_rows(some, where, found)
        runs = list(found.values())[:limit]
        if len(found) > limit:
            return Found(runs, runs[-1].key, runs[-1].created_at)
        return Found(runs, *((None, None) if last is None else (last.key, last.info.start_time.ToNanoseconds() / 1e9)))

    async def _add_rows(self, some: Sequence[Described], where: RunFilter, found: dict[str, Run]) -> None:
        for run in await self._each(lambda told: self._listed(told, by_family=where.parent is not None), some):
            if run is not None and run.id not in found and _matches(run, where):
                found[run.id] = self._note(run)

    async def _listed(self, told: Described, *, by_family: bool) -> Run | None:
        """The row of what was found; ``None`` if another execution of the same run has taken its place."""
        now = await describe(self.client, told.id)
        if now is None or (now.execution != told.execution and not by_family):
            return None
        try:
            row = await row_of(self.client, now, whole=False)
        except (StoreError, CodecError, ValueError, KeyError) as error:
            if isinstance(error, StoreUnavailable):
                raise
            log.warning("run %r in %s cannot be read, and is left out: %s", told.id, self.url, error)
            return None
        return replace(row, key=told.key)  # where it was found is where the next page goes on

    async def _each(self, ask: Callable[[A], Awaitable[T]], what: Iterable[A]) -> list[T]:
        """Ask about each of these, a few at a time."""

        async def limited(one: A) -> T:
            async with self._at_once:
                return await ask(one)

        return await asyncio.gather(*map(limited, what))

    async def count_runs(self, most: int | None = None) -> Mapping[tuple[str, RunState], int]:
        """How many runs there are of each workflow that was announced; Temporal counts all of them in either case.

        Temporal counts by its own states: all that have not ended are told as ``running``, dead ones as ``failed``.
        Executions that were retried are counted, too.
        """
        names = sorted({spec.name for spec in (await self.specs()).values()})
        with translating(self.target):
            counted = await self._each(lambda name: visibility.count_by_state(self.client, name), names)
        return {(name, state): n for name, states in zip(names, counted, strict=True) for state, n in states.items()}

    async def count_unfinished(self, workflows: Collection[str] | None = None) -> Mapping[tuple[str, str], int]:
        """How many runs that have not ended there are for each workflow and version."""
        query = visibility.query_of(RunFilter(states=[RunState.RUNNING]), has_tags=False)
        found: dict[tuple[str, str], int] = {}
        with translating(self.target):
            async for told in visibility.executions(self.client, query):
                place = told.info.type.name, str(told.head.get("version", ""))
                if workflows is None or place[0] in workflows:
                    found[place] = found.get(place, 0) + 1
        return found

    # Journals

    async def histories(self, keys: Sequence[int]) -> list[History]:
        """The journals of these runs."""
        return [await self._history(await self._id_of(key)) for key in keys]

    async def journal(self, run: Run) -> History:
        """The journal of a run."""
        return await self._history(run.id)

    async def _history(self, run_id: str) -> History:
        with translating(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                raise RunNotFound(f"run {run_id!r} is not in {self.url} any more", run_id)
            return await history_of(self.client, self._histories, told)

    async def _id_of(self, key: int) -> str:
        known = self._ids.get(key)
        if known is not None:
            return known
        query = visibility.within(visibility.query_of(RunFilter(), has_tags=False), *span_of(key))
        with translating(self.target):
            async for told in visibility.executions(self.client, query):
                if key_of(told.info) == key:
                    return told.id
        raise StoreError(f"no run in {self.url} has the key {key}")

    async def last_record(self, run_id: str, name: str) -> Record | None:
        """The newest record of this name that is ``ok``."""
        with translating(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                return None
            records, _ = told_records(await self._histories.outcomes(told), run_id)
        return next((record for record in reversed(records) if record.name == name and record.ok), None)

    async def feed(self, run_id: str, after_seq: int, after_notice: int, limit: int = 1000) -> Feed | None:
        """What is new of a run, as its history tells it."""
        with translating(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                return None
            run = self._note(await row_of(self.client, told, whole=not told.is_open))
            outcomes = await self._histories.outcomes(told)
            records = held(told_records(outcomes, run_id)[0])
            notices = await notices_of(self.client, told, outcomes, records)
        return Feed(
            run,
            [record for record in records if record.seq > after_seq][:limit],
            [(number, notice) for number, notice in notices if number > after_notice][:limit],
        )

    async def outline(
        self, run_id: str, after_seq: int = -1, limit: int | None = None, *, whole: bool = True
    ) -> Outline | None:
        """A run with a page of its journal, as its history tells it."""
        with translating(self.target):
            told = await find_run(self.client, run_id)
            if told is None:
                return None
            run = self._note(await row_of(self.client, told, whole=whole))
            return outline_of(run, await history_of(self.client, self._histories, told), after_seq, limit)

    async def usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        """What these runs have used."""
        found: dict[str, RunUsage] = {}
        with translating(self.target):
            for run_id in run_ids:
                told = await find_run(self.client, run_id)
                if told is not None:
                    used = await usage_of(self.client, self._histories, told)
                    if used != RunUsage():
                        found[run_id] = used
        return found

    async def listed_usages(self, run_ids: Sequence[str]) -> Mapping[str, RunUsage]:
        """The same for runs of a list, by what the visibility store has: without their histories."""
        with translating(self.target):
            used = await shown_usages(self.client, run_ids)
        return {run_id: RunUsage(usage) for run_id, usage in used.items() if usage != Usage()}

    # Approvals

    async def approvals(self, where: ApprovalFilter, limit: int = 1000) -> list[Approval]:
        """Questions that match: of one run, all that it has asked; else those that are open.

        Of the others, only those are known that were told of here before.
        """
        with translating(self.target):
            found = await self._questions(where)
        for one in filter(where.matches, found):
            self._askers[one.id] = one.run_id
        return listed(found, where, limit)

    async def _questions(self, where: ApprovalFilter) -> list[Approval]:
        if where.run_id is not None:
            return await self._questions_of(where.run_id, only_open=where.only_open and not where.only_closed)
        known = [id for id in self._askers if where.id_prefix and id.startswith(where.id_prefix)]
        found = {
            one.id: one
            for run_id in dict.fromkeys(self._askers[id] for id in known)
            for one in await self._questions_of(run_id, only_open=False)
        }
        query = visibility.query_of(RunFilter(states=[RunState.RUNNING], workflow=where.workflow), has_tags=False)
        async for told in visibility.executions(self.client, query):
            for one in open_questions(told):
                found.setdefault(one.id, one)
        return list(found.values())

    async def _questions_of(self, run_id: str, *, only_open: bool) -> list[Approval]:
        told = await find_run(self.client, run_id)
        if told is None:
            return []
        return open_questions(told) if only_open else await all_questions(self._histories, told)

    async def _answer(self, op: AnswerApproval) -> Verdict:
        run_id = self._askers.get(op.id)
        if run_id is None:
            found = await self.approvals(ApprovalFilter(id_prefix=op.id))
            run_id = next((one.run_id for one in found if one.id == op.id), None)
        if run_id is None:
            return Verdict.UNKNOWN_APPROVAL
        return await requests.answer(self.client, self._histories, run_id, op)

    # Memories

    async def get_memory(self, namespace: str, key: str) -> Memory | None:
        """One memory."""
        return await (await self._memories()).get_memory(namespace, key)

    async def list_memories(self, namespace: str, *, after: str = "", limit: int = 100) -> list[Memory]:
        """The memories of a namespace."""
        return await (await self._memories()).list_memories(namespace, after=after, limit=limit)

    async def search_memories(self, namespace: str, words: str, *, limit: int = 10) -> list[Memory]:
        """Memories that have some of these words in them."""
        return await (await self._memories()).search_memories(namespace, words, limit=limit)

    async def _memories(self) -> Store:
        """The store that keeps them."""
        from holdfast.stores.urls import is_temporal, open_store

        if not self.target.memory or is_temporal(self.target.memory):
            raise UsageError(
                f"memory: Temporal has no place for what outlives runs. Say in the URL which store keeps it, for "
                f"workers and clients alike: {self.url}?memory=postgresql://… (or sqlite:///…). See docs/temporal.md."
            )
        async with self._opening_memory:
            if self._memory is None:
                memory = open_store(self.target.memory, encryption=self._encryption)
                await memory.open()
                self._memory = memory
        return self._memory

    # Workflows and workers

    async def publish(self, specs: Sequence[WorkflowSpec], worker: int | None = None) -> None:
        """Announce workflows."""
        with translating(self.target):
            await announce(self.client, specs, self.now())

    async def specs(self) -> Mapping[str, WorkflowSpec]:
        """All workflows ever announced."""
        with translating(self.target):
            return await announced(self.client)

    async def workers(self, also: Collection[int] = ()) -> list[Worker]:
        """Those that poll for what was announced, and for unfinished runs that were told of here."""
        announced_at = [(spec.queue, spec.name, spec.version) for spec in (await self.specs()).values()]
        with translating(self.target):
            return await workers_at(self.client, [*announced_at, *self._places])


class _Remembered(OrderedDict[A, str]):
    """Ids of runs, the last ones that were put here."""

    def __setitem__(self, key: A, run_id: str) -> None:
        super().__setitem__(key, run_id)
        self.move_to_end(key)
        if len(self) > REMEMBERED:
            self.popitem(last=False)


async def _has_tags(client: Client) -> bool:
    """Whether the namespace has the search attribute for tags; it may be that we are not to know."""
    try:
        asked = ListSearchAttributesRequest(namespace=client.namespace)
        known = await client.operator_service.list_search_attributes(asked)
    except RPCError:
        return False
    return TAGS.name in known.custom_attributes


def _matches(run: Run, where: RunFilter) -> bool:
    """What the visibility store cannot tell."""
    return (
        (not where.states or run.state in where.states)
        and (where.parent is None or run.parent == where.parent)
        and (where.text is None or rules.mentions(run, where.text))
    )
