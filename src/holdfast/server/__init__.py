"""The platform: HTTP over any store, for agents of any framework and language.

A server keeps nothing of its own. Whatever it says is in the store, so that several may stand side by side, and one
that is killed takes nothing with it.

The way of a request: ``guard`` (is it small enough, does it come from where it may), ``keys`` (whose is it, and what
may they do), ``api`` (which endpoint is it, and are its values what the endpoint wants), the endpoint itself, and
``problems`` for whatever goes wrong on the way. Endpoints are declared once: routes, the OpenAPI document and the tests
of who may do what are all made from the declarations.
"""
