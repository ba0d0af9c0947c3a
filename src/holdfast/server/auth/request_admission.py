"""Admission of requests: who the caller is, whether they exceed a rate or a limit, and whether they have the scope.

**Invalid keys.** The server looks up the key of every request, however many invalid keys came from the same network
address. Lookups are cheap, concurrent ones share a read of the store (see ``authenticator``), and keys cannot be
guessed. Only the responses to invalid keys are limited, so that they do not fill the log. So nobody can lock out others
behind the same address by sending invalid keys.

**Denied requests** are in the audit log, within bounds: see ``auditing.Denials``.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from holdfast.server.auth.audit_log import Denials, target_of
from holdfast.server.auth.authenticator import Caller, no_valid_key
from holdfast.server.auth.rate_limits import AtOnce, Rates
from holdfast.server.calls import not_allowed
from holdfast.server.http.remote_addresses import network_of, remote_of
from holdfast.server.http.request_guard import ANSWER_HEADERS
from holdfast.server.http.router import Endpoint
from holdfast.server.tenants import Tenant
from holdfast.stores.audit_log import NewAudit

if TYPE_CHECKING:
    from holdfast.server.app import Platform

log = logging.getLogger("holdfast.server")


class Admission:
    """Admits requests, or refuses them."""

    def __init__(self, platform: Platform) -> None:
        settings = platform.settings
        self._platform = platform
        self._rates = Rates(settings.rate, 2 * settings.rate, settings.now)
        self._strangers = Rates(1.0, 20.0, settings.now)
        """Responses to invalid keys, by network address."""
        self.requests = AtOnce(settings.max_requests, "requests")
        self.streams = AtOnce(settings.max_streams, "streams of events")
        self.denials = Denials(platform.auditor)

    async def admit(self, endpoint: Endpoint, path: dict[str, str], request: Request) -> tuple[Caller, Tenant]:
        """The caller, and their namespace. Raises ``Problem``."""
        remote = remote_of(request)
        tenants = self._platform.tenants
        if endpoint.scope is None:
            self._count(request, network_of(remote))
            caller = Caller("", "", tenants.namespace, (), remote)
            return caller, await tenants.tenant(caller.namespace)
        caller = replace(await self._caller(request, remote), remote=remote)
        self._count(request, payer_of(caller))
        address = path[endpoint.path_names[0]] if endpoint.on_address else None
        if not caller.may(endpoint.scope, address):
            if endpoint.audited:
                entry = self.audit_entry(endpoint, caller, target_of(path, None), "denied")
                await self.denials.note(caller.namespace, entry)
            raise not_allowed(f"listen:{address}" if address is not None else endpoint.scope)
        return caller, await tenants.tenant(caller.namespace)

    def audit_entry(self, endpoint: Endpoint, caller: Caller, target: str, outcome: str) -> NewAudit:
        """The entry of the audit log for a request."""
        return NewAudit(
            at=self._platform.settings.now(),
            who=caller.key,
            name=caller.name,
            action=endpoint.name,
            target=target,
            outcome=outcome,
            remote=caller.remote,
        )

    def _count(self, request: Request, payer: str) -> None:
        try:
            self._rates.take(payer)
        finally:
            request.scope.get(ANSWER_HEADERS, {}).update(self._rates.headers(payer))

    async def _caller(self, request: Request, remote: str) -> Caller:
        caller = await self._platform.caller_of(request)
        if caller is not None:
            return caller
        self._strangers.take(network_of(remote))
        if "authorization" not in request.headers:
            raise no_valid_key(await self._why_a_key_is_needed())
        log.warning("%s %r from %s was refused: the key is not valid", request.method, request.url.path, remote)
        raise no_valid_key()

    async def _why_a_key_is_needed(self) -> str:
        if await self._platform.keys.is_needed():
            return "Send a key as the header Authorization: Bearer hf_…; `holdfast keys create` makes one."
        return (
            "There is no key yet, and this request does not come straight from a program of the same user on this "
            "machine: make a key with `holdfast keys create`, and send it as the header Authorization: Bearer hf_…."
        )


def payer_of(caller: Caller) -> str:
    """Whose limits a request counts against: the key's, or the network address's if there is no key."""
    return caller.key or network_of(caller.remote)
