"""Deliveries: work for external processes that keep no state of their own.

What is sent to an address is a run (see ``services.addresses``). A *listener* is a process that takes runs from an
address; the store knows it as a worker with a lease. A *delivery* is a run that a listener holds: a claim, with its
epoch as the fence. The listener gets the payload and everything that is recorded, records steps under names, and ends
the run, releases it, or parks it until a person answers, a signal arrives, or a time comes. Whatever it does under an
old epoch is refused (``409 delivery-lost``), so a listener that was declared dead can do no harm.

``listener_registry`` registers listeners and renews their leases. ``listener_session`` takes deliveries for them, and
``dispatcher`` hands out the runs. ``direct_delivery`` delivers a run in the commit that starts it, and
``next_delivery`` in the commit that ends the listener's last one. ``delivery`` builds what a listener gets; ``steps``,
``waits``, and ``delivery_operations`` have what it can do. ``delivery_watcher`` notices when a delivery ends, and
``history`` lists earlier deliveries.
``background.sweeper`` finds dead listeners and passed deadlines.

The server stores nothing of this itself. It has in memory only which listeners are connected to it and wait.
"""
