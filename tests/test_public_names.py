"""The public names: adding one is a decision, and so is losing one."""

from __future__ import annotations

import pytest

import holdfast

PUBLIC = set(
    """
    Agent AgentResult Budget Client Compaction Effect Event Handle ModelOptions ModelRetry Output Plan RetryPolicy
    RunContext RunInfo RunState Runtime
    Schedule ScheduleInfo UnknownSchedule
    PerKey Queue QueueInfo UnknownQueue
    Delivery DeliveryLost DeliveryParked StepUsage SyncDelivery
    Skill Step Tool Usage Workflow WorkflowOptions
    AesEncryption Encryption UndecryptableValue
    current_run current_step llm_step map memory now once parallel patched program random skill load_skills step tool
    uuid4 wait_for_signal workflow
    ApprovalInfo ApprovalNotification ApprovalPolicy ask
    ApprovalClosed ApprovalDenied ApprovalError ApprovalTimedOut UnknownApproval
    BudgetExceeded CompensationFailed DefinitionError ForbiddenInWorkflow HoldfastError InputError InvalidOutput
    ModelError ModelRequestRejected ModelUnavailable NonDeterminismError RetryRefused SettleRefused TurnLimitReached
    RunCancelled RunConflict RunDead RunEnded RunErased RunFailed RunNotFound RunTimedOut StepFailed StepOutcomeUnknown
    NotAllowed PolicyLimitReached ServerError ServerUnavailable TooManyRequests Unauthenticated
    StepTimedOut StoreError UnknownWorkflow UnrecordableValue UsageError ValueErased ValueTooLarge WorkflowDisabled
    """.split()  # noqa: SIM905 - words are easier to read than a column of strings
)


def test_the_public_names_are_these():
    assert set(holdfast.__all__) == PUBLIC


def test_every_public_name_can_be_loaded():
    assert all(getattr(holdfast, name) is not None for name in PUBLIC)


def test_every_public_name_is_shown_by_dir():
    assert set(dir(holdfast)) > PUBLIC


def test_a_name_that_is_not_there_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Workflwo'"):
        holdfast.Workflwo  # type: ignore[attr-defined]


def test_a_star_import_brings_exactly_the_public_names():
    namespace: dict[str, object] = {}
    exec("from holdfast import *", namespace)
    assert namespace.keys() - {"__builtins__"} == PUBLIC
