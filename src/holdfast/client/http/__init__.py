"""A client's backend over HTTP: everything that it is asked for, it asks a Holdfast server for.

``server_endpoint`` says where the server is, and who is asking; ``transport`` sends requests, and sends them again as
long as that is safe; ``problems`` turns answers that are errors back into Holdfast's own; ``decoders`` makes of the
rest what the store's backend gives; ``sse`` reads streams. ``backend``, ``runs`` and ``resources`` are the contract of
``client.backend`` upon that.

It is imported when a URL begins with ``http``, and not before.
"""
