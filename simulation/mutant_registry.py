"""What a planted bug is, and the list of them that the modules of mutants fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A bug that can be planted."""

    name: str
    what: str
    planted: Callable[[], AbstractContextManager[Any]]


MUTANTS: list[Mutant] = []


def mutant(what: str) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    """Enter a bug under the name of its function."""

    def enter(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        MUTANTS.append(Mutant(function.__name__, what, contextmanager(function)))
        return function

    return enter
