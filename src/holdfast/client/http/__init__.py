"""The client over a Holdfast server.

``server_endpoint`` is the server's address with the caller's key; ``transport`` sends requests, and repeats them as
long as that is safe; ``problems`` turns error responses into Holdfast's exceptions; ``decoders`` turns the others into
the values that a client over a store returns; ``sse`` reads streams. ``client``, ``runs``, ``admin``, and ``resources``
override the operations of ``Client`` with these.

Except for ``server_endpoint``, it is imported only when a URL begins with ``http``.
"""
