"""Admission of requests: the caller's key, rate limits, and scopes.

**Invalid keys.** The server looks up the key of every request, however many invalid keys came from the same network
address. Lookups are cheap, concurrent ones share a read of the store (see ``authenticator``), and keys cannot be
guessed. Only the responses to invalid keys are limited, so that they do not fill the log. So a caller that sends
invalid keys cannot lock out others at the same address.

**Denied requests** are in the audit log, within bounds: see ``audit_log.DenialLog``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.server.auth.audit_log import DenialLog, format_target
from holdfast.server.auth.authenticator import Caller, invalid_key_problem
from holdfast.server.auth.rate_limits import ConcurrencyLimiter, RateLimiter
from holdfast.server.calls import not_allowed_problem
from holdfast.server.http.remote_addresses import get_network
from holdfast.server.http.request import Request
from holdfast.server.http.router import Endpoint
from holdfast.server.tenants import Tenant
from holdfast.services.problems import Problem
from holdfast.stores.audit_log import AuditEvent

if TYPE_CHECKING:
    from holdfast.server.app import Platform

log = logging.getLogger("holdfast.server")


class RequestAdmission:
    """Admits requests, or refuses them."""

    def __init__(self, platform: Platform) -> None:
        settings = platform.settings
        self._platform = platform
        self._rate_limiter = RateLimiter(settings.requests_per_s, 2 * settings.requests_per_s, settings.now)
        self._auth_failure_limiter = RateLimiter(1.0, 20.0, settings.now)
        """Responses to invalid keys, by network address."""
        self.open_requests = ConcurrencyLimiter(settings.max_open_requests, "requests")
        self.open_streams = ConcurrencyLimiter(settings.max_open_streams, "streams of events")
        self.denial_log = DenialLog()

    async def admit(self, endpoint: Endpoint, path_params: dict[str, str], request: Request) -> tuple[Caller, Tenant]:
        """The caller, and its namespace. Raises ``Problem``."""
        tenants = self._platform.tenants
        if endpoint.scope is None:
            caller = Caller("", "", tenants.namespace, (), request.remote_address)
            self._count_request(request, caller)
            return caller, await tenants.get_tenant(caller.namespace)
        caller = await self._platform.authenticator.authenticate(request)
        if caller is None:
            raise await self._refuse(request)
        self._count_request(request, caller)
        address = path_params[endpoint.path_params[0]] if endpoint.is_address_scoped else None
        if not caller.has_scope(endpoint.scope, address):
            if endpoint.is_audited:
                entry = self.make_audit_entry(endpoint, caller, format_target(path_params, None), "denied")
                await self.denial_log.record(await tenants.get_tenant(caller.namespace), entry)
            raise not_allowed_problem(f"listen:{address}" if address is not None else endpoint.scope)
        return caller, await tenants.get_tenant(caller.namespace)

    def make_audit_entry(self, endpoint: Endpoint, caller: Caller, target: str, outcome: str) -> AuditEvent:
        """A request as an entry of the audit log."""
        return AuditEvent(
            at=self._platform.settings.now(),
            key_id=caller.key_id,
            key_name=caller.name,
            action=endpoint.name,
            target=target,
            outcome=outcome,
            remote_address=caller.remote_address,
        )

    def _count_request(self, request: Request, caller: Caller) -> None:
        request.limit_key = caller.key_id or get_network(request.remote_address)
        try:
            self._rate_limiter.count_request(request.limit_key)
        finally:
            request.response_headers += self._rate_limiter.make_headers(request.limit_key)

    async def _refuse(self, request: Request) -> Problem:
        self._auth_failure_limiter.count_request(get_network(request.remote_address))
        if "authorization" not in request.headers:
            return invalid_key_problem(await self._explain_missing_key())
        message = "%s %r from %s was refused: the key is not valid"
        log.warning(message, request.method, request.path, request.remote_address)
        return invalid_key_problem()

    async def _explain_missing_key(self) -> str:
        if await self._platform.authenticator.is_key_required():
            return "Send a key as the header Authorization: Bearer hf_…; `holdfast keys create` makes one."
        return (
            "There is no key yet, and this request does not come straight from a program of the same user on this "
            "machine: make a key with `holdfast keys create`, and send it as the header Authorization: Bearer hf_…."
        )
