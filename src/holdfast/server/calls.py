"""A call: one request of one caller, with all that an endpoint may need to answer it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from holdfast.client.client import Client
from holdfast.codec import EncodedValue, codec_for
from holdfast.codec.run_ids import MAX_ID_LENGTH
from holdfast.server.auth.authenticator import Caller, invalid_key_problem
from holdfast.server.auth.scopes import Scope
from holdfast.server.http.problems import Problem
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.server.tenants import Tenant
from holdfast.services.thread_offload import LARGE_BYTES, run_off_loop
from holdfast.services.wire_values import TAGGED_VALUES, VALUES_HEADER, from_wire, to_wire
from holdfast.stores.contract import Store, WorkflowSpec

if TYPE_CHECKING:
    from holdfast.server.app import Platform

T = TypeVar("T")

MAX_WAIT_S = 60.0
"""Seconds that a long poll may ask for."""
_ID_SUFFIX = re.compile(r"[0-9a-f]{11,12}-[0-9a-f]{10}")
"""The end of a generated id: see ``generate_id_suffix``."""
_value_codec = codec_for(Any)


@dataclass(slots=True)
class Call:
    """What an endpoint is handed."""

    request: Request
    platform: Platform
    caller: Caller
    tenant: Tenant
    status: int | None = None
    """The status of the answer, if it is not the usual one."""
    is_internal: bool = False
    """The server calls for itself, and has no key."""
    value_bytes: int = 0
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
    def has_tagged_values(self) -> bool:
        """Whether values come and go in Holdfast's own form: see ``services.wire_values``."""
        return self.request.headers.get(VALUES_HEADER, "") == TAGGED_VALUES

    def encode_value(self, value: Any) -> Any:
        """A value as the caller wants it."""
        return to_wire(value, tagged=self.has_tagged_values)

    def decode_value(self, data: Any, label: str = "the value") -> Any:
        """A value that the caller has sent."""
        return from_wire(data, label) if self.has_tagged_values else data

    async def prepare_value(self, data: Any, label: str = "the value") -> Any:
        """A value from the body, ready to be stored; encoded in advance if the body is large."""
        if self.value_bytes <= LARGE_BYTES:
            return self.decode_value(data, label)
        return await self.run_body_work(
            0, lambda: EncodedValue(_value_codec.encode(self.decode_value(data, label), label))
        )

    async def run_body_work(self, size: int, work: Callable[[], T]) -> T:
        """Run work on the body and on ``value_bytes`` more bytes of values, in a thread if they are large.

        These bytes count toward the size of the call from then on.
        """
        self.value_bytes += size
        return await self.run_large_work(self.value_bytes, work)

    async def run_large_work(self, size: int, work: Callable[[], T]) -> T:
        """Run work on values of ``value_bytes`` bytes, in a thread if they are large.

        Each namespace uses one thread at a time, so that none can occupy all threads.
        """
        if size <= LARGE_BYTES:
            return work()
        async with self.platform.large_work.lock_for(self.caller.namespace):
            return await run_off_loop(size, work)

    def notify_listeners(self, spec: WorkflowSpec) -> None:
        """A run was started here: if it is one of an address, whoever listens is told at once."""
        if spec.is_address:
            self.platform.dispatchers.get(self.tenant).notify(spec.name)

    # Who may do what

    async def check_key(self) -> None:
        """Refuse a caller whose key was revoked, or has expired, since the request came in."""
        if await self.platform.authenticate(self.request) is None:
            raise invalid_key_problem()

    def check_listen_scope(self, address: str) -> None:
        """Refuse whoever may not take deliveries of this address."""
        if not self.caller.has_scope(Scope.LISTEN, address):
            raise not_allowed_problem(f"listen:{address}")

    def actor(self, given: str | None) -> str:
        """Who says something. A key that speaks for somebody is named as well: it cannot pass for them unnoticed."""
        if not given:
            return self.caller.name
        return f"{given} (key {self.caller.name})" if self.caller.key_id else given

    # Idempotency

    def derive_id(self, operation: str, prefix: str | None = None) -> str | None:
        """An id derived from the Idempotency-Key, distinct for each operation.

        Holdfast's own client sends the suffix of a generated id as the key. Appended to ``prefix``, it makes the id
        that a client over a store would generate.

        Its scope is the namespace and not the API key, so that a request repeated with a rotated key is still the same
        request.
        """
        given = self.request.headers.get(IDEMPOTENCY_KEY)
        if given is None:
            return None
        if prefix is not None and _ID_SUFFIX.fullmatch(given):
            return f"{prefix[: MAX_ID_LENGTH - len(given) - 1]}-{given}"
        mixed = "\0".join((operation, given)).encode()
        return f"{operation}-{base64.b32encode(hashlib.sha256(mixed).digest()[:15]).decode().lower()}"


def not_allowed_problem(scope: str) -> Problem:
    """The problem of a key that lacks a scope."""
    scope = str(scope)  # one of ``Scope`` shows itself otherwise
    return Problem(
        403,
        "not-allowed",
        "The key may not do that",
        f"It needs the scope {scope!r}: `holdfast keys create NAME --scope {scope}` makes one that has it.",
        scope=scope,
    )
