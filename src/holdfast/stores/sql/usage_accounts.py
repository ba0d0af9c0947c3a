"""Accounts in a transaction: read when they are first needed, changed in memory, and written once at its end.

So a thousand runs that record in one commit what they have used change the row of the run above them once.
"""

from __future__ import annotations

import json

from holdfast.admission.usage import Usage
from holdfast.stores import rules
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import account_to_row, parse_limits_or_zero
from holdfast.stores.usage_accounts import UsageAccount, UsageAccounts


def _parse_positions(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text)) if text else ()


class SqlUsageAccounts(UsageAccounts):
    """The accounts that one transaction needs."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._sql = db.sql
        self._changed_accounts: dict[int, UsageAccount] = {}
        self._changed_reservations: dict[tuple[int, int], Usage | None] = {}

    def flush(self) -> None:
        """Write what has changed."""
        if self._changed_accounts:
            rows = [account_to_row(account) for account in self._changed_accounts.values()]
            self._db.write(self._sql.PUT_ACCOUNT, rows)
            self._changed_accounts.clear()
        if self._changed_reservations:
            changes = self._changed_reservations.items()
            gone = [place for place, expected in changes if expected is None]
            there = [(*place, e.calls, e.input_tokens, e.nano_usd) for place, e in changes if e is not None]
            for statement, places in ((self._sql.DELETE_RESERVATION, gone), (self._sql.PUT_RESERVATION, there)):
                if places:
                    self._db.write(statement, places)
            self._changed_reservations.clear()

    def _load(self, key: int) -> UsageAccount:
        self._db.lock_accounts([key])
        rows = self._db.lookup(self._sql.ACCOUNT, key)
        if not rows:
            above = self._db.lookup(self._sql.PARENT_KEY, key)
            return UsageAccount(key, above[0][0] if above and rules.can_be_parent(above[0][0], key) else None)
        [row] = rows
        reserved = Usage(calls=row[8], input_tokens=row[9], nano_usd=row[10])
        budget = None if row[11] is None else parse_limits_or_zero(row[11], self._get_run_id(key))
        return UsageAccount(key, row[0], Usage(*row[1:8]), reserved, budget, _parse_positions(row[12]))

    def _load_reservations(self, key: int) -> dict[int, Usage]:
        rows = self._db.lookup(self._sql.RESERVATIONS, key)
        return {row[0]: Usage(calls=row[1], input_tokens=row[2], nano_usd=row[3]) for row in rows}

    def _find_short_runs(self) -> list[int]:
        self.flush()
        return [row[0] for row in self._db.query(self._sql.SHORT_RUNS)]

    def _mark_changed(self, account: UsageAccount) -> None:
        self._changed_accounts[account.key] = account

    def _store_reservation(self, key: int, position: int, expected: Usage | None) -> None:
        self._changed_reservations[key, position] = expected

    def _get_run_id(self, key: int) -> str:
        row = self._db.query_one(self._sql.RUN_ID, key)
        return "" if row is None else row[0]
