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

from holdfast.core.records import Record, RecordKind, Signal
from holdfast.stores.temporal.payload_storage import MIN_EXTERNAL_BYTES

BUFFER_BYTES = 128 * 1024
"""Records are compressed when they have grown to so many bytes. A chunk holds any number of such pieces, each
compressed on its own, one behind the other."""

_KIND_KEY = "holdfast-carried"
_SIZE_KEY = "holdfast-size"
_RECORDS_KIND = b"records"
_SIGNALS_KIND = b"signals"
_SIGNAL_IDS_KIND = b"seen"


class RecordPacker:
    """Records of one execution, gathered and compressed as they come."""

    def __init__(self, chunks: Sequence[Payload] = ()) -> None:
        self._chunks = list(chunks)
        self._buffer: list[str] = []
        self._buffer_size = 0
        self.uncompressed_size = sum(map(_get_size, chunks))
        """How many bytes all of them have, before they are compressed: how well that works may differ from machine to
        machine, and what is decided by this number must not."""

    def add(self, record: Record) -> None:
        """One more."""
        line = json.dumps(_record_to_row(record), separators=(",", ":"))
        self._buffer.append(line)
        self._buffer_size += len(line)
        self.uncompressed_size += len(line)
        if self._buffer_size > BUFFER_BYTES:
            self._compress()

    def to_chunks(self) -> list[Payload]:
        """All of them."""
        if self._buffer:
            self._compress()
        return list(self._chunks)

    def _compress(self) -> None:
        self._chunks = _merge_last_chunks([*self._chunks, _make_chunk(_RECORDS_KIND, "\n".join(self._buffer))])
        self._buffer, self._buffer_size = [], 0


def pack_records(records: Iterable[Record]) -> list[Payload]:
    """These records, to be carried."""
    packing = RecordPacker()
    for record in records:
        packing.add(record)
    return packing.to_chunks()


def pack_signals(signals: Sequence[Signal]) -> list[Payload]:
    """Signals that no record has consumed yet."""
    if not signals:
        return []
    return [_make_chunk(_SIGNALS_KIND, json.dumps([[one.name, one.payload.decode(), one.sent_at] for one in signals]))]


def pack_signal_ids(ids: Iterable[str]) -> list[Payload]:
    """Ids of signals that came: what is sent again under one of them is passed over."""
    some = sorted(ids)
    return [_make_chunk(_SIGNAL_IDS_KIND, json.dumps(some))] if some else []


def unpack_signal_ids(payloads: Iterable[Payload]) -> set[str]:
    """The same, of those that were handed on."""
    found = (payload for payload in payloads if payload.metadata.get(_KIND_KEY) == _SIGNAL_IDS_KIND)
    return {id for payload in found for id in json.loads(zlib.decompress(payload.data))}


def unpack(payloads: Iterable[Payload]) -> tuple[list[Payload], list[Record], list[Signal]]:
    """The chunks of records among these, the records in them, and the signals that came along."""
    chunks: list[Payload] = []
    records: list[Record] = []
    signals: list[Signal] = []
    for payload in payloads:
        told = payload.metadata.get(_KIND_KEY)
        if told in (None, _SIGNAL_IDS_KIND):
            continue
        if told == _SIGNALS_KIND:
            text = zlib.decompress(payload.data)
            signals += [
                Signal(number, name, value.encode(), at) for number, (name, value, at) in enumerate(json.loads(text), 1)
            ]
        else:
            chunks.append(payload)
            records += [
                _record_from_row(json.loads(line))
                for text in _decompress_pieces(payload.data)
                for line in text.split(b"\n")
            ]
    return chunks, records, signals


def is_carried(payload: Payload) -> bool:
    """Whether an argument of an execution was handed on by the one before it."""
    return _KIND_KEY in payload.metadata


def _merge_last_chunks(chunks: list[Payload]) -> list[Payload]:
    """The last two of these as one, unless the one before is large enough to go where large payloads go."""
    if len(chunks) < 2 or len(chunks[-2].data) >= MIN_EXTERNAL_BYTES:
        return chunks
    *others, left, right = chunks
    metadata = {**left.metadata, _SIZE_KEY: str(_get_size(left) + _get_size(right)).encode()}
    return [*others, Payload(metadata=metadata, data=left.data + right.data)]


def _decompress_pieces(data: bytes) -> Iterator[bytes]:
    """What is compressed in a chunk."""
    while data:
        reading = zlib.decompressobj()
        yield reading.decompress(data) + reading.flush()
        data = reading.unused_data


def _get_size(chunk: Payload) -> int:
    return int(chunk.metadata.get(_SIZE_KEY, b"0"))


def _make_chunk(kind: bytes, text: str) -> Payload:
    size = str(len(text)).encode()
    return Payload(
        metadata={"encoding": b"binary/plain", _KIND_KEY: kind, _SIZE_KEY: size}, data=zlib.compress(text.encode())
    )


def _record_to_row(record: Record) -> list[object]:
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


def _record_from_row(row: list[Any]) -> Record:
    seq, kind, position, name, ok, payload, at, started_at, attempts, preview = row
    value = None if payload is None else payload.encode()
    return Record(seq, RecordKind(kind), position, name, ok, value, at, started_at, attempts, preview=preview)
