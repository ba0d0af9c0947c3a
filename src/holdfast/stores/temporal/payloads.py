"""Recorded bytes as Temporal's payloads, so that its Web UI and every other client of it can read them as JSON.

What is recorded is JSON, or JSON behind a byte that says how it is to be read (see ``codec.tags``). That byte goes into
the payload's metadata. So does what people need not see: which kind of command an activity is for, what it has used.
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
"""How many bytes a value may have that has no other place than a history. Temporal takes 2 MiB, with all that is
written on it."""

_ENCODING_KEY = "encoding"
_JSON_ENCODING = b"json/plain"
_NULL_ENCODING = b"binary/null"
_TAGGED_KEY = "holdfast-tagged"
_NOTE_PREFIX = "holdfast-"


def to_payload(data: bytes, notes: Mapping[str, str] | None = None) -> Payload:
    """What is recorded, as a payload; ``notes`` are for us alone."""
    metadata = {_ENCODING_KEY: _JSON_ENCODING}
    if data[:1] == TAGGED_PREFIX:
        metadata[_TAGGED_KEY] = b"1"
        data = data[1:]
    for name, text in (notes or {}).items():
        metadata[_NOTE_PREFIX + name] = text.encode()
    return Payload(metadata=metadata, data=data)


def to_raw_value(data: bytes, notes: Mapping[str, str] | None = None) -> RawValue:
    """The same, as the SDK takes it."""
    return RawValue(to_payload(data, notes))


def get_max_value_size(max_value: int, *, has_external_payloads: bool) -> int:
    """How large a value may be that may have so many bytes elsewhere; large ones may have their own storage."""
    return max_value if has_external_payloads else min(max_value, MAX_INLINE_SIZE)


def from_payload(payload: Payload) -> bytes:
    """What was recorded."""
    if payload.metadata.get(_ENCODING_KEY) == _NULL_ENCODING:
        return b"null"
    return TAGGED_PREFIX + payload.data if _TAGGED_KEY in payload.metadata else payload.data


def get_note(payload: Payload, name: str) -> str:
    """A note on a payload; ``""``: there is none."""
    return payload.metadata.get(_NOTE_PREFIX + name, b"").decode()


def load_json(payload: Payload) -> Any:
    """What the JSON in a payload says."""
    return json.loads(from_payload(payload) or b"null")


def get_first_data(payloads: Sequence[Payload]) -> bytes:
    """What the first of these holds; ``null`` if there is none."""
    return from_payload(payloads[0]) if payloads else b"null"
