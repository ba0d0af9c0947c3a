"""Holdfast makes crash recovery the default for Python agents.

An agent run is a durable workflow: every step is recorded before the run goes on, and another process takes over where
a dead one stopped. The public names below are loaded when they are first used, so that ``import holdfast`` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agents.agent import Agent
    from holdfast.agents.llm_step import llm_step
    from holdfast.agents.tools import RunContext, Tool, tool
    from holdfast.authoring.inside import current_run, current_step, map, now, random, uuid4, wait_for_signal
    from holdfast.authoring.parallel import parallel
    from holdfast.authoring.runtime import Runtime
    from holdfast.authoring.step import Step, step
    from holdfast.authoring.workflow import Workflow, workflow
    from holdfast.client.agent_result import AgentResult
    from holdfast.client.client import Client
    from holdfast.client.handle import Handle, RunInfo
    from holdfast.core.states import Effect, RunState
    from holdfast.core.usage import Budget, Usage
    from holdfast.errors import (
        BudgetExceeded,
        CompensationFailed,
        DefinitionError,
        ForbiddenInWorkflow,
        HoldfastError,
        InputError,
        ModelError,
        ModelRefused,
        ModelRetry,
        ModelUnavailable,
        NonDeterminismError,
        RetryRefused,
        RunCancelled,
        RunConflict,
        RunDead,
        RunEnded,
        RunFailed,
        RunNotFound,
        RunTimedOut,
        StepFailed,
        StepOutcomeUnknown,
        StepTimedOut,
        StoreError,
        TurnLimitReached,
        UnknownWorkflow,
        UnrecordableValue,
        UsageError,
        ValueTooLarge,
        WorkflowSwitchedOff,
    )

__version__ = "0.1.0"

_HOMES = {
    "holdfast.agents.agent": ("Agent",),
    "holdfast.agents.llm_step": ("llm_step",),
    "holdfast.agents.tools": ("RunContext", "Tool", "tool"),
    "holdfast.authoring.inside": ("current_run", "current_step", "map", "now", "random", "uuid4", "wait_for_signal"),
    "holdfast.authoring.parallel": ("parallel",),
    "holdfast.authoring.runtime": ("Runtime",),
    "holdfast.authoring.step": ("Step", "step"),
    "holdfast.authoring.workflow": ("Workflow", "workflow"),
    "holdfast.client.agent_result": ("AgentResult",),
    "holdfast.client.client": ("Client",),
    "holdfast.client.handle": ("Handle", "RunInfo"),
    "holdfast.core.states": ("Effect", "RunState"),
    "holdfast.core.usage": ("Budget", "Usage"),
    "holdfast.errors": (
        "BudgetExceeded",
        "CompensationFailed",
        "DefinitionError",
        "ForbiddenInWorkflow",
        "HoldfastError",
        "InputError",
        "ModelError",
        "ModelRefused",
        "ModelRetry",
        "ModelUnavailable",
        "NonDeterminismError",
        "RetryRefused",
        "RunCancelled",
        "RunConflict",
        "RunDead",
        "RunEnded",
        "RunFailed",
        "RunNotFound",
        "RunTimedOut",
        "StepFailed",
        "StepOutcomeUnknown",
        "StepTimedOut",
        "StoreError",
        "TurnLimitReached",
        "UnknownWorkflow",
        "UnrecordableValue",
        "UsageError",
        "ValueTooLarge",
        "WorkflowSwitchedOff",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Agent",
    "AgentResult",
    "Budget",
    "BudgetExceeded",
    "Client",
    "CompensationFailed",
    "DefinitionError",
    "Effect",
    "ForbiddenInWorkflow",
    "Handle",
    "HoldfastError",
    "InputError",
    "ModelError",
    "ModelRefused",
    "ModelRetry",
    "ModelUnavailable",
    "NonDeterminismError",
    "RetryRefused",
    "RunCancelled",
    "RunConflict",
    "RunContext",
    "RunDead",
    "RunEnded",
    "RunFailed",
    "RunInfo",
    "RunNotFound",
    "RunState",
    "RunTimedOut",
    "Runtime",
    "Step",
    "StepFailed",
    "StepOutcomeUnknown",
    "StepTimedOut",
    "StoreError",
    "Tool",
    "TurnLimitReached",
    "UnknownWorkflow",
    "UnrecordableValue",
    "Usage",
    "UsageError",
    "ValueTooLarge",
    "Workflow",
    "WorkflowSwitchedOff",
    "current_run",
    "current_step",
    "llm_step",
    "map",
    "now",
    "parallel",
    "random",
    "step",
    "tool",
    "uuid4",
    "wait_for_signal",
    "workflow",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
