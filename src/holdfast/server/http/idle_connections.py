"""Idle connections, which are closed when there are too many connections.

An idle connection is closed to accept a new one: the longest idle connection of the network address that has the most
idle connections. So idle connections cannot lock out others, such as health checks. A new connection is refused only if
every other one has a request in progress.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from uvicorn.server import ServerState

if TYPE_CHECKING:
    from holdfast.server.http.http_connection import HttpConnection


class IdleConnections:
    """Connections without a request in progress, by network address."""

    def __init__(self) -> None:
        self._by_network: dict[str, OrderedDict[HttpConnection, None]] = {}

    def add(self, connection: HttpConnection) -> None:
        """Add a connection that became idle."""
        group = self._by_network.get(connection.network)
        if group is None:
            group = self._by_network[connection.network] = OrderedDict()
        group[connection] = None

    def remove(self, connection: HttpConnection) -> None:
        """Remove a connection that is no longer idle."""
        group = self._by_network.get(connection.network)
        if group is not None:
            group.pop(connection, None)
            if not group:
                del self._by_network[connection.network]

    def pop(self) -> HttpConnection | None:
        """Remove and return the connection to close, if any is idle."""
        if not self._by_network:
            return None
        connection = next(iter(max(self._by_network.values(), key=len)))
        self.remove(connection)
        return connection


class ConnectionState(ServerState):
    """State that all connections of a server share."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = IdleConnections()
