"""Every test here runs with warnings as errors, and leaves no thread and no unhandled exception behind."""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_behind() -> Iterator[None]:
    unraisable: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
    yield
    gc.collect()
    sys.unraisablehook = hook
    assert not unraisable


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    threads = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    until = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < until:
        time.sleep(0.01)  # a pool's threads end by themselves, a moment after the pool
    assert threading.active_count() <= threads
