"""Starting and following runs by name, without the code that executes them.

``client.Client`` is the public face; ``handle`` and ``outcome`` (what a run's end means to a caller) and ``starting``
(what starting a run means, also when one is there already) serve the runtime of the authoring room as well.
"""
