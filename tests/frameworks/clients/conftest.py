"""Fixtures of the behavior tests: a server, and a store."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from scripted_http import Server, Store

from holdfast import Runtime
from holdfast.authoring import registry


@pytest.fixture(autouse=True)
def forget_programs() -> Iterator[None]:
    """The programs of the tests may have equal names."""
    known = dict(registry.definitions)
    yield
    registry.definitions.clear()
    registry.definitions.update(known)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    folder = tmp_path / "store"
    folder.mkdir()
    async with Runtime(f"sqlite:///{folder / 'runs.db'}") as runtime:
        yield Store(folder, runtime)
