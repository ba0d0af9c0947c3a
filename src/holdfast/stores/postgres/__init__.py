"""The store on PostgreSQL: journals in a schema of their own, shared by all processes that can reach the database.

What becomes of operations, rows and lists is the affair of all SQL stores (``stores.sql``). Its own are::

    store         the contract, and which connection does what
    schema        the tables                        migrations   how they came to be; versions: what each has added
    statements    the SQL; more of it, by its subject: archives, asking, keeping, pages, pruning, queueing, reopening,
                  schedules                         bulk         what many rows need of it
    database      one connection: few round trips   trips        one of those
    connections   opening one                       lines        a connection and its thread; again, when it was cut
    keeper        what lives as long as a session   workers      who is dead, and what else is new
    notifying     who is told of a commit           stepping     transactional steps
    memories      values that outlive runs          searching    texts in lists
    adapters      how values travel                 faults       PostgreSQL's errors in Holdfast's words
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
