from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import Runtime

for room in ("agents", "tools"):  # the provider and the MCP servers are those of these rooms' tests
    path = str(Path(__file__).parent.parent / room)
    if path not in sys.path:
        sys.path.insert(0, path)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest_asyncio.fixture
async def runtime(url: str) -> AsyncIterator[Runtime]:
    async with Runtime(url) as runtime:
        yield runtime
