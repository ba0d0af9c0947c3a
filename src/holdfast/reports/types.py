"""A run's story as data. The names of the fields are those of ``holdfast show --json``: programs rely on them.

Fields that hold values of users' code are marked: how they are written as JSON depends on who asks, see
``serialization``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from holdfast.admission.usage import NANO, Limits, Usage
from holdfast.core.records import Kind
from holdfast.core.states import RunState
from holdfast.reports.plans import PlanItem
from holdfast.reports.recorded_reply import Compacted, FailedModel, PlainCall, PlainReply, usage_as_json
from holdfast.services.approvals import Answer, ApprovalInfo
from holdfast.stores.approvals import ApprovalState
from holdfast.stores.contract import RunUsage
from holdfast.stores.rules import place_of_worker

VALUE = "value"
_VALUE = {VALUE: True}
"""What marks a field that holds a value of users' code."""


class Unreadable(str):
    """Words that stand for a value which cannot be read: it is sealed, or of a newer version."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A recorded exception."""

    type: str
    message: str
    traceback: str = ""

    @property
    def in_short(self) -> str:
        """``ValueError: no``, without the class's module."""
        name = self.type.rpartition(".")[2]
        return f"{name}: {self.message}" if self.message else name


# What was used


@dataclass(frozen=True, slots=True)
class Used:
    """What model calls have used."""

    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    usd: float | None
    """``None``: the price of none of them is known."""
    unpriced: int
    seconds: float

    @classmethod
    def of(cls, used: Usage) -> Used:
        """As it is told."""
        return cls(**usage_as_json(used))

    @property
    def usage(self) -> Usage:
        """As the library counts it."""
        return Usage(
            self.calls,
            self.input_tokens,
            self.output_tokens,
            self.cached_tokens,
            0 if self.usd is None else round(self.usd * NANO),
            self.unpriced,
            self.seconds,
        )


@dataclass(frozen=True, slots=True)
class Account:
    """A budget, and what of it is used."""

    run: str
    """The id of the run that has it: the one in question, or one above it."""
    budget: dict[str, float]
    """Its limits: ``usd``, ``tokens``, ``turns``, ``seconds``."""
    used: Used

    @property
    def usage(self) -> RunUsage:
        """As stores have it."""
        usd, tokens, turns = (self.budget.get(name) for name in ("usd", "tokens", "turns"))
        limits = Limits(
            None if usd is None else round(usd * NANO),
            None if tokens is None else int(tokens),
            None if turns is None else int(turns),
            self.budget.get("seconds"),
        )
        return RunUsage(self.used.usage, limits)


@dataclass(frozen=True, slots=True)
class Short:
    """Why the next model call was not made: a budget does not allow it."""

    run: str
    """The id of the run that has the budget."""
    limit: str
    message: str


# The journal


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call that a model asked for."""

    id: str
    name: str
    arguments: Any = field(metadata=_VALUE)

    @property
    def args(self) -> str | dict[str, Any]:
        """As a model could have sent them."""
        given: Any = self.arguments
        return cast("dict[str, Any]", given) if isinstance(given, dict) else json.dumps(given)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The recorded answer of a model."""

    model: str
    text: str
    thinking: str
    calls: tuple[AskedCall, ...]
    complaint: str | None
    failed: tuple[FailedModel, ...]
    usage: Used
    compaction: Compacted | None
    finish_reason: str | None = None
    """Why the model stopped, as the provider says it."""
    refusal: str = ""
    """The words in which the model refuses to answer, or to go on."""
    continues: bool = False
    """It was cut off, and the next answer goes on with it."""

    @classmethod
    def of(cls, reply: PlainReply) -> ModelCall:
        """As it is told."""
        return cls(
            reply.model,
            reply.text,
            reply.thinking,
            tuple(AskedCall(call.id, call.name, call.arguments) for call in reply.calls),
            reply.complaint,
            reply.failed,
            Used.of(reply.usage),
            reply.compaction,
            reply.finish_reason,
            reply.refusal,
            reply.continues,
        )

    @property
    def reply(self) -> PlainReply:
        """As whoever reads the record has it."""
        calls = tuple(PlainCall(call.name, call.args, call.id) for call in self.calls)
        return PlainReply(
            self.model,
            self.text,
            self.thinking,
            calls,
            self.usage.usage,
            self.failed,
            self.complaint,
            self.compaction,
            self.finish_reason,
            self.refusal,
            self.continues,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the journal."""

    seq: int
    number: int | None
    """Its number among the steps of its run: the one in ``holdfast show``."""
    kind: str
    name: str
    run: str | None
    """The run that it started, or whose end it is."""
    ok: bool
    attempts: int
    """How many it took; 0 for what a person has settled."""
    worker: int
    epoch: int
    replays: int
    """How often a worker replayed it after taking the run over from one that had died."""
    started_at: datetime
    at: datetime
    seconds: float | None
    arguments: str
    output: Any = field(metadata=_VALUE)
    """What it returned; the beginning of it, as text, if it is ``cut``."""
    model_call: ModelCall | None
    error: Fault | None
    size: int
    """Of the recorded value, in bytes."""
    cut: bool
    """The value is too large to be told with many others: it is told alone."""
    unknown: bool
    """It is a ``once`` step of which nobody knows whether it happened."""
    outcome: str
    """``ok``, ``failed`` or ``unknown``; ``refused`` (a budget does not allow the call), ``context_full``,
    ``needs_approval`` (the call waits for a person) or ``cleared`` (it needs no approval, and comes next)."""
    reason: str | None
    """Why, of one that was refused, or needs an approval, or whose conversation is too long."""
    internal: bool = False
    """Whether Holdfast recorded it for an approval or a session, and not for a call in the workflow's code."""

    @property
    def is_settled(self) -> bool:
        """Whether a person has said what came of it, and no attempt."""
        return self.attempts == 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step of a class workflow that its run did not run."""

    step: int
    """Its number in the class."""
    name: str
    before: int
    """The number of the next command."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """What is known of a step that has no outcome."""

    number: int
    name: str
    attempt: int
    once: bool
    error: str | None
    progress: Any = field(metadata=_VALUE)
    at: datetime
    retry_at: datetime | None = None
    """When its next attempt is made, while it waits for that."""


# Who and what is around


@dataclass(frozen=True, slots=True)
class Relative:
    """A run that the run has started or waited for."""

    id: str
    workflow: str
    state: RunState
    parent: str | None
    usage: Used | None = None
    """What it has used, with those below it; ``None`` also where many runs are told."""
    short: bool = False
    """It waits for a higher budget."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that nothing has taken yet."""

    id: int
    name: str
    value: Any = field(metadata=_VALUE)
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run, or a person's answer, that the run waits for, and that is not recorded yet."""

    number: int
    state: str
    """In which the other run ended; ``answered``."""
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class Answered:
    """What a person answered."""

    approved: bool
    value: Any = field(metadata=_VALUE)
    arguments: dict[str, Any] | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to people."""

    id: str
    run: str
    workflow: str
    number: int
    state: ApprovalState
    question: str
    choices: tuple[str, ...]
    form: dict[str, Any] | None
    tool: str | None
    arguments: dict[str, Any] | None
    reason: str | None
    asked_at: datetime
    asked_of: str | None
    expires_at: datetime | None
    reminders: int
    answered_by: str | None
    answered_at: datetime | None
    answer: Answered | None

    @classmethod
    def of(cls, asked: ApprovalInfo) -> Asked:
        """As it is told."""
        answer = asked.answer
        return cls(
            id=asked.id,
            run=asked.run_id,
            workflow=asked.workflow,
            number=asked.number,
            state=asked.state,
            question=asked.question,
            choices=asked.choices,
            form=asked.form,
            tool=asked.tool or None,
            arguments=asked.arguments,
            reason=asked.reason or None,
            asked_at=asked.asked_at,
            asked_of=asked.asked_of or None,
            expires_at=asked.expires_at,
            reminders=asked.reminders,
            answered_by=asked.answered_by or None,
            answered_at=asked.answered_at,
            answer=None
            if answer is None
            else Answered(answer.approved, answer.value, answer.arguments, answer.reason or None),
        )

    @property
    def info(self) -> ApprovalInfo:
        """As a client lists it."""
        said = self.answer
        at = 0.0 if self.answered_at is None else self.answered_at.timestamp()
        answer = (
            None
            if said is None
            else Answer(said.approved, said.value, said.arguments, said.reason or "", self.answered_by or "", at)
        )
        return ApprovalInfo(
            id=self.id,
            run_id=self.run,
            workflow=self.workflow,
            number=self.number,
            question=self.question,
            choices=self.choices,
            form=self.form,
            tool=self.tool or "",
            arguments=self.arguments,
            reason=self.reason or "",
            asked_at=self.asked_at,
            asked_of=self.asked_of or "",
            expires_at=self.expires_at,
            reminders=self.reminders,
            state=self.state,
            answered_by=self.answered_by or "",
            answered_at=self.answered_at,
            answer=answer,
        )


@dataclass(frozen=True, slots=True)
class Hand:
    """A worker that is there, or that has recorded something of the run."""

    id: int
    name: str
    host: str
    pid: int | None
    by_lease: bool
    alive: bool
    state: str
    """``live``, ``retired`` (left in good order) or ``dead``; ``unknown`` of one that the store has forgotten."""
    records: int = 0
    """How many of the run's records it has recorded."""

    @property
    def place(self) -> str:
        """``host:pid``, after the worker's name if it has another one."""
        return place_of_worker(self.name, self.host, self.pid or 0, by_lease=self.by_lease)

    @property
    def kind(self) -> str:
        """What to call it: a worker by lease is a process elsewhere, that listens to a server."""
        return "listener" if self.by_lease else "worker"


@dataclass(frozen=True, slots=True)
class Retry:
    """What a retry would do, or why it is refused."""

    possible: bool
    needs_run_again: bool
    """A ``once`` step would run a second time: somebody has to say that it may."""
    takes_back: tuple[int, ...]
    """The ``seq`` of the records that it takes back."""
    message: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do now."""

    text: str
    does: str | None
    """``retry``, ``run_again``, ``settle``, ``resume``, ``approve``, ``budget``, ``lift``, ``worker`` or ``fork``;
    ``None``: something that is done elsewhere."""


# The whole


@dataclass(frozen=True, slots=True)
class Story:
    """All that is known of a run, at one moment, with a page of its journal."""

    id: str
    workflow: str
    version: str | None
    state: RunState
    queue: str
    queue_key: str | None
    tags: tuple[str, ...]
    created_at: datetime
    finished_at: datetime | None
    seconds: float | None
    waits_for: str | None
    wake_at: datetime | None
    paused: bool
    cancelling: bool
    parent: str | None
    forked_from: str | None
    usage: Used | None
    error: Fault | None
    python: str
    deadline: datetime | None
    epoch: int
    deliveries: int
    max_deliveries: int
    held_by: int | None
    paused_at: datetime | None
    cancel: str | None
    switched_off: bool
    stalled: str | None
    inputs: Any = field(metadata=_VALUE)
    output: Any = field(metadata=_VALUE)
    retry: Retry | None
    budget: dict[str, float] | None
    left: dict[str, float] | None
    short_of: Short | None
    journal: tuple[Entry, ...]
    in_flight: tuple[InFlight, ...]
    children: tuple[Relative, ...]
    signals: tuple[Sent, ...]
    ends: tuple[End, ...]
    answers: tuple[End, ...]
    approvals: tuple[Asked, ...]
    workers: tuple[Hand, ...]
    plan: tuple[PlanItem, ...]
    at: datetime
    """When this was so."""
    began_at: datetime
    """Where the run's own clock begins: a fork shares the older one."""
    records: int
    """How many the whole journal has."""
    more: bool
    """There are records behind those in ``journal``."""
    more_children: bool
    """It has started more runs than are told."""
    is_agent: bool
    session: str | None
    """The session that it is in, of an agent's run."""
    previous: str | None
    """The run that came before it in its session."""
    by_delivery: bool
    reopened: tuple[datetime, ...]
    """When somebody let it go on after it had ended: by a retry, or by settling a step."""
    asks_again: datetime | None
    """When the run, which waits for a higher budget, was told that it has another one, and did not hear it yet."""
    budgets: tuple[Account, ...]
    """All that it has to keep to: its own, and those of runs above it."""
    output_size: int | None
    offset: str
    """Behind all that is recorded by now: events that are read from here on tell what is new, and what is in flight."""
    told: str
    """What it did, how long that took and what it cost, in a sentence or two."""
    advice: tuple[Advice, ...]
    """What to do now, the most urgent first."""
    skipped: tuple[Skipped, ...] = ()
    """Known once the run has ended."""
    takeovers: tuple[int, ...] = ()
    """The epochs in which a worker took the run over from one that had died."""

    @property
    def is_held(self) -> bool:
        """Whether a live worker has the run in its hands."""
        hand = self.hand(self.held_by)
        return self.state is RunState.RUNNING and hand is not None and hand.alive

    def hand(self, worker: int | None) -> Hand | None:
        """The worker with this id."""
        return next((one for one in self.workers if one.id == worker), None)

    @property
    def questions(self) -> list[Asked]:
        """What it waits for people to answer."""
        return [one for one in self.approvals if one.state is ApprovalState.OPEN and not self.state.is_terminal]

    def asked(self, entry: Entry) -> Asked | None:
        """The question that this record has the answer to; a fork shares its origin's answers, not the questions."""
        if entry.kind != Kind.APPROVAL.label:
            return None
        return next((one for one in self.approvals if one.id == entry.arguments), None)

    @property
    def kin(self) -> Mapping[str, Relative]:
        """The runs that it has started or waited for, by id."""
        return {one.id: one for one in self.children}
