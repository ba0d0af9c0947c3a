"""API keys: who a caller is, whose data they see, and what they may do.

``services.api_keys`` tells what is kept of a key; secrets are compared in constant time. A key is bound to a namespace:
that is where a caller's requests go, whatever they say.

As long as no key was ever made, a server serves programs of the same user on this machine (see ``remotes``), and nobody
else. From the first key on, every request needs one, also when all keys have been revoked since.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.server.auth.scopes import Scope, allows
from holdfast.server.http.problems import Problem
from holdfast.services.api_keys import KIND, Key, hash_of, key_in
from holdfast.stores.contract import Store
from holdfast.stores.documents import Document

TRUSTED_FOR = 2.0
"""Seconds for which a key that was looked up need not be looked up again; so long may a revoked one still work."""
MOST_TRUSTED = 10_000

AUTHENTICATE = {"WWW-Authenticate": 'Bearer realm="holdfast"'}

_TOKEN = re.compile(r"hf_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


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


def no_valid_key(detail: str = "The key is not known here, was revoked, or has expired.") -> Problem:
    """The problem of a request without a valid key."""
    return Problem(401, "no-valid-key", "A valid API key is needed", detail, headers=AUTHENTICATE)


def local_caller(namespace: str) -> Caller:
    """Whoever is on this machine, as long as there are no keys."""
    return Caller("", "local", namespace, (Scope.ADMIN, Scope.LISTEN_TO_ALL))


class Home(Protocol):
    """Where keys are kept."""

    async def home(self) -> Store:
        """The store, open."""
        ...


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
        self._wanted: dict[str, asyncio.Future[Document | None]] = {}
        """By id: keys that the next read of the store looks for."""
        self._reading: asyncio.Task[None] | None = None

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
        given = hash_of(parts[2])
        # A hash is compared also if there is no such key, so that the time tells nothing about ids.
        is_same = hmac.compare_digest(given, hash_of("") if found is None else found[1])
        if found is None or not is_same or not found[0].is_valid(self._clock()):
            return None
        key = found[0]
        return Caller(key.id, key.name, key.namespace, key.scopes)

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
        found = await self._read(id)
        if found is None:
            self._known.pop(id, None)
            return None
        key, kept = key_in(found), found.content()
        hashed = bytes.fromhex(kept["hash"])
        self._known[id] = (now, key, hashed)
        self._known.move_to_end(id)
        if len(self._known) > MOST_TRUSTED:
            self._known.popitem(last=False)
        return key, hashed

    async def _read(self, id: str) -> Document | None:
        """The document of a key. Whatever is asked for during one read is read together by the next one."""
        future = self._wanted.get(id)
        if future is None:
            future = self._wanted[id] = asyncio.get_running_loop().create_future()
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_wanted())
        return await asyncio.shield(future)

    async def _read_wanted(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            try:
                found = await (await self._home.home()).documents(KIND, list(wanted))
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
        return at is not None and 0 <= self._clock() - at < TRUSTED_FOR
