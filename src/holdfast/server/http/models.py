"""What requests are made of, and what several answers share: texts, numbers and options with the limits they have.

Whatever a store cannot keep is refused here, with words: NUL characters, which databases do not take in texts, and
numbers that have no place in a column. So a request that does not fit is an answer in the four hundreds, and never a
fault of the server's.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, StringConstraints

from holdfast.admission.queue_limits import PerKey, Queue
from holdfast.admission.usage import Budget
from holdfast.reports.run_info import RunInfo
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import MAX_WAIT_S, Call
from holdfast.server.http.problems import Problem
from holdfast.server.http.router import RequestModel
from holdfast.services.run_start import MAX_PRIORITY, StartOptions, make_start_options

T = TypeVar("T")

MAX_PAGE_SIZE = 500
MAX_INT = 2**53
"""Up to here whole numbers are the same in every language that reads JSON."""
MAX_DURATION_S = 366 * 86400.0 * 100
"""Seconds that something may be put off, or be old: a century."""

_NO_NUL_PATTERN = r"^[^\u0000]*$"


def _validate_finite(value: float) -> float:
    if value != value or abs(value) == float("inf"):
        raise ValueError("must be a finite number")
    return value


def _to_utc(at: datetime) -> datetime:
    """Without a time zone, it is taken for UTC. Of years at either end of the calendar some times cannot be told."""
    if not datetime.min.year < at.year < datetime.max.year:
        raise ValueError("the year is out of range")
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


Text = Annotated[str, StringConstraints(pattern=_NO_NUL_PATTERN, max_length=10_000)]
"""Words."""
Name = Annotated[str, StringConstraints(pattern=_NO_NUL_PATTERN, min_length=1, max_length=200)]
"""What something is called."""
Cursor = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]*$", max_length=2000)]
Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S), AfterValidator(_validate_finite)]
UtcDatetime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""A time with a time zone; in UTC from here on."""
AssumedUtcDatetime = Annotated[datetime, AfterValidator(_to_utc)]
"""The same, of those who may leave the time zone out."""
WaitSeconds = Annotated[
    float,
    Field(ge=0, le=MAX_WAIT_S, description="Wait for so many seconds until there is something to tell."),
]
PageSize = Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="At most so many.")]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="The higher goes first.")]
DurationInput = Annotated[float, Field(gt=0, le=MAX_DURATION_S)] | Text
"""A length of time: seconds, or words such as ``15 min``."""
Tags = Annotated[tuple[Name, ...], Field(max_length=100)]
Rate = Annotated[
    Text | Annotated[list[Text], Field(max_length=100)],
    Field(description="As in 100/min or 50000 tokens/min; several all count."),
]


# What several answers share


class Page(BaseModel, Generic[T]):
    """A part of what there is, and where to go on."""

    items: list[T]
    next: Annotated[str | None, Field(description="Hand it in as `cursor` for the next page; null: this is the last.")]

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """``RunInfoPage``."""
        return f"{params[0].__name__}{cls.__name__}"


class Items(BaseModel, Generic[T]):
    """All there are."""

    items: list[T]

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """``ScheduleInfoItems``."""
        return f"{params[0].__name__}{cls.__name__}"


class WaitQuery(RequestModel):
    """Whether to wait."""

    wait: WaitSeconds = 0.0


class Changed(BaseModel):
    """Whether the request has changed something, or it was so before."""

    changed: bool


def redact_run(call: Call, info: RunInfo) -> RunInfo:
    """What the caller may know of a run. A key that may not read learns which run it is, and its state.

    It has started or joined the run, which may be another caller's.
    """
    if call.caller.has_scope(Scope.READ):
        return info
    return replace(
        info, queue_key="", finished_at=None, inputs=None, output=None, error=None, waits_for="", tags=(), wake_at=None,
        paused_at=None, parent=None, forked_from=None, stall_advice=None, stall_summary=None, usage=None,
    )  # fmt: skip


# Where to go on


def to_cursor(kind: str, position: str | int) -> str:
    """A place in a list, as a text that only this server needs to read."""
    return base64.urlsafe_b64encode(f"{kind}:{position}".encode()).decode().rstrip("=")


def parse_cursor(kind: str, cursor: str) -> str:
    """The place. Raises ``Problem`` for what is no cursor of such a list."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found, _, place = base64.b64decode(padded, b"-_", validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        found, place = "", ""
    if found != kind or not place or not place.isprintable():
        raise bad_cursor_problem(cursor)
    return place


def parse_number_cursor(kind: str, cursor: str) -> int:
    """The place, where that is a number. Raises ``Problem``."""
    place = parse_cursor(kind, cursor)
    if not place.isascii() or not place.isdigit() or len(place) > 18:
        raise bad_cursor_problem(cursor)
    return int(place)


def bad_cursor_problem(cursor: str) -> Problem:
    """The problem of what is no cursor."""
    return Problem(
        422,
        "bad-cursor",
        "The cursor does not fit",
        f"{cursor[:60]!r} is no cursor of this list: hand in the `next` of the page before, unchanged; without one, "
        f"the list begins at its beginning.",
    )


# Options of runs


class BudgetBody(RequestModel):
    """How much a run may use, together with all the runs that it starts; at least one of these."""

    usd: Annotated[float | None, Field(gt=0, le=1e9, description="Dollars.")] = None
    tokens: Annotated[int | None, Field(ge=1, le=MAX_INT, description="Input and output tokens.")] = None
    turns: Annotated[int | None, Field(ge=1, le=MAX_INT, description="Model calls.")] = None
    seconds: Annotated[float | None, Field(gt=0, le=MAX_DURATION_S, description="Time at work.")] = None

    def to_budget(self) -> Budget:
        """As the library has it. Raises ``UsageError``."""
        return Budget(usd=self.usd, tokens=self.tokens, turns=self.turns, seconds=self.seconds)


class QueueBody(RequestModel):
    """A queue with limits that hold over the whole fleet."""

    name: Name
    concurrency: Annotated[int | None, Field(ge=1, le=10**9)] = None
    rate: Rate | None = None
    key_concurrency: Annotated[int | None, Field(ge=1, le=10**9, description="For each key.")] = None
    key_rate: Annotated[Rate | None, Field(description="For each key.")] = None
    key: Annotated[
        Text | None, Field(description="Which inputs are a run's key, as a template such as {customer}.")
    ] = None

    def to_queue(self) -> Queue:
        """As the library has it. Raises ``UsageError``."""
        each = None
        if self.key_concurrency is not None or self.key_rate is not None:
            each = PerKey(concurrency=self.key_concurrency, rate=self.key_rate)
        return Queue(self.name, concurrency=self.concurrency, rate=self.rate, per_key=each, key=self.key)


class StartOptionsBody(RequestModel):
    """How runs are started, beside their inputs."""

    queue: Annotated[
        Name | QueueBody | None,
        Field(description="The queue that it waits in; with limits, it takes the scope `operate` to change those."),
    ] = None
    key: Annotated[Name | int | None, Field(description="Whose run it is among those of its queue.")] = None
    dedup: Annotated[
        Name | int | None, Field(description="Join the unfinished run that was started with the same.")
    ] = None
    debounce: Annotated[
        DurationInput | None, Field(description="Put the run with the same `dedup` off for so long.")
    ] = None
    max_debounce: Annotated[
        DurationInput | None, Field(description="All of them together put it off at most so long.")
    ] = None
    delay: Annotated[Seconds, Field(description="Begin in so many seconds.")] = 0.0
    priority: Priority = 0
    tags: Tags = ()
    budget: BudgetBody | None = None
    max_deliveries: Annotated[
        int | None,
        Field(
            ge=1,
            le=10**6,
            description="Deaths of workers that held nothing but this run, without a new record, that make it dead.",
        ),
    ] = None
    version: Annotated[Text | None, Field(description="Of the workflow; the newest that is served unless given.")] = (
        None
    )

    def to_start_options(self, id: str | None = None) -> StartOptions:
        """As the library has them, but for the queue's limits. Raises ``UsageError``.

        Limits are not declared in this process: it serves several namespaces, and each has queues of its own.
        """
        checked = make_start_options(
            "",
            id=id,
            queue=None if isinstance(self.queue, QueueBody) else self.queue,
            key=self.key,
            delay=self.delay,
            priority=self.priority,
            tags=self.tags,
            budget=None if self.budget is None else self.budget.to_budget(),
            max_deliveries=self.max_deliveries,
            version=self.version,
            dedup=self.dedup,
            debounce=self.debounce,
            max_debounce=self.max_debounce,
        )
        return replace(checked, queue=self.queue.to_queue()) if isinstance(self.queue, QueueBody) else checked
