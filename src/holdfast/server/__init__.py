"""The platform: HTTP over any store, for agents of any framework and language.

A server keeps nothing of its own. Whatever it says is in the store, so that several may stand side by side, and one
that is killed takes nothing with it.

A request passes through these modules, in this order (see ``app``): ``http.request_guard`` (size and origin),
``http.router`` (the endpoint), ``auth`` (the API key, rate limits, and scopes), ``http.body_budget`` and
``http.json_scanner`` (limits of the body), the validation of its values, ``auth.audit_log``, and the endpoint.
``http.problems`` turns errors into responses. Endpoints are declared once, in ``endpoints``: routes, the OpenAPI
document, and the tests of scopes are made from the declarations.

``background`` holds what runs beside the requests: it finds dead listeners and enforces policies. ``webhooks`` sends
deliveries. ``caches`` holds what a request need not read again. The web pages are in ``dashboard``.
"""

from __future__ import annotations

from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]
