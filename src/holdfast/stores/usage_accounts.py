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

from holdfast.admission.usage import Limits, Shortage, Usage, shortage
from holdfast.stores.contract import RunUsage

NOTHING = Usage()


@dataclass(slots=True)
class Account:
    """What a run has used, with the runs below it."""

    key: int
    above: int | None
    """The key of the run that started this one."""
    used: Usage = NOTHING
    reserved: Usage = NOTHING
    """With its budget, if it has one: the sum."""
    budget: Limits | None = None
    short: tuple[int, ...] = ()
    """Positions of this very run whose calls were refused, and that have not been told since that they may ask again.
    Each waits for a signal of its own."""

    def told(self) -> RunUsage:
        """What there is to tell of it."""
        return RunUsage(self.used, self.budget)


class Accounts(ABC):
    """The accounts of a store, or as many of them as a transaction needs."""

    def __init__(self) -> None:
        self._accounts: dict[int, Account] = {}
        self._reservations: dict[int, dict[int, Usage]] = {}
        """By run and position."""

    # What a store does

    @abstractmethod
    def _find(self, key: int) -> Account:
        """The account of a run, an empty one if there is none yet."""

    @abstractmethod
    def _find_reservations(self, key: int) -> dict[int, Usage]:
        """What is reserved for a run, by position."""

    @abstractmethod
    def _find_short(self) -> list[int]:
        """The keys of all runs that are short, in order."""

    @abstractmethod
    def _changed(self, account: Account) -> None:
        """This account is other than it was."""

    @abstractmethod
    def _reserved(self, key: int, position: int, expected: Usage | None) -> None:
        """So much is reserved for a position now."""

    @abstractmethod
    def _name(self, key: int) -> str:
        """The id of a run."""

    # Reading

    def of(self, key: int) -> Account:
        """The account of a run."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = self._find(key)
        return account

    def upwards(self, key: int) -> Iterator[Account]:
        """The account of a run, and those of the runs above it."""
        account = self.of(key)
        yield account
        while account.above is not None:
            account = self.of(account.above)
            yield account

    def _reservations_of(self, key: int) -> dict[int, Usage]:
        known = self._reservations.get(key)
        if known is None:
            known = self._reservations[key] = self._find_reservations(key)
        return known

    # Using

    def use(self, key: int, used: Usage) -> None:
        """Add to the account of a run, and to those above it."""
        if used == NOTHING:
            return
        for account in self.upwards(key):
            account.used += used
            self._changed(account)

    def reserve(self, key: int, position: int, expected: Usage) -> Shortage | None:
        """Reserve for a position, in place of what was reserved for it; or say why not."""
        self.give_back(key, position)
        refused: Shortage | None = None
        for account in self._budgets(key):
            assert account.budget is not None
            short = shortage(self._name(account.key), account.budget, account.used, account.reserved, expected)
            if short is not None and (refused is None or not short.passing):
                refused = short
            if short is not None and not short.passing:
                break
        if refused is None:
            self._move(key, position, _as_reserved(expected))
        self._is_short(key, position, refused is not None and refused.needs_more)
        return refused

    def give_back(self, key: int, position: int) -> None:
        """Nothing is reserved for this position any more."""
        if position in self._reservations_of(key):
            self._move(key, position, None)

    def give_back_all(self, key: int) -> None:
        """Nothing is reserved for this run any more."""
        for position in list(self._reservations_of(key)):
            self._move(key, position, None)

    def _budgets(self, key: int) -> Iterator[Account]:
        return (account for account in self.upwards(key) if account.budget is not None)

    def _move(self, key: int, position: int, expected: Usage | None) -> None:
        reservations = self._reservations_of(key)
        before = reservations.pop(position, NOTHING)
        if expected is not None:
            reservations[position] = expected
        for account in self._budgets(key):
            account.reserved = _exchanged(account.reserved, before, expected or NOTHING)
            self._changed(account)
        self._reserved(key, position, expected)

    # Budgets

    def give_budget(self, key: int, budget: Limits) -> None:
        """What a run may use, from now on."""
        account = self.of(key)
        account.budget = budget
        self._changed(account)

    def no_longer_short(self, key: int) -> int:
        """This run is told that it may ask again: how many of its calls are waiting for that."""
        account = self.of(key)
        waiting = len(account.short)
        account.short = ()
        self._changed(account)
        return waiting

    def _is_short(self, key: int, position: int, short: bool) -> None:
        account = self.of(key)
        if (position in account.short) is not short:
            others = tuple(other for other in account.short if other != position)
            account.short = (*others, position) if short else others
            self._changed(account)

    def short_below(self, key: int) -> list[int]:
        """The runs that are short, among this one and those below it."""
        return [short for short in self._find_short() if any(account.key == key for account in self.upwards(short))]


def _as_reserved(expected: Usage) -> Usage:
    """What matters of a reservation."""
    return Usage(calls=expected.calls, input_tokens=expected.tokens, nano_usd=expected.nano_usd)


def _exchanged(total: Usage, before: Usage, after: Usage) -> Usage:
    return Usage(
        calls=total.calls - before.calls + after.calls,
        input_tokens=total.input_tokens - before.input_tokens + after.input_tokens,
        nano_usd=total.nano_usd - before.nano_usd + after.nano_usd,
    )
