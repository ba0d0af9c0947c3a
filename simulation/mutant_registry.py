"""The registry of planted bugs, which the modules of mutants fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A bug that can be planted."""

    name: str
    description: str
    plant: Callable[[], AbstractContextManager[Any]]


MUTANTS: list[Mutant] = []


def register_mutant(description: str) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    """Enter a bug under the name of its function."""

    def enter(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        MUTANTS.append(Mutant(function.__name__, description, contextmanager(function)))
        return function

    return enter
