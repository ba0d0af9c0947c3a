"""API keys: who a caller is, whose data they see, and what they may do.

``services.api_keys`` tells what is kept of a key; secrets are compared in constant time. A key is bound to a namespace:
that is where a caller's requests go, whatever they say.

As long as no key was ever made, a server serves programs of the same user on this machine (see ``remote_addresses``),
and nobody else. From the first key on, every request needs one, also when all keys have been revoked since.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.server.auth.scopes import Scope, has_scope
from holdfast.server.http.problems import Problem
from holdfast.services.api_keys import DOCUMENT_KIND, ApiKey, hash_secret, key_from_document
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document

CACHE_TTL_S = 2.0
"""Seconds for which a key that was looked up need not be looked up again; so long may a revoked one still work."""
MAX_CACHED_KEYS = 10_000

AUTHENTICATE_HEADERS = {"WWW-Authenticate": 'Bearer realm="holdfast"'}

_TOKEN_PATTERN = re.compile(r"hf_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    key_id: str
    """The id of the key; ``""``: none is needed."""
    name: str
    namespace: str
    scopes: tuple[str, ...]
    remote_address: str = ""
    """The network address."""

    def has_scope(self, wanted: Scope, address: str | None = None) -> bool:
        """Whether the caller is allowed that; to listen, on which address (``None``: on any)."""
        return has_scope(self.scopes, wanted, address)


def invalid_key_problem(detail: str = "The key is not known here, was revoked, or has expired.") -> Problem:
    """The problem of a request without a valid key."""
    return Problem(401, "no-valid-key", "A valid API key is needed", detail, headers=AUTHENTICATE_HEADERS)


def make_local_caller(namespace: str) -> Caller:
    """Whoever is on this machine, as long as there are no keys."""
    return Caller("", "local", namespace, (Scope.ADMIN, Scope.LISTEN_TO_ALL))


class Authenticator:
    """Finds out who a caller is."""

    def __init__(
        self, open_home_store: Callable[[], Awaitable[Store]], namespace: str, clock: Callable[[], float]
    ) -> None:
        self._open_home_store = open_home_store
        self._clock = clock
        self._local_caller = make_local_caller(namespace)
        self._cache: OrderedDict[str, tuple[float, ApiKey, bytes]] = OrderedDict()
        """By id: when it was looked up, the key, and the hash of its secret."""
        self._checked_any_at: float | None = None
        self._has_keys = False
        self._pending: dict[str, asyncio.Future[Document | None]] = {}
        """By id: keys that the next read of the store looks for."""
        self._read_task: asyncio.Task[None] | None = None

    async def is_key_required(self) -> bool:
        """Whether a key was ever made."""
        if not self._has_keys and not self._is_fresh(self._checked_any_at):
            now = self._clock()
            self._has_keys = bool(await (await self._open_home_store()).documents.list(DOCUMENT_KIND, limit=1))
            self._checked_any_at = now
        return self._has_keys

    async def authenticate(self, token: str | None, *, is_local: bool) -> Caller | None:
        """Who shows this token, or none at all from this machine; ``None``: nobody that is known."""
        if not await self.is_key_required():
            return self._local_caller if token is None and is_local else None
        parts = _TOKEN_PATTERN.fullmatch(token or "")
        if parts is None:
            return None
        found = await self._find_key(parts[1])
        given = hash_secret(parts[2])
        # A hash is compared also if there is no such key, so that the time tells nothing about ids.
        is_same = hmac.compare_digest(given, hash_secret("") if found is None else found[1])
        if found is None or not is_same or not found[0].is_valid(self._clock()):
            return None
        key = found[0]
        return Caller(key.id, key.name, key.namespace, key.scopes)

    def invalidate(self, id: str) -> None:
        """A key was made or changed: look it up anew."""
        self._cache.pop(id, None)
        self._checked_any_at = None

    async def _find_key(self, id: str) -> tuple[ApiKey, bytes] | None:
        known = self._cache.get(id)
        if known is not None and self._is_fresh(known[0]):
            self._cache.move_to_end(id)
            return known[1], known[2]
        now = self._clock()  # before it is read: what is changed meanwhile counts from now on
        found = await self._read_document(id)
        if found is None:
            self._cache.pop(id, None)
            return None
        key, kept = key_from_document(found), found.load_json()
        hashed = bytes.fromhex(kept["hash"])
        self._cache[id] = (now, key, hashed)
        self._cache.move_to_end(id)
        if len(self._cache) > MAX_CACHED_KEYS:
            self._cache.popitem(last=False)
        return key, hashed

    async def _read_document(self, id: str) -> Document | None:
        """The document of a key. Whatever is asked for during one read is read together by the next one."""
        future = self._pending.get(id)
        if future is None:
            future = self._pending[id] = asyncio.get_running_loop().create_future()
            if self._read_task is None or self._read_task.done():
                self._read_task = asyncio.create_task(self._read_pending())
        return await asyncio.shield(future)

    async def _read_pending(self) -> None:
        while self._pending:
            wanted, self._pending = self._pending, {}
            try:
                found = await (await self._open_home_store()).documents.list(DOCUMENT_KIND, list(wanted))
            except Exception as error:
                for future in wanted.values():
                    future.set_exception(error)
                    future.exception()  # whoever asked may have gone
                continue
            by_id = {one.name: one for one in found}
            for id, future in wanted.items():
                future.set_result(by_id.get(id))

    def _is_fresh(self, at: float | None) -> bool:
        # A clock that was set back makes nothing last longer.
        return at is not None and 0 <= self._clock() - at < CACHE_TTL_S
