"""Accounts in a transaction: read when they are first needed, changed in memory, and written once at its end.

So a thousand runs that record in one commit what they have used change the row of the run above them once.
"""

from __future__ import annotations

import json

from holdfast.admission.usage import Usage
from holdfast.stores import rules
from holdfast.stores.sql.database import Database
from holdfast.stores.sql.rows import account_row, limits_or_none_left
from holdfast.stores.usage_accounts import Account, Accounts


def _positions(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text)) if text else ()


class SqlAccounts(Accounts):
    """The accounts that one transaction needs."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._sql = db.sql
        self._to_keep: dict[int, Account] = {}
        self._to_reserve: dict[tuple[int, int], Usage | None] = {}

    def flush(self) -> None:
        """Write what has changed."""
        if self._to_keep:
            rows = [account_row(account) for account in self._to_keep.values()]
            self._db.write(self._sql.KEEP_ACCOUNT, rows)
            self._to_keep.clear()
        if self._to_reserve:
            changes = self._to_reserve.items()
            gone = [place for place, expected in changes if expected is None]
            there = [(*place, e.calls, e.input_tokens, e.nano_usd) for place, e in changes if e is not None]
            for statement, places in ((self._sql.GIVE_BACK, gone), (self._sql.RESERVE, there)):
                if places:
                    self._db.write(statement, places)
            self._to_reserve.clear()

    def _find(self, key: int) -> Account:
        self._db.lock_accounts([key])
        rows = self._db.lookup(self._sql.ACCOUNT, key)
        if not rows:
            above = self._db.lookup(self._sql.ABOVE, key)
            return Account(key, above[0][0] if above and rules.is_above(above[0][0], key) else None)
        [row] = rows
        reserved = Usage(calls=row[8], input_tokens=row[9], nano_usd=row[10])
        budget = None if row[11] is None else limits_or_none_left(row[11], self._name(key))
        return Account(key, row[0], Usage(*row[1:8]), reserved, budget, _positions(row[12]))

    def _find_reservations(self, key: int) -> dict[int, Usage]:
        rows = self._db.lookup(self._sql.RESERVATIONS, key)
        return {row[0]: Usage(calls=row[1], input_tokens=row[2], nano_usd=row[3]) for row in rows}

    def _find_short(self) -> list[int]:
        self.flush()
        return [row[0] for row in self._db.ask(self._sql.SHORT)]

    def _changed(self, account: Account) -> None:
        self._to_keep[account.key] = account

    def _reserved(self, key: int, position: int, expected: Usage | None) -> None:
        self._to_reserve[key, position] = expected

    def _name(self, key: int) -> str:
        row = self._db.one(self._sql.ID, key)
        return "" if row is None else row[0]
