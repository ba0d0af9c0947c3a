"""Large payloads: kept apart, compressed, and once for equal content.

If a payload is larger than ``MAX_INLINE_BYTES``, its column holds a *reference* to it: a zero byte and the hash of the
content. Payloads are JSON text, which never begins with a zero byte; to be safe, one that looks like a reference is
kept apart as well. Hashing and compressing are slow, so they happen in a thread, before the transaction that writes
the result. Reading and checking happen in a thread, too.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.stores.approvals import AnswerApproval, RequestApproval
from holdfast.stores.contract import MAX_INLINE_BYTES
from holdfast.stores.operations import AppendRecord, FinishRun, ForkRun, Op, ReopenRun, SendSignal, StartRun
from holdfast.stores.sql.database import Database

_REFERENCE_PREFIX = b"\x00"
_HASH_SIZE = 32
_REFERENCE_SIZE = 1 + _HASH_SIZE
_RAW, _ZLIB = b"\x00", b"\x01"
BATCH_SIZE = 8
"""Blobs that are read at a time: each may have megabytes."""
_ZLIB_LEVEL = 1
"""Five times as fast as zlib's default level, for a tenth more space."""


class BlobBatch(NamedTuple):
    """The large payloads of a commit, ready to be written."""

    references: dict[bytes, bytes]
    """References by payload."""
    rows: Sequence[tuple[bytes, int, bytes]]
    """The columns of ``statements.PUT_BLOB``."""


NO_BLOBS = BlobBatch({}, ())


class PayloadDamage(NamedTuple):
    """Why a payload cannot be read."""

    problem: str


# Writing


def list_large_payloads(ops: Sequence[Op]) -> list[bytes]:
    """The payloads of these operations that must be kept apart."""
    found: list[bytes] = []
    for op in ops:
        if isinstance(op, AppendRecord):  # by far the most frequent
            payload = op.record.payload
            if payload is not None and is_large(payload):
                found.append(payload)
        else:
            found.extend(payload for payload in _get_payloads(op) if payload is not None and is_large(payload))
    return found


def _get_payloads(op: Op) -> tuple[bytes | None, ...]:
    match op:
        case StartRun():
            return (op.run.inputs,)
        case FinishRun():
            return (op.output, op.error)
        case SendSignal() | AnswerApproval():
            return (op.payload,)
        case RequestApproval():
            return (op.request.form_schema, op.request.arguments)
        case ForkRun():
            return (op.run.inputs, None if op.record is None else op.record.payload)
        case ReopenRun():
            return () if op.settlement is None or op.settlement.record is None else (op.settlement.record.payload,)
        case _:
            return ()


def is_large(payload: bytes) -> bool:
    """Whether a payload must be kept apart."""
    size = len(payload)
    return size > MAX_INLINE_BYTES or (size == _REFERENCE_SIZE and payload.startswith(_REFERENCE_PREFIX))


def pack_blobs(payloads: Iterable[bytes]) -> BlobBatch:
    """Hash and compress payloads. Slow: not for the event loop."""
    references: dict[bytes, bytes] = {}
    rows: list[tuple[bytes, int, bytes]] = []
    for payload in payloads:
        if payload in references:
            continue
        name = _hash(payload)
        references[payload] = _REFERENCE_PREFIX + name
        small = zlib.compress(payload, _ZLIB_LEVEL)
        rows.append((name, len(payload), _ZLIB + small if len(small) < len(payload) else _RAW + payload))
    return BlobBatch(references, rows)


def _hash(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_HASH_SIZE).digest()


# Reading


def is_reference(value: Any) -> bool:
    """Whether a column holds a reference instead of a payload."""
    return type(value) is bytes and len(value) == _REFERENCE_SIZE and value[0] == _REFERENCE_PREFIX[0]


def fetch_payloads(db: Database, references: Collection[bytes]) -> dict[bytes, bytes | PayloadDamage]:
    """The payloads that references stand for. Slow: not for the event loop."""
    found: dict[bytes, bytes | PayloadDamage] = dict.fromkeys(references, PayloadDamage("its large payload is missing"))
    for name, data in _lookup_in_batches(db, db.sql.BLOBS, references):
        found[_REFERENCE_PREFIX + name] = _unpack(name, data)
    return found


def fetch_sizes(db: Database, references: Collection[bytes]) -> dict[bytes, int]:
    """The sizes of the payloads that references stand for, without reading these. Missing ones are left out."""
    return {_REFERENCE_PREFIX + name: size for name, size in _lookup_in_batches(db, db.sql.BLOB_SIZES, references)}


def _lookup_in_batches(db: Database, statement: str, references: Collection[bytes]) -> Iterable[Any]:
    names = [reference[1:] for reference in set(references)]
    for at in range(0, len(names), BATCH_SIZE):
        batch = names[at : at + BATCH_SIZE]
        db.prefetch({statement: [(name,) for name in batch]})
        for name in batch:
            yield from db.lookup(statement, name)


def _unpack(name: bytes, data: bytes) -> bytes | PayloadDamage:
    try:
        payload = zlib.decompress(data[1:]) if data.startswith(_ZLIB) else data[1:]
    except zlib.error as error:
        return PayloadDamage(f"its large payload is damaged ({error})")
    if _hash(payload) != name:
        return PayloadDamage("its large payload is damaged (it does not fit its hash)")
    return payload
