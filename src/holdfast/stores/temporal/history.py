"""Reads the events of an execution, with decoded payloads.

The SDK returns histories as the server stores them. Their payloads may be encrypted or stored elsewhere
(``connection``). So this module finds all payloads of an event, of whatever type, and decodes a page of them together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, SearchAttributes, WorkflowExecution
from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    GetWorkflowExecutionHistoryReverseRequest,
    GetWorkflowExecutionHistoryReverseResponse,
)
from temporalio.client import Client
from temporalio.common import RawValue

from holdfast.errors import StoreError

PAGE_SIZE = 1000
_FIRST_REVERSE_PAGE_SIZE = 30
_NEWEST_EVENT_COUNT = 50

ENCRYPTED_ENCODING = b"binary/encrypted"
"""The encoding of an encrypted payload: see ``connection``."""

_EXTERNAL_ENCODING = b"json/external-storage-reference"
_EXTERNAL_MESSAGE_TYPE = b"temporal.api.sdk.v1.ExternalStorageReference"


async def fetch_page(
    client: Client,
    run_id: str,
    execution_id: str,
    *,
    page_size: int = PAGE_SIZE,
    page_token: bytes = b"",
    only_close_event: bool = False,
    wait: bool = False,
) -> GetWorkflowExecutionHistoryResponse:
    """A page of a history, oldest event first, not decoded. With ``wait``, the server answers once there are events."""
    filters = HistoryEventFilterType
    return await client.workflow_service.get_workflow_execution_history(
        GetWorkflowExecutionHistoryRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=run_id, run_id=execution_id),
            maximum_page_size=page_size,
            next_page_token=page_token,
            wait_new_event=wait,
            history_event_filter_type=filters.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
            if only_close_event
            else filters.HISTORY_EVENT_FILTER_TYPE_UNSPECIFIED,
            skip_archival=only_close_event,
        ),
        retry=True,
    )


async def _fetch_page_reverse(
    client: Client, run_id: str, execution_id: str, page_size: int, page_token: bytes = b""
) -> GetWorkflowExecutionHistoryReverseResponse:
    return await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=run_id, run_id=execution_id),
            maximum_page_size=page_size,
            next_page_token=page_token,
        ),
        retry=True,
    )


async def fetch_events(client: Client, run_id: str, execution_id: str = "") -> list[HistoryEvent]:
    """All events of an execution, decoded; without an ``execution_id``, of the newest one."""
    events: list[HistoryEvent] = []
    token = b""
    while True:
        page = await fetch_page(client, run_id, execution_id, page_token=token)
        events += await decode_events(client, page.history.events)
        token = page.next_page_token
        if not token:
            return events


async def fetch_events_after(client: Client, run_id: str, execution_id: str, after: int) -> list[HistoryEvent]:
    """The events of an execution after this number, decoded. Reads only the new end of the history."""
    if not after:
        return await fetch_events(client, run_id, execution_id)
    found: list[HistoryEvent] = []
    token, size = b"", _FIRST_REVERSE_PAGE_SIZE
    while True:
        page = await _fetch_page_reverse(client, run_id, execution_id, size, token)
        new = [event for event in page.history.events if event.event_id > after]
        found += new
        token, size = page.next_page_token, min(PAGE_SIZE, size * 4)
        if not token or len(new) < len(page.history.events):
            return await decode_events(client, reversed(found))


async def fetch_first_event(
    client: Client, run_id: str, execution_id: str, *, include_external: bool = True
) -> HistoryEvent | None:
    """The event that started an execution, with its arguments."""
    page = await fetch_page(client, run_id, execution_id, page_size=1)
    events = await decode_events(client, page.history.events[:1], include_external=include_external)
    return events[0] if events else None


async def fetch_last_event(
    client: Client, run_id: str, execution_id: str, *, include_external: bool = True
) -> HistoryEvent | None:
    """The event that ended an execution, or its newest one if it has not ended."""
    page = await fetch_page(client, run_id, execution_id, only_close_event=True)
    events = await decode_events(client, page.history.events[-1:], include_external=include_external)
    return events[0] if events else None


async def wait_until_ended(client: Client, run_id: str, execution_id: str) -> bool:
    """Wait until an execution has ended; false if the server's long poll expired first."""
    page = await fetch_page(client, run_id, execution_id, only_close_event=True, wait=True)
    return bool(page.history.events)


async def fetch_newest_events(client: Client, run_id: str, execution_id: str) -> list[HistoryEvent]:
    """Some of the newest events, the newest first, not decoded."""
    page = await _fetch_page_reverse(client, run_id, execution_id, _NEWEST_EVENT_COUNT)
    return list(page.history.events)


# Payloads


async def decode_events(
    client: Client, events: Iterable[HistoryEvent], *, include_external: bool = True
) -> list[HistoryEvent]:
    """These events, with decoded payloads; external payloads stay references unless ``include_external``."""
    decoded = list(events)
    payloads = [payload for event in decoded for payload in iter_payloads(event)]
    if not include_external:
        payloads = [payload for payload in payloads if not is_external(payload)]
    plain = await decode_payloads(client, payloads)
    if plain is not payloads:
        for payload, readable in zip(payloads, plain, strict=True):
            payload.CopyFrom(readable)
        for event in decoded:
            for failure in _iter_failures(event):
                _restore_message(failure)
    return decoded


async def decode_payloads(client: Client, payloads: list[Payload]) -> list[Payload]:
    """The payloads decrypted and loaded from external storage; the same list if nothing needs decoding."""
    converter = client.data_converter
    if converter.external_storage is None and any(map(is_external, payloads)):
        raise StoreError(
            f"a payload in namespace {client.namespace!r} is kept elsewhere, and this process is not told where: give "
            f"it the same `?payloads=` as the process that has written it"
        )
    if converter.payload_codec is None and any(
        payload.metadata.get("encoding") == ENCRYPTED_ENCODING for payload in payloads
    ):
        raise StoreError(
            f"a payload in namespace {client.namespace!r} is encrypted, and this process has no key: give it the same "
            f"encryption as the process that has written it"
        )
    if not payloads or (converter.payload_codec is None and not any(map(is_external, payloads))):
        return payloads
    values: list[RawValue] = await client.data_converter.decode(payloads, [RawValue] * len(payloads))
    return [value.payload for value in values]


def is_external(payload: Payload) -> bool:
    """Whether this is a reference to a payload in external storage."""
    metadata = payload.metadata
    return metadata.get("encoding") == _EXTERNAL_ENCODING or metadata.get("messageType") == _EXTERNAL_MESSAGE_TYPE


def iter_payloads(message: Message) -> Iterator[Payload]:
    """All payloads in a message of any type, except search attributes: the server reads those, so they are plain."""
    if isinstance(message, Payload):
        yield message
        return
    if isinstance(message, SearchAttributes):
        return
    for part in _iter_messages(message):
        yield from iter_payloads(part)


def _iter_failures(message: Message) -> Iterator[Failure]:
    if isinstance(message, Failure):
        yield message
    if isinstance(message, Payload):
        return
    for part in _iter_messages(message):
        yield from _iter_failures(part)


def _iter_messages(message: Message) -> Iterator[Message]:
    descriptor: FieldDescriptor
    value: Any
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            if descriptor.message_type.fields_by_name["value"].message_type is not None:
                yield from value.values()
        elif isinstance(value, Message):
            yield value
        else:
            yield from value


def _restore_message(failure: Failure) -> None:
    """Restore the message of a failure from its encoded attributes, which encryption replaces it with."""
    if not failure.HasField("encoded_attributes"):
        return
    try:
        attributes: Any = json.loads(failure.encoded_attributes.data)
        failure.message, failure.stack_trace = str(attributes["message"]), str(attributes["stack_trace"])
    except (ValueError, KeyError, TypeError):
        return
    failure.ClearField("encoded_attributes")
