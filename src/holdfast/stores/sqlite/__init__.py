"""The embedded store: journals in one SQLite file, shared by the processes of one machine.

What becomes of operations, rows and lists is the affair of all SQL stores (``stores.sql``). Its own are::

    store         the contract, and which line does what
    schema        the tables                        migrations   how they came to be
    statements    the SQL; more of it, by its subject: archives, asking, keeping, pruning, queueing, schedules
    connections   opening the file                  lines        a connection, its lock and its thread: inline or not
    database      a connection, as all SQL stores use it
    workers       registering and reaping           locks        how the kernel tells that a worker is gone
    memories      values that outlive runs          stepping     transactional steps
    faults        SQLite's errors in Holdfast's words
"""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
