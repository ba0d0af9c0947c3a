"""Responses of a server, as the dataclasses that a client over a store returns."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from pydantic import ValidationError

from holdfast.errors import InputError, ServerError
from holdfast.reports.conversations import ConversationMessage, message_from_json
from holdfast.reports.recorded_reply import ModelCallReport
from holdfast.services.json_form import from_json
from holdfast.services.wire_values import from_wire

T = TypeVar("T")


def decode(kind: type[T], data: Any) -> T:
    """The value of a dataclass from its JSON. Raises ``ServerError``."""
    try:
        return from_json(kind, data, from_wire)
    except (ValidationError, InputError) as error:
        raise _build_decode_error(kind.__name__, error) from None


def _build_decode_error(type_name: str, error: Exception) -> ServerError:
    return ServerError(
        f"the server has answered with a {type_name} that this version of Holdfast cannot read: {error}. Are both of "
        f"the same version?"
    )


def decode_list(kind: type[T], data: Any) -> list[T]:
    """The items of a list or of a page."""
    return [decode(kind, item) for item in get_items(data)]


def get_items(data: Any) -> list[Any]:
    """The JSON of the items of a list or of a page."""
    items: Any = cast("dict[str, Any]", data).get("items") if isinstance(data, dict) else None
    if not isinstance(items, list):
        raise ServerError("the server has answered with no list where one was asked for. Is it a Holdfast server?")
    return cast("list[Any]", items)


def decode_message(data: Any) -> ConversationMessage:
    """A message of a conversation."""
    try:
        return message_from_json(data, lambda reply: from_json(ModelCallReport, reply))  # its values are plain
    except (ValidationError, KeyError, TypeError) as error:
        raise _build_decode_error("ConversationMessage", error) from None
