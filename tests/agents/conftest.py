from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from provider_server import ProviderServer

from runtime_fixtures import runtime, url

__all__ = ["runtime", "server", "url"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    """A model provider that answers by a script, which the SDKs find by environment variables."""
    with ProviderServer({}, tmp_path / "ledger") as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        yield server
