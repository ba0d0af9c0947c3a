"""Questions to people, put by workflow code; ``ask`` and the tools of agents are made of this.

A question is one command. Its outcome is a person's answer, whenever that comes; until then the run needs no process.
What else is done about it is workflow code, too: reminders, passing it on to somebody else and giving up after a while
are durable timers and recorded steps, so that each happens once, whatever dies meanwhile.

**People have all the time they are given.** A run's own time is that of the last outcome it has seen, and that may be
long ago when it asks: its process was dead, or the run is a fork, or was retried. So a question begins with a recorded
step whose record tells the time. Once that is recorded, the question is in the store, too, so that whoever is notified
can answer at once. It also records for how long which people are asked: a deploy that changes that holds for later
questions, and is no drift for this one.

**Giving up loses no answer.** When the time is over, the command is left as it is. First a recorded step withdraws the
question in the store. If the store refuses, because somebody has answered meanwhile, that answer counts, and is
awaited: nobody who was told that the answer is accepted is ignored.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal, cast

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.authoring.step import STORE_RETRY_POLICY, Step, make_plain_step
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
"""A step of a question, like ``APPROVAL_START_STEP``, ``APPROVAL_REMINDER_STEP``, and ``APPROVAL_TIMEOUT_STEP``. No
tool has a space in its name."""


class OnTimeout(Enum):
    """What is done when nobody has answered in time, if no value is given for it."""

    RAISE = "raise"


RAISE: Final = OnTimeout.RAISE
"""``on_timeout`` when nothing else is said: ``ApprovalTimedOut`` is raised."""


@dataclass(frozen=True, slots=True)
class ApprovalNotification:
    """What ``notify`` is called with: a question that somebody is to be told of."""

    id: str
    """For ``holdfast approve ID``."""
    question: str
    choices: tuple[str, ...]
    assignee: str
    run_id: str
    workflow: str
    kind: Literal["requested", "reminder", "escalated"]
    reminder_count: int
    """How often people were told of it again, with this time."""
    arguments: dict[str, Any] | None
    """Of the call that is to be approved, if it is one."""
    tool: str = ""
    reason: str = ""


Notifier = Callable[[ApprovalNotification], Any] | Step[..., Any]


@dataclass(frozen=True)
class ApprovalPolicy:
    """Who is asked, how long, and what is done if nobody answers."""

    assignee: str = ""
    """Who is asked; ``""``: whoever sees it."""
    timeout: Duration | None = None
    """How long each of those who are asked has; ``None``: for ever."""
    on_timeout: Any = RAISE
    """What counts as the answer when nobody has answered."""
    remind_every: Duration | None = None
    escalate_to: str | Sequence[str] = ()
    """Who is asked next when the time is over, one after the other; each has as long."""
    notify: Notifier | None = None
    """Tells people of the question, by mail or chat: a function, or a step."""
    notify_step: StepDefinition | None = field(init=False, repr=False, compare=False, default=None)
    """``notify``, as it is called."""

    def __post_init__(self) -> None:
        what = "an approval's"
        for name in ("timeout", "remind_every"):
            object.__setattr__(self, name, declared_seconds(getattr(self, name), f"{what} {name}"))
        if not isinstance(self.assignee, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{what} assignee= is the name of somebody, not {self.assignee!r}")
        next_ones = (self.escalate_to,) if isinstance(self.escalate_to, str) else tuple(self.escalate_to)
        if any(not isinstance(one, str) or not one for one in next_ones):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{what} escalate_to= names who is asked next, not {self.escalate_to!r}")
        object.__setattr__(self, "escalate_to", next_ones)
        if self.timeout is None and (next_ones or self.on_timeout is not RAISE):
            option = f"escalate_to={self.escalate_to!r}" if next_ones else f"on_timeout={self.on_timeout!r}"
            raise DefinitionError(f"{what} {option} is never used without a timeout=: say how long people have")
        if self.notify is not None:
            object.__setattr__(self, "notify_step", _make_notify_step(self.notify))

    @property
    def assignees(self) -> tuple[str, ...]:
        """All who are asked, one after the other."""
        return (self.assignee, *self.escalate_to)


@dataclass(frozen=True, slots=True)
class ApprovalResult:
    """What has come of a question."""

    id: str
    answer: Answer | None
    """``None``: nobody answered in time."""
    outcome: Outcome
    """Of the deciding record. Its origin is such that a retry asks again."""

    @property
    def record(self) -> Record:
        """The answer's record; or that of the step by which the run gave up waiting."""
        return self.outcome.record


async def request_approval(
    execution: Execution,
    request: ApprovalRequest,
    policy: ApprovalPolicy,
    *,
    name: str = APPROVAL_COMMAND,
    details: dict[str, Any] | None = None,
) -> ApprovalResult:
    """Ask people, in workflow code, and wait for the answer, or until the time of the last of them is over.

    ``details`` is recorded when nobody answers, for whoever reads the journal.
    """
    return await _PendingApproval(execution, request, policy, name, details).wait_for_result()


@dataclass(frozen=True, slots=True)
class _RecordedPolicy:
    """What is done while nobody answers, as it is recorded when a question begins."""

    assignees: Sequence[str]
    timeout_s: float | None
    remind_every_s: float | None
    has_notifier: bool

    @classmethod
    def from_policy(cls, policy: ApprovalPolicy) -> _RecordedPolicy:
        """What the code says today."""
        timeout, remind_every = (
            declared_seconds(policy.timeout, "timeout"),
            declared_seconds(policy.remind_every, "remind_every"),
        )
        return cls(list(policy.assignees), timeout, remind_every, policy.notify_step is not None)

    def to_json(self) -> dict[str, Any]:
        """As it is recorded."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> _RecordedPolicy:
        """From a record."""
        return cls(**data)


def _hash_request(request: ApprovalRequest) -> str:
    """Stands for what people say yes or no to. Who is asked, with which form and why, may change meanwhile."""
    asked = [request.question, request.choices, request.tool, request.arguments.hex()]
    return hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


class _PendingApproval:
    """One question on its way to an answer."""

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
        self._policy = _RecordedPolicy.from_policy(policy)
        self._assignee = policy.assignee
        self._request = request._replace(assignee=policy.assignee)
        self._reminder_count = 0
        self._expires_at: float | None = None
        self._position = execution.next_position
        self._first_timer = execution.loop.timer_count
        self._command_count = self._timer_count = 0
        """How many commands and timers are this question's own."""
        self._first_seq: int | None = None
        """``seq`` of the first of its records."""
        self.id = execution.seeded_random.derive_approval_id(self._position, _hash_request(request))
        self._answer_future = self._issue(
            RecordKind.APPROVAL, name, ApprovalCall(self.id, self._request, self._policy.timeout_s)
        )

    async def wait_for_result(self) -> ApprovalResult:
        try:
            begun = await self._wait_unless_answered(
                self._issue(RecordKind.STEP, APPROVAL_START_STEP, StepCall(_START_STEP, (self._policy.to_json(),), {}))
            )
            if begun is not None:
                self._policy = _RecordedPolicy.from_json(json.loads(begun.record.payload or b"{}"))
            for index, who in enumerate(self._policy.assignees):
                if await self._wait_for_assignee(who, is_first=index == 0):
                    break
            else:
                gave_up = await self._time_out()
                if gave_up is not None:
                    return gave_up
            outcome = await self._answer_future
        finally:
            if not self._answer_future.done():
                self._answer_future.cancel()
        answer = Answer.from_payload(outcome.record.payload or b"null")
        return ApprovalResult(self.id, answer, outcome._replace(origin=self._find_retry_origin(outcome.origin)))

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
        """Wait for as long as this person has; false when the time is over."""
        if self._answer_future.done():
            return True
        self._assignee, self._reminder_count = assignee, self._reminder_count + (not is_first)
        limit = self._policy.timeout_s
        self._expires_at = None if limit is None else self._execution.loop.time() + limit
        telling = self._execution.loop.create_task(self._send_notifications(is_first))
        try:
            self._timer_count += limit is not None
            await asyncio.wait([self._answer_future], timeout=limit)
        finally:
            telling.cancel()
        return self._answer_future.done()

    async def _send_notifications(self, is_first: bool) -> None:
        """Tell people of the question, and again and again."""
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
        """Note in the store that people are told again; false when the question is open no more."""
        arguments = (self.id, self._reminder_count, self._assignee, self._expires_at)
        outcome = self._note_outcome(
            await self._issue(RecordKind.STEP, APPROVAL_REMINDER_STEP, StepCall(_REMIND_STEP, arguments, {}))
        )
        return outcome.record.ok and (outcome.record.payload or b"null") == b"true"

    async def _notify(self, kind: Literal["requested", "reminder", "escalated"]) -> None:
        if not self._policy.has_notifier:
            return
        question = self._request
        notice = ApprovalNotification(
            id=self.id,
            question=question.question,
            choices=question.choices,
            assignee=self._assignee,
            run_id=self._execution.run_id,
            workflow=self._execution.workflow,
            kind=kind,
            reminder_count=self._reminder_count,
            arguments=json.loads(question.arguments) if question.arguments else None,
            tool=question.tool,
            reason=question.reason,
        )
        # Its failure is recorded, for people to see. It is no reason to stop waiting: the question is in the store.
        self._note_outcome(
            await self._issue(
                RecordKind.STEP,
                NOTIFICATION_STEP,
                StepCall(self._notify_step or _SKIP_NOTIFICATION_STEP, (notice,), {}),
            )
        )

    async def _time_out(self) -> ApprovalResult | None:
        """The time is over: take the question back, unless it has been answered meanwhile."""
        outcome = await self._wait_unless_answered(
            self._issue(RecordKind.STEP, APPROVAL_TIMEOUT_STEP, StepCall(_WITHDRAW_STEP, (self.id, self._details), {}))
        )
        if outcome is None or not json.loads(outcome.record.payload or b"null").get("withdrawn"):
            return None
        return ApprovalResult(self.id, None, outcome._replace(origin=self._find_retry_origin(outcome.origin)))

    def _find_retry_origin(self, origin: FailureOrigin) -> FailureOrigin:
        """Where a retry goes back to: the question, so that it is asked again, with all the time it had.

        If something else was begun since, that is paid for, and the retry takes back the giving up alone.
        """
        execution = self._execution
        if execution.next_position - self._position != self._command_count:
            return origin
        if execution.loop.timer_count - self._first_timer != self._timer_count:
            return origin
        return FailureOrigin(
            origin.seq if self._first_seq is None else self._first_seq, self._position, self._first_timer
        )

    def _issue(self, kind: RecordKind, name: str, call: Any) -> asyncio.Future[Outcome]:
        self._command_count += 1
        return self._execution.issue(kind, name, call)


# The steps that belong to a question


async def _record_policy(policy: dict[str, Any]) -> dict[str, Any]:
    return policy


async def _skip_notification(notification: ApprovalNotification) -> None:
    """In place of a ``notify`` that was there when the question was asked, and is not any more."""


async def _remind_approval(id: str, reminder_count: int, assignee: str, expires_at: float | None) -> bool:
    return await get_step_executor().remind_approval(id, reminder_count, assignee, expires_at)


async def _withdraw_approval(id: str, details: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": id, "withdrawn": await get_step_executor().withdraw_approval(id), "details": details}


_START_STEP = StepDefinition(APPROVAL_START_STEP, _record_policy, True, codec_for(dict[str, Any]), ("policy",), {})
_SKIP_NOTIFICATION_STEP = StepDefinition(
    NOTIFICATION_STEP, _skip_notification, True, codec_for(None), ("notification",), {}
)
_REMIND_STEP = StepDefinition(
    APPROVAL_REMINDER_STEP,
    _remind_approval,
    True,
    codec_for(bool),
    ("id", "reminder_count", "assignee", "expires_at"),
    {},
    STORE_RETRY_POLICY,
)
_WITHDRAW_STEP = StepDefinition(
    APPROVAL_TIMEOUT_STEP,
    _withdraw_approval,
    True,
    codec_for(dict[str, Any]),
    ("id", "details"),
    {},
    STORE_RETRY_POLICY,
)


def _make_notify_step(notify: Notifier) -> StepDefinition:
    """``notify`` as a step that returns nothing: whatever it returns need not be recordable."""
    if isinstance(notify, Step):
        step = cast("Step[..., Any]", notify)
        if step.declaration is not None:
            raise DefinitionError(
                f"notify={step.name!r} is a numbered step of a class workflow: write it without a number"
            )
        definition = step.definition
    elif callable(notify):
        definition = make_plain_step(notify)
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
