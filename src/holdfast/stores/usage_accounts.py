"""What runs have used, what is reserved for them, and what they may use: the arithmetic that every store shares.

What a run uses is added to its *account*, and to that of every run above it. A reservation belongs to a run and a
position; it counts with every account at or above the run that has a budget. Which those are never changes, because a
run is given a budget when it is created or not at all.

Where accounts are kept is the store's business: it finds them when they are asked for, and hears which have changed.
Each is found by its run's key, so nothing here takes longer when a journal is long or when there are many runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.admission.usage import BudgetLimits, BudgetShortage, Usage, find_shortage
from holdfast.stores.contract import RunUsage

NO_USAGE = Usage()


@dataclass(slots=True)
class UsageAccount:
    """What a run has used, with the runs below it."""

    key: int
    parent_key: int | None
    """The key of the run that started this one."""
    used: Usage = NO_USAGE
    reserved: Usage = NO_USAGE
    """With its budget, if it has one: the sum."""
    budget: BudgetLimits | None = None
    short_positions: tuple[int, ...] = ()
    """Positions of this very run whose calls were refused, and that have not been told since that they may ask again.
    Each waits for a signal of its own."""

    def to_run_usage(self) -> RunUsage:
        """What there is to tell of it."""
        return RunUsage(self.used, self.budget)


class UsageAccounts(ABC):
    """The accounts of a store, or as many of them as a transaction needs."""

    def __init__(self) -> None:
        self._accounts: dict[int, UsageAccount] = {}
        self._reservations: dict[int, dict[int, Usage]] = {}
        """By run and position."""

    # What a store does

    @abstractmethod
    def _load(self, key: int) -> UsageAccount:
        """The account of a run, an empty one if there is none yet."""

    @abstractmethod
    def _load_reservations(self, key: int) -> dict[int, Usage]:
        """What is reserved for a run, by position."""

    @abstractmethod
    def _find_short_runs(self) -> list[int]:
        """The keys of all runs that are short, in order."""

    @abstractmethod
    def _mark_changed(self, account: UsageAccount) -> None:
        """This account is other than it was."""

    @abstractmethod
    def _store_reservation(self, key: int, position: int, expected: Usage | None) -> None:
        """So much is reserved for a position now."""

    @abstractmethod
    def _get_run_id(self, key: int) -> str:
        """The id of a run."""

    # Reading

    def get(self, key: int) -> UsageAccount:
        """The account of a run."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = self._load(key)
        return account

    def iter_with_ancestors(self, key: int) -> Iterator[UsageAccount]:
        """The account of a run, and those of the runs above it."""
        account = self.get(key)
        yield account
        while account.parent_key is not None:
            account = self.get(account.parent_key)
            yield account

    def _get_reservations(self, key: int) -> dict[int, Usage]:
        known = self._reservations.get(key)
        if known is None:
            known = self._reservations[key] = self._load_reservations(key)
        return known

    # Using

    def add_usage(self, key: int, used: Usage) -> None:
        """Add to the account of a run, and to those above it."""
        if used == NO_USAGE:
            return
        for account in self.iter_with_ancestors(key):
            account.used += used
            self._mark_changed(account)

    def reserve(self, key: int, position: int, expected: Usage) -> BudgetShortage | None:
        """Reserve for a position, in place of what was reserved for it; or say why not."""
        self.release_reservation(key, position)
        refused: BudgetShortage | None = None
        for account in self._iter_budgeted(key):
            assert account.budget is not None
            short = find_shortage(
                self._get_run_id(account.key), account.budget, account.used, account.reserved, expected
            )
            if short is not None and (refused is None or not short.is_temporary):
                refused = short
            if short is not None and not short.is_temporary:
                break
        if refused is None:
            self._set_reservation(key, position, _to_reservation(expected))
        self._set_short(key, position, refused is not None and refused.is_exhausted)
        return refused

    def release_reservation(self, key: int, position: int) -> None:
        """Nothing is reserved for this position any more."""
        if position in self._get_reservations(key):
            self._set_reservation(key, position, None)

    def release_reservations(self, key: int) -> None:
        """Nothing is reserved for this run any more."""
        for position in list(self._get_reservations(key)):
            self._set_reservation(key, position, None)

    def _iter_budgeted(self, key: int) -> Iterator[UsageAccount]:
        return (account for account in self.iter_with_ancestors(key) if account.budget is not None)

    def _set_reservation(self, key: int, position: int, expected: Usage | None) -> None:
        reservations = self._get_reservations(key)
        before = reservations.pop(position, NO_USAGE)
        if expected is not None:
            reservations[position] = expected
        for account in self._iter_budgeted(key):
            account.reserved = _replace_usage(account.reserved, before, expected or NO_USAGE)
            self._mark_changed(account)
        self._store_reservation(key, position, expected)

    # Budgets

    def set_budget(self, key: int, budget: BudgetLimits) -> None:
        """What a run may use, from now on."""
        account = self.get(key)
        account.budget = budget
        self._mark_changed(account)

    def clear_short(self, key: int) -> int:
        """This run is told that it may ask again: how many of its calls are waiting for that."""
        account = self.get(key)
        waiting = len(account.short_positions)
        account.short_positions = ()
        self._mark_changed(account)
        return waiting

    def _set_short(self, key: int, position: int, is_short: bool) -> None:
        account = self.get(key)
        if (position in account.short_positions) is not is_short:
            others = tuple(other for other in account.short_positions if other != position)
            account.short_positions = (*others, position) if is_short else others
            self._mark_changed(account)

    def find_short_in_tree(self, key: int) -> list[int]:
        """The runs that are short, among this one and those below it."""
        return [
            short
            for short in self._find_short_runs()
            if any(account.key == key for account in self.iter_with_ancestors(short))
        ]


def _to_reservation(expected: Usage) -> Usage:
    """What matters of a reservation."""
    return Usage(calls=expected.calls, input_tokens=expected.tokens, nano_usd=expected.nano_usd)


def _replace_usage(total: Usage, before: Usage, after: Usage) -> Usage:
    return Usage(
        calls=total.calls - before.calls + after.calls,
        input_tokens=total.input_tokens - before.input_tokens + after.input_tokens,
        nano_usd=total.nano_usd - before.nano_usd + after.nano_usd,
    )
