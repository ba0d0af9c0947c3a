"""API keys: creating, listing, and revoking them.

A key is shown once, when it is created: ``hf_<id>_<secret>``. Only the SHA-256 of the secret is stored. The secret has
256 random bits, so it cannot be guessed, and a slow hash is not needed. Keys are documents in the default namespace of
a database; each names the namespace that it belongs to. A key is never deleted.
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
from holdfast.services.documents import list_documents, update_document
from holdfast.services.json_form import UtcDatetime, from_json, to_json, to_json_bytes
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document
from holdfast.stores.urls import validate_namespace

DOCUMENT_KIND = "key"
"""The kind of document that holds a key."""
MAX_NAME_LENGTH = 100
SCOPES = ("read", "submit", "operate", "admin")
"""The scopes, in addition to ``listen:<address>`` and ``listen:*``: see ``server.auth.scopes``."""

_LISTEN_SCOPE = re.compile(r"listen:(\*|\S+)")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, without its secret."""

    id: str
    name: str
    """A name for people."""
    namespace: str
    scopes: tuple[str, ...]
    created_at: UtcDatetime
    expires_at: UtcDatetime | None
    revoked_at: UtcDatetime | None
    created_by: str
    """The id of the key that created it; empty if the command line did, or if there was no key yet."""

    def is_valid(self, now: float) -> bool:
        """Whether it is accepted at this time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at.timestamp())


@dataclass(frozen=True, slots=True)
class CreatedApiKey(ApiKey):
    """A new key, with its token, which is shown only this once."""

    token: str

    @classmethod
    def from_key(cls, key: ApiKey, token: str) -> CreatedApiKey:
        """The result of ``create_key``."""
        return cls(**asdict(key), token=token)


class UnknownApiKey(UsageError):
    """There is no key with this id that the caller may see."""


def validate_scopes(scopes: Collection[str]) -> tuple[str, ...]:
    """The scopes, sorted and without duplicates. Raises ``UsageError``."""
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
    """Create a key. Returns it with its token, which cannot be read later. Raises ``UsageError``."""
    if not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise UsageError(f"a key's name has 1 to {MAX_NAME_LENGTH} printable characters, not {name!r:.60}")
    if expires_at is not None and expires_at.timestamp() <= now:
        raise UsageError(
            f"the key {name!r} would expire at {expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: that is over"
        )
    if expires_at is not None and expires_at.year >= datetime.max.year:  # the very end has no timestamp
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
    hashed = hash_secret(secret).hex()
    while (
        await store.documents.put(DOCUMENT_KIND, key.id, to_json_bytes({**to_json(key), "hash": hashed}), if_version=0)
        is None
    ):
        key = replace(key, id=secrets.token_hex(6))  # that id is taken
    return key, f"hf_{key.id}_{secret}"


async def list_keys(store: Store, namespace: str | None = None) -> list[ApiKey]:
    """All keys, or those of a namespace, oldest first."""
    found = map(key_from_document, await list_documents(store, DOCUMENT_KIND))
    wanted = [key for key in found if namespace in (None, key.namespace)]
    return sorted(wanted, key=lambda key: key.created_at)


async def revoke_key(store: Store, id: str, now: float, namespace: str | None = None) -> bool:
    """Revoke a key; false if it was revoked before. Raises ``UnknownApiKey``."""

    def revoke(document: Document | None) -> bytes | None:
        if document is None or namespace not in (None, key_from_document(document).namespace):
            raise UnknownApiKey(f"there is no key {id!r:.60}: `holdfast keys list` tells which there are")
        fields: dict[str, Any] = document.load_json()
        if fields["revoked_at"] is not None:
            return None
        return json.dumps(fields | {"revoked_at": to_json(to_datetime(now))}).encode()

    return await update_document(store, DOCUMENT_KIND, id, revoke)


def hash_secret(secret: str) -> bytes:
    """The stored form of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def key_from_document(document: Document) -> ApiKey:
    """The key in a document."""
    return from_json(ApiKey, {**document.load_json(), "id": document.name})
