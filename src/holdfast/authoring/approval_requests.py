"""Questions to people, put by workflow code; ``questions.ask`` and the tools of agents are made of this.

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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal, cast

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.authoring.step import PATIENT, Step, plain_step
from holdfast.codec import codec_for
from holdfast.core.commands import Outcome
from holdfast.core.compensations import Origin
from holdfast.core.execution import Execution
from holdfast.core.records import Kind, Record
from holdfast.engine import step_context
from holdfast.engine.definitions import StepCall, StepDefinition
from holdfast.engine.run_approvals import APPROVAL, ApprovalCall
from holdfast.errors import DefinitionError
from holdfast.services.approvals import BEGINS, REMINDER, TIME_OUT, Answer
from holdfast.stores.approvals import Question

NOTICE = "approval notice"
"""A step of a question, like ``BEGINS``, ``REMINDER``, and ``TIME_OUT``. No tool has a space in its name."""


class OnTimeout(Enum):
    """What is done when nobody has answered in time, if no value is given for it."""

    RAISE = "raise"


RAISE: Final = OnTimeout.RAISE
"""``on_timeout`` when nothing else is said: ``ApprovalTimedOut`` is raised."""


@dataclass(frozen=True, slots=True)
class ApprovalNotice:
    """What ``notify`` is called with: a question that somebody is to be told of."""

    id: str
    """For ``holdfast approve ID``."""
    question: str
    choices: tuple[str, ...]
    asked_of: str
    run_id: str
    workflow: str
    kind: Literal["asked", "reminder", "escalated"]
    reminders: int
    """How often people were told of it again, with this time."""
    arguments: dict[str, Any] | None
    """Of the call that is to be approved, if it is one."""
    tool: str = ""
    reason: str = ""


Notify = Callable[[ApprovalNotice], Any] | Step[..., Any]


@dataclass(frozen=True)
class ApprovalPolicy:
    """Who is asked, how long, and what is done if nobody answers."""

    asked_of: str = ""
    """Who is asked; ``""``: whoever sees it."""
    timeout: Duration | None = None
    """How long each of those who are asked has; ``None``: for ever."""
    on_timeout: Any = RAISE
    """What counts as the answer when nobody has answered."""
    remind_every: Duration | None = None
    escalate_to: str | Sequence[str] = ()
    """Who is asked next when the time is over, one after the other; each has as long."""
    notify: Notify | None = None
    """Tells people of the question, by mail or chat: a function, or a step."""
    notice: StepDefinition | None = field(init=False, repr=False, compare=False, default=None)
    """``notify``, as it is called."""

    def __post_init__(self) -> None:
        what = "an approval's"
        for name in ("timeout", "remind_every"):
            object.__setattr__(self, name, declared_seconds(getattr(self, name), f"{what} {name}="))
        if not isinstance(self.asked_of, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{what} asked_of= is the name of somebody, not {self.asked_of!r}")
        next_ones = (self.escalate_to,) if isinstance(self.escalate_to, str) else tuple(self.escalate_to)
        if any(not isinstance(one, str) or not one for one in next_ones):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{what} escalate_to= names who is asked next, not {self.escalate_to!r}")
        object.__setattr__(self, "escalate_to", next_ones)
        if self.timeout is None and (next_ones or self.on_timeout is not RAISE):
            option = f"escalate_to={self.escalate_to!r}" if next_ones else f"on_timeout={self.on_timeout!r}"
            raise DefinitionError(f"{what} {option} is never used without a timeout=: say how long people have")
        if self.notify is not None:
            object.__setattr__(self, "notice", _notice_step(self.notify))

    @property
    def people(self) -> tuple[str, ...]:
        """All who are asked, one after the other."""
        return (self.asked_of, *self.escalate_to)


@dataclass(frozen=True, slots=True)
class Decided:
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


async def put_question(
    execution: Execution,
    question: Question,
    policy: ApprovalPolicy,
    *,
    name: str = APPROVAL,
    about: dict[str, Any] | None = None,
) -> Decided:
    """Ask people, in workflow code, and wait for the answer, or until the time of the last of them is over.

    ``about`` is recorded when nobody answers, for whoever reads the journal.
    """
    return await _Asking(execution, question, policy, name, about).decide()


@dataclass(frozen=True, slots=True)
class _Terms:
    """What is done while nobody answers, as it is recorded when a question begins."""

    people: Sequence[str]
    timeout: float | None
    remind_every: float | None
    notify: bool

    @classmethod
    def of_policy(cls, policy: ApprovalPolicy) -> _Terms:
        """What the code says today."""
        timeout, remind_every = (
            declared_seconds(policy.timeout, "timeout"),
            declared_seconds(policy.remind_every, "remind_every"),
        )
        return cls(list(policy.people), timeout, remind_every, policy.notice is not None)


def _digest(question: Question) -> str:
    """Stands for what people say yes or no to. Who is asked, with which form and why, may change meanwhile."""
    asked = [question.text, question.choices, question.tool, question.arguments.hex()]
    return hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


class _Asking:
    """One question on its way to an answer."""

    def __init__(
        self, execution: Execution, question: Question, policy: ApprovalPolicy, name: str, about: dict[str, Any] | None
    ) -> None:
        self._execution = execution
        self._about = about
        self._notice = policy.notice
        self._terms = _Terms.of_policy(policy)
        self._asked_of = policy.asked_of
        self._question = question._replace(asked_of=policy.asked_of)
        self._reminders = 0
        self._expires_at: float | None = None
        self._position = execution.next_position
        self._timers = execution.loop.timers_issued
        self._issued = self._timers_set = 0
        """How many commands and timers are this question's own."""
        self._first: int | None = None
        """``seq`` of the first of its records."""
        self.id = execution.approval_id(self._position, _digest(question))
        self._answer = self._issue(Kind.APPROVAL, name, ApprovalCall(self.id, self._question, self._terms.timeout))

    async def decide(self) -> Decided:
        try:
            begun = await self._first_of(self._issue(Kind.STEP, BEGINS, StepCall(_BEGIN, (asdict(self._terms),), {})))
            if begun is not None:
                self._terms = _Terms(**json.loads(begun.record.payload or b"{}"))
            for index, who in enumerate(self._terms.people):
                if await self._is_answered_by(who, is_first=index == 0):
                    break
            else:
                gave_up = await self._give_up()
                if gave_up is not None:
                    return gave_up
            outcome = await self._answer
        finally:
            if not self._answer.done():
                self._answer.cancel()
        answer = Answer.of(outcome.record.payload or b"null")
        return Decided(self.id, answer, outcome._replace(origin=self._origin(outcome.origin)))

    async def _first_of(self, step: asyncio.Future[Outcome]) -> Outcome | None:
        """The outcome of a step, unless the answer comes first."""
        try:
            await asyncio.wait([self._answer, step], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not step.done():
                step.cancel()
        return None if self._answer.done() else self._seen(step.result())

    def _seen(self, outcome: Outcome) -> Outcome:
        if self._first is None:
            self._first = outcome.record.seq
        return outcome

    async def _is_answered_by(self, who: str, *, is_first: bool) -> bool:
        """Wait for as long as this person has; false when the time is over."""
        if self._answer.done():
            return True
        self._asked_of, self._reminders = who, self._reminders + (not is_first)
        limit = self._terms.timeout
        self._expires_at = None if limit is None else self._execution.loop.time() + limit
        telling = self._execution.loop.create_task(self._tell(is_first))
        try:
            self._timers_set += limit is not None
            await asyncio.wait([self._answer], timeout=limit)
        finally:
            telling.cancel()
        return self._answer.done()

    async def _tell(self, is_first: bool) -> None:
        """Tell people of the question, and again and again."""
        if not is_first and not await self._remind():
            return
        await self._notify("asked" if is_first else "escalated")
        while self._terms.remind_every is not None:
            self._timers_set += 1
            await asyncio.sleep(self._terms.remind_every)
            self._reminders += 1
            if not await self._remind():
                return
            await self._notify("reminder")

    async def _remind(self) -> bool:
        """Note in the store that people are told again; false when the question is open no more."""
        arguments = (self.id, self._reminders, self._asked_of, self._expires_at)
        outcome = self._seen(await self._issue(Kind.STEP, REMINDER, StepCall(_REMIND, arguments, {})))
        return outcome.record.ok and (outcome.record.payload or b"null") == b"true"

    async def _notify(self, kind: Literal["asked", "reminder", "escalated"]) -> None:
        if not self._terms.notify:
            return
        question = self._question
        notice = ApprovalNotice(
            id=self.id,
            question=question.text,
            choices=question.choices,
            asked_of=self._asked_of,
            run_id=self._execution.run_id,
            workflow=self._execution.workflow,
            kind=kind,
            reminders=self._reminders,
            arguments=json.loads(question.arguments) if question.arguments else None,
            tool=question.tool,
            reason=question.reason,
        )
        # Its failure is recorded, for people to see. It is no reason to stop waiting: the question is in the store.
        self._seen(await self._issue(Kind.STEP, NOTICE, StepCall(self._notice or _TELL_NOBODY, (notice,), {})))

    async def _give_up(self) -> Decided | None:
        """The time is over: take the question back, unless it has been answered meanwhile."""
        outcome = await self._first_of(
            self._issue(Kind.STEP, TIME_OUT, StepCall(_WITHDRAW, (self.id, self._about), {}))
        )
        if outcome is None or not json.loads(outcome.record.payload or b"null").get("withdrawn"):
            return None
        return Decided(self.id, None, outcome._replace(origin=self._origin(outcome.origin)))

    def _origin(self, origin: Origin) -> Origin:
        """Where a retry goes back to: the question, so that it is asked again, with all the time it had.

        If something else was begun since, that is paid for, and the retry takes back the giving up alone.
        """
        execution = self._execution
        if execution.next_position - self._position != self._issued:
            return origin
        if execution.loop.timers_issued - self._timers != self._timers_set:
            return origin
        return Origin(origin.seq if self._first is None else self._first, self._position, self._timers)

    def _issue(self, kind: Kind, name: str, call: Any) -> asyncio.Future[Outcome]:
        self._issued += 1
        return self._execution.issue(kind, name, call)


# The steps that belong to a question


async def _begin(terms: dict[str, Any]) -> dict[str, Any]:
    return terms


async def _tell_nobody(notice: ApprovalNotice) -> None:
    """In place of a ``notify`` that was there when the question was asked, and is not any more."""


async def _remind(id: str, reminders: int, asked_of: str, expires_at: float | None) -> bool:
    return await step_context.current.get().remind_approval(id, reminders, asked_of, expires_at)


async def _withdraw(id: str, about: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": id, "withdrawn": await step_context.current.get().withdraw_approval(id), "about": about}


_BEGIN = StepDefinition(BEGINS, _begin, True, codec_for(dict[str, Any]), ("terms",), {})
_TELL_NOBODY = StepDefinition(NOTICE, _tell_nobody, True, codec_for(None), ("notice",), {})
_REMIND = StepDefinition(
    REMINDER, _remind, True, codec_for(bool), ("id", "reminders", "asked_of", "expires_at"), {}, PATIENT
)
_WITHDRAW = StepDefinition(TIME_OUT, _withdraw, True, codec_for(dict[str, Any]), ("id", "about"), {}, PATIENT)


def _notice_step(notify: Notify) -> StepDefinition:
    """``notify`` as a step that returns nothing: whatever it returns need not be recordable."""
    if isinstance(notify, Step):
        step = cast("Step[..., Any]", notify)
        if step.declared is not None:
            raise DefinitionError(
                f"notify={step.name!r} is a numbered step of a class workflow: write it without a number"
            )
        definition = step.definition
    elif callable(notify):
        definition = plain_step(notify)
    else:
        raise DefinitionError(f"notify= is a function or a step that tells people of a question, not {notify!r}")
    function = definition.function
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise DefinitionError(
            f"notify={definition.name!r} must take one argument, the notice: `def {definition.name}(notice): ...`"
        ) from None

    async def tell(notice: ApprovalNotice) -> None:
        await function(notice)

    def tell_in_thread(notice: ApprovalNotice) -> None:
        function(notice)

    return replace(
        definition,
        name=NOTICE,
        function=tell if definition.is_async else tell_in_thread,
        output=codec_for(None),
        parameters=("notice",),
        compensation=None,
    )
