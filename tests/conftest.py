"""Settings that every test shares."""

from __future__ import annotations

import functools
import gc
import os
import signal
import ssl
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Nobody is reached over TLS but by a test's own certificate. Reading the machine's takes longer than most tests, and
# each client of a provider's does it.
ssl.create_default_context = functools.cache(ssl.create_default_context)

# A busy CI machine may be slow; property tests are not about that.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure() -> None:
    # A shell has what it runs in the background ignore Ctrl-C, and so do all processes that are started there. Some
    # tests press it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # What all test modules have brought along stays. Tests that let the garbage collector run, and there are many,
    # would have it look through that each time, which takes as long as the rest of them.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # Warnings and logs that a test looks at are its own: what those before it have left is collected before it begins.
    looks = not {"caplog", "recwarn"}.isdisjoint(getattr(item, "fixturenames", ()))
    if looks or any("error" in mark.args for mark in item.iter_markers("filterwarnings")):
        gc.collect()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    yield
    if (nextitem is None or nextitem.path != item.path) and "temporal_server" in sys.modules:
        sys.modules["temporal_server"].stop_shared()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("stores").addoption(
        "--stores",
        choices=("some", "all"),
        default="some",
        help="whether all tests of the engine, and those with real processes, run on PostgreSQL as well",
    )
    frameworks = parser.getgroup("frameworks")
    frameworks.addoption(
        "--kills", type=int, default=2, help="points at which each agent of a framework is killed (default: 2)"
    )
    frameworks.addoption(
        "--kill-stores", default="sqlite", help="the stores of these agents: some of sqlite,postgres,temporal"
    )
    parser.getgroup("server").addoption(
        "--full-load", action="store_true", help="200 listeners and 1,000 submissions, not a fifth of that"
    )
    parser.getgroup("pages").addoption(
        "--screenshots", action="store_true", help="keep what browsers see as the pictures in docs/images"
    )
    parser.getgroup("server").addoption(
        "--requests",
        type=int,
        default=0,
        help="how many requests of each kind are made up for each endpoint, other ones every time; a few, and always "
        "the same, unless given",
    )
