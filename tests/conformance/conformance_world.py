"""What the scenarios share: where they run, ids that nobody else has, and what a backend cannot do."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from holdfast import Client, RunFailed, Runtime, Workflow
from holdfast.authoring.registry import definitions
from waits import wait_until

BACKENDS = ("sqlite", "postgres", "temporal")

PATIENCE = 30.0
"""Seconds after which something is taken never to happen."""

_NO_DATABASE = "there is no database that a step could share"
_NO_FLEET_LIMITS = "task queues know no limits for a fleet"
_OWN_SCHEDULES = "Temporal has schedules of its own"
_NO_SUMS = "Temporal adds nothing up over runs"
_NO_PLACE = "Temporal has no place for it"

EXCLUDED: dict[str, dict[str, str]] = {
    "test_a_step_in_a_transaction": {"temporal": _NO_DATABASE},
    "test_a_queue_with_limits": {"temporal": _NO_FLEET_LIMITS},
    "test_the_queues_of_a_client": {"temporal": _NO_FLEET_LIMITS},
    "test_starts_that_are_joined_by_what_they_are_about": {"temporal": "runs are joined by their ids alone"},
    "test_a_schedule_of_the_code": {"temporal": _OWN_SCHEDULES},
    "test_a_schedule_of_a_client": {"temporal": _OWN_SCHEDULES},
    "test_memories": {"temporal": f"{_NO_PLACE}: it needs a store beside it, `?memory=`"},
    "test_memories_of_a_client": {"temporal": f"{_NO_PLACE}: it needs a store beside it, `?memory=`"},
    "test_a_workflow_that_is_switched_off": {"temporal": "task queues cannot be closed"},
    "test_what_was_used_by_day": {"temporal": _NO_SUMS},
    "test_old_runs_are_deleted": {"temporal": "the namespace's retention deletes them"},
    "test_work_is_sent_to_an_address": {"temporal": "there are workflows only"},
}
"""What a backend cannot do: the scenario, the backend, and why. There it must raise a ``UsageError`` that says so."""

DIFFERENT: dict[str, dict[str, str]] = {
    "test_code_that_does_not_fit_the_journal_stops_the_run_and_other_code_goes_on": {
        "temporal": "the run stands still until there is code that fits, and then goes on by itself",
    },
    "test_a_rolled_back_deploy_finds_the_signal_that_it_did_not_wait_for": {
        "temporal": "nothing looks at a run again until something is sent to it",
    },
}
"""What a backend does in its own way, as its page in the docs says: the scenario looks here."""


@dataclass(frozen=True)
class World:
    """Where a scenario runs."""

    backend: str
    url: str
    runtime: Runtime
    """Serves the workflows of the scenario's module."""


effect_counts: Counter[tuple[str, str]] = Counter()
"""How often what was done, by run: counted by steps, in this process and outside of all stores."""


def make_unique_id(name: str) -> str:
    """An id that no other run has."""
    return f"{name}-{secrets.token_hex(5)}"


def list_workflows(module: ModuleType) -> set[str]:
    """The workflows that a module defines once and for all."""
    return {one.name for one in vars(module).values() if isinstance(one, Workflow)}


def list_served_workflows(module: ModuleType) -> set[str]:
    """Those that its own runtime serves: all but what it keeps for runtimes of its scenarios (``OWN``)."""
    return list_workflows(module) - {one.name for one in getattr(module, "OWN", ())}


@contextmanager
def only_workflows(*workflows: Workflow[..., Any]) -> Iterator[None]:
    """As if the process knew these workflows only: a runtime that nobody tells what to serve serves all."""
    before = dict(definitions)
    definitions.clear()
    definitions.update({name: one for name, one in before.items() if any(one is w.definition for w in workflows)})
    try:
        yield
    finally:
        definitions.clear()
        definitions.update(before)


@contextmanager
def fails_with(cause: type[BaseException], match: str = "") -> Any:
    """The run fails, and its own exception is one of this class."""
    with pytest.raises(RunFailed) as caught:
        yield
    error = caught.value.__cause__
    assert type(error) is cause, f"the run failed with {error!r}"
    assert match in str(error)


@contextmanager
def raising_run_error() -> Iterator[None]:
    """If the run fails, raise what it has failed with."""
    try:
        yield
    except RunFailed as failed:
        raise failed.__cause__ or failed from None


async def wait_for_approval(client: Client, run_id: str, text: str = "") -> Any:
    """The open question of a run (with this in it), once it is asked."""

    async def look() -> Any:
        return next((one for one in await client.approvals(run_id) if text in one.question), None)

    return await wait_until(look)
