"""Arguments of an agent's call that cannot be recorded: deps, model objects, output types, toolsets, overrides.

These objects belong to the process that makes the call. The run's inputs record only their names, so that a process
that takes over the run knows what is missing: it uses its own deps, and fails the run with ``BoundArgumentMissing`` for
everything else, since another model or output type would make it another run. A restarted program that repeats its call
provides them again. It may do so a moment after its worker has claimed the run, so a run waits for a short time before
it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pydantic_ai._utils import Some

from holdfast.agents.deps import DEPS_TIMEOUT_S
from holdfast.errors import BoundArgumentMissing, DepsMissing
from holdfast.integrations.pydantic_ai.live_run import LiveRun
from holdfast.stores.operations import Run

if TYPE_CHECKING:
    from holdfast.integrations.pydantic_ai.capability import Durable

_OVERRIDE_PREFIX = "_override_"
_INPUT_MARKERS = (b'"deps":true', b'"bound":[')
"""In the inputs of a run that has bound objects."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The values of ``agent.override(...)`` in the calling task, for this agent and others that it may call."""

    values: Mapping[ContextVar[Any], Any]

    @classmethod
    def capture(cls) -> Overrides:
        """The active overrides."""
        # The library stores them in context variables, and a workflow's tasks begin with an empty context.
        return cls(
            {
                variable: value
                for variable, value in copy_context().items()
                if variable.name.startswith(_OVERRIDE_PREFIX) and isinstance(value, Some)
            }
        )

    @property
    def names(self) -> list[str]:
        """Their names in a run's inputs."""
        names = {variable.name.removeprefix(_OVERRIDE_PREFIX) for variable in self.values}
        return [f"override({name}=...)" for name in names]

    @contextmanager
    def apply(self) -> Generator[None]:
        """Set them in the current task."""
        tokens = [(variable, variable.set(value)) for variable, value in self.values.items()]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Binding:
    """The arguments of one call that are not recorded."""

    deps: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overrides: Overrides = field(default_factory=lambda: Overrides({}))
    live_run: LiveRun | None = None
    """For a caller that watches the run. It has no name in the inputs: the run can continue without a caller."""

    @property
    def names(self) -> list[str]:
        """Their names in a run's inputs, without deps: each process may have its own."""
        return sorted([*self.arguments, *self.overrides.names])


@dataclass
class Bindings:
    """The bound objects of an agent's runs in this process, by run id."""

    durable: Durable[Any]
    _bindings: dict[str, Binding] = field(default_factory=dict[str, Binding])
    _referenced: WeakValueDictionary[str, Binding] = field(default_factory=WeakValueDictionary[str, Binding])
    """Includes those of ended runs, while a handle holds them: it decodes the result by the call's output type."""
    _waiters: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    def add(self, run_id: str, binding: Binding) -> None:
        """Bind objects to a run that is about to begin in this process, or that waits for them."""
        self._bindings[run_id] = self._referenced[run_id] = binding
        if (expected := self._waiters.get(run_id)) is not None:
            expected.set()

    def remove(self, run_id: str) -> None:
        """Forget a run that has ended."""
        self._bindings.pop(run_id, None)

    def get_referenced(self, run_id: str) -> Binding | None:
        """The binding of a current call, or of a run that has a handle in this process."""
        return self._referenced.get(run_id)

    async def wait_for(self, run: Run) -> None:
        """If the run needs bound objects, wait a short time for the program to repeat the call that started it."""
        needs_deps, needs_arguments = (mark in run.inputs for mark in _INPUT_MARKERS)
        if run.id in self._bindings or not (needs_arguments or (needs_deps and self.durable.deps is None)):
            return
        self._waiters[run.id] = expected = asyncio.Event()
        try:
            async with asyncio.timeout(DEPS_TIMEOUT_S):
                await expected.wait()
        except TimeoutError:
            pass  # the run fails with the error that says what is missing
        finally:
            self._waiters.pop(run.id, None)

    def get(self, run_id: str, settings: Mapping[str, Any]) -> Binding:
        """The binding of a run. Raises ``DepsMissing`` or ``BoundArgumentMissing`` if this process lacks a part."""
        bound = self._bindings.get(run_id, Binding())
        names = settings.get("bound", [])
        if missing := sorted(set(names) - set(bound.names)):
            raise BoundArgumentMissing(
                f"run {run_id!r} of agent {self.durable.name!r} was started with {', '.join(missing)}, which cannot be "
                f"recorded and belonged to the process that made the call. Make the same call again, with "
                f"run_id={run_id!r}, and retry the run while that process lives: `holdfast retry {run_id}`. For runs "
                f"that any worker can finish, give it to the agent: `Durable(models={{'name': model}})` and "
                f"`model='name'`, `Agent(output_type=..., toolsets=...)`."
            )
        deps = self.durable.deps if bound.deps is None else bound.deps
        if deps is None and settings.get("deps"):
            raise DepsMissing(
                f"run {run_id!r} of agent {self.durable.name!r} was started with deps, and this process was given "
                f"none: deps are never recorded, so each process brings its own. Give them to every run, as "
                f"`Durable(deps=...)`, or to `agent.run(..., deps=...)`; then `holdfast retry {run_id}` lets the run "
                f"go on."
            )
        return replace(bound, deps=deps)
