from holdfast.admission.queue_limits import PerKey as PerKey
from holdfast.admission.queue_limits import Queue as Queue
from holdfast.admission.retry_policy import RetryPolicy as RetryPolicy
from holdfast.admission.usage import Budget as Budget
from holdfast.admission.usage import Usage as Usage
from holdfast.agents.agent import Agent as Agent
from holdfast.agents.llm_step import llm_step as llm_step
from holdfast.agents.models.context_limit import Compaction as Compaction
from holdfast.agents.models.model_options import ModelOptions as ModelOptions
from holdfast.agents.output import Output as Output
from holdfast.agents.run_context import RunContext as RunContext
from holdfast.agents.skills.skill import Skill as Skill
from holdfast.agents.skills.skill import skill as skill
from holdfast.agents.skills.skill_folders import load_skills as load_skills
from holdfast.agents.tools import Tool as Tool
from holdfast.agents.tools import tool as tool
from holdfast.authoring.approval_requests import ApprovalNotification as ApprovalNotification
from holdfast.authoring.approval_requests import ApprovalPolicy as ApprovalPolicy
from holdfast.authoring.ask import ask as ask
from holdfast.authoring.memory import memory as memory
from holdfast.authoring.once import once as once
from holdfast.authoring.parallel import parallel as parallel
from holdfast.authoring.program import program as program
from holdfast.authoring.runtime import Runtime as Runtime
from holdfast.authoring.schedules import Schedule as Schedule
from holdfast.authoring.step import Step as Step
from holdfast.authoring.step import step as step
from holdfast.authoring.workflow import Workflow as Workflow
from holdfast.authoring.workflow import workflow as workflow
from holdfast.authoring.workflow_api import (
    current_run as current_run,
)
from holdfast.authoring.workflow_api import (
    current_step as current_step,
)
from holdfast.authoring.workflow_api import (
    map as map,
)
from holdfast.authoring.workflow_api import (
    now as now,
)
from holdfast.authoring.workflow_api import (
    patched as patched,
)
from holdfast.authoring.workflow_api import (
    random as random,
)
from holdfast.authoring.workflow_api import (
    uuid4 as uuid4,
)
from holdfast.authoring.workflow_api import (
    wait_for_signal as wait_for_signal,
)
from holdfast.authoring.workflow_options import WorkflowOptions as WorkflowOptions
from holdfast.client.client import Client as Client
from holdfast.client.delivery import Delivery as Delivery
from holdfast.client.delivery_steps import StepUsage as StepUsage
from holdfast.client.handle import Handle as Handle
from holdfast.client.sync_listener import SyncDelivery as SyncDelivery
from holdfast.codec.encryption import AesEncryption as AesEncryption
from holdfast.codec.encryption import Encryption as Encryption
from holdfast.core.states import Effect as Effect
from holdfast.core.states import RunState as RunState
from holdfast.errors import (
    ApprovalClosed as ApprovalClosed,
)
from holdfast.errors import (
    ApprovalDenied as ApprovalDenied,
)
from holdfast.errors import (
    ApprovalError as ApprovalError,
)
from holdfast.errors import (
    ApprovalTimedOut as ApprovalTimedOut,
)
from holdfast.errors import (
    BudgetExceeded as BudgetExceeded,
)
from holdfast.errors import (
    CompensationFailed as CompensationFailed,
)
from holdfast.errors import (
    DefinitionError as DefinitionError,
)
from holdfast.errors import (
    DeliveryLost as DeliveryLost,
)
from holdfast.errors import (
    DeliveryParked as DeliveryParked,
)
from holdfast.errors import (
    ForbiddenInWorkflow as ForbiddenInWorkflow,
)
from holdfast.errors import (
    HoldfastError as HoldfastError,
)
from holdfast.errors import (
    InputError as InputError,
)
from holdfast.errors import (
    InvalidOutput as InvalidOutput,
)
from holdfast.errors import (
    ModelError as ModelError,
)
from holdfast.errors import (
    ModelRequestRejected as ModelRequestRejected,
)
from holdfast.errors import (
    ModelRetry as ModelRetry,
)
from holdfast.errors import (
    ModelUnavailable as ModelUnavailable,
)
from holdfast.errors import (
    NonDeterminismError as NonDeterminismError,
)
from holdfast.errors import (
    NotAllowed as NotAllowed,
)
from holdfast.errors import (
    PolicyLimitReached as PolicyLimitReached,
)
from holdfast.errors import (
    RetryRefused as RetryRefused,
)
from holdfast.errors import (
    RunCancelled as RunCancelled,
)
from holdfast.errors import (
    RunConflict as RunConflict,
)
from holdfast.errors import (
    RunDead as RunDead,
)
from holdfast.errors import (
    RunEnded as RunEnded,
)
from holdfast.errors import (
    RunErased as RunErased,
)
from holdfast.errors import (
    RunFailed as RunFailed,
)
from holdfast.errors import (
    RunNotFound as RunNotFound,
)
from holdfast.errors import (
    RunTimedOut as RunTimedOut,
)
from holdfast.errors import (
    ServerError as ServerError,
)
from holdfast.errors import (
    ServerUnavailable as ServerUnavailable,
)
from holdfast.errors import (
    SettleRefused as SettleRefused,
)
from holdfast.errors import (
    StepFailed as StepFailed,
)
from holdfast.errors import (
    StepOutcomeUnknown as StepOutcomeUnknown,
)
from holdfast.errors import (
    StepTimedOut as StepTimedOut,
)
from holdfast.errors import (
    StoreError as StoreError,
)
from holdfast.errors import (
    TooManyRequests as TooManyRequests,
)
from holdfast.errors import (
    TurnLimitReached as TurnLimitReached,
)
from holdfast.errors import (
    Unauthenticated as Unauthenticated,
)
from holdfast.errors import (
    UndecryptableValue as UndecryptableValue,
)
from holdfast.errors import (
    UnknownApproval as UnknownApproval,
)
from holdfast.errors import (
    UnknownQueue as UnknownQueue,
)
from holdfast.errors import (
    UnknownSchedule as UnknownSchedule,
)
from holdfast.errors import (
    UnknownWorkflow as UnknownWorkflow,
)
from holdfast.errors import (
    UnrecordableValue as UnrecordableValue,
)
from holdfast.errors import (
    UsageError as UsageError,
)
from holdfast.errors import (
    ValueErased as ValueErased,
)
from holdfast.errors import (
    ValueTooLarge as ValueTooLarge,
)
from holdfast.errors import (
    WorkflowDisabled as WorkflowDisabled,
)
from holdfast.reports.agent_result import AgentResult as AgentResult
from holdfast.reports.events import Event as Event
from holdfast.reports.plans import Plan as Plan
from holdfast.reports.run_info import RunInfo as RunInfo
from holdfast.services.approvals import ApprovalInfo as ApprovalInfo
from holdfast.services.queues import QueueInfo as QueueInfo
from holdfast.services.schedules import ScheduleInfo as ScheduleInfo

__version__: str
