"""The embedded store: journals in one SQLite file, shared by the processes of one machine.

::

    store         the contract, spelled out over the rest
    schema        the tables                        migrations   how they came to be
    statements    all other SQL                     rows         rows to values and back
    connections   opening the file                  lines        a connection, its lock and its thread: inline or not
    batch         operations in a transaction       transaction  what they share: fences, lanes, telling of ends
    holding       of those who hold a run           requests     of everybody else
    starting      creating, finding, forking runs   claims       which runs are due, and taking them
    workers       registering and reaping           locks        how the kernel tells that a worker is gone
    queries       reading                           listing      lists of runs
    blobs         large payloads, kept apart        payloads     putting them back where references stand
    asking        questions to people, notices      memories     values that outlive runs, and their words
    accounts      what runs have used, and may use  feeds        following a run
    stepping      transactional steps               faults       SQLite's errors in Holdfast's words
"""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
