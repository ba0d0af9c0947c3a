"""API keys: who a caller is, whose data they see, and what they may do.

A key is shown once, when it is made: ``hf_<id>_<secret>``. What is kept is the SHA-256 of the secret, which has 256
random bits, so that there is nothing to guess and no need for a slow hash; it is compared in constant time. Keys are
documents of the server's *home*, the default namespace of its database, each with the namespace that it is bound to:
that is where a caller's requests go, whatever they say.

As long as no key was ever made, there is nobody to tell apart: a server then serves whoever is on this machine, and
nobody else. From the first key on, every request needs one, also when all keys have been revoked since: a key that was
made is never forgotten.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from holdfast.errors import UsageError
from holdfast.server.scopes import Scope, allows, checked_scopes
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document
from holdfast.stores.urls import checked_namespace

KIND = "key"
"""The kind of document that a key is."""
TRUSTED_FOR = 2.0
"""Seconds for which a key that was looked up need not be looked up again; so long may a revoked one still work."""
MOST_TRUSTED = 10_000
LONGEST_NAME = 100

_TOKEN = re.compile(r"hf_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Key:
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
class Caller:
    """Who asks."""

    key: str
    """The id of the key; ``""``: none is needed."""
    name: str
    namespace: str
    scopes: tuple[str, ...]
    remote: str = ""
    """The network address."""

    def may(self, wanted: Scope, address: str | None = None) -> bool:
        """Whether the caller is allowed that; to listen, on which address (``None``: on any)."""
        return allows(self.scopes, wanted, address)


def local_caller(namespace: str) -> Caller:
    """Whoever is on this machine, as long as there are no keys."""
    return Caller("", "local", namespace, (Scope.ADMIN, Scope.LISTEN_TO_ALL))


class UnknownKey(UsageError):
    """There is no key with that id; at least none that the caller may know of."""


class Home(Protocol):
    """Where keys are kept."""

    async def home(self) -> Store:
        """The store, open."""
        ...


async def create_key(
    store: Store,
    name: str,
    scopes: Collection[str],
    namespace: str,
    *,
    expires_at: datetime | None = None,
    created_by: str = "",
    now: float,
) -> tuple[Key, str]:
    """Make a key, and its token, which nobody can learn later. Raises ``UsageError``."""
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise UsageError(f"a key's name has 1 to {LONGEST_NAME} printable characters, not {name!r:.60}")
    if expires_at is not None and expires_at.timestamp() <= now:
        raise UsageError(
            f"the key {name!r} would expire at {expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: that is over"
        )
    secret = secrets.token_urlsafe(32)
    key = Key(
        id=secrets.token_hex(6),
        name=name.strip(),
        namespace=checked_namespace(namespace),
        scopes=checked_scopes(scopes),
        created_at=datetime.fromtimestamp(now, UTC),
        expires_at=None if expires_at is None else expires_at.astimezone(UTC),
        revoked_at=None,
        created_by=created_by,
    )
    while await store.put_document(KIND, key.id, _packed(key, _hash(secret)), if_version=0) is None:
        key = replace(key, id=secrets.token_hex(6))  # somebody has that one
    return key, f"hf_{key.id}_{secret}"


async def read_keys(store: Store, namespace: str | None = None) -> list[Key]:
    """All keys, or those of a namespace, the oldest first."""
    found: list[Key] = []
    after = ""
    while page := await store.documents(KIND, after=after):
        found += [_key(document) for document in page]
        after = page[-1].name
    wanted = [key for key in found if namespace in (None, key.namespace)]
    return sorted(wanted, key=lambda key: key.created_at)


async def revoke_key(store: Store, id: str, now: float, namespace: str | None = None) -> bool:
    """Let a key open nothing any more; false when it was revoked before. Raises ``UnknownKey``."""
    while True:
        found = await store.documents(KIND, [id])
        if not found or namespace not in (None, _key(found[0]).namespace):
            raise UnknownKey(f"there is no key {id!r:.60}: `holdfast keys list` tells which there are")
        kept: dict[str, Any] = found[0].content()
        if kept["revoked_at"] is not None:
            return False
        kept["revoked_at"] = now
        if await store.put_document(KIND, id, json.dumps(kept).encode(), if_version=found[0].version) is not None:
            return True


class Keys:
    """Finds out who a caller is."""

    def __init__(self, home: Home, namespace: str, clock: Callable[[], float]) -> None:
        self._home = home
        self._clock = clock
        self._local = local_caller(namespace)
        self._known: OrderedDict[str, tuple[float, Key, bytes]] = OrderedDict()
        """By id: when it was looked up, the key, and the hash of its secret."""
        self._looked_for_any_at: float | None = None
        self._is_any = False

    async def is_needed(self) -> bool:
        """Whether a key was ever made."""
        if not self._is_any and not self._is_fresh(self._looked_for_any_at):
            now = self._clock()
            self._is_any = bool(await (await self._home.home()).documents(KIND, limit=1))
            self._looked_for_any_at = now
        return self._is_any

    async def caller(self, token: str | None, *, is_local: bool) -> Caller | None:
        """Who shows this token, or none at all from this machine; ``None``: nobody that is known."""
        if not await self.is_needed():
            return self._local if token is None and is_local else None
        parts = _TOKEN.fullmatch(token or "")
        if parts is None:
            return None
        found = await self._look_up(parts[1])
        given = _hash(parts[2])
        # A hash is compared also if there is no such key, so that the time tells nothing about ids.
        is_same = hmac.compare_digest(given, _hash("") if found is None else found[1])
        if found is None or not is_same or not found[0].is_valid(self._clock()):
            return None
        key = found[0]
        return Caller(key.id, key.name, key.namespace, key.scopes)

    def needs_looking_up(self, token: str | None) -> bool:
        """Whether the store must be asked for a key that nobody has shown here yet."""
        parts = _TOKEN.fullmatch(token or "")
        return self._is_any and parts is not None and parts[1] not in self._known

    def forget(self, id: str) -> None:
        """A key was made or changed: look it up anew."""
        self._known.pop(id, None)
        self._looked_for_any_at = None

    async def _look_up(self, id: str) -> tuple[Key, bytes] | None:
        known = self._known.get(id)
        if known is not None and self._is_fresh(known[0]):
            self._known.move_to_end(id)
            return known[1], known[2]
        now = self._clock()  # before it is read: what is changed meanwhile counts from now on
        found = await (await self._home.home()).documents(KIND, [id])
        if not found:
            self._known.pop(id, None)
            return None
        key, kept = _key(found[0]), found[0].content()
        hashed = bytes.fromhex(kept["hash"])
        self._known[id] = (now, key, hashed)
        self._known.move_to_end(id)
        if len(self._known) > MOST_TRUSTED:
            self._known.popitem(last=False)
        return key, hashed

    def _is_fresh(self, at: float | None) -> bool:
        # A clock that was set back makes nothing last longer.
        return at is not None and 0 <= self._clock() - at < TRUSTED_FOR


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _packed(key: Key, hashed: bytes) -> bytes:
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


def _key(document: Document) -> Key:
    kept: dict[str, Any] = document.content()
    return Key(
        id=document.name,
        name=kept["name"],
        namespace=kept["namespace"],
        scopes=tuple(kept["scopes"]),
        created_at=datetime.fromtimestamp(kept["created_at"], UTC),
        expires_at=_moment(kept["expires_at"]),
        revoked_at=_moment(kept["revoked_at"]),
        created_by=kept["created_by"],
    )


def _moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
