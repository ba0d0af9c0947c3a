"""The store in memory, for tests and trials: the whole contract, and nothing on disk.

::

    store       the contract, spelled out over the rest
    tables      what is kept, and how a run ends
    holding     operations on a held run         requests   operations from outside
    starting    creating, finding, forking runs  asking     questions to people, notices, and memories
    accounts    what runs have used, and may use queueing   queues with limits
    schedules   what starts runs at set times    keeping    what servers keep, and what was used on which day
    pruning     deleting runs                    archives   runs from elsewhere, and what belongs to one
"""

from holdfast.stores.memory.store import ACTIVE_POLL_S, MemoryStore

__all__ = ["ACTIVE_POLL_S", "MemoryStore"]
