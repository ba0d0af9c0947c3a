"""A provider server for the models of the tests, and a store for their runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_openai.chat_models import _client_utils
from provider_server import ProviderServer


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The provider that ``openai:...`` means; a test sets its ``scripts``."""
    # The library keeps connections for the whole process, and each test has an event loop of its own.
    _client_utils._cached_async_httpx_client.cache_clear()
    with ProviderServer({}, tmp_path / "provider.ledger") as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path / 'runs.db'}")
        yield server


@pytest.fixture
def only_with_many_kills(request: pytest.FixtureRequest) -> None:
    """Leaves out a variant of a kill test in the gate, where the variants before it are enough."""
    if request.config.getoption("--kills") <= 2:
        pytest.skip("this variant needs --kills 3 or more")
