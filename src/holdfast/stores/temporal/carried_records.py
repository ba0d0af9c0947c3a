"""The compressed records of earlier executions that an execution of a run starts with.

Temporal limits the length of an execution's history, and never reopens an execution that has ended. So a run may have
several executions under one id: a long one *continues as new*, and another one retries a failed one. The new execution
receives the records of the earlier ones as arguments after the run's inputs, in *chunks*. Each execution passes the
chunks that it received on unchanged, and adds its own. Chunks are made large enough for external storage (see
``payload_storage``), so that they do not add up to more than Temporal accepts.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload

from holdfast.core.records import Attempt, Record, RecordKind, Signal
from holdfast.stores.temporal.payload_storage import MIN_EXTERNAL_BYTES

BUFFER_BYTES = 128 * 1024
"""Records are compressed in pieces of this size. A chunk holds any number of separately compressed pieces in a row."""

_KIND_KEY = "holdfast-carried"
_SIZE_KEY = "holdfast-size"
_RECORDS_KIND = b"records"
_SIGNALS_KIND = b"signals"
_SIGNAL_IDS_KIND = b"seen"
_ATTEMPTS_KIND = b"attempts"


class RecordPacker:
    """Collects the records of one execution, and compresses them as they arrive."""

    def __init__(self, chunks: Sequence[Payload] = ()) -> None:
        self._chunks = list(chunks)
        self._buffer: list[str] = []
        self._buffer_size = 0
        self.uncompressed_size = sum(map(_get_size, chunks))
        """The size of all records before compression. Compressed sizes may differ from machine to machine, and the
        decisions that depend on this size must not."""

    def add(self, record: Record) -> None:
        """Add a record."""
        line = json.dumps(_record_to_row(record), separators=(",", ":"))
        self._buffer.append(line)
        self._buffer_size += len(line)
        self.uncompressed_size += len(line)
        if self._buffer_size > BUFFER_BYTES:
            self._compress()

    def to_chunks(self) -> list[Payload]:
        """All records."""
        if self._buffer:
            self._compress()
        return list(self._chunks)

    def _compress(self) -> None:
        self._chunks = _merge_last_chunks([*self._chunks, _make_chunk(_RECORDS_KIND, "\n".join(self._buffer))])
        self._buffer, self._buffer_size = [], 0


def pack_records(records: Iterable[Record]) -> list[Payload]:
    """Chunks with these records."""
    packer = RecordPacker()
    for record in records:
        packer.add(record)
    return packer.to_chunks()


def pack_signals(signals: Sequence[Signal]) -> list[Payload]:
    """A chunk with signals that no record has consumed yet; none if there are none."""
    rows = [[signal.name, signal.payload.decode(), signal.sent_at] for signal in signals]
    return [_make_chunk(_SIGNALS_KIND, json.dumps(rows))] if rows else []


def pack_signal_ids(ids: Iterable[str]) -> list[Payload]:
    """A chunk with the ids of received signals, of which the run ignores duplicates; none if there are none."""
    ordered = sorted(ids)
    return [_make_chunk(_SIGNAL_IDS_KIND, json.dumps(ordered))] if ordered else []


def pack_intents(attempts: Iterable[Attempt]) -> list[Payload]:
    """A chunk with a program's ``once`` steps that may have been executed; none if there are none."""
    rows = [[one.position, one.attempt, one.name, one.at] for one in attempts if one.intent]
    return [_make_chunk(_ATTEMPTS_KIND, json.dumps(rows))] if rows else []


def unpack_attempts(payloads: Iterable[Payload]) -> dict[int, Attempt]:
    """These steps among the arguments of an execution, by position."""
    chunks = (payload for payload in payloads if payload.metadata.get(_KIND_KEY) == _ATTEMPTS_KIND)
    rows = [row for chunk in chunks for row in json.loads(zlib.decompress(chunk.data))]
    return {position: Attempt(position, attempt, intent=True, name=name, at=at) for position, attempt, name, at in rows}


def unpack_signal_ids(payloads: Iterable[Payload]) -> set[str]:
    """The signal ids in these arguments of an execution."""
    chunks = (payload for payload in payloads if payload.metadata.get(_KIND_KEY) == _SIGNAL_IDS_KIND)
    return {id for chunk in chunks for id in json.loads(zlib.decompress(chunk.data))}


def unpack(payloads: Iterable[Payload]) -> tuple[list[Payload], list[Record], list[Signal]]:
    """The chunks of records among these arguments of an execution, the records in them, and the signals."""
    chunks: list[Payload] = []
    records: list[Record] = []
    signals: list[Signal] = []
    for payload in payloads:
        kind = payload.metadata.get(_KIND_KEY)
        if kind == _SIGNALS_KIND:
            rows = json.loads(zlib.decompress(payload.data))
            signals += [Signal(number, name, value.encode(), at) for number, (name, value, at) in enumerate(rows, 1)]
        elif kind == _RECORDS_KIND:
            chunks.append(payload)
            records += [
                _record_from_row(json.loads(line))
                for text in _decompress_pieces(payload.data)
                for line in text.split(b"\n")
            ]
    return chunks, records, signals


def is_carried(payload: Payload) -> bool:
    """Whether an argument of an execution comes from an earlier execution."""
    return _KIND_KEY in payload.metadata


def _merge_last_chunks(chunks: list[Payload]) -> list[Payload]:
    """Merge the last two chunks, unless the one before the last is large enough for external storage."""
    if len(chunks) < 2 or len(chunks[-2].data) >= MIN_EXTERNAL_BYTES:
        return chunks
    *others, left, right = chunks
    metadata = {**left.metadata, _SIZE_KEY: str(_get_size(left) + _get_size(right)).encode()}
    return [*others, Payload(metadata=metadata, data=left.data + right.data)]


def _decompress_pieces(data: bytes) -> Iterator[bytes]:
    while data:
        decompressor = zlib.decompressobj()
        yield decompressor.decompress(data) + decompressor.flush()
        data = decompressor.unused_data


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
