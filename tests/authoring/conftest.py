"""Tests of what users write run against the default runtime, on a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.authoring import runtime as runtimes
from holdfast.services import queue_options
from process_state import isolated_definitions


@pytest.fixture(autouse=True)
def _own_workflows() -> Iterator[None]:
    with isolated_definitions(only=True):
        yield
    queue_options.clear_declarations()


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store that the default runtime opens."""
    runtimes._open_runtimes.clear()
    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("HOLDFAST_URL", url)
    return url
