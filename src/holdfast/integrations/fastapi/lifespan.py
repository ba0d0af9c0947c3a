"""The lifespan of an app: a client that is open while the app runs, and a worker for the app's own workflows."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.authoring.runtime import Runtime
from holdfast.client.client import Client
from holdfast.client.http.server_endpoint import is_server_url
from holdfast.codec import Encryption
from holdfast.errors import UsageError
from holdfast.integrations.fastapi.client import CLIENT_STATE
from holdfast.integrations.fastapi.shutdown import SHUTDOWN_STATE, watch_shutdown

AppT = TypeVar("AppT")


def holdfast_lifespan(
    url: str | None = None,
    *,
    workflows: Collection[Any] = (),
    namespace: str | None = None,
    grace: Duration = 10.0,
    lifespan: Callable[[AppT], Any] | None = None,
    encryption: Encryption | None = None,
    api_key: str | None = None,
) -> Callable[[AppT], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """The lifespan of an app that uses Holdfast: ``FastAPI(lifespan=holdfast_lifespan())``.

    Args:
        url: a store, such as ``sqlite:///runs.db``, or a Holdfast server; default: ``HOLDFAST_URL``, else the default
            file.
        workflows: the workflows, programs, and agents that this process executes, as objects or names. Default: none;
            workers elsewhere execute them.
        namespace: the namespace; default: what the URL says, else ``HOLDFAST_NAMESPACE``, else ``default``.
        grace: how long steps in flight get to end when the app stops, before its runs are handed over.
        lifespan: the app's own lifespan. It begins before the worker takes runs, and ends after the worker has stopped.
        encryption: what the store is encrypted with; default: the keys in ``HOLDFAST_ENCRYPTION_KEYS``.
        api_key: the key for a server; default: ``HOLDFAST_API_KEY``.
    """
    grace_s = duration_to_seconds(grace, "holdfast_lifespan: grace", may_be_zero=True)
    names = [_get_name(workflow) for workflow in workflows]
    if names and is_server_url(url):
        raise UsageError(
            "holdfast_lifespan(workflows=...) needs the URL of a store, not of a Holdfast server: use the URL of the "
            "server's store, or leave workflows out and execute them with `holdfast worker`"
        )
    own = asynccontextmanager(lifespan) if inspect.isasyncgenfunction(lifespan) else lifespan

    @asynccontextmanager
    async def open_app(app: AppT) -> AsyncGenerator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            shutdown = stack.enter_context(watch_shutdown())
            client = Client(url, namespace=namespace, encryption=encryption, api_key=api_key)
            await stack.enter_async_context(client)
            state: Mapping[str, Any] = {} if own is None else await stack.enter_async_context(own(app)) or {}
            if names:
                runtime = Runtime(url, namespace=namespace, workflows=names, encryption=encryption)
                await runtime.open()
                stack.push_async_callback(runtime.close, grace_s)
            yield {**state, CLIENT_STATE: client, SHUTDOWN_STATE: shutdown}

    return open_app


def _get_name(workflow: Any) -> str:
    """The name of a workflow, a program, or an agent."""
    name = workflow if isinstance(workflow, str) else getattr(workflow, "name", None)
    if not isinstance(name, str):
        raise UsageError(
            f"holdfast_lifespan: {workflow!r} in workflows= is not a workflow, a program, an agent, or the name of one"
        )
    return name
