"""The store in memory, for tests and trials: the whole contract, and nothing on disk.

::

    store                   the contract, in terms of the rest
    tables                  what is kept, and how a run ends
    claimed_run_operations  operations on a held run
    client_operations       operations from outside: signals, cancel, pause, budgets, retry
    start_operations        creating, finding, and forking runs
    approval_operations     approvals, live events, and memories
    queue_operations        queues with limits
    usage_accounts          what runs have used, and may use
    workers                 who may hold runs, and taking them
    schedules               what starts runs at set times
    server_data             what servers keep, and daily usage
    retention               deleting runs
    archives                runs from elsewhere, and what belongs to one
"""

from holdfast.stores.memory.store import ACTIVE_POLL_S, MemoryStore

__all__ = ["ACTIVE_POLL_S", "MemoryStore"]
