"""What request models share: texts, numbers, and options with their limits; and what several responses share.

What a store cannot hold is refused here: NUL characters, which databases refuse in texts, and numbers too large for a
column. So an invalid request gets a 4xx response, and never a server error.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, StringConstraints

from holdfast.admission.queue_limits import PerKey, Queue
from holdfast.admission.usage import Budget
from holdfast.reports.run_info import RunInfo
from holdfast.server.auth.scopes import Scope
from holdfast.server.calls import MAX_WAIT_S, Call
from holdfast.server.http.router import RequestModel
from holdfast.services.problems import Problem
from holdfast.services.run_start import MAX_PRIORITY, StartOptions, make_start_options

T = TypeVar("T")

MAX_PAGE_SIZE = 500
MAX_INT = 2**53
"""The largest integer that every language reads from JSON exactly."""
MAX_DURATION_S = 366 * 86400.0 * 100
"""A century, in seconds."""

_NO_NUL_PATTERN = r"^[^\u0000]*$"


def _to_utc(at: datetime) -> datetime:
    """A time in UTC, assumed if there is no time zone. In the first and last year, some times have no UTC time."""
    if not datetime.min.year < at.year < datetime.max.year:
        raise ValueError("the year is out of range")
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


Text = Annotated[str, StringConstraints(pattern=_NO_NUL_PATTERN, max_length=10_000)]
Name = Annotated[str, StringConstraints(pattern=_NO_NUL_PATTERN, min_length=1, max_length=200)]
Cursor = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]*$", max_length=2000)]
Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S, allow_inf_nan=False)]
UtcDatetime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""A time that is sent with a time zone, and converted to UTC."""
AssumedUtcDatetime = Annotated[datetime, AfterValidator(_to_utc)]
"""A time that may be sent without a time zone."""
WaitSeconds = Annotated[float, Field(ge=0, le=MAX_WAIT_S, description="Seconds to wait until there is something new.")]
PageSize = Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE, description="Maximum number of results.")]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Higher priorities start first.")]
DurationInput = Annotated[float, Field(gt=0, le=MAX_DURATION_S)] | Text
"""A duration: seconds, or text such as ``15 min``."""
Tags = Annotated[tuple[Name, ...], Field(max_length=100)]
Rate = Annotated[
    Text | Annotated[list[Text], Field(max_length=100)],
    Field(description="As in 100/min or 50000 tokens/min; several apply together."),
]


# What several endpoints share


class Items(BaseModel, Generic[T]):
    """All items."""

    items: list[T]

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """A name such as ``ScheduleInfoItems`` or ``RunInfoPage``."""
        return f"{params[0].__name__}{cls.__name__}"


class Page(Items[T], Generic[T]):
    """A page of a list, and the cursor of the next one."""

    next: Annotated[str | None, Field(description="Send it as `cursor` to get the next page; null: this is the last.")]


class PageQuery(RequestModel):
    """Which page of a list."""

    limit: PageSize = 100
    cursor: Cursor | None = None

    def split(self, rows: Sequence[T]) -> tuple[list[T], bool]:
        """A page, and whether there are more rows: one row more than ``limit`` was read."""
        return list(rows[: self.limit]), len(rows) > self.limit


class WaitQuery(RequestModel):
    """How long to wait."""

    wait: WaitSeconds = 0.0


class Changed(BaseModel):
    """Whether the request changed something."""

    changed: bool


def redact_run(call: Call, info: RunInfo) -> RunInfo:
    """A run as the caller may see it. A key without the scope `read` sees only its id and its state.

    Such a key has started or joined the run, which may be another caller's.
    """
    if call.caller.has_scope(Scope.READ):
        return info
    return replace(
        info, queue_key="", finished_at=None, inputs=None, output=None, error=None, waits_for="", tags=(), wake_at=None,
        paused_at=None, parent=None, forked_from=None, stall_advice=None, stall_summary=None, usage=None,
    )  # fmt: skip


# Cursors


def to_cursor(kind: str, position: str | int) -> str:
    """A position in a list, as a text that only servers need to understand."""
    return base64.urlsafe_b64encode(f"{kind}:{position}".encode()).decode().rstrip("=")


def parse_cursor(kind: str, cursor: str) -> str:
    """The position of a cursor. Raises ``Problem`` if it is not a cursor of such a list."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found, _, position = base64.b64decode(padded, b"-_", validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        found, position = "", ""
    if found != kind or not position or not position.isprintable():
        raise bad_cursor_problem(cursor)
    return position


def parse_number_cursor(kind: str, cursor: str) -> int:
    """The position of a cursor, which is a number. Raises ``Problem``."""
    position = parse_cursor(kind, cursor)
    if not position.isascii() or not position.isdigit() or len(position) > 18:
        raise bad_cursor_problem(cursor)
    return int(position)


def bad_cursor_problem(cursor: str) -> Problem:
    """The problem of an invalid cursor."""
    return Problem(
        422,
        "bad-cursor",
        "The cursor does not fit",
        f"{cursor[:60]!r} is no cursor of this list: hand in the `next` of the page before, unchanged; without one, "
        f"the list begins at its beginning.",
    )


# Options of runs


class BudgetBody(RequestModel):
    """How much a run may use, together with all runs that it starts; at least one of these."""

    usd: Annotated[float | None, Field(gt=0, le=1e9, description="Dollars.")] = None
    tokens: Annotated[int | None, Field(ge=1, le=MAX_INT, description="Input and output tokens.")] = None
    turns: Annotated[int | None, Field(ge=1, le=MAX_INT, description="Model calls.")] = None
    seconds: Annotated[float | None, Field(gt=0, le=MAX_DURATION_S, description="Time at work.")] = None

    def to_budget(self) -> Budget:
        """The library's form. Raises ``UsageError``."""
        return Budget(usd=self.usd, tokens=self.tokens, turns=self.turns, seconds=self.seconds)


class QueueBody(RequestModel):
    """A queue with limits across all workers."""

    name: Name
    concurrency: Annotated[int | None, Field(ge=1, le=10**9)] = None
    rate: Rate | None = None
    key_concurrency: Annotated[int | None, Field(ge=1, le=10**9, description="For each key.")] = None
    key_rate: Annotated[Rate | None, Field(description="For each key.")] = None
    key: Annotated[
        Text | None, Field(description="The queue key of a run, as a template of its inputs such as {customer}.")
    ] = None

    def to_queue(self) -> Queue:
        """The library's form. Raises ``UsageError``."""
        per_key = None
        if self.key_concurrency is not None or self.key_rate is not None:
            per_key = PerKey(concurrency=self.key_concurrency, rate=self.key_rate)
        return Queue(self.name, concurrency=self.concurrency, rate=self.rate, per_key=per_key, key=self.key)


class StartOptionsBody(RequestModel):
    """Options of a run, apart from its inputs."""

    queue: Annotated[
        Name | QueueBody | None,
        Field(description="Its queue. To change the limits of a queue, a key needs the scope `operate`."),
    ] = None
    key: Annotated[Name | int | None, Field(description="Its queue key.")] = None
    dedup: Annotated[Name | int | None, Field(description="Join the unfinished run with the same dedup key.")] = None
    debounce: Annotated[
        DurationInput | None, Field(description="Delay the run with the same `dedup` by this duration.")
    ] = None
    max_debounce: Annotated[DurationInput | None, Field(description="Maximum delay by all starts together.")] = None
    delay: Annotated[Seconds, Field(description="Seconds until it starts.")] = 0.0
    priority: Priority = 0
    tags: Tags = ()
    budget: BudgetBody | None = None
    max_deliveries: Annotated[
        int | None,
        Field(
            ge=1,
            le=10**6,
            description="Worker deaths that make it dead: those of workers that held only this run, without a new "
            "record in between.",
        ),
    ] = None
    version: Annotated[
        Text | None, Field(description="The version of the workflow; default: the newest that is served.")
    ] = None

    def to_start_options(self, id: str | None = None) -> StartOptions:
        """The library's form, except for the queue's limits. Raises ``UsageError``.

        Limits are not declared in this process: it serves several namespaces, each with its own queues.
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
