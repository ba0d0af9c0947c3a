"""The events of an execution, as they are written down: with payloads that can be read.

The SDK hands out histories as the server has them. Payloads may be encrypted there, or be kept apart (``connection``),
so all that are in an event are found, whatever the event, and decoded together, a page at a time.
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
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client
from temporalio.common import RawValue

from holdfast.errors import StoreError

PAGE_SIZE = 1000
_FIRST_PAGE_SIZE = 30
_NEWEST_EVENT_COUNT = 50

ENCRYPTED_ENCODING = b"binary/encrypted"
"""The encoding of a payload that was encrypted: see ``connection``."""

_EXTERNAL_ENCODING = b"json/external-storage-reference"
_EXTERNAL_MESSAGE_TYPE = b"temporal.api.sdk.v1.ExternalStorageReference"


async def fetch_events(client: Client, run_id: str, execution_id: str = "") -> list[HistoryEvent]:
    """All events of an execution (the newest one under this id, if it is not said which), decoded."""
    found: list[HistoryEvent] = []
    token = b""
    while True:
        answer = await client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=run_id, run_id=execution_id),
                maximum_page_size=PAGE_SIZE,
                next_page_token=token,
            ),
            retry=True,
        )
        found += await decode_events(client, answer.history.events)
        token = answer.next_page_token
        if not token:
            return found


async def fetch_events_after(client: Client, run_id: str, execution_id: str, after: int) -> list[HistoryEvent]:
    """The events of an execution behind this number, decoded. It costs as much as is new."""
    if not after:
        return await fetch_events(client, run_id, execution_id)
    found: list[HistoryEvent] = []
    token, page = b"", _FIRST_PAGE_SIZE
    while True:
        answer = await client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=run_id, run_id=execution_id),
                maximum_page_size=page,
                next_page_token=token,
            ),
            retry=True,
        )
        new = [event for event in answer.history.events if event.event_id > after]
        found += new
        token, page = answer.next_page_token, min(PAGE_SIZE, page * 4)
        if not token or len(new) < len(answer.history.events):
            return await decode_events(client, reversed(found))


async def fetch_first_event(
    client: Client, run_id: str, execution_id: str, *, include_external: bool = True
) -> HistoryEvent | None:
    """The event with which an execution began; its arguments are in it.

    Payloads that are kept apart are read only with ``include_external``.
    """
    answer = await client.workflow_service.get_workflow_execution_history(
        GetWorkflowExecutionHistoryRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=run_id, run_id=execution_id),
            maximum_page_size=1,
        ),
        retry=True,
    )
    events = await decode_events(client, answer.history.events[:1], include_external=include_external)
    return events[0] if events else None


async def fetch_last_event(
    client: Client, run_id: str, execution_id: str, *, include_external: bool = True
) -> HistoryEvent | None:
    """The event with which an execution ended; the newest one, if it has not."""
    events = await decode_events(
        client, await _fetch_close_events(client, run_id, execution_id, wait=False), include_external=include_external
    )
    return events[0] if events else None


async def wait_until_ended(client: Client, run_id: str, execution_id: str) -> bool:
    """Wait until an execution has ended; false: the server had nothing to say for a while."""
    return bool(await _fetch_close_events(client, run_id, execution_id, wait=True))


async def _fetch_close_events(client: Client, run_id: str, execution_id: str, *, wait: bool) -> list[HistoryEvent]:
    answer = await client.workflow_service.get_workflow_execution_history(
        GetWorkflowExecutionHistoryRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=run_id, run_id=execution_id),
            history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
            wait_new_event=wait,
            skip_archival=True,
        ),
        retry=True,
    )
    return list(answer.history.events[-1:])


async def fetch_newest_events(client: Client, run_id: str, execution_id: str) -> list[HistoryEvent]:
    """Some of the newest events, the newest first, as the server has them: their payloads cannot be read."""
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=run_id, run_id=execution_id),
            maximum_page_size=_NEWEST_EVENT_COUNT,
        ),
        retry=True,
    )
    return list(answer.history.events)


# Payloads


async def decode_events(
    client: Client, events: Iterable[HistoryEvent], *, include_external: bool = True
) -> list[HistoryEvent]:
    """These events, with payloads that can be read; with those that are kept apart only with ``include_external``."""
    found = list(events)
    payloads = [payload for event in found for payload in iter_payloads(event)]
    if not include_external:
        payloads = [payload for payload in payloads if not is_external(payload)]
    plain = await decode_payloads(client, payloads)
    if plain is not payloads:
        for payload, readable in zip(payloads, plain, strict=True):
            payload.CopyFrom(readable)
        for event in found:
            for failure in _iter_failures(event):
                _restore_message(failure)
    return found


async def decode_payloads(client: Client, payloads: list[Payload]) -> list[Payload]:
    """What these payloads were before they were encrypted, or put elsewhere: themselves, if they were not."""
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
    """Whether this is a reference to a payload that is kept elsewhere."""
    metadata = payload.metadata
    return metadata.get("encoding") == _EXTERNAL_ENCODING or metadata.get("messageType") == _EXTERNAL_MESSAGE_TYPE


def iter_payloads(message: Message) -> Iterator[Payload]:
    """All payloads in a message that a client has written, whatever the message; not those that the server reads."""
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
    """Put the message of a failure, which was among what is encrypted, in its place."""
    if not failure.HasField("encoded_attributes"):
        return
    try:
        told: Any = json.loads(failure.encoded_attributes.data)
        failure.message, failure.stack_trace = str(told["message"]), str(told["stack_trace"])
    except (ValueError, KeyError, TypeError):
        return
    failure.ClearField("encoded_attributes")
