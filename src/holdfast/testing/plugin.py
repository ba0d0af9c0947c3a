"""The pytest plugin: fixtures for tests of workflows.

Every pytest run in the environment imports it, so it imports the rest of Holdfast only when a test uses a fixture. A
runner is not bound to an event loop, so the fixtures work with any plugin for async tests, and without one through
``run_sync`` and the other ``..._sync`` methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.testing.runner import Runner
    from holdfast.testing.virtual_clock import VirtualClock


@pytest.fixture
def holdfast_runner() -> Runner:
    """A ``holdfast.testing.Runner``: runs workflows in memory and in virtual time, with crashes where you want them."""
    from holdfast.testing.runner import Runner

    return Runner()


@pytest.fixture
def holdfast_clock(holdfast_runner: Runner) -> VirtualClock:
    """The virtual clock of ``holdfast_runner``: ``holdfast_clock.advance(timedelta(days=7))``."""
    return holdfast_runner.clock
