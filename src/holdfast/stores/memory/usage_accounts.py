"""Accounts in memory: all there are, for as long as the store lives."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.admission.usage import Usage
from holdfast.stores import rules
from holdfast.stores.operations import Run
from holdfast.stores.usage_accounts import Account, Accounts


class MemoryAccounts(Accounts):
    """Accounts in dictionaries, next to those of the runs."""

    def __init__(self, runs: Mapping[int, Run], keys: Mapping[str, int]) -> None:
        super().__init__()
        self._runs = runs
        self._keys = keys

    def _find(self, key: int) -> Account:
        above = self._keys.get(self._runs[key].parent)
        return Account(key, above if above is not None and rules.is_above(above, key) else None)

    def forget(self, key: int) -> None:
        """The run is deleted."""
        self._accounts.pop(key, None)
        self._reservations.pop(key, None)

    def _find_reservations(self, key: int) -> dict[int, Usage]:
        return {}

    def _find_short(self) -> list[int]:
        return sorted(account.key for account in self._accounts.values() if account.short)

    def _changed(self, account: Account) -> None:
        """It is kept where it is."""

    def _reserved(self, key: int, position: int, expected: Usage | None) -> None:
        """It is kept where it is."""

    def _name(self, key: int) -> str:
        return self._runs[key].id
