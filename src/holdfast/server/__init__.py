"""The platform: HTTP over any store, for agents of any framework and language.

A server keeps no state of its own. Everything is in the store, so several servers may run side by side, and nothing is
lost when one is killed.

A request passes through these modules, in this order (see ``app``): ``http.request_guard`` (size and origin),
``http.router`` (the endpoint), ``auth`` (the API key, rate limits, and scopes), ``http.body_budget`` and
``http.json_scanner`` (limits of the body), the validation of its values, ``auth.audit_log``, and the endpoint.
``services.problems`` turns errors into responses. Endpoints are declared once, in ``endpoints``: routes, the OpenAPI
document, and the tests of scopes come from the declarations.

**Tenants.** Only the API key decides whose data a request sees: it is bound to a namespace, and the request goes to the
store of that namespace, which cannot reach another one. All tenants share one event loop, so nothing that a caller can
make slow runs on it (``services.thread_offload``). ``tenants`` has what the server knows about each namespace.

**Repeated requests** change nothing, and need no table of responses. A start, a fork, and a signal derive their id from
the ``Idempotency-Key``, and the store recognizes what exists under that id. All other requests ask for a state, such as
cancelled or paused, and asking twice has the same result.

``background`` has the tasks that run next to the requests: they find dead listeners and enforce policies. ``webhooks``
sends deliveries. ``caches`` has what not every request reads anew. ``dashboard`` has the web pages.
"""

from __future__ import annotations

from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]
