"""Agents against the local provider server, with their runs in a SQLite file of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from provider_server import ProviderServer


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    """The provider of all models; a test sets its ``scripts``."""
    with ProviderServer({}, tmp_path / "provider.ledger") as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path / 'runs.db'}")
        monkeypatch.chdir(tmp_path)
        yield server
