"""API keys: making, listing and revoking them.

A key is shown once, when it is made: ``hf_<id>_<secret>``. What is kept is the SHA-256 of the secret, which has 256
random bits, so that there is nothing to guess and no need for a slow hash. Keys are documents of the *home* of a
database, its default namespace, each with the namespace that it is bound to. A key that was made is never forgotten.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import UsageError
from holdfast.services.documents import list_documents
from holdfast.services.json_form import UtcDatetime, from_json, to_json, to_json_bytes
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document
from holdfast.stores.urls import validate_namespace

DOCUMENT_KIND = "key"
"""The kind of document that a key is."""
MAX_NAME_LENGTH = 100
SCOPES = ("read", "submit", "operate", "admin")
"""What a key may do, beside ``listen:<address>`` and ``listen:*``: see ``server.auth.scopes``."""

_LISTEN_SCOPE = re.compile(r"listen:(\*|\S+)")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, without its secret."""

    id: str
    name: str
    """What people call it."""
    namespace: str
    scopes: tuple[str, ...]
    created_at: UtcDatetime
    expires_at: UtcDatetime | None
    revoked_at: UtcDatetime | None
    created_by: str
    """The id of the key that it was made with; ``""``: it was made on the command line, or before there were any."""

    def is_valid(self, now: float) -> bool:
        """Whether it opens anything at this time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at.timestamp())


@dataclass(frozen=True, slots=True)
class CreatedApiKey(ApiKey):
    """A new key, and its token, which is told this once."""

    token: str

    @classmethod
    def from_key(cls, key: ApiKey, token: str) -> CreatedApiKey:
        """What ``create_key`` has made."""
        return cls(**asdict(key), token=token)


class UnknownApiKey(UsageError):
    """There is no key with that id; at least none that the caller may know of."""


def validate_scopes(scopes: Collection[str]) -> tuple[str, ...]:
    """Scopes as they are kept: sorted, each once. Raises ``UsageError`` for what is none."""
    if not scopes:
        raise UsageError("a key without a scope may do nothing: give at least one, as in --scope submit --scope read")
    for scope in scopes:
        if scope not in SCOPES and not _LISTEN_SCOPE.fullmatch(scope):
            raise UsageError(
                f"{scope!r} is no scope. There are: read, submit, operate, admin, listen:<address> and listen:*"
            )
    return tuple(sorted(set(scopes)))


async def create_key(
    store: Store,
    name: str,
    scopes: Collection[str],
    namespace: str,
    *,
    expires_at: datetime | None = None,
    created_by: str = "",
    now: float,
) -> tuple[ApiKey, str]:
    """Make a key, and its token, which nobody can learn later. Raises ``UsageError``."""
    if not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise UsageError(f"a key's name has 1 to {MAX_NAME_LENGTH} printable characters, not {name!r:.60}")
    if expires_at is not None and expires_at.timestamp() <= now:
        raise UsageError(
            f"the key {name!r} would expire at {expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: that is over"
        )
    if expires_at is not None and expires_at.year >= datetime.max.year:  # its last moment has no number of seconds
        raise UsageError(f"the key {name!r} would expire at the end of the calendar: leave that out, and it never does")
    secret = secrets.token_urlsafe(32)
    key = ApiKey(
        id=secrets.token_hex(6),
        name=name.strip(),
        namespace=validate_namespace(namespace),
        scopes=validate_scopes(scopes),
        created_at=to_datetime(now),
        expires_at=None if expires_at is None else expires_at.astimezone(UTC),
        revoked_at=None,
        created_by=created_by,
    )
    while await store.documents.put(DOCUMENT_KIND, key.id, _encode_key(key, hash_secret(secret)), if_version=0) is None:
        key = replace(key, id=secrets.token_hex(6))  # somebody has that one
    return key, f"hf_{key.id}_{secret}"


async def list_keys(store: Store, namespace: str | None = None) -> list[ApiKey]:
    """All keys, or those of a namespace, the oldest first."""
    found = map(key_from_document, await list_documents(store, DOCUMENT_KIND))
    wanted = [key for key in found if namespace in (None, key.namespace)]
    return sorted(wanted, key=lambda key: key.created_at)


async def revoke_key(store: Store, id: str, now: float, namespace: str | None = None) -> bool:
    """Let a key open nothing any more; false when it was revoked before. Raises ``UnknownApiKey``."""
    while True:
        found = await store.documents.list(DOCUMENT_KIND, [id])
        if not found or namespace not in (None, key_from_document(found[0]).namespace):
            raise UnknownApiKey(f"there is no key {id!r:.60}: `holdfast keys list` tells which there are")
        kept: dict[str, Any] = found[0].load_json()
        if kept["revoked_at"] is not None:
            return False
        kept["revoked_at"] = to_json(to_datetime(now))
        if (
            await store.documents.put(DOCUMENT_KIND, id, json.dumps(kept).encode(), if_version=found[0].version)
            is not None
        ):
            return True


def hash_secret(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def _encode_key(key: ApiKey, hashed: bytes) -> bytes:
    return to_json_bytes({**to_json(key), "hash": hashed.hex()})


def key_from_document(document: Document) -> ApiKey:
    """The key that a document holds."""
    return from_json(ApiKey, {**document.load_json(), "id": document.name})
