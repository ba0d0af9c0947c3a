"""A worker beside a server in the test's own process, on the same store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from asgi_server import AsgiServer

from holdfast.authoring.registry import definitions
from holdfast.authoring.runtime import Runtime
from holdfast.engine.journal_engine import JournalEngine


@asynccontextmanager
async def running_worker(served: AsgiServer, namespace: str = "default") -> AsyncGenerator[Runtime]:
    """A runtime that executes the runs of a namespace."""
    if served.url != "memory://":
        async with Runtime(served.url, namespace=namespace) as runtime:
            yield runtime
        return
    tenant = await served.app.platform.tenants.get_tenant(namespace)
    runtime = Runtime("memory://")
    # Nobody else finds what is in memory, so the worker is handed the server's own store.
    runtime._engine.thread_pool.stop()
    runtime._engine = JournalEngine(tenant.store, definitions)
    async with runtime:
        yield runtime
