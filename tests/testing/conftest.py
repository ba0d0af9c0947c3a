"""Every test here runs with warnings as errors, and leaves no thread and no unhandled exception behind.

A runner starts a process for every crash, which announces all workflows that there are. So those of other tests are not
known here: with them, a test takes twice as long.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.authoring.introspection import find_source_location
from holdfast.authoring.registry import definitions
from holdfast.engine.definitions import WorkflowDefinition

_TESTS = Path(__file__).parents[1]
_KNOWN_HERE = ("testing", "golden")


@pytest.fixture(autouse=True, scope="module")
def _nobody_else_is_known() -> Iterator[None]:
    others = {name: one for name, one in definitions.items() if _is_elsewhere(one)}
    for name in others:
        del definitions[name]
    yield
    definitions.update(others)


def _is_elsewhere(definition: WorkflowDefinition) -> bool:
    place = find_source_location(definition.function)
    return (
        place is not None
        and (file := Path(place.file)).is_relative_to(_TESTS)
        and file.relative_to(_TESTS).parts[0] not in _KNOWN_HERE
    )


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_behind() -> Iterator[None]:
    gc.collect()  # what other modules have left is theirs
    gc.freeze()  # and what they keep need not be looked through again and again
    unraisable: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
    yield
    gc.collect()
    sys.unraisablehook = hook
    assert not unraisable


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    threads = _threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    until = time.monotonic() + 20
    while _threads() > threads and time.monotonic() < until:
        time.sleep(0.01)  # a pool's threads end by themselves, a moment after the pool
    assert _threads() <= threads


def _threads() -> int:
    """How many threads there are, but for those that check large values: the process keeps them."""
    return sum(not thread.name.startswith("holdfast-large-value") for thread in threading.enumerate())
