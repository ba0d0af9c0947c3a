"""The pytest plugin: fixtures for tests of workflows.

It is imported by every pytest run in the environment, so it imports nothing of Holdfast before a test asks for it. The
fixtures are plain ones: a runner belongs to no event loop, so they work with any plugin for async tests, and without
one (through ``run_sync`` and its like).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.testing.runner import Runner
    from holdfast.testing.virtual_clock import VirtualClock


@pytest.fixture
def holdfast_runner() -> Runner:
    """A ``holdfast.testing.Runner``: workflows in memory, in virtual time, with crashes where you want them."""
    from holdfast.testing.runner import Runner

    return Runner()


@pytest.fixture
def holdfast_clock(holdfast_runner: Runner) -> VirtualClock:
    """The virtual clock of ``holdfast_runner``: ``holdfast_clock.advance(timedelta(days=7))``."""
    return holdfast_runner.clock
