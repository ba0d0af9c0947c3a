"""Records that an execution brings along: what a run has done in the executions before it, compressed.

Temporal limits how long the history of one execution may get, and never reopens one that has ended. So a run may go
through several executions under one id: a long one *continues as new*, and one that failed is retried by another. The
new one gets the records of those before it as arguments behind the run's inputs, in *chunks*: what was carried once is
handed on as it is, and each execution adds its own. Chunks are made large enough to go where large payloads go (see
``payload_storage``), so that they do not add up to more than Temporal takes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload

from holdfast.core.records import Kind, Record, Signal
from holdfast.stores.temporal.payload_storage import LARGE

CHUNK = 128 * 1024
"""Records are compressed when they have grown to so many bytes. A chunk holds any number of such pieces, each
compressed on its own, one behind the other."""

_NOTE = "holdfast-carried"
_SIZE = "holdfast-size"
_RECORDS = b"records"
_SIGNALS = b"signals"
_SEEN = b"seen"


class Packing:
    """Records of one execution, gathered and compressed as they come."""

    def __init__(self, chunks: Sequence[Payload] = ()) -> None:
        self._chunks = list(chunks)
        self._fresh: list[str] = []
        self._fresh_size = 0
        self.size = sum(map(_size_in, chunks))
        """How many bytes all of them have, before they are compressed: how well that works may differ from machine to
        machine, and what is decided by this number must not."""

    def add(self, record: Record) -> None:
        """One more."""
        line = json.dumps(_row(record), separators=(",", ":"))
        self._fresh.append(line)
        self._fresh_size += len(line)
        self.size += len(line)
        if self._fresh_size > CHUNK:
            self._compress()

    def chunks(self) -> list[Payload]:
        """All of them."""
        if self._fresh:
            self._compress()
        return list(self._chunks)

    def _compress(self) -> None:
        self._chunks = _joined([*self._chunks, _chunk(_RECORDS, "\n".join(self._fresh))])
        self._fresh, self._fresh_size = [], 0


def pack(records: Iterable[Record]) -> list[Payload]:
    """These records, to be carried."""
    packing = Packing()
    for record in records:
        packing.add(record)
    return packing.chunks()


def pack_signals(signals: Sequence[Signal]) -> list[Payload]:
    """Signals that no record has consumed yet."""
    if not signals:
        return []
    return [_chunk(_SIGNALS, json.dumps([[one.name, one.payload.decode(), one.sent_at] for one in signals]))]


def pack_seen(ids: Iterable[str]) -> list[Payload]:
    """Ids of signals that came: what is sent again under one of them is passed over."""
    some = sorted(ids)
    return [_chunk(_SEEN, json.dumps(some))] if some else []


def seen_in(payloads: Iterable[Payload]) -> set[str]:
    """The same, of those that were handed on."""
    found = (payload for payload in payloads if payload.metadata.get(_NOTE) == _SEEN)
    return {id for payload in found for id in json.loads(zlib.decompress(payload.data))}


def unpack(payloads: Iterable[Payload]) -> tuple[list[Payload], list[Record], list[Signal]]:
    """The chunks of records among these, the records in them, and the signals that came along."""
    chunks: list[Payload] = []
    records: list[Record] = []
    signals: list[Signal] = []
    for payload in payloads:
        told = payload.metadata.get(_NOTE)
        if told in (None, _SEEN):
            continue
        if told == _SIGNALS:
            text = zlib.decompress(payload.data)
            signals += [
                Signal(number, name, value.encode(), at) for number, (name, value, at) in enumerate(json.loads(text), 1)
            ]
        else:
            chunks.append(payload)
            records += [_record(json.loads(line)) for text in _pieces(payload.data) for line in text.split(b"\n")]
    return chunks, records, signals


def is_carried(payload: Payload) -> bool:
    """Whether an argument of an execution was handed on by the one before it."""
    return _NOTE in payload.metadata


def _joined(chunks: list[Payload]) -> list[Payload]:
    """The last two of these as one, unless the one before is large enough to go where large payloads go."""
    if len(chunks) < 2 or len(chunks[-2].data) >= LARGE:
        return chunks
    *others, left, right = chunks
    metadata = {**left.metadata, _SIZE: str(_size_in(left) + _size_in(right)).encode()}
    return [*others, Payload(metadata=metadata, data=left.data + right.data)]


def _pieces(data: bytes) -> Iterator[bytes]:
    """What is compressed in a chunk."""
    while data:
        reading = zlib.decompressobj()
        yield reading.decompress(data) + reading.flush()
        data = reading.unused_data


def _size_in(chunk: Payload) -> int:
    return int(chunk.metadata.get(_SIZE, b"0"))


def _chunk(kind: bytes, text: str) -> Payload:
    size = str(len(text)).encode()
    return Payload(metadata={"encoding": b"binary/plain", _NOTE: kind, _SIZE: size}, data=zlib.compress(text.encode()))


def _row(record: Record) -> list[object]:
    return [
        record.seq,
        int(record.kind),
        record.position,
        record.name,
        record.ok,
        None if record.payload is None else record.payload.decode(),
        record.at,
        record.started_at,
        record.attempts,
        record.preview,
    ]


def _record(row: list[Any]) -> Record:
    seq, kind, position, name, ok, payload, at, started_at, attempts, preview = row
    value = None if payload is None else payload.encode()
    return Record(seq, Kind(kind), position, name, ok, value, at, started_at, attempts, preview=preview)
