"""Converts recorded bytes to Temporal's payloads and back, so that its Web UI and its other clients can read them.

Recorded values are JSON, or JSON after a byte that says how to decode it (see ``codec.tags``). That byte goes into the
payload's metadata. So do notes that people need not see: the kind of an activity's command, and its usage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from holdfast.codec import SizeLimit
from holdfast.codec.tags import TAGGED_PREFIX

MAX_INLINE_SIZE = SizeLimit(
    2_000_000,
    "Temporal keeps no larger ones in a history: give them a storage that all workers and clients share "
    "(`?payloads=/a/shared/folder` in the URL), or write the value to a file or an object store and hand on its name.",
)
"""The maximum size of a value in a history. Temporal accepts 2 MiB including metadata."""

_ENCODING_KEY = "encoding"
_JSON_ENCODING = b"json/plain"
_NULL_ENCODING = b"binary/null"
_TAGGED_KEY = "holdfast-tagged"
_NOTE_PREFIX = "holdfast-"


def to_payload(data: bytes, notes: Mapping[str, str] | None = None) -> Payload:
    """A payload with a recorded value; ``notes`` go into its metadata."""
    metadata = {_ENCODING_KEY: _JSON_ENCODING}
    if data[:1] == TAGGED_PREFIX:
        metadata[_TAGGED_KEY] = b"1"
        data = data[1:]
    for name, text in (notes or {}).items():
        metadata[_NOTE_PREFIX + name] = text.encode()
    return Payload(metadata=metadata, data=data)


def to_raw_value(data: bytes, notes: Mapping[str, str] | None = None) -> RawValue:
    """The same, for the SDK's calls."""
    return RawValue(to_payload(data, notes))


def get_max_value_size(max_value: int, *, has_external_payloads: bool) -> int:
    """The maximum size of a value: ``max_value`` with external storage, otherwise what fits into a history."""
    return max_value if has_external_payloads else min(max_value, MAX_INLINE_SIZE)


def from_payload(payload: Payload) -> bytes:
    """The recorded value of a payload."""
    if payload.metadata.get(_ENCODING_KEY) == _NULL_ENCODING:
        return b"null"
    return TAGGED_PREFIX + payload.data if _TAGGED_KEY in payload.metadata else payload.data


def get_note(payload: Payload, name: str) -> str:
    """A note on a payload; ``""`` if there is none."""
    return payload.metadata.get(_NOTE_PREFIX + name, b"").decode()


def load_json(payload: Payload) -> Any:
    """The JSON value in a payload."""
    return json.loads(from_payload(payload) or b"null")


def get_first_data(payloads: Sequence[Payload]) -> bytes:
    """The recorded value of the first payload; ``null`` if there is none."""
    return from_payload(payloads[0]) if payloads else b"null"
