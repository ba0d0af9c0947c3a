"""Records the model calls that a program makes over HTTP, whatever framework or client makes them.

``install`` does it for all of a process (``holdfast run``); ``integrations.openai`` and ``integrations.anthropic`` for
one client. What is recorded is the exchange: the request as the provider sees it, and the body of its answer.

``endpoints`` says which requests are model calls. A *protocol* reads one provider's requests and answers, and an *event
format* the events of a streamed answer. ``exchange`` has what is recorded, ``recorded_exchange`` makes it a step of the
program, and ``httpx_client``, ``aiohttp_client``, and ``urllib3_client`` are the places where calls are intercepted.

Installing imports none of these libraries: each is patched when the program has imported it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.integrations.http.endpoints import RequestFilter
from holdfast.integrations.http.import_hook import patch_when_imported

_PATCHED_LIBRARIES = {
    "httpx": "httpx_client",
    "httpx2": "httpx_client",
    "aiohttp": "aiohttp_client",
    "urllib3": "urllib3_client",
}
"""The module of this package that patches a library."""

_installed_filter = RequestFilter()


def install(patterns: Sequence[str] = ()) -> None:
    """Record the model calls that this process makes in a program.

    Args:
        patterns: other calls to record, as in ``"GET https://api.example.com/prices/*"``. The method is optional.
    """
    _installed_filter.set_patterns(patterns)
    for library, module in _PATCHED_LIBRARIES.items():
        patch_when_imported(library, f"{__name__}.{module}", _installed_filter)
