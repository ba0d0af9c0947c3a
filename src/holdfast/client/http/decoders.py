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
from holdfast.reports.conversations import ConversationMessage, message_from_json
from holdfast.reports.events import Event
from holdfast.reports.plans import Plan, PlanItem
from holdfast.reports.run_info import RunInfo
from holdfast.reports.serialization import map_user_values
from holdfast.reports.types import USER_VALUE, ModelCallReport, RunReport
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.schedules import ScheduleInfo
from holdfast.services.wire_values import from_wire

T = TypeVar("T")


@cache
def _get_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def decode(kind: type[T], data: Any, *user_fields: str) -> T:
    """Data as a dataclass; ``user_fields`` are the fields that hold values of users. Raises ``ServerError``."""
    try:
        if user_fields:
            data = {**data, **{name: from_wire(data[name], name) for name in user_fields}}
        return _normalize_utc(_get_adapter(kind).validate_python(data), user_fields)
    except (ValidationError, KeyError, TypeError, InputError) as error:
        raise _build_decode_error(kind.__name__, error) from None


def _build_decode_error(type_name: str, error: Exception) -> ServerError:
    return ServerError(
        f"the server has answered with a {type_name} that this version of Holdfast cannot read: {error}. Are both of "
        "the "
        f"same version?"
    )


def _normalize_utc(value: Any, user_fields: Collection[str] = ()) -> Any:
    """The same, with ``UTC`` itself for the time zone of its times, and not something that equals it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        return tuple(_normalize_utc(one) for one in cast("tuple[Any, ...]", value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    own = {
        one.name: getattr(value, one.name)
        for one in fields(value)
        if one.name not in user_fields and USER_VALUE not in one.metadata
    }
    return replace(
        value,
        **{
            name: _normalize_utc(one)
            for name, one in own.items()
            if isinstance(one, datetime | tuple) or (is_dataclass(one) and not isinstance(one, type))
        },
    )


def decode_list(kind: type[T], data: Any, *user_fields: str) -> list[T]:
    """The items of a list or of a page."""
    return [decode(kind, one, *user_fields) for one in get_items(data)]


def get_items(data: Any) -> list[Any]:
    """What is in a list or a page."""
    found: Any = cast("dict[str, Any]", data).get("items") if isinstance(data, dict) else None
    if not isinstance(found, list):
        raise ServerError("the server has answered with no list where one was asked for. Is it a Holdfast server?")
    return cast("list[Any]", found)


def decode_run(data: Any) -> RunInfo:
    """A run."""
    return decode(RunInfo, data, "inputs", "output")


def decode_approval(data: Any) -> ApprovalInfo:
    """A question, with the answer, if there is one."""
    found = decode(ApprovalInfo, data)
    answer = found.answer
    return found if answer is None else replace(found, answer=replace(answer, value=from_wire(answer.value)))


def decode_schedule(data: Any) -> ScheduleInfo:
    """A schedule."""
    return decode(ScheduleInfo, data, "inputs")


def decode_event(data: Any) -> Event:
    """An event."""
    return decode(Event, data, "data")


def decode_usage(data: Any) -> Usage:
    """What was used."""
    return decode(Usage, data)


def decode_plan(data: Any) -> Plan:
    """A plan."""
    return Plan(tuple(decode_list(PlanItem, data)))


def decode_report(data: Any) -> RunReport:
    """A run's story."""
    return map_user_values(decode(RunReport, data), from_wire)


def decode_message(data: Any) -> ConversationMessage:
    """A piece of a conversation."""
    try:
        return message_from_json(data, lambda told: decode(ModelCallReport, told))
    except (KeyError, TypeError) as error:
        raise _build_decode_error("ConversationMessage", error) from None
