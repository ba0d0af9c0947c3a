"""Accounts in memory."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.admission.usage import Usage
from holdfast.stores import rules
from holdfast.stores.operations import Run
from holdfast.stores.usage_accounts import UsageAccount, UsageAccounts


class MemoryUsageAccounts(UsageAccounts):
    """All accounts, in dictionaries."""

    def __init__(self, runs: Mapping[int, Run], keys: Mapping[str, int]) -> None:
        super().__init__()
        self._runs = runs
        self._keys = keys

    def _load(self, key: int) -> UsageAccount:
        parent = self._keys.get(self._runs[key].parent)
        return UsageAccount(key, parent if parent is not None and rules.can_be_parent(parent, key) else None)

    def delete(self, key: int) -> None:
        """Delete the account and the reservations of a run."""
        self._accounts.pop(key, None)
        self._reservations.pop(key, None)

    def _load_reservations(self, key: int) -> dict[int, Usage]:
        return {}

    def _find_short_runs(self) -> list[int]:
        return sorted(account.key for account in self._accounts.values() if account.short_positions)

    def _mark_changed(self, account: UsageAccount) -> None:
        pass

    def _store_reservation(self, key: int, position: int, expected: Usage | None) -> None:
        pass

    def _get_run_id(self, key: int) -> str:
        return self._runs[key].id
