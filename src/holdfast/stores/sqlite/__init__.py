"""The embedded store: journals in one SQLite file, shared by the processes of one machine.

All SQL stores share the code for operations, rows, and lists (``stores.sql``). This package has the rest::

    store              the contract, and which connection does what
    connections        opening the file, and its schema
    connection_worker  a connection, its lock, and its thread
    database           a connection as all SQL stores use it
    dialect            how SQLite writes the shared statements
    notifications      how processes notify each other of commits
    statements         statements that only SQLite has
    workers            registering workers, and finding dead ones
    worker_locks       file locks that show that a worker is dead
    step_transactions  transactional steps
    memories           values that outlive runs
    inspection         facts about a file, for people
    errors             SQLite's errors as Holdfast's
"""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
