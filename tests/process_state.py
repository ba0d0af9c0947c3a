"""The process-wide state that a test changes and must restore: the workflow registry, the folder, the environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.authoring.registry import definitions
from holdfast.services import queue_options


@contextmanager
def isolated_definitions(*, only: bool = False) -> Iterator[None]:
    """Unregister what is defined in this context: workflows are registered by name, and tests reuse names.

    Args:
        only: hide what was registered before.
    """
    before = dict(definitions)
    if only:
        definitions.clear()
    try:
        yield
    finally:
        definitions.clear()
        definitions.update(before)


@pytest.fixture(autouse=True)
def isolated_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working folder, and so a default database, and a workflow registry of the test's own."""
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with isolated_definitions():
        yield
    queue_options.clear_declarations()
