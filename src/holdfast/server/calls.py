"""A call: one request of one caller, with everything an endpoint needs to answer it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.client.client import Client
from holdfast.codec import EncodedValue, codec_for, validate_size
from holdfast.codec.run_ids import MAX_ID_LENGTH
from holdfast.codec.tags import is_plain
from holdfast.server.auth.authenticator import Caller, invalid_key_problem
from holdfast.server.auth.scopes import Scope
from holdfast.server.http.request import Request
from holdfast.server.http.request_headers import IDEMPOTENCY_KEY
from holdfast.services.problems import Problem
from holdfast.services.thread_offload import LARGE_BYTES, run_off_loop
from holdfast.services.wire_values import TAGGED_VALUES, VALUES_HEADER, from_wire, to_wire
from holdfast.stores.audit_log import AuditEvent
from holdfast.stores.claims import ClaimedRun, ClaimNext
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.operations import Op, OpResult

if TYPE_CHECKING:
    from holdfast.server.app import Platform
    from holdfast.server.tenants import Tenant

T = TypeVar("T")

MAX_WAIT_S = 60.0
"""Maximum seconds of a long poll."""
_ID_SUFFIX = re.compile(r"[0-9a-f]{11,12}-[0-9a-f]{10}")
"""The end of a generated id: see ``generate_id_suffix``."""
_VALUES_HEADER_KEY = VALUES_HEADER.lower()
_value_codec = codec_for(Any)


@dataclass(slots=True)
class Call:
    """One request, as its endpoint sees it."""

    request: Request
    platform: Platform
    caller: Caller
    tenant: Tenant
    status: int | None = None
    """The status of the response, if it is not the endpoint's usual one."""
    is_internal: bool = False
    """The server makes this call itself, without a key."""
    audit_entry: AuditEvent | None = None
    """The entry of the audit log that the next commit writes."""
    value_bytes: int = 0
    """Bytes of values that the call handles: those of its body, and those it reads."""
    has_tagged_values: bool = field(init=False)
    """Whether the caller uses Holdfast's own form of values: see ``services.wire_values``."""

    def __post_init__(self) -> None:
        self.has_tagged_values = self.request.headers.get(_VALUES_HEADER_KEY) == TAGGED_VALUES

    @property
    def client(self) -> Client:
        """A client over the caller's namespace."""
        return self.tenant.client

    @property
    def store(self) -> Store:
        """The store of the caller's namespace."""
        return self.tenant.store

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        """Commit operations, together with those of other requests, and with the entry of the audit log."""
        return cast("list[OpResult]", await self.commit_and_claim(ops))

    async def commit_and_claim(self, items: Sequence[Op | ClaimNext]) -> list[OpResult | ClaimedRun | None]:
        """Like ``commit``, with claims among the operations: see ``Store.commit_and_claim``."""
        entry, self.audit_entry = self.audit_entry, None
        if entry is None:
            return await self.tenant.commits.call(items)
        return (await self.tenant.commits.call([entry, *items]))[1:]

    # Values

    def encode_value(self, value: Any) -> Any:
        """A recorded value in the form that the caller uses."""
        if self.has_tagged_values and is_plain(value):
            return value
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

    def encode_stored_value(self, value: Any, label: str) -> bytes:
        """A prepared value as it is stored. Raises ``ValueTooLarge``."""
        return validate_size(_value_codec.encode(value, label), label, self.client.max_value)

    async def run_body_work(self, size: int, work: Callable[[], T]) -> T:
        """Run work on the body and on ``size`` more bytes of values, in a thread if they are large.

        These bytes count toward the size of the call from then on.
        """
        self.value_bytes += size
        return await self.run_large_work(self.value_bytes, work)

    async def run_large_work(self, size: int, work: Callable[[], T]) -> T:
        """Run work on values of ``size`` bytes, in a thread if they are large.

        Each namespace uses one thread at a time, so that none can occupy all threads.
        """
        if size <= LARGE_BYTES:
            return work()
        async with self.platform.large_work.lock_for(self.caller.namespace):
            return await run_off_loop(size, work)

    def notify_listeners(self, spec: WorkflowSpec) -> None:
        """A run was started: if it belongs to an address, its listeners look for work at once."""
        if spec.is_address:
            self.tenant.dispatcher.notify_start(spec.name)

    # Permissions

    async def check_key(self) -> None:
        """Refuse a caller whose key was revoked, or has expired, since the request came in."""
        if not self.is_internal and await self.platform.authenticator.authenticate(self.request) is None:
            raise invalid_key_problem()

    def check_listen_scope(self, address: str) -> None:
        """Refuse a caller that may not take deliveries of this address."""
        if not self.caller.has_scope(Scope.LISTEN, address):
            raise not_allowed_problem(f"listen:{address}")

    def actor(self, given: str | None) -> str:
        """The person or key that acts. If a key names a person, both are shown: it cannot pass for them unnoticed."""
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
        given = self.request.headers.get(IDEMPOTENCY_KEY.lower())
        if given is None:
            return None
        if prefix is not None and _ID_SUFFIX.fullmatch(given):
            return f"{prefix[: MAX_ID_LENGTH - len(given) - 1]}-{given}"
        digest = hashlib.sha256(f"{operation}\0{given}".encode()).digest()
        return f"{operation}-{base64.b32encode(digest[:15]).decode().lower()}"


def not_allowed_problem(scope: str) -> Problem:
    """The problem of a key that lacks a scope."""
    scope = str(scope)  # the repr of a ``Scope`` is not its text
    return Problem(
        403,
        "not-allowed",
        "The key may not do that",
        f"It needs the scope {scope!r}: `holdfast keys create NAME --scope {scope}` makes one that has it.",
        scope=scope,
    )
