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
from holdfast.codec.tags import TAGGED

MOST = SizeLimit(
    2_000_000,
    "Temporal keeps no larger ones in a history: give them a storage that all workers and clients share "
    "(`?payloads=/a/shared/folder` in the URL), or write the value to a file or an object store and hand on its name.",
)
"""How many bytes a value may have that has no other place than a history. Temporal takes 2 MiB, with all that is
written on it."""

_ENCODING = "encoding"
_JSON = b"json/plain"
_NULL = b"binary/null"
_MARKED = "holdfast-tagged"
_NOTE = "holdfast-"


def payload_of(data: bytes, notes: Mapping[str, str] | None = None) -> Payload:
    """What is recorded, as a payload; ``notes`` are for us alone."""
    metadata = {_ENCODING: _JSON}
    if data[:1] == TAGGED:
        metadata[_MARKED] = b"1"
        data = data[1:]
    for name, text in (notes or {}).items():
        metadata[_NOTE + name] = text.encode()
    return Payload(metadata=metadata, data=data)


def raw(data: bytes, notes: Mapping[str, str] | None = None) -> RawValue:
    """The same, as the SDK takes it."""
    return RawValue(payload_of(data, notes))


def largest(max_value: int, *, apart: bool) -> int:
    """How large a value may be that may have so many bytes elsewhere; ``apart``: large ones have their own storage."""
    return max_value if apart else min(max_value, MOST)


def data_of(payload: Payload) -> bytes:
    """What was recorded."""
    if payload.metadata.get(_ENCODING) == _NULL:
        return b"null"
    return TAGGED + payload.data if _MARKED in payload.metadata else payload.data


def note_of(payload: Payload, name: str) -> str:
    """A note on a payload; ``""``: there is none."""
    return payload.metadata.get(_NOTE + name, b"").decode()


def plain(payload: Payload) -> Any:
    """What the JSON in a payload says."""
    return json.loads(data_of(payload) or b"null")


def first(payloads: Sequence[Payload]) -> bytes:
    """What the first of these holds; ``null`` if there is none."""
    return data_of(payloads[0]) if payloads else b"null"
