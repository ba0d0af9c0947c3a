"""API keys: who a caller is, whose data they see, and what they may do.

``services.api_keys`` has the stored form of a key; secrets are compared in constant time. A key is bound to a
namespace: all requests of its caller go there, whatever they contain.

Until the first key is made, a server serves only programs of the same user on this machine (see ``remote_addresses``).
From then on, every request needs a key, even after all keys have been revoked.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping

from holdfast.core.immutable import immutable
from holdfast.server.auth.scopes import Scope, has_scope
from holdfast.server.caches.lru_dict import LruDict
from holdfast.server.http.remote_addresses import is_local_request
from holdfast.server.http.request import Request
from holdfast.services.api_keys import DOCUMENT_KIND, ApiKey, hash_secret, key_from_document
from holdfast.services.problems import Problem
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document

CACHE_TTL_S = 2.0
"""Seconds for which a key is remembered. A revoked key may still work for as long."""
MAX_CACHED_KEYS = 10_000

AUTHENTICATE_HEADERS = {"WWW-Authenticate": 'Bearer realm="holdfast"'}

_LOCAL_SCOPES = (Scope.ADMIN, Scope.LISTEN_TO_ALL)
"""Those of a program on this machine, as long as there are no keys."""
_TOKEN_PATTERN = re.compile(r"hf_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@immutable
class Caller:
    """The sender of a request."""

    key_id: str
    """The id of the key; ``""``: none is needed."""
    name: str
    namespace: str
    scopes: tuple[str, ...]
    remote_address: str = ""

    def has_scope(self, wanted: Scope, address: str | None = None) -> bool:
        """Whether the caller has a scope; ``Scope.LISTEN`` is for one address (``None``: for any)."""
        return has_scope(self.scopes, wanted, address)


def invalid_key_problem(detail: str = "The key is not known here, was revoked, or has expired.") -> Problem:
    """The problem of a request without a valid key."""
    return Problem(401, "invalid-api-key", "A valid API key is needed", detail, headers=AUTHENTICATE_HEADERS)


class Authenticator:
    """Finds the caller that a token belongs to."""

    def __init__(
        self, open_home_store: Callable[[], Awaitable[Store]], namespace: str, clock: Callable[[], float]
    ) -> None:
        self._open_home_store = open_home_store
        self._clock = clock
        self._namespace = namespace
        self._cache: LruDict[str, tuple[float, ApiKey, bytes]] = LruDict(MAX_CACHED_KEYS)
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

    async def authenticate(self, request: Request) -> Caller | None:
        """The caller, if the key of the request is valid now, or if none is needed (see ``CACHE_TTL_S``)."""
        token, remote = _get_bearer_token(request.headers), request.remote_address
        if not self._has_keys and not await self.is_key_required():
            is_local = token is None and is_local_request(request)
            return Caller("", "local", self._namespace, _LOCAL_SCOPES, remote) if is_local else None
        parts = _TOKEN_PATTERN.fullmatch(token or "")
        if parts is None:
            return None
        found = await self._find_key(parts[1])
        given = hash_secret(parts[2])
        # A hash is compared even if there is no such key, so that the time reveals nothing about ids.
        is_same = hmac.compare_digest(given, hash_secret("") if found is None else found[1])
        if found is None or not is_same or not found[0].is_valid(self._clock()):
            return None
        key = found[0]
        return Caller(key.id, key.name, key.namespace, key.scopes, remote)

    def invalidate(self, id: str) -> None:
        """Look a key up anew: it was made or changed."""
        self._cache.pop(id, None)
        self._checked_any_at = None

    async def _find_key(self, id: str) -> tuple[ApiKey, bytes] | None:
        known = self._cache.get(id)
        if known is not None and self._is_fresh(known[0]):
            self._cache.move_to_end(id)
            return known[1], known[2]
        now = self._clock()  # before the read: a change during the read must not be remembered for longer
        found = await self._read_document(id)
        if found is None:
            self._cache.pop(id, None)
            return None
        key, secret_hash = key_from_document(found), bytes.fromhex(found.load_json()["hash"])
        self._cache[id] = (now, key, secret_hash)
        return key, secret_hash

    async def _read_document(self, id: str) -> Document | None:
        """The document of a key. Requests that arrive during one read share the next one."""
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
                    future.exception()  # the request may have been cancelled
                continue
            by_id = {document.name: document for document in found}
            for id, future in wanted.items():
                future.set_result(by_id.get(id))

    def _is_fresh(self, at: float | None) -> bool:
        # If the clock was set back, nothing stays fresh for longer.
        return at is not None and 0 <= self._clock() - at < CACHE_TTL_S


def _get_bearer_token(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
