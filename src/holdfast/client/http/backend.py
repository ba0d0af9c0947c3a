"""A client's backend over a Holdfast server."""

from __future__ import annotations

import builtins
import json
import secrets
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, fields
from datetime import date, datetime
from typing import Any, TypeVar

import httpx2

from holdfast.admission.durations import MAX_DURATION_S, Duration
from holdfast.client.backend import (
    AddressBackend,
    Backend,
    KeyBackend,
    MemoryBackend,
    PolicyBackend,
    QueueBackend,
    ScheduleBackend,
)
from holdfast.client.http.backoff import LIMIT, Pace, Patience
from holdfast.client.http.decoders import items_of, read, read_all, read_run
from holdfast.client.http.listener import HttpListeners
from holdfast.client.http.resources import (
    HttpAddresses,
    HttpKeys,
    HttpMemory,
    HttpPolicies,
    HttpQueues,
    HttpSchedules,
    queue_as_json,
)
from holdfast.client.http.runs import PAGE, HttpRuns, budget_as_json, encoded, part
from holdfast.client.http.server_endpoint import Place
from holdfast.client.http.transport import Passing, Transport
from holdfast.client.listener import Listener
from holdfast.codec import LARGEST, check_size
from holdfast.core.states import RunState
from holdfast.errors import NotAllowed, RetryRefused, RunConflict, SettleRefused, UsageError
from holdfast.reports.budgets import BudgetInfo
from holdfast.reports.dead_runs import DeadRun
from holdfast.reports.formatting import iso
from holdfast.reports.run_info import RunInfo
from holdfast.reports.tail import FOLLOWING, Followed, Happening, Told
from holdfast.reports.usage_report import DaySpending, UsageReport, day_of
from holdfast.services.addresses import checked_address
from holdfast.services.audit_log import AuditEntry
from holdfast.services.bulk_start import AT_ONCE, Call, check_options, split_call
from holdfast.services.forks import NOT_GIVEN
from holdfast.services.health import Health, Switch
from holdfast.services.journal_files import Journal
from holdfast.services.retention import PruneReport, age_in_seconds
from holdfast.services.run_start import StartOptions
from holdfast.services.settlement import check_what_is_said
from holdfast.services.wire_values import encoded_to_wire
from holdfast.services.workers import WorkerInfo
from holdfast.stores.contract import RunFilter

T = TypeVar("T")

PRUNING = 600.0
"""Seconds that deleting runs may take."""
BATCH = 4 * 1024 * 1024
"""Bytes of inputs that are sent at once: servers take some more."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server, and who it takes the caller for."""

    version: str
    now: datetime
    """By its clock."""
    key: str | None
    """The id of the caller's key; none where none is needed."""
    name: str
    namespace: str
    scopes: tuple[str, ...]


class HttpBackend(HttpRuns, Backend):
    """Over a server.

    Args:
        place: where it is, and who asks.
        max_value: the largest value that is sent, in bytes.
        pace: time and chance.
        over: what requests are sent through, instead of the network.
    """

    def __init__(
        self,
        place: Place,
        max_value: int = LARGEST,
        *,
        pace: Pace | None = None,
        over: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(Transport(place, pace=pace, over=over), max_value)
        self.url = place.url
        self._listeners = HttpListeners(self._transport)

    @property
    def memory(self) -> MemoryBackend:
        """Values that outlive runs."""
        return HttpMemory(self._transport, self.max_value)

    @property
    def schedules(self) -> ScheduleBackend:
        """What is started at set times."""
        return HttpSchedules(self._transport)

    @property
    def queues(self) -> QueueBackend:
        """Queues with limits."""
        return HttpQueues(self._transport)

    @property
    def addresses(self) -> AddressBackend:
        """Where work is sent to."""
        return HttpAddresses(self._transport)

    @property
    def policies(self) -> PolicyBackend:
        """What a day may cost."""
        return HttpPolicies(self._transport)

    @property
    def keys(self) -> KeyBackend:
        """API keys."""
        return HttpKeys(self._transport)

    async def open(self, patience: float | None = None) -> None:
        """Look whether the server is there, and whether it knows the key."""
        try:
            answer = await self._transport.ask("GET", "/v1/whoami", patience=LIMIT if patience is None else patience)
            answer.checked()
        except NotAllowed:
            pass  # it knows the key, which is for something else than reading

    async def about(self) -> ServerInfo:
        """What the server tells of itself, and of the caller."""
        health, who = await self._get("/v1/health"), await self._get("/v1/whoami")
        return read(ServerInfo, {**health, **who})

    async def close(self) -> None:
        """Disconnect the running event loop."""
        await self._listeners.close()
        await self._transport.close()

    def listener(self, address: str, *, at_once: int, name: str | None) -> Listener:
        """A new listener on an address."""
        return self._listeners.add(address, at_once=at_once, name=name)

    # Starting

    async def start(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions) -> str:
        """Start a run or join the one that is there."""
        inputs, _ = self._inputs(workflow, args, kwargs)
        body = {"workflow": workflow, "id": options.id, **inputs, **_options(options)}
        answer = await self._transport.ask("POST", "/v1/runs", body=_given(body), key=secrets.token_hex(16))
        return str(answer.checked()["id"])

    async def start_many(self, workflow: str, calls: Iterable[Call], options: StartOptions) -> builtins.list[str]:
        """Start or join a run for each call."""
        check_options(workflow, options)
        ids: list[str] = []
        inputs = (self._inputs(workflow, *split_call(call)) for call in calls)
        for some in _batches(inputs):
            body = _given({"workflow": workflow, "calls": some, **_options(options)})
            # Under the same key the server starts none of them twice, however often it is asked.
            answer = await self._transport.ask("POST", "/v1/runs/batch", body=body, key=secrets.token_hex(16))
            ids += answer.checked()["ids"]
        return ids

    async def send(self, address: str, payload: Any, options: StartOptions, deadline: float | None) -> str:
        """Send work to an address, or find that it was sent before."""
        body = _given({"id": options.id, "deadline": deadline, **_options(options)})
        body["payload"] = self._wire(payload, f"what is sent to address {address!r}")
        path = f"/v1/addresses/{part(checked_address(address))}/send"
        answer = await self._transport.ask("POST", path, body=body, key=secrets.token_hex(16))
        return str(answer.checked()["id"])

    def _inputs(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The inputs as they are sent, and how many bytes they are."""
        of = f"of workflow {workflow!r}"
        by_position = [encoded(one, f"argument {number} {of}") for number, one in enumerate(args, 1)]
        by_name = {name: encoded(one, f"argument {name!r} {of}") for name, one in kwargs.items()}
        size = sum(map(len, by_position)) + sum(map(len, by_name.values()))
        if size > self.max_value:
            check_size(b"".join([*by_position, *by_name.values()]), f"the inputs {of}", self.max_value)
        sent = {
            "args": [encoded_to_wire(one) for one in by_position],
            "kwargs": {name: encoded_to_wire(one) for name, one in by_name.items()},
        }
        return sent, size

    # Many runs

    async def list(self, where: RunFilter, limit: int, before: str | None) -> builtins.list[RunInfo]:
        """Runs that match, newest first."""
        query = {
            "state": [str(one) for one in where.states],
            "workflow": where.workflow,
            "tag": where.tag,
            "text": where.text,
            "parent": where.parent,
            "id_prefix": where.id_prefix,
            "created_after": iso(where.created_after),
            "created_before": iso(where.created_before),
        }
        return [read_run(one) for one in await self._pages("/v1/runs", query, limit, before)]

    async def tail(self, followed: Followed, since: datetime | None) -> AsyncGenerator[Happening]:
        """What happens in all runs."""
        query = {"workflow": followed.workflow, "tag": followed.tag, "state": [str(one) for one in followed.states]}
        left, told = Patience(self._transport.pace, None), Told()
        place = None if since is None else since.isoformat()
        while True:
            wait: float | None = None
            try:
                async with (
                    self._transport.stream("/v1/events", query={**query, "since": place}) as stream,
                    aclosing(aiter(stream)) as received,
                ):
                    async for one in received:
                        left.renew()
                        place = one.id or place
                        if one.event == FOLLOWING:
                            since = since or datetime.fromisoformat(json.loads(one.data)["since"])
                            continue
                        happening = read(Happening, json.loads(one.data), "data")
                        if told.is_new(happening) and (since is None or happening.at >= since):
                            yield happening
            except Passing as passing:
                wait = passing.wait
            await left.wait(wait)  # its server is about to stop: another one, or it itself, goes on from this place

    async def export(self, run_id: str) -> Journal:
        """A run outside its store."""
        told = await self._get(f"/v1/runs/{part(run_id)}/journal")
        return Journal.of(told, f"what {self.url} tells of run {run_id!r}")

    async def budget(self, run_id: str) -> BudgetInfo:
        """What a run may use and has used."""
        return read(BudgetInfo, await self._get(f"/v1/runs/{part(run_id)}/budget"))

    async def dead(self, workflow: str | None, limit: int, before: str | None) -> builtins.list[DeadRun]:
        """Dead runs, newest first."""
        found = await self._pages("/v1/dead", {"workflow": workflow}, limit, before)
        return [read(DeadRun, one) for one in found]

    async def _pages(self, path: str, query: dict[str, Any], limit: int, before: str | None) -> builtins.list[Any]:
        found: list[Any] = []
        place: dict[str, str | None] = {"before": before}
        while len(found) < limit:
            told = await self._get(path, **query, **place, limit=min(PAGE, limit - len(found)))
            found += items_of(told)
            if told["next"] is None:
                break
            place = {"cursor": str(told["next"])}
        return found

    async def retry(self, run_id: str, *, run_again: bool, version: str | None) -> None:
        """Let a run go on that failed, was cancelled or is dead."""
        body = _given({"run_again": run_again, "version": version})
        answer = await self._transport.ask("POST", f"/v1/runs/{part(run_id)}/retry", body=body)
        is_refused = isinstance(answer.error, RetryRefused)
        if answer.again and is_refused and not (await self.info(run_id)).state.is_terminal:
            return  # our first try has been heard: it goes on
        answer.checked()

    async def settle(self, run_id: str, step: int | str, *, output: Any, happened: bool, by: str | None) -> None:
        """Say what came of a step of unknown outcome, and let its run go on."""
        check_what_is_said(output, happened)
        body = _given({"step": step, "by": by})
        if happened:
            body["output"] = self._wire(output, f"the output of step {step!r}")
        else:
            body["happened"] = False
        answer = await self._transport.ask("POST", f"/v1/runs/{part(run_id)}/settle", body=body)
        is_refused = isinstance(answer.error, SettleRefused)
        if answer.again and is_refused and not (await self.info(run_id)).state.is_terminal:
            return  # our first try has been heard: it goes on
        answer.checked()

    async def fork(self, run_id: str, *, at: int | str | None, with_output: Any, id: str | None) -> str:
        """A new run that shares the beginning of another one."""
        if with_output is not NOT_GIVEN and at is None:
            raise UsageError("fork: with_output is the output of a step: say which with `at`")
        body = _given({"at": at, "id": id})
        if with_output is not NOT_GIVEN:
            body["output"] = self._wire(with_output, f"the output of step {at!r}")
        path = f"/v1/runs/{part(run_id)}/fork"
        answer = await self._transport.ask("POST", path, body=body, key=secrets.token_hex(16))
        is_taken = isinstance(answer.error, RunConflict)
        if answer.again and is_taken and id is not None and (await self.info(id)).forked_from == run_id:
            return id  # our first try has been heard
        return str(answer.checked()["id"])

    async def prune(
        self,
        older_than: Duration,
        states: Collection[RunState],
        *,
        workflow: str | None,
        keep: int,
        unclaimed: bool,
        run_ids: Collection[str] | None,
        dry_run: bool,
        report: PruneReport,
    ) -> PruneReport:
        """Delete ended runs, and tell in ``report``."""
        body = {
            "older_than": age_in_seconds(older_than),
            "state": [str(one) for one in states],
            "workflow": workflow,
            "keep": keep,
            "unclaimed": unclaimed,
            "run_ids": None if run_ids is None else [*run_ids],
            "dry_run": dry_run,
        }
        answer = await self._transport.ask("POST", "/v1/prune", body=_given(body), answer=PRUNING)
        told = read(PruneReport, answer.checked())
        for one in fields(told):
            setattr(report, one.name, getattr(told, one.name))
        return report

    # Agents and workflows

    async def usage_report(self, since: date | None, until: date | None, workflow: str | None) -> UsageReport:
        """What all runs have used, by day."""
        first, last = (None if day is None else day_of(day).isoformat() for day in (since, until))
        told = await self._get("/v1/usage", since=first, until=last, workflow=workflow)
        spending = read_all(DaySpending, told)
        return read(UsageReport, {**told, "spending": spending})

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Who takes up runs."""
        return read_all(WorkerInfo, await self._get("/v1/workers"))

    async def health(self) -> builtins.list[Health]:
        """How it is with all that was announced."""
        return read_all(Health, await self._get("/v1/agents"))

    async def inputs_schema(self, workflow: str, version: str | None) -> Mapping[str, Any]:
        """What the inputs of a workflow must be, in the newest version: a server tells of no other."""
        return read(Health, await self._get(f"/v1/agents/{part(workflow)}")).inputs_schema

    async def switch_off(self, workflow: str, reason: str, by: str | None) -> bool:
        """Stop a workflow everywhere."""
        return await self._changes(f"/v1/agents/{part(workflow)}/kill", {"reason": reason, "by": by})

    async def switch_on(self, workflow: str) -> bool:
        """Let its runs go on."""
        return await self._changes(f"/v1/agents/{part(workflow)}/lift")

    async def audit(self, limit: int) -> builtins.list[AuditEntry]:
        """Who asked servers for what."""
        return [read(AuditEntry, one) for one in await self._pages("/v1/audit", {}, limit, None)]

    async def switched_off(self) -> dict[str, Switch]:
        """What is switched off, since when, by whom, and why."""
        return {one.name: one for one in read_all(Switch, await self._get("/v1/switched-off"))}


def _options(options: StartOptions) -> dict[str, Any]:
    """How a run is started, as it is sent."""
    most = options.debounce_most
    return {
        "queue": queue_as_json(options.queue),
        "key": options.key,
        "dedup": options.dedup,
        "debounce": options.debounce,
        "debounce_most": None if most == MAX_DURATION_S else most,
        "delay": max(0.0, options.delay) or None,
        "priority": options.priority or None,
        "tags": [*options.tags] or None,
        "budget": None if options.budget is None else budget_as_json(options.budget),
        "max_deliveries": options.max_deliveries,
        "version": options.version,
    }


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _batches(inputs: Iterable[tuple[dict[str, Any], int]]) -> Iterator[list[dict[str, Any]]]:
    """So many at once as a server takes in one request."""
    some: list[dict[str, Any]] = []
    size = 0
    for one, more in inputs:
        if some and (len(some) >= AT_ONCE or size + more > BATCH):
            yield some
            some, size = [], 0
        some.append(one)
        size += more
    if some:
        yield some
