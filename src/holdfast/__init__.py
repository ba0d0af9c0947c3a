"""Holdfast makes crash recovery the default for Python agents.

An agent run is a durable workflow: every step is recorded before the run goes on, and another process takes over where
a dead one stopped. The public names below are loaded when they are first used, so that ``import holdfast`` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from warnings import warn

from holdfast.installation import ADVICE, describe_clash, find_foreign_distribution
from holdfast.installation import __version__ as __version__

if TYPE_CHECKING:
    from holdfast.agents.agent import Agent
    from holdfast.agents.llm_step import llm_step
    from holdfast.agents.models.context import Compaction
    from holdfast.agents.skills.folders import skills_from
    from holdfast.agents.skills.skill import Skill, skill
    from holdfast.agents.tools import RunContext, Tool, tool
    from holdfast.authoring.asking import ApprovalNotice, ApprovalPolicy
    from holdfast.authoring.inside import current_run, current_step, map, now, patched, random, uuid4, wait_for_signal
    from holdfast.authoring.memory import memory
    from holdfast.authoring.parallel import parallel
    from holdfast.authoring.questions import ask
    from holdfast.authoring.runtime import Runtime
    from holdfast.authoring.schedules import Schedule
    from holdfast.authoring.step import Step, step
    from holdfast.authoring.workflow import Workflow, workflow
    from holdfast.client.agent_result import AgentResult
    from holdfast.client.approvals import ApprovalInfo
    from holdfast.client.client import Client
    from holdfast.client.deliveries import Delivery
    from holdfast.client.delivery_steps import StepUsage
    from holdfast.client.events import Event
    from holdfast.client.handle import Handle
    from holdfast.client.listening_sync import SyncDelivery
    from holdfast.client.plans import Plan
    from holdfast.client.queues import QueueInfo
    from holdfast.client.run_info import RunInfo
    from holdfast.client.schedules import ScheduleInfo
    from holdfast.codec.encryption import AesEncryption, Encryption
    from holdfast.core.queues import PerKey, Queue
    from holdfast.core.retry import RetryPolicy
    from holdfast.core.states import Effect, RunState
    from holdfast.core.usage import Budget, Usage
    from holdfast.errors import (
        ApprovalClosed,
        ApprovalDenied,
        ApprovalError,
        ApprovalTimedOut,
        BudgetExceeded,
        CompensationFailed,
        DefinitionError,
        DeliveryLost,
        DeliveryParked,
        ForbiddenInWorkflow,
        HoldfastError,
        InputError,
        InvalidOutput,
        ModelError,
        ModelRefused,
        ModelRetry,
        ModelUnavailable,
        NonDeterminismError,
        NotAllowed,
        PolicyLimit,
        RetryRefused,
        RunCancelled,
        RunConflict,
        RunDead,
        RunEnded,
        RunFailed,
        RunNotFound,
        RunTimedOut,
        ServerError,
        ServerUnavailable,
        SettleRefused,
        StepFailed,
        StepOutcomeUnknown,
        StepTimedOut,
        StoreError,
        TooManyRequests,
        TurnLimitReached,
        Unauthenticated,
        UndecryptableValue,
        UnknownApproval,
        UnknownQueue,
        UnknownSchedule,
        UnknownWorkflow,
        UnrecordableValue,
        UsageError,
        ValueTooLarge,
        WorkflowSwitchedOff,
    )

_HOMES = {
    "holdfast.agents.agent": ("Agent",),
    "holdfast.agents.llm_step": ("llm_step",),
    "holdfast.agents.models.context": ("Compaction",),
    "holdfast.agents.skills.folders": ("skills_from",),
    "holdfast.agents.skills.skill": ("Skill", "skill"),
    "holdfast.agents.tools": ("RunContext", "Tool", "tool"),
    "holdfast.authoring.asking": ("ApprovalNotice", "ApprovalPolicy"),
    "holdfast.authoring.inside": (
        "current_run",
        "current_step",
        "map",
        "now",
        "patched",
        "random",
        "uuid4",
        "wait_for_signal",
    ),
    "holdfast.authoring.memory": ("memory",),
    "holdfast.authoring.parallel": ("parallel",),
    "holdfast.authoring.questions": ("ask",),
    "holdfast.authoring.runtime": ("Runtime",),
    "holdfast.authoring.schedules": ("Schedule",),
    "holdfast.authoring.step": ("Step", "step"),
    "holdfast.authoring.workflow": ("Workflow", "workflow"),
    "holdfast.client.agent_result": ("AgentResult",),
    "holdfast.client.approvals": ("ApprovalInfo",),
    "holdfast.client.client": ("Client",),
    "holdfast.client.deliveries": ("Delivery",),
    "holdfast.client.delivery_steps": ("StepUsage",),
    "holdfast.client.events": ("Event",),
    "holdfast.client.handle": ("Handle",),
    "holdfast.client.listening_sync": ("SyncDelivery",),
    "holdfast.client.plans": ("Plan",),
    "holdfast.client.queues": ("QueueInfo",),
    "holdfast.client.run_info": ("RunInfo",),
    "holdfast.client.schedules": ("ScheduleInfo",),
    "holdfast.codec.encryption": ("AesEncryption", "Encryption"),
    "holdfast.core.queues": ("PerKey", "Queue"),
    "holdfast.core.retry": ("RetryPolicy",),
    "holdfast.core.states": ("Effect", "RunState"),
    "holdfast.core.usage": ("Budget", "Usage"),
    "holdfast.errors": (
        "ApprovalClosed",
        "ApprovalDenied",
        "ApprovalError",
        "ApprovalTimedOut",
        "BudgetExceeded",
        "CompensationFailed",
        "DefinitionError",
        "DeliveryLost",
        "DeliveryParked",
        "ForbiddenInWorkflow",
        "HoldfastError",
        "InputError",
        "InvalidOutput",
        "ModelError",
        "ModelRefused",
        "ModelRetry",
        "ModelUnavailable",
        "NonDeterminismError",
        "NotAllowed",
        "PolicyLimit",
        "RetryRefused",
        "RunCancelled",
        "RunConflict",
        "RunDead",
        "RunEnded",
        "RunFailed",
        "RunNotFound",
        "RunTimedOut",
        "ServerError",
        "ServerUnavailable",
        "SettleRefused",
        "StepFailed",
        "StepOutcomeUnknown",
        "StepTimedOut",
        "StoreError",
        "TooManyRequests",
        "TurnLimitReached",
        "Unauthenticated",
        "UndecryptableValue",
        "UnknownApproval",
        "UnknownQueue",
        "UnknownSchedule",
        "UnknownWorkflow",
        "UnrecordableValue",
        "UsageError",
        "ValueTooLarge",
        "WorkflowSwitchedOff",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AesEncryption",
    "Agent",
    "AgentResult",
    "ApprovalClosed",
    "ApprovalDenied",
    "ApprovalError",
    "ApprovalInfo",
    "ApprovalNotice",
    "ApprovalPolicy",
    "ApprovalTimedOut",
    "Budget",
    "BudgetExceeded",
    "Client",
    "Compaction",
    "CompensationFailed",
    "DefinitionError",
    "Delivery",
    "DeliveryLost",
    "DeliveryParked",
    "Effect",
    "Encryption",
    "Event",
    "ForbiddenInWorkflow",
    "Handle",
    "HoldfastError",
    "InputError",
    "InvalidOutput",
    "ModelError",
    "ModelRefused",
    "ModelRetry",
    "ModelUnavailable",
    "NonDeterminismError",
    "NotAllowed",
    "PerKey",
    "Plan",
    "PolicyLimit",
    "Queue",
    "QueueInfo",
    "RetryPolicy",
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
    "Schedule",
    "ScheduleInfo",
    "ServerError",
    "ServerUnavailable",
    "SettleRefused",
    "Skill",
    "Step",
    "StepFailed",
    "StepOutcomeUnknown",
    "StepTimedOut",
    "StepUsage",
    "StoreError",
    "SyncDelivery",
    "TooManyRequests",
    "Tool",
    "TurnLimitReached",
    "Unauthenticated",
    "UndecryptableValue",
    "UnknownApproval",
    "UnknownQueue",
    "UnknownSchedule",
    "UnknownWorkflow",
    "UnrecordableValue",
    "Usage",
    "UsageError",
    "ValueTooLarge",
    "Workflow",
    "WorkflowSwitchedOff",
    "ask",
    "current_run",
    "current_step",
    "llm_step",
    "map",
    "memory",
    "now",
    "parallel",
    "patched",
    "random",
    "skill",
    "skills_from",
    "step",
    "tool",
    "uuid4",
    "wait_for_signal",
    "workflow",
]

if _foreign := find_foreign_distribution():
    warn(f"{describe_clash(_foreign)} {ADVICE}", RuntimeWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
