"""The store on PostgreSQL: journals in a schema of their own, shared by all processes that can reach the database.

::

    store         the contract, and which connection does what
    schema        the tables                        migrations   how they came to be
    statements    all other SQL                     bulk, pages  what many rows, and lists, need of it
    database      one connection: few round trips   trips        one of those
    connections   opening one                       lines        a connection and its thread; again, when it was cut
    keeper        what lives as long as a session   workers      who is dead, and what else is new
    memories      values that outlive runs          searching    texts in lists
    adapters      how values travel                 faults       PostgreSQL's errors in Holdfast's words
    stepping      transactional steps
"""

from holdfast.errors import UsageError

try:
    import psycopg as psycopg
except ImportError as error:
    raise UsageError(
        f'postgresql:// URLs need a driver that is not installed here ({error}): pip install "holdfast[postgres]"'
    ) from error

from holdfast.stores.postgres.store import PgStore

__all__ = ["PgStore"]
