"""The memory store, for tests and trials: the whole contract, and nothing on disk.

::

    store                   the contract, in terms of the rest
    tables                  the rows, and how a run ends
    claimed_run_operations  operations on a held run
    client_operations       operations from outside: signals, cancel, pause, retry
    start_operations        creating, finding, and forking runs
    approval_operations     approvals, live events, and memories
    queue_operations        queues with limits
    usage_accounts          usage and budgets of runs
    workers                 workers, claims, and disabled workflows
    schedules               schedules
    server_data             documents, the audit log, and daily usage
    retention               deleting runs
    archives                exporting and importing runs
"""

from holdfast.stores.memory.store import ACTIVE_POLL_S, MemoryStore

__all__ = ["ACTIVE_POLL_S", "MemoryStore"]
