"""Deliveries: work for processes elsewhere, that keep nothing themselves.

What is sent to an address is a run (see ``services.addresses``). A *listener* is a process that takes runs from an
address; the store knows it as a worker by lease. A *delivery* is a run in the hands of a listener: a claim, with its
epoch as the fence. The listener is handed the payload and all that is recorded, records steps under names, and ends the
run, gives it back, or lets it wait for a person, a signal or a time. Whatever it does under an epoch that is over is
refused (``409 delivery-lost``), so that a listener that was taken for dead can do no harm.

``listener_registry`` registers them and hears whether they live; ``dispatcher`` hands runs to those that wait;
``delivery`` is what a listener is told; ``delivery_operations`` and ``waits`` are what it can do; ``history``
lists earlier deliveries. ``background.sweeper`` finds dead listeners and passed deadlines.

A server keeps nothing of this. What it holds in memory is who is connected to it and waits.
"""
