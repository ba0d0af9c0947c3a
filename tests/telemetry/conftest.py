"""Tests of spans and metrics. The tracer provider is that of a test alone: OpenTelemetry's own can be set only once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engine_world import World
from exported_spans import Spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from process_state import isolated_definitions


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("holdfast.telemetry.spans.get_tracer_provider", lambda: provider)
    yield Spans(provider, exporter)
    provider.shutdown()


@pytest.fixture(autouse=True)
def _own_workflows() -> Iterator[None]:
    with isolated_definitions(only=True):
        yield


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world: Any = World("sqlite", tmp_path)
    yield world
    await world.close()
