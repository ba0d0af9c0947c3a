"""Runs that Temporal keeps, on the development server that the tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import temporal_server
from process_state import isolated_definitions


@pytest.fixture
def temporal_url() -> str:
    """A namespace that is nobody else's."""
    return temporal_server.fresh_url()


@pytest.fixture
def no_other_workflows() -> Iterator[None]:
    """As if the process knew only what the test defines.

    A runtime that nobody tells what to serve serves all, and a test process knows the workflows of all other tests:
    each would have a worker.
    """
    with isolated_definitions(only=True):
        yield
