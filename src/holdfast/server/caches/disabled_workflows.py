"""Which workflows and addresses are switched off, as it was a moment ago."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.server.tenants import Tenant

KNOWN_FOR = 1.0
"""Seconds for which the store need not be asked again."""


class Switches:
    """Asks the stores, now and then."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Collection[str]]] = {}
        """By namespace: until when it is known, and what is off."""

    async def is_off(self, tenant: Tenant, workflow: str) -> bool:
        """Whether it is switched off."""
        store = await tenant.store()
        known, now = self._known.get(tenant.namespace), store.now()
        if known is None or known[0] < now:
            known = self._known[tenant.namespace] = (now + KNOWN_FOR, await store.switched_off())
        return workflow in known[1]
