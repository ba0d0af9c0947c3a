"""The store on PostgreSQL: journals in a schema of their own, shared by all processes that can reach the database.

All SQL stores share the code for operations, rows, and lists (``stores.sql``). This package has the rest::

    store              the contract, and which connection does what
    connections        opening a connection
    connection_worker  a connection and its thread; reconnecting
    database           a connection as all SQL stores use it: few round trips
    pipeline           one round trip
    run_reads          reads of many runs at once
    connection_pool    connections for clients' reads
    dialect            how PostgreSQL writes the shared statements
    statements         statements that only PostgreSQL has
    migrations         bringing a schema up to date
    worker_session     the session that holds worker locks, renews leases, listens, and notifies
    death_watch        how the worker session notices dead workers
    workers            registering workers, finding dead ones, and the poll for everything that is new
    notifier           which processes are notified of a commit
    step_transactions  transactional steps
    memories           values that outlive runs
    text_patterns      searching texts in lists
    adapters           how values travel
    inspection         facts about a database, for people
    errors             PostgreSQL's errors as Holdfast's
"""

from holdfast.errors import UsageError

try:
    import psycopg as psycopg
except ImportError as error:
    raise UsageError(
        f"postgresql:// URLs need a driver that is not installed here ({error}): "
        'pip install "holdfast-agents[postgres]"'
    ) from error

from holdfast.stores.postgres.store import PgStore

__all__ = ["PgStore"]
