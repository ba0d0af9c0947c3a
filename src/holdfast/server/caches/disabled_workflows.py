"""The disabled workflows and addresses of a namespace, at most a second old."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.stores.contract import Store

CACHE_TTL_S = 1.0


class DisabledWorkflows:
    """Remembers which workflows of one namespace are disabled."""

    def __init__(self) -> None:
        self._names: Collection[str] = ()
        self._expires_at = float("-inf")

    async def is_disabled(self, store: Store, workflow: str) -> bool:
        """Whether a workflow or an address is disabled."""
        now = store.now()
        if self._expires_at < now:
            self._names, self._expires_at = await store.disabled_workflows.get_all(), now + CACHE_TTL_S
        return workflow in self._names
