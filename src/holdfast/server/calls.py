"""A call: one request of one caller, with all that an endpoint may need to answer it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from holdfast.client.client import Client
from holdfast.codec import Encoded, codec_for
from holdfast.server.auth.authenticator import Caller, no_valid_key
from holdfast.server.auth.scopes import Scope
from holdfast.server.http.problems import Problem
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.tenants import Tenant
from holdfast.services.thread_offload import LARGE, off_loop
from holdfast.services.wire_values import TAGGED_VALUES, VALUES, from_wire, to_wire
from holdfast.stores.contract import Store, WorkflowSpec

if TYPE_CHECKING:
    from holdfast.server.app import Platform

T = TypeVar("T")

LONGEST_WAIT = 60.0
"""Seconds that a long poll may ask for."""
_values = codec_for(Any)


@dataclass(slots=True)
class Call:
    """What an endpoint is handed."""

    request: Request
    platform: Platform
    caller: Caller
    tenant: Tenant
    status: int | None = None
    """The status of the answer, if it is not the usual one."""
    is_own: bool = False
    """The server calls for itself, and has no key."""
    size: int = 0
    """Bytes of values that the call handles: those of its body, and those it reads."""

    @property
    def client(self) -> Client:
        """A client over the caller's namespace."""
        return self.tenant.client

    async def store(self) -> Store:
        """The store of the caller's namespace."""
        return await self.tenant.store()

    # Values

    @property
    def is_tagged(self) -> bool:
        """Whether values come and go in Holdfast's own form: see ``services.wire_values``."""
        return self.request.headers.get(VALUES, "") == TAGGED_VALUES

    def out(self, value: Any) -> Any:
        """A value as the caller wants it."""
        return to_wire(value, tagged=self.is_tagged)

    def taken(self, data: Any, what: str = "the value") -> Any:
        """A value that the caller has sent."""
        return from_wire(data, what) if self.is_tagged else data

    async def take(self, data: Any, what: str = "the value") -> Any:
        """A value from the body, ready to be stored; encoded in advance if the body is large."""
        if self.size <= LARGE:
            return self.taken(data, what)
        return await self.off_loop(0, lambda: Encoded(_values.encode(self.taken(data, what), what)))

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Run work on the body and on ``size`` more bytes of values, in a thread if they are large.

        These bytes count toward the size of the call from then on.
        """
        self.size += size
        return await self.large_work(self.size, work)

    async def large_work(self, size: int, work: Callable[[], T]) -> T:
        """Run work on values of ``size`` bytes, in a thread if they are large.

        Each namespace uses one thread at a time, so that none can occupy all threads.
        """
        if size <= LARGE:
            return work()
        async with self.platform.large_work.turn(self.caller.namespace):
            return await off_loop(size, work)

    def nudge(self, spec: WorkflowSpec) -> None:
        """A run was started here: if it is one of an address, whoever listens is told at once."""
        if spec.by_delivery:
            self.platform.desks.of(self.tenant).nudge(spec.name)

    # Who may do what

    async def check_key(self) -> None:
        """Refuse a caller whose key was revoked, or has expired, since the request came in."""
        if await self.platform.caller_of(self.request) is None:
            raise no_valid_key()

    def need_to_listen(self, address: str) -> None:
        """Refuse whoever may not take deliveries of this address."""
        if not self.caller.may(Scope.LISTEN, address):
            raise not_allowed(f"listen:{address}")

    def said_by(self, given: str | None) -> str:
        """Who says something. A key that speaks for somebody is named as well: it cannot pass for them unnoticed."""
        if not given:
            return self.caller.name
        return f"{given} (key {self.caller.name})" if self.caller.key else given

    # Idempotency

    def derived_id(self, what: str) -> str | None:
        """An id derived from the Idempotency-Key, distinct for each operation.

        Its scope is the namespace and not the API key, so that a request repeated with a rotated key is still the same
        request.
        """
        given = self.request.headers.get(IDEMPOTENCY_KEY)
        if given is None:
            return None
        mixed = "\0".join((what, given)).encode()
        return f"{what}-{base64.b32encode(hashlib.sha256(mixed).digest()[:15]).decode().lower()}"


def not_allowed(scope: str) -> Problem:
    """The problem of a key that lacks a scope."""
    scope = str(scope)  # one of ``Scope`` shows itself otherwise
    return Problem(
        403,
        "not-allowed",
        "The key may not do that",
        f"It needs the scope {scope!r}: `holdfast keys create NAME --scope {scope}` makes one that has it.",
        scope=scope,
    )
