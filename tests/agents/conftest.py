from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import Runtime

ENGINE = Path(__file__).parent.parent / "engine"
if str(ENGINE) not in sys.path:
    sys.path.insert(0, str(ENGINE))  # worlds with a virtual clock are those of the engine's tests


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest_asyncio.fixture
async def runtime(url: str) -> AsyncIterator[Runtime]:
    async with Runtime(url) as runtime:
        yield runtime
