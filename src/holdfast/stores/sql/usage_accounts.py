"""Accounts in a transaction: read at first use, changed in memory, and written once at its end.

So when a thousand runs record usage in one commit, the row of their parent changes once.
"""

from __future__ import annotations

import json

from holdfast.admission.usage import Usage
from holdfast.stores import rules
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import account_to_row, parse_limits_or_zero
from holdfast.stores.usage_accounts import UsageAccount, UsageAccounts


def parse_positions(text: str) -> tuple[int, ...]:
    """The positions in the column ``short_positions``."""
    return tuple(json.loads(text)) if text else ()


def read_parent_key(db: Database, key: int) -> int | None:
    """The key of the run that started a run."""
    rows = db.lookup(db.sql.PARENT_KEY, key)
    return rows[0][0] if rows and rules.can_be_parent(rows[0][0], key) else None


class SqlUsageAccounts(UsageAccounts):
    """The accounts that one transaction needs."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._sql = db.sql
        self._changed_accounts: dict[int, UsageAccount] = {}
        self._changed_reservations: dict[tuple[int, int], Usage | None] = {}

    def flush(self) -> None:
        """Write the changed accounts and reservations."""
        if self._changed_accounts:
            rows = [account_to_row(account) for account in self._changed_accounts.values()]
            self._db.write(self._sql.PUT_ACCOUNT, rows)
            self._changed_accounts.clear()
        if self._changed_reservations:
            changes = self._changed_reservations.items()
            deleted = [step for step, expected in changes if expected is None]
            written = [(*step, e.calls, e.input_tokens, e.nano_usd) for step, e in changes if e is not None]
            for statement, rows in ((self._sql.DELETE_RESERVATION, deleted), (self._sql.PUT_RESERVATION, written)):
                if rows:
                    self._db.write(statement, rows)
            self._changed_reservations.clear()

    def _load(self, key: int) -> UsageAccount:
        self._db.lock_accounts([key])
        rows = self._db.lookup(self._sql.ACCOUNT, key)
        if not rows:
            return UsageAccount(key, read_parent_key(self._db, key))
        [row] = rows
        reserved = Usage(calls=row[8], input_tokens=row[9], nano_usd=row[10])
        budget = None if row[11] is None else parse_limits_or_zero(row[11], self._get_run_id(key))
        return UsageAccount(key, row[0], Usage(*row[1:8]), reserved, budget, parse_positions(row[12]))

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
