"""Webhooks: deliveries that the server sends to their receiver, instead of a listener fetching them.

The server is the listener here. It takes deliveries of addresses that have a webhook from the same dispatcher as every
listener, as a worker with a lease, sends each in a signed request, and applies the response to the delivery. So claims,
fences, counts, and waits work as usual: if a server dies during a request, the lease of the delivery expires, and
several servers may send at the same time.

``target_policy`` decides where requests may go, ``http_client`` sends one to exactly that address,
``response_outcomes`` interprets the response, and ``sender`` takes the deliveries and applies the outcomes.
``services.webhook_settings`` stores the webhooks, and ``holdfast.webhooks`` has what a receiver needs.
"""
