"""API keys: making, listing and revoking them.

A key is shown once, when it is made: ``hf_<id>_<secret>``. What is kept is the SHA-256 of the secret, which has 256
random bits, so that there is nothing to guess and no need for a slow hash. Keys are documents of the *home* of a
database, its default namespace, each with the namespace that it is bound to. A key that was made is never forgotten.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import re
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.services.documents import list_documents
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document
from holdfast.stores.urls import validate_namespace
from holdfast.sync_methods import SyncRunner, sync_method

if TYPE_CHECKING:
    from holdfast.client.backend import KeyBackend

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
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
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
        kept["revoked_at"] = now
        if (
            await store.documents.put(DOCUMENT_KIND, id, json.dumps(kept).encode(), if_version=found[0].version)
            is not None
        ):
            return True


class ClientKeys:
    """API keys as a client sees them: of a database; of a server, those of the caller's namespace."""

    def __init__(self, backend: KeyBackend, run_sync: SyncRunner) -> None:
        self._backend = backend
        self._run_sync = run_sync

    async def create(self, name: str, scopes: Collection[str], *, expires_at: datetime | None = None) -> CreatedApiKey:
        """Make a key for the client's namespace. Its ``token`` is told this once: what is kept is a hash.

        Args:
            name: what people call it.
            scopes: of ``read``, ``submit``, ``operate``, ``admin``, ``listen:<address>`` and ``listen:*``.
            expires_at: when it ceases to open anything (a time with a time zone); never unless given.
        """
        return await self._backend.create(name, scopes, expires_at)

    async def list(self, namespace: str | None = None) -> builtins.list[ApiKey]:
        """All keys, or those of a namespace, the oldest first; also those that were revoked or have expired."""
        return await self._backend.list(namespace)

    async def revoke(self, id: str) -> bool:
        """Let a key open nothing any more; false when it was revoked before. Raises ``UnknownApiKey``."""
        return await self._backend.revoke(id)

    # The same, for code without an event loop

    create_sync = sync_method(create)
    list_sync = sync_method(list)
    revoke_sync = sync_method(revoke)


def hash_secret(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def _encode_key(key: ApiKey, hashed: bytes) -> bytes:
    return json.dumps(
        {
            "name": key.name,
            "namespace": key.namespace,
            "scopes": key.scopes,
            "created_at": key.created_at.timestamp(),
            "expires_at": None if key.expires_at is None else key.expires_at.timestamp(),
            "revoked_at": None,
            "created_by": key.created_by,
            "hash": hashed.hex(),
        }
    ).encode()


def key_from_document(document: Document) -> ApiKey:
    """The key that a document holds."""
    kept: dict[str, Any] = document.load_json()
    return ApiKey(
        id=document.name,
        name=kept["name"],
        namespace=kept["namespace"],
        scopes=tuple(kept["scopes"]),
        created_at=to_datetime(float(kept["created_at"])),
        expires_at=to_datetime(kept["expires_at"]),
        revoked_at=to_datetime(kept["revoked_at"]),
        created_by=kept["created_by"],
    )
