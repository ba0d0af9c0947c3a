"""The embedded store: journals in one SQLite file, shared by the processes of one machine."""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
