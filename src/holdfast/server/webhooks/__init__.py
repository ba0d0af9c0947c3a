"""Webhooks: deliveries that are sent to their receiver, instead of being fetched.

The server is the listener here. It takes deliveries of addresses that have a webhook from the same desk as everybody
else, as a worker by lease, sends each in a signed request, and does with the delivery what the answer says. So there is
nothing new about claims, fences, counts and waiting: a server that dies over a request leaves a delivery whose lease
runs out, and several servers may send at the same time.

``target_policy`` says where requests may go, ``http_client`` sends one to that very place, ``response_outcomes`` says
what an answer means, and ``sender`` takes the deliveries, and settles them. What is kept of a webhook is in
``services.webhook_settings``, and what its receiver needs is in ``holdfast.webhooks``.
"""
