"""Each test has a folder, and a registry, of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.authoring.registry import definitions
from holdfast.client import queueing


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(definitions)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    definitions.clear()
    definitions.update(before)
    queueing.forget()
