"""Which workflows and addresses are disabled, as it was a moment ago."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.server.tenants import Tenant

CACHE_TTL_S = 1.0
"""Seconds for which the store need not be asked again."""


class DisabledWorkflows:
    """Asks the stores, now and then."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[float, Collection[str]]] = {}
        """By namespace: until when it is known, and what is off."""

    async def is_disabled(self, tenant: Tenant, workflow: str) -> bool:
        """Whether it is disabled."""
        store = await tenant.store()
        known, now = self._cache.get(tenant.namespace), store.now()
        if known is None or known[0] < now:
            known = self._cache[tenant.namespace] = (now + CACHE_TTL_S, await store.disabled_workflows.get_all())
        return workflow in known[1]
