"""What a server answers, as the same dataclasses that a client over a store gives."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from holdfast.admission.usage import Usage
from holdfast.errors import InputError, ServerError
from holdfast.reports.conversations import Said, said_from_json
from holdfast.reports.events import Event
from holdfast.reports.plans import Plan, PlanItem
from holdfast.reports.run_info import RunInfo
from holdfast.reports.serialization import with_values
from holdfast.reports.types import VALUE, ModelCall, Story
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.schedules import ScheduleInfo
from holdfast.services.wire_values import from_wire

T = TypeVar("T")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read(kind: type[T], data: Any, *values: str) -> T:
    """Data as a dataclass; ``values`` are the fields that hold values of users. Raises ``ServerError``."""
    try:
        if values:
            data = {**data, **{name: from_wire(data[name], name) for name in values}}
        return _in_utc(_adapter(kind).validate_python(data), values)
    except (ValidationError, KeyError, TypeError, InputError) as error:
        raise _unfit(kind.__name__, error) from None


def _unfit(what: str, error: Exception) -> ServerError:
    return ServerError(
        f"the server has answered with a {what} that this version of Holdfast cannot read: {error}. Are both of the "
        f"same version?"
    )


def _in_utc(value: Any, values: Collection[str] = ()) -> Any:
    """The same, with ``UTC`` itself for the time zone of its times, and not something that equals it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        return tuple(_in_utc(one) for one in cast("tuple[Any, ...]", value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    own = {
        one.name: getattr(value, one.name)
        for one in fields(value)
        if one.name not in values and VALUE not in one.metadata
    }
    return replace(
        value,
        **{
            name: _in_utc(one)
            for name, one in own.items()
            if isinstance(one, datetime | tuple) or (is_dataclass(one) and not isinstance(one, type))
        },
    )


def read_all(kind: type[T], data: Any, *values: str) -> list[T]:
    """The items of a list or of a page."""
    return [read(kind, one, *values) for one in items_of(data)]


def items_of(data: Any) -> list[Any]:
    """What is in a list or a page."""
    found: Any = cast("dict[str, Any]", data).get("items") if isinstance(data, dict) else None
    if not isinstance(found, list):
        raise ServerError("the server has answered with no list where one was asked for. Is it a Holdfast server?")
    return cast("list[Any]", found)


def read_run(data: Any) -> RunInfo:
    """A run."""
    return read(RunInfo, data, "inputs", "output")


def read_approval(data: Any) -> ApprovalInfo:
    """A question, with the answer, if there is one."""
    found = read(ApprovalInfo, data)
    answer = found.answer
    return found if answer is None else replace(found, answer=replace(answer, value=from_wire(answer.value)))


def read_schedule(data: Any) -> ScheduleInfo:
    """A schedule."""
    return read(ScheduleInfo, data, "inputs")


def read_event(data: Any) -> Event:
    """An event."""
    return read(Event, data, "data")


def read_usage(data: Any) -> Usage:
    """What was used."""
    return read(Usage, data)


def read_plan(data: Any) -> Plan:
    """A plan."""
    return Plan(tuple(read_all(PlanItem, data)))


def read_story(data: Any) -> Story:
    """A run's story."""
    return with_values(read(Story, data), from_wire)


def read_said(data: Any) -> Said:
    """A piece of a conversation."""
    try:
        return said_from_json(data, lambda told: read(ModelCall, told))
    except (KeyError, TypeError) as error:
        raise _unfit("Said", error) from None
