"""What a call of an agent is given and no journal can hold: deps, model objects, output types, toolsets, overrides.

These objects belong to the process that makes the call. The run's inputs record only their names, so that a process
that takes the run over knows what it lacks: it uses its own deps, and fails the run with ``BoundArgumentMissing`` for
everything else, since another model or another output type would make it another run. A program that is started again
and repeats its call brings them along; it may do so a moment after a worker in it has claimed the run, so a run waits
for a short time before it begins.
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
"""In the inputs of a run that was given something that is not recorded."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What ``agent.override(...)`` has set in the calling task, of this agent and of others that it may call."""

    values: Mapping[ContextVar[Any], Any]

    @classmethod
    def capture(cls) -> Overrides:
        """Those that are active now."""
        # The library keeps them in context variables, and a workflow's tasks begin with an empty context.
        return cls(
            {
                variable: value
                for variable, value in copy_context().items()
                if variable.name.startswith(_OVERRIDE_PREFIX) and isinstance(value, Some)
            }
        )

    @property
    def names(self) -> list[str]:
        """As a run's inputs record them."""
        return [f"override({name}=...)" for name in {one.name.removeprefix(_OVERRIDE_PREFIX) for one in self.values}]

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
    """What one call was given that is not recorded."""

    deps: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overrides: Overrides = field(default_factory=lambda: Overrides({}))
    live_run: LiveRun | None = None
    """Through which the caller watches the run. Not among the names either: the run goes on without a caller."""

    @property
    def names(self) -> list[str]:
        """As a run's inputs record them. Deps are not among them: each process may have its own."""
        return sorted([*self.arguments, *self.overrides.names])


@dataclass
class Bindings:
    """The bound objects of an agent's runs in this process, by run id."""

    durable: Durable[Any]
    _bindings: dict[str, Binding] = field(default_factory=dict[str, Binding])
    _referenced: WeakValueDictionary[str, Binding] = field(default_factory=WeakValueDictionary[str, Binding])
    """Also those of runs that have ended, while somebody holds them: a handle decodes the result by its type."""
    _waiters: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    def add(self, run_id: str, binding: Binding) -> None:
        """Bind objects to a run that is about to begin here, or waits for them."""
        self._bindings[run_id] = self._referenced[run_id] = binding
        if (expected := self._waiters.get(run_id)) is not None:
            expected.set()

    def remove(self, run_id: str) -> None:
        """Forget a run that has ended."""
        self._bindings.pop(run_id, None)

    def get_referenced(self, run_id: str) -> Binding | None:
        """What the call gave that is being made, or whose handle is held, here."""
        return self._referenced.get(run_id)

    async def wait_for(self, run: Run) -> None:
        """Wait a short time for the program to repeat the call that started the run, if the run needs what it gave."""
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
        """What a run was given. Raises ``DepsMissing`` or ``BoundArgumentMissing`` if this process does not have it."""
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
