"""Makes the client of an SDK durable: what its HTTP client sends is recorded, and nothing else of it changes."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from holdfast.errors import UsageError
from holdfast.integrations.http import httpx_client
from holdfast.integrations.http.endpoints import RequestFilter

C = TypeVar("C")

_MODEL_CALLS = RequestFilter()
_PACKAGES = ("httpx2", "httpx")


def make_durable(client: C) -> C:
    """The same client, whose model calls in a ``@program`` are recorded.

    Copies of it (``with_options``) share its HTTP client, so they are durable as well.
    """
    http_client: Any = getattr(client, "_client", None)
    for library in filter(None, map(sys.modules.get, _PACKAGES)):
        if isinstance(http_client, library.Client | library.AsyncClient):
            _record_transports(library, http_client)
            return client
    raise UsageError(
        f"durable() takes a client of the `openai` or `anthropic` package, and {type(client).__name__!r} is not one"
    )


def _record_transports(library: Any, http_client: Any) -> None:
    transport_class = _make_transport_class(library)
    # Private, but there is no other way to a client's transport; and the name is as old as httpx.
    http_client._transport = _wrap(transport_class, http_client._transport)
    mounts = http_client._mounts
    mounts.update({url: _wrap(transport_class, mount) for url, mount in mounts.items() if mount is not None})


def _wrap(transport_class: Any, transport: Any) -> Any:
    return transport if hasattr(transport, "holdfast_inner") else transport_class(transport)


def _make_transport_class(library: Any) -> Any:
    class RecordingTransport(library.BaseTransport, library.AsyncBaseTransport):
        """Records the requests of another transport."""

        def __init__(self, inner: Any) -> None:
            self.holdfast_inner = inner

        def handle_request(self, request: Any) -> Any:
            return httpx_client.record(library, request, self.holdfast_inner.handle_request, _MODEL_CALLS)

        async def handle_async_request(self, request: Any) -> Any:
            handle = self.holdfast_inner.handle_async_request
            return await httpx_client.record_async(library, request, handle, _MODEL_CALLS)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.holdfast_inner, name)

        def __enter__(self) -> Any:
            self.holdfast_inner.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self.holdfast_inner.__exit__(*error)

        def close(self) -> None:
            self.holdfast_inner.close()

        async def __aenter__(self) -> Any:
            await self.holdfast_inner.__aenter__()
            return self

        async def __aexit__(self, *error: Any) -> None:
            await self.holdfast_inner.__aexit__(*error)

        async def aclose(self) -> None:
            await self.holdfast_inner.aclose()

    return RecordingTransport
