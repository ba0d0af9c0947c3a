"""The platform: HTTP over any store, for agents of any framework and language.

A server keeps nothing of its own. Whatever it says is in the store, so that several may stand side by side, and one
that is killed takes nothing with it.

The way of a request is that of ``app``: ``guard`` (is it small enough, does it come from where it may), ``api`` (which
endpoint is it), ``admission`` with ``keys``, ``rates`` and ``scopes`` (whose is it, how often and what may they ask),
``bodies`` and ``json_scanner`` (is there room for it), ``api`` again (are its values what the endpoint wants),
``auditing``, the endpoint itself, and ``problems`` for whatever goes wrong on the way. Endpoints are declared once, in
``endpoints``: routes, the OpenAPI document and the tests of who may do what are all made from the declarations.

``beside`` is what runs beside the requests: ``delivering`` finds listeners that are dead, ``policing`` keeps policies,
and ``webhooks`` sends. The pages for people are in ``dashboard``.
"""

from __future__ import annotations

from holdfast.lazy_exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(__name__, __file__, globals())  # pyright: ignore[reportUnsupportedDunderAll]
