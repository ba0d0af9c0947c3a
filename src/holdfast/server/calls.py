"""A call: one request of one caller, with all that an endpoint may need to answer it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from holdfast.client.client import Client
from holdfast.client.wire import TAGGED_VALUES, VALUES, from_wire, to_wire
from holdfast.server.headers import IDEMPOTENCY_KEY
from holdfast.server.keys import Caller
from holdfast.server.problems import Problem
from holdfast.server.scopes import Scope
from holdfast.server.tenants import Tenant
from holdfast.stores.contract import Store, WorkflowSpec

if TYPE_CHECKING:
    from holdfast.server.app import Platform

LONGEST_WAIT = 60.0
"""Seconds that a long poll may ask for."""


@dataclass(slots=True)
class Call:
    """What an endpoint is handed."""

    request: Request
    platform: Platform
    caller: Caller
    tenant: Tenant
    status: int | None = None
    """The status of the answer, if it is not the usual one."""

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
        """Whether values come and go in Holdfast's own form: see ``client.wire``."""
        return self.request.headers.get(VALUES, "") == TAGGED_VALUES

    def out(self, value: Any) -> Any:
        """A value as the caller wants it."""
        return to_wire(value, tagged=self.is_tagged)

    def taken(self, data: Any, what: str = "the value") -> Any:
        """A value that the caller has sent."""
        return from_wire(data, what) if self.is_tagged else data

    def nudge(self, spec: WorkflowSpec) -> None:
        """A run was started here: if it is one of an address, whoever listens is told at once."""
        if spec.by_delivery:
            self.platform.desks.of(self.tenant).nudge(spec.name)

    # Who may do what

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
        """An id that follows from the Idempotency-Key; other callers and other operations have others."""
        given = self.request.headers.get(IDEMPOTENCY_KEY)
        if given is None:
            return None
        mixed = "\0".join((self.caller.key, what, given)).encode()
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
