"""Accounts in memory: all there are, for as long as the store lives."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.admission.usage import Usage
from holdfast.stores import rules
from holdfast.stores.operations import Run
from holdfast.stores.usage_accounts import UsageAccount, UsageAccounts


class MemoryUsageAccounts(UsageAccounts):
    """Accounts in dictionaries, next to those of the runs."""

    def __init__(self, runs: Mapping[int, Run], keys: Mapping[str, int]) -> None:
        super().__init__()
        self._runs = runs
        self._keys = keys

    def _load(self, key: int) -> UsageAccount:
        above = self._keys.get(self._runs[key].parent)
        return UsageAccount(key, above if above is not None and rules.can_be_parent(above, key) else None)

    def delete(self, key: int) -> None:
        """The run is deleted."""
        self._accounts.pop(key, None)
        self._reservations.pop(key, None)

    def _load_reservations(self, key: int) -> dict[int, Usage]:
        return {}

    def _find_short_runs(self) -> list[int]:
        return sorted(account.key for account in self._accounts.values() if account.short_positions)

    def _mark_changed(self, account: UsageAccount) -> None:
        """It is kept where it is."""

    def _store_reservation(self, key: int, position: int, expected: Usage | None) -> None:
        """It is kept where it is."""

    def _get_run_id(self, key: int) -> str:
        return self._runs[key].id
