"""Engines on Temporal as tests want them: with settings that a ``Runtime`` has no argument for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from temporalio.client import Client

from holdfast import Runtime
from holdfast.authoring.runtime import _select_definitions
from holdfast.stores.temporal.connection import connect
from holdfast.stores.temporal.targets import parse_target
from holdfast.temporal.engine import TemporalEngine


def runtime_over(url: str, names: Collection[str], **settings: Any) -> Runtime:
    """A runtime that serves these workflows; ``settings`` are the engine's."""
    runtime = Runtime(url, workflows=names)
    runtime._engine = TemporalEngine(parse_target(url), _select_definitions(names), **settings)  # type: ignore[assignment]
    return runtime


@asynccontextmanager
async def serving(url: str, *flows: Any, **settings: Any) -> AsyncIterator[Runtime]:
    """The same, open."""
    async with runtime_over(url, [getattr(flow, "name", flow) for flow in flows], **settings) as runtime:
        yield runtime


def engine_of(runtime: Runtime) -> TemporalEngine:
    """The engine of a runtime over Temporal."""
    assert isinstance(runtime._engine, TemporalEngine)
    return runtime._engine


async def client_of(url: str, **options: Any) -> Client:
    """A client of Temporal's own, which reads and writes payloads as the engine does."""
    return await connect(parse_target(url), **options)
