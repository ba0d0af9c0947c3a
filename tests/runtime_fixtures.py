"""A SQLite file of the test's own, and a runtime on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import Runtime


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest_asyncio.fixture
async def runtime(url: str) -> AsyncIterator[Runtime]:
    async with Runtime(url) as runtime:
        yield runtime
