"""What calls cost does not grow with a store's history: the benchmark of that, at sizes for a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import growth
from postgres_server import database

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("name", [name for name in growth.BENCHMARKS if name not in growth.SLOW_BENCHMARKS])
async def test_it_is_flat(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(growth, "SIZE_FACTORS", (10, 60))
    with database() as url:
        monkeypatch.setenv("HOLDFAST_TEST_POSTGRES", url)
        lines = await growth.BENCHMARKS[name](tmp_path, 1)
    assert lines
    for line in lines:
        assert line.is_met is not False, line
