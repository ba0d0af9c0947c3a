"""The arguments of an execution: a run's inputs, and what the executions before it have handed on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from temporalio.api.common.v1 import Payload

from holdfast.codec import encode_inputs_by_name
from holdfast.codec.tags import TAGGED_PREFIX
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.stores.temporal.carried_records import is_carried
from holdfast.stores.temporal.payloads import from_payload


def split_arguments(payloads: Iterable[Payload]) -> tuple[list[Payload], list[Payload]]:
    """The workflow's own arguments, and what was handed on."""
    given: list[Payload] = []
    brought: list[Payload] = []
    for payload in payloads:
        (brought if is_carried(payload) else given).append(payload)
    return given, brought


def build_inputs(definition: WorkflowDefinition, arguments: Sequence[Payload]) -> bytes:
    """A run's inputs. Who starts a workflow by other means than Holdfast's may give them one by one."""
    if len(arguments) == 1:
        data = from_payload(arguments[0])
        if data.lstrip()[:1] == b"{" or data[:1] == TAGGED_PREFIX:
            return data
    values = [json.loads(from_payload(one)) for one in arguments]
    return encode_inputs_by_name(definition.name, definition.inputs_codec.parameters, values, {})
