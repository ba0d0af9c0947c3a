"""Approvals that workflow code requests; ``ask`` and the tools of agents use this.

An approval is one command. Its outcome is a person's answer, whenever that comes; until then the run needs no process.
Everything else is workflow code, too: reminders, escalation to other people, and the timeout are durable timers and
recorded steps, so each happens once, whatever crashes.

**People have all the time they are given.** A run's own time is that of the last outcome it has seen, which may be long
ago: its process was dead, or the run is a fork, or was retried. So an approval begins with a recorded step, whose
record has the current time. When that is recorded, the approval is in the store, too, so people who are notified can
answer at once. The step also records who is asked, and for how long: a deploy that changes this affects later
approvals, and is no drift for this one.

**A timeout loses no answer.** When the time is up, the command stays open. First, a recorded step withdraws the
approval in the store. If the store refuses, because a person has answered meanwhile, that answer counts, and is
awaited: an answer that was accepted is never ignored.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal, cast

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.authoring.step import STORE_RETRY_POLICY, Step, define_step
from holdfast.codec import codec_for
from holdfast.core.commands import Outcome
from holdfast.core.execution import Execution
from holdfast.core.failure_origin import FailureOrigin
from holdfast.core.records import Record, RecordKind
from holdfast.engine.definitions import StepCall, StepDefinition
from holdfast.engine.run_approvals import APPROVAL_COMMAND, ApprovalCall
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import DefinitionError
from holdfast.services.approvals import APPROVAL_REMINDER_STEP, APPROVAL_START_STEP, APPROVAL_TIMEOUT_STEP, Answer
from holdfast.stores.approvals import ApprovalRequest

NOTIFICATION_STEP = "approval notification"
"""A step of an approval, like ``APPROVAL_START_STEP``, ``APPROVAL_REMINDER_STEP``, and ``APPROVAL_TIMEOUT_STEP``. No
tool has a space in its name."""


class OnTimeout(Enum):
    """What happens when no person has answered in time."""

    RAISE = "raise"


RAISE: Final = OnTimeout.RAISE
"""The default ``on_timeout``: ``ApprovalTimedOut`` is raised."""


@dataclass(frozen=True, slots=True)
class ApprovalNotification:
    """The argument of ``notify``: an approval that people must hear of."""

    id: str
    """For ``holdfast approve ID``."""
    question: str
    choices: tuple[str, ...]
    assignee: str
    run_id: str
    workflow: str
    kind: Literal["requested", "reminder", "escalated"]
    reminder_count: int
    """How often people were reminded, including this time."""
    arguments: dict[str, Any] | None
    """The arguments of the call that needs approval, if it is for a call."""
    tool: str = ""
    reason: str = ""


Notifier = Callable[[ApprovalNotification], Any] | Step[..., Any]


@dataclass(frozen=True)
class ApprovalPolicy:
    """Who is asked, for how long, and what happens if no one answers."""

    assignee: str = ""
    """Who is asked; ``""``: anyone."""
    timeout: Duration | None = None
    """How long each assignee has; ``None``: forever."""
    on_timeout: Any = RAISE
    """The value that counts as the answer when no one has answered."""
    remind_every: Duration | None = None
    escalate_to: str | Sequence[str] = ()
    """Who is asked next when the time is up, one after the other; each has ``timeout``."""
    notify: Notifier | None = None
    """A function or a step that notifies people, by mail or chat."""
    notify_step: StepDefinition | None = field(init=False, repr=False, compare=False, default=None)
    """``notify`` as a step."""

    def __post_init__(self) -> None:
        subject = "an approval's"
        for name in ("timeout", "remind_every"):
            object.__setattr__(self, name, declared_seconds(getattr(self, name), f"{subject} {name}"))
        if not isinstance(self.assignee, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{subject} assignee= is the name of somebody, not {self.assignee!r}")
        escalate_to = (self.escalate_to,) if isinstance(self.escalate_to, str) else tuple(self.escalate_to)
        if any(not isinstance(name, str) or not name for name in escalate_to):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{subject} escalate_to= names who is asked next, not {self.escalate_to!r}")
        object.__setattr__(self, "escalate_to", escalate_to)
        if self.timeout is None and (escalate_to or self.on_timeout is not RAISE):
            option = f"escalate_to={escalate_to!r}" if escalate_to else f"on_timeout={self.on_timeout!r}"
            raise DefinitionError(f"{subject} {option} is never used without a timeout=: say how long people have")
        if self.notify is not None:
            object.__setattr__(self, "notify_step", _make_notify_step(self.notify))

    @property
    def assignees(self) -> tuple[str, ...]:
        """Everyone who is asked, one after the other."""
        return (self.assignee, *self.escalate_to)


@dataclass(frozen=True, slots=True)
class ApprovalResult:
    """The result of an approval."""

    id: str
    answer: Answer | None
    """``None``: no one answered in time."""
    record: Record
    """The record of the answer, or of the step that withdrew the approval after the timeout."""
    origin: FailureOrigin
    """The point to which a retry rewinds, and so asks again."""


async def request_approval(
    execution: Execution,
    request: ApprovalRequest,
    policy: ApprovalPolicy,
    *,
    name: str = APPROVAL_COMMAND,
    details: dict[str, Any] | None = None,
) -> ApprovalResult:
    """Ask people, in workflow code, and wait for the answer, or until the time of the last assignee is up.

    ``details`` is recorded when no one answers, for readers of the journal.
    """
    return await _PendingApproval(execution, request, policy, name, details).wait_for_result()


@dataclass(frozen=True, slots=True)
class _RecordedPolicy:
    """The part of an ``ApprovalPolicy`` that is recorded when the approval begins."""

    assignees: Sequence[str]
    timeout_s: float | None
    remind_every_s: float | None
    has_notifier: bool


def _hash_request(request: ApprovalRequest) -> str:
    """Identifies what people approve. The assignee, the form, and the reason may change meanwhile."""
    content = [request.question, request.choices, request.tool, request.arguments.hex()]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


class _PendingApproval:
    """One approval, from its request to the answer."""

    def __init__(
        self,
        execution: Execution,
        request: ApprovalRequest,
        policy: ApprovalPolicy,
        name: str,
        details: dict[str, Any] | None,
    ) -> None:
        self._execution = execution
        self._details = details
        self._notify_step = policy.notify_step
        self._policy = _RecordedPolicy(
            list(policy.assignees),
            declared_seconds(policy.timeout, "timeout"),
            declared_seconds(policy.remind_every, "remind_every"),
            policy.notify_step is not None,
        )
        self._assignee = policy.assignee
        self._request = request._replace(assignee=policy.assignee)
        self._reminder_count = 0
        self._expires_at: float | None = None
        self._position = execution.next_position
        self._first_timer = execution.loop.issued_timer_count
        self._command_count = self._timer_count = 0
        """How many commands and timers belong to this approval."""
        self._first_seq: int | None = None
        """``seq`` of the first record of this approval."""
        self.id = execution.seeded_random.derive_approval_id(self._position, _hash_request(request))
        self._answer_future = self._issue(
            RecordKind.APPROVAL,
            name,
            ApprovalCall(self.id, self._request, self._policy.timeout_s, requested_at=execution.loop.time()),
        )

    async def wait_for_result(self) -> ApprovalResult:
        try:
            start = await self._wait_unless_answered(self._issue_step(_START_STEP, asdict(self._policy)))
            if start is not None:
                self._policy = _RecordedPolicy(**json.loads(start.record.payload or b"{}"))
            for index, assignee in enumerate(self._policy.assignees):
                if await self._wait_for_assignee(assignee, is_first=index == 0):
                    break
            else:
                timeout = await self._time_out()
                if timeout is not None:
                    return timeout
            outcome = await self._answer_future
        finally:
            if not self._answer_future.done():
                self._answer_future.cancel()
        answer = Answer.from_payload(outcome.record.payload or b"null")
        return ApprovalResult(self.id, answer, outcome.record, self._find_retry_origin(outcome.origin))

    async def _wait_unless_answered(self, step: asyncio.Future[Outcome]) -> Outcome | None:
        """The outcome of a step, unless the answer comes first."""
        try:
            await asyncio.wait([self._answer_future, step], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not step.done():
                step.cancel()
        return None if self._answer_future.done() else self._note_outcome(step.result())

    def _note_outcome(self, outcome: Outcome) -> Outcome:
        if self._first_seq is None:
            self._first_seq = outcome.record.seq
        return outcome

    async def _wait_for_assignee(self, assignee: str, *, is_first: bool) -> bool:
        """Wait for as long as this person has; false when the time is up."""
        if self._answer_future.done():
            return True
        self._assignee, self._reminder_count = assignee, self._reminder_count + (not is_first)
        limit = self._policy.timeout_s
        self._expires_at = None if limit is None else self._execution.loop.time() + limit
        notifications = self._execution.loop.create_task(self._send_notifications(is_first))
        try:
            self._timer_count += limit is not None
            await asyncio.wait([self._answer_future], timeout=limit)
        finally:
            notifications.cancel()
        return self._answer_future.done()

    async def _send_notifications(self, is_first: bool) -> None:
        """Notify people of the approval, and remind them again and again."""
        if not is_first and not await self._record_reminder():
            return
        await self._notify("requested" if is_first else "escalated")
        while self._policy.remind_every_s is not None:
            self._timer_count += 1
            await asyncio.sleep(self._policy.remind_every_s)
            self._reminder_count += 1
            if not await self._record_reminder():
                return
            await self._notify("reminder")

    async def _record_reminder(self) -> bool:
        """Note in the store that people are reminded; false when the approval is closed."""
        outcome = self._note_outcome(
            await self._issue_step(_REMIND_STEP, self.id, self._reminder_count, self._assignee, self._expires_at)
        )
        return outcome.record.ok and (outcome.record.payload or b"null") == b"true"

    async def _notify(self, kind: Literal["requested", "reminder", "escalated"]) -> None:
        if not self._policy.has_notifier:
            return
        request = self._request
        notification = ApprovalNotification(
            id=self.id,
            question=request.question,
            choices=request.choices,
            assignee=self._assignee,
            run_id=self._execution.run_id,
            workflow=self._execution.workflow,
            kind=kind,
            reminder_count=self._reminder_count,
            arguments=json.loads(request.arguments) if request.arguments else None,
            tool=request.tool,
            reason=request.reason,
        )
        # A failure is recorded, for people to see. It is no reason to stop waiting: the approval is in the store.
        self._note_outcome(await self._issue_step(self._notify_step or _SKIP_NOTIFICATION_STEP, notification))

    async def _time_out(self) -> ApprovalResult | None:
        """The time is up: withdraw the approval, unless it has been answered meanwhile."""
        outcome = await self._wait_unless_answered(self._issue_step(_WITHDRAW_STEP, self.id, self._details))
        if outcome is None or not json.loads(outcome.record.payload or b"null").get("withdrawn"):
            return None
        return ApprovalResult(self.id, None, outcome.record, self._find_retry_origin(outcome.origin))

    def _find_retry_origin(self, origin: FailureOrigin) -> FailureOrigin:
        """Where a retry rewinds to: the request, so that people are asked again, with all the time they had.

        If something else was started since, that is paid for, and the retry removes only the timeout.
        """
        execution = self._execution
        if execution.next_position - self._position != self._command_count:
            return origin
        if execution.loop.issued_timer_count - self._first_timer != self._timer_count:
            return origin
        return FailureOrigin(
            origin.seq if self._first_seq is None else self._first_seq, self._position, self._first_timer
        )

    def _issue(self, kind: RecordKind, name: str, call: Any) -> asyncio.Future[Outcome]:
        self._command_count += 1
        return self._execution.issue(kind, name, call)

    def _issue_step(self, step: StepDefinition, *args: Any) -> asyncio.Future[Outcome]:
        return self._issue(RecordKind.STEP, step.name, StepCall(step, args, {}))


# The steps of an approval


async def _record_policy(policy: dict[str, Any]) -> dict[str, Any]:
    return policy


async def _skip_notification(notification: ApprovalNotification) -> None:
    """Replaces a ``notify`` that existed when the approval was requested, and no longer does."""


async def _remind_approval(id: str, reminder_count: int, assignee: str, expires_at: float | None) -> bool:
    return await get_step_executor().remind_approval(id, reminder_count, assignee, expires_at)


async def _withdraw_approval(id: str, details: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": id, "withdrawn": await get_step_executor().withdraw_approval(id), "details": details}


_START_STEP = define_step(_record_policy, APPROVAL_START_STEP)
_SKIP_NOTIFICATION_STEP = define_step(_skip_notification, NOTIFICATION_STEP)
_REMIND_STEP = define_step(_remind_approval, APPROVAL_REMINDER_STEP, retry=STORE_RETRY_POLICY)
_WITHDRAW_STEP = define_step(_withdraw_approval, APPROVAL_TIMEOUT_STEP, retry=STORE_RETRY_POLICY)


def _make_notify_step(notify: Notifier) -> StepDefinition:
    """``notify`` as a step that returns nothing, so its return value need not be recordable."""
    if isinstance(notify, Step):
        step = cast("Step[..., Any]", notify)
        if step.declaration is not None:
            raise DefinitionError(
                f"notify={step.name!r} is a numbered step of a class workflow: write it without a number"
            )
        definition = step.definition
    elif callable(notify):
        definition = define_step(notify)
    else:
        raise DefinitionError(f"notify= is a function or a step that tells people of a question, not {notify!r}")
    function = definition.function
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise DefinitionError(
            f"notify={definition.name!r} must take one argument, the notice: `def {definition.name}(notice): ...`"
        ) from None

    async def notify_async(notification: ApprovalNotification) -> None:
        await function(notification)

    def notify_in_thread(notification: ApprovalNotification) -> None:
        function(notification)

    return replace(
        definition,
        name=NOTIFICATION_STEP,
        function=notify_async if definition.is_async else notify_in_thread,
        output_codec=codec_for(None),
        parameters=("notification",),
        compensation=None,
    )
