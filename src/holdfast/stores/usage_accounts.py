"""Usage, reservations, and budgets of runs: the arithmetic that every store shares.

What a run uses is added to its *account*, and to that of every run above it. A reservation belongs to a run and a
position; it counts in every account with a budget, of the run itself or above it. These accounts never change, because
a run gets a budget when it is created or not at all.

A store decides how accounts are stored: its subclass loads them, and is notified of changes. Each is found by its run's
key, so nothing here takes longer for a long journal or for many runs.
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
    """The account of a run with the runs below it."""

    key: int
    parent_key: int | None
    """The key of the run that started this one."""
    used: Usage = NO_USAGE
    reserved: Usage = NO_USAGE
    """The sum of the reservations, if it has a budget."""
    budget: BudgetLimits | None = None
    short_positions: tuple[int, ...] = ()
    """Positions of this run itself whose calls were refused and wait for ``BUDGET_SIGNAL``, each for its own."""

    def to_run_usage(self) -> RunUsage:
        """The public form of the account."""
        return RunUsage(self.used, self.budget)


class UsageAccounts(ABC):
    """The accounts of a store, or those that a transaction needs."""

    def __init__(self) -> None:
        self._accounts: dict[int, UsageAccount] = {}
        self._reservations: dict[int, dict[int, Usage]] = {}
        """By run and position."""

    # Implemented by stores

    @abstractmethod
    def _load(self, key: int) -> UsageAccount:
        """The account of a run; a new one if it has none yet."""

    @abstractmethod
    def _load_reservations(self, key: int) -> dict[int, Usage]:
        """The reservations of a run, by position."""

    @abstractmethod
    def _find_short_runs(self) -> list[int]:
        """The keys of all runs that are short, in order."""

    @abstractmethod
    def _mark_changed(self, account: UsageAccount) -> None:
        """This account has changed."""

    @abstractmethod
    def _store_reservation(self, key: int, position: int, expected: Usage | None) -> None:
        """Save the reservation of a position; ``None``: delete it."""

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
        reservations = self._reservations.get(key)
        if reservations is None:
            reservations = self._reservations[key] = self._load_reservations(key)
        return reservations

    # Using

    def add_usage(self, key: int, used: Usage) -> None:
        """Add to the account of a run and to those above it."""
        if used == NO_USAGE:
            return
        for account in self.iter_with_ancestors(key):
            account.used += used
            self._mark_changed(account)

    def reserve(self, key: int, position: int, expected: Usage) -> BudgetShortage | None:
        """Reserve for a position, replacing its earlier reservation. Returns why not, if that is not possible."""
        self.release_reservation(key, position)
        shortage: BudgetShortage | None = None
        for account in self._iter_budgeted(key):
            assert account.budget is not None
            run_id = self._get_run_id(account.key)
            found = find_shortage(run_id, account.budget, account.used, account.reserved, expected)
            shortage = shortage or found
            if found is not None and not found.is_temporary:
                shortage = found
                break
        if shortage is None:
            self._set_reservation(key, position, _to_reservation(expected))
        self._set_short(key, position, shortage is not None and shortage.is_exhausted)
        return shortage

    def release_reservation(self, key: int, position: int) -> None:
        """Release the reservation of a position, if there is one."""
        if position in self._get_reservations(key):
            self._set_reservation(key, position, None)

    def release_reservations(self, key: int) -> None:
        """Release all reservations of a run."""
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
        """Set the budget of a run."""
        account = self.get(key)
        account.budget = budget
        self._mark_changed(account)

    def clear_short(self, key: int) -> int:
        """Mark a run as no longer short. Returns how many of its calls wait for ``BUDGET_SIGNAL``."""
        account = self.get(key)
        waiting_count = len(account.short_positions)
        account.short_positions = ()
        self._mark_changed(account)
        return waiting_count

    def _set_short(self, key: int, position: int, is_short: bool) -> None:
        account = self.get(key)
        if (position in account.short_positions) is not is_short:
            others = tuple(other for other in account.short_positions if other != position)
            account.short_positions = (*others, position) if is_short else others
            self._mark_changed(account)

    def find_short_in_tree(self, key: int) -> list[int]:
        """The keys of this run and the runs below it that are short."""
        return [
            short
            for short in self._find_short_runs()
            if any(account.key == key for account in self.iter_with_ancestors(short))
        ]


def _to_reservation(expected: Usage) -> Usage:
    """The part of an expected usage that is reserved."""
    return Usage(calls=expected.calls, input_tokens=expected.tokens, nano_usd=expected.nano_usd)


def _replace_usage(total: Usage, before: Usage, after: Usage) -> Usage:
    return Usage(
        calls=total.calls - before.calls + after.calls,
        input_tokens=total.input_tokens - before.input_tokens + after.input_tokens,
        nano_usd=total.nano_usd - before.nano_usd + after.nano_usd,
    )
