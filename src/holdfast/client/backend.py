"""What a client stands on: the contract between the public faces and whoever carries out what they are asked for.

``Client``, ``Handle`` and what a client has for memory, schedules, queues, addresses, policies and keys are faces: they
have the signatures and the words that users see, and the forms for code without an event loop. A *backend* is behind
all of them. It knows runs by their ids and workflows by their names, takes and gives the same values, and raises the
same errors, wherever the runs are: in a store (``store_backend``) or behind a Holdfast server (``http``).

An implementation lacks nothing: what it cannot carry out raises ``UsageError``, which says what to do instead.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from datetime import date, datetime
from typing import Any

from holdfast.admission.durations import Duration
from holdfast.admission.usage import Budget, Usage
from holdfast.client.listener import Listener
from holdfast.core.states import RunState
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
from holdfast.services.addresses import AddressInfo
from holdfast.services.api_keys import ApiKey, CreatedApiKey
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.audit_log import AuditEntry
from holdfast.services.bulk_start import CallArguments
from holdfast.services.health import DisabledWorkflow, Health
from holdfast.services.journal_files import Journal
from holdfast.services.memories import MemoryEntry
from holdfast.services.policies import Policy, PolicyInfo
from holdfast.services.queues import QueueInfo
from holdfast.services.retention import PruneReport
from holdfast.services.run_start import StartOptions
from holdfast.services.schedules import ScheduleInfo, ScheduleRequest
from holdfast.services.workers import WorkerInfo
from holdfast.stores.contract import RunFilter


class RunBackend(ABC):
    """What can be asked of one run: all that a handle needs. What each means is told by ``Handle`` and ``Client``."""

    @abstractmethod
    async def result(self, run_id: str) -> Any:
        """The run's result, once it has ended, however long that takes. Raises ``RunUnsuccessful`` if it has none."""

    @abstractmethod
    def events(self, run_id: str, after: str | None, *, follow: bool) -> AsyncGenerator[Event]:
        """What happens in the run behind the offset ``after``."""

    @abstractmethod
    async def info(self, run_id: str) -> RunInfo:
        """What can be told of the run now."""

    @abstractmethod
    async def usage(self, run_id: str) -> Usage:
        """What its model calls have used so far."""

    @abstractmethod
    async def plan(self, run_id: str) -> Plan:
        """Its plan."""

    @abstractmethod
    async def describe(self, run_id: str, after: int | None, limit: int | None, *, full: bool) -> RunReport:
        """All that is known of it, with the records behind ``after``, at most ``limit``; ``None``: all of them."""

    @abstractmethod
    async def conversation(self, run_id: str) -> list[ConversationMessage]:
        """What was said in it."""

    @abstractmethod
    async def tree(self, run_id: str) -> RunTree:
        """The tree of runs that it is in."""

    @abstractmethod
    async def set_budget(self, run_id: str, budget: Budget) -> None:
        """Give it another budget."""

    @abstractmethod
    async def signal(self, run_id: str, name: str, value: Any, id: str | None) -> bool:
        """Send a value into it."""

    @abstractmethod
    async def cancel(self, run_id: str) -> bool:
        """Ask for it to be cancelled."""

    @abstractmethod
    async def pause(self, run_id: str) -> bool:
        """Keep it from going on."""

    @abstractmethod
    async def resume(self, run_id: str) -> bool:
        """Let it go on."""

    @abstractmethod
    async def approvals(
        self, run_id: str | None, *, workflow: str | None, assignee: str | None, all: bool, limit: int
    ) -> list[ApprovalInfo]:
        """Questions that match, of this run or of all."""

    @abstractmethod
    async def approval(self, id: str) -> ApprovalInfo:
        """One question."""

    @abstractmethod
    async def approve(
        self,
        id: str,
        value: Any,
        *,
        arguments: Mapping[str, Any] | None,
        by: str | None,
        reason: str,
        run_id: str | None = None,
    ) -> bool:
        """Say yes to a question, which must be one of the run ``run_id``, if that is given."""

    @abstractmethod
    async def deny(self, id: str, *, by: str | None, reason: str, run_id: str | None = None) -> bool:
        """Say no to a question."""


class MemoryBackend(ABC):
    """Values that outlive runs: see ``ClientMemory``."""

    @abstractmethod
    async def put(self, namespace: str, key: str, value: Any, text: str | None) -> None:
        """Keep a value."""

    @abstractmethod
    async def get(self, namespace: str, key: str, default: Any, type: Any) -> Any:
        """One value, as ``type``."""

    @abstractmethod
    async def search(self, namespace: str, query: str, limit: int) -> builtins.list[MemoryEntry]:
        """Values that have some of these words in them."""

    @abstractmethod
    async def list(self, namespace: str, after: str, limit: int) -> builtins.list[MemoryEntry]:
        """Values in the order of their keys."""

    @abstractmethod
    async def delete(self, namespace: str, key: str) -> None:
        """Forget a value."""


class ScheduleBackend(ABC):
    """What is started at set times: see ``ClientSchedules``."""

    @abstractmethod
    async def create(self, request: ScheduleRequest) -> ScheduleInfo:
        """Make one, or find that it is there."""

    @abstractmethod
    async def list(self) -> builtins.list[ScheduleInfo]:
        """All of them."""

    @abstractmethod
    async def get(self, name: str) -> ScheduleInfo:
        """One of them."""

    @abstractmethod
    async def pause(self, name: str) -> bool:
        """Keep it from firing."""

    @abstractmethod
    async def resume(self, name: str) -> bool:
        """Let it fire again."""

    @abstractmethod
    async def delete(self, name: str) -> bool:
        """Forget it."""

    @abstractmethod
    async def trigger(self, name: str, id: str | None) -> str:
        """Start a run of it now, or find the one under this id."""


class QueueBackend(ABC):
    """Queues with limits: see ``ClientQueues``."""

    @abstractmethod
    async def list(self) -> builtins.list[QueueInfo]:
        """All of them."""

    @abstractmethod
    async def get(self, name: str) -> QueueInfo:
        """One of them."""

    @abstractmethod
    async def set(self, name: str, limits: Mapping[str, Any]) -> bool:
        """Set those of its limits that are given, by the names of ``ClientQueues.set``; ``None`` takes one away."""

    @abstractmethod
    async def names(self) -> builtins.list[str]:
        """All that something is known of, also those without limits."""

    @abstractmethod
    async def reset(self, name: str) -> bool:
        """Let it have the limits that code says."""

    @abstractmethod
    async def pause(self, name: str) -> bool:
        """Let nothing of it begin or go on."""

    @abstractmethod
    async def resume(self, name: str) -> bool:
        """Let its runs begin again."""


class AddressBackend(ABC):
    """Where work is sent to: see ``ClientAddresses``."""

    @abstractmethod
    async def list(self) -> builtins.list[AddressInfo]:
        """All of them."""

    @abstractmethod
    async def set(self, name: str, settings: Mapping[str, Any]) -> AddressInfo:
        """Change those of its settings that are given."""

    @abstractmethod
    async def delete(self, name: str) -> bool:
        """Forget its settings."""


class PolicyBackend(ABC):
    """What a day may cost: see ``ClientPolicies``."""

    @abstractmethod
    async def list(self) -> builtins.list[PolicyInfo]:
        """All of them."""

    @abstractmethod
    async def set(self, name: str, policy: Policy) -> None:
        """Give somebody a policy."""

    @abstractmethod
    async def delete(self, name: str) -> bool:
        """Take it away."""


class KeyBackend(ABC):
    """API keys: see ``ClientKeys``."""

    @abstractmethod
    async def create(self, name: str, scopes: Collection[str], expires_at: datetime | None) -> CreatedApiKey:
        """Make one."""

    @abstractmethod
    async def list(self, namespace: str | None) -> builtins.list[ApiKey]:
        """All of them, or those of a namespace."""

    @abstractmethod
    async def revoke(self, id: str) -> bool:
        """Let one open nothing any more."""


class Backend(RunBackend):
    """All that a client can ask for."""

    url: str
    """Where it is, as people may see it."""
    max_value: int
    """The largest value that is sent, in bytes."""

    @property
    @abstractmethod
    def memory(self) -> MemoryBackend:
        """Values that outlive runs."""

    @property
    @abstractmethod
    def schedules(self) -> ScheduleBackend:
        """What is started at set times."""

    @property
    @abstractmethod
    def queues(self) -> QueueBackend:
        """Queues with limits."""

    @property
    @abstractmethod
    def addresses(self) -> AddressBackend:
        """Where work is sent to."""

    @property
    @abstractmethod
    def policies(self) -> PolicyBackend:
        """What a day may cost."""

    @property
    @abstractmethod
    def keys(self) -> KeyBackend:
        """API keys."""

    @abstractmethod
    async def open(self, give_up_after_s: float | None = None) -> None:
        """Connect, under the running event loop. A server that does not answer is given ``give_up_after_s``
        seconds, if that is given.
        """

    @abstractmethod
    async def close(self) -> None:
        """Disconnect the running event loop. What is used again connects again."""

    @abstractmethod
    async def start(self, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions) -> str:
        """Start a run or join the one that is there, and return its id."""

    @abstractmethod
    async def start_many(
        self, workflow: str, calls: Iterable[CallArguments], options: StartOptions
    ) -> builtins.list[str]:
        """Start or join a run for each call, and return their ids in order."""

    @abstractmethod
    async def send(self, address: str, payload: Any, options: StartOptions, deadline_s: float | None) -> str:
        """Send work to an address, or find that it was sent before, and return the id of its run."""

    @abstractmethod
    async def list(self, run_filter: RunFilter, limit: int, before: str | None) -> builtins.list[RunInfo]:
        """Runs that match, newest first, those behind the run ``before``."""

    @abstractmethod
    async def retry(self, run_id: str, *, run_again: bool, version: str | None) -> None:
        """Let a run go on that failed, was cancelled or is dead."""

    @abstractmethod
    async def settle(self, run_id: str, step: int | str, *, output: Any, happened: bool, by: str | None) -> None:
        """Say what came of a step of unknown outcome, and let its run go on. ``output`` may be ``NOT_GIVEN``."""

    @abstractmethod
    async def fork(self, run_id: str, *, at: int | str | None, with_output: Any, id: str | None) -> str:
        """A new run that shares the beginning of another one; returns its id. ``with_output`` may be ``NOT_GIVEN``."""

    @abstractmethod
    def tail(self, tail_filter: TailFilter, since: datetime | None) -> AsyncGenerator[TailEvent]:
        """What happens in all runs."""

    @abstractmethod
    async def export(self, run_id: str) -> Journal:
        """A run outside its store."""

    @abstractmethod
    async def budget(self, run_id: str) -> BudgetInfo:
        """What a run may use and has used."""

    @abstractmethod
    async def dead(self, workflow: str | None, limit: int, before: str | None) -> builtins.list[DeadRun]:
        """Dead runs, newest first."""

    @abstractmethod
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

    @abstractmethod
    async def usage_report(self, since: date | None, until: date | None, workflow: str | None) -> UsageReport:
        """What all runs have used, by day."""

    @abstractmethod
    def create_listener(self, address: str, *, concurrency: int, name: str | None) -> Listener:
        """A new listener on an address, which lives on the event loop that it is first used under."""

    @abstractmethod
    async def workers(self) -> builtins.list[WorkerInfo]:
        """Who takes up runs."""

    @abstractmethod
    async def health(self) -> builtins.list[Health]:
        """How it is with all that was announced."""

    @abstractmethod
    async def inputs_schema(self, workflow: str, version: str | None) -> Mapping[str, Any]:
        """What the inputs of a workflow must be."""

    @abstractmethod
    async def disable(self, workflow: str, reason: str, by: str | None) -> bool:
        """Stop a workflow everywhere."""

    @abstractmethod
    async def enable(self, workflow: str) -> bool:
        """Let its runs go on."""

    @abstractmethod
    async def disabled_workflows(self) -> dict[str, DisabledWorkflow]:
        """What is disabled, since when, by whom, and why."""

    @abstractmethod
    async def audit(self, limit: int) -> builtins.list[AuditEntry]:
        """Who asked servers for what, the newest first."""
