"""The connection for each producer's client id, to which replies are pushed.

Source: RocketMQ 4.9.7 ``ProducerManager.clientChannelTable``. In RocketMQ, the end of any connection of a client id, or
leaving any group, removes the id, even if the client has a newer connection or another group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection


class ProducerIds:
    """Connections by client id: the newest one of each id, and one id for each connection."""

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._ids: dict[int, str] = {}

    def find(self, client_id: str) -> Connection | None:
        """Return the connection of the client, None if it is not connected."""
        return self._connections.get(client_id)

    def record_heartbeat(self, client_id: str, connection: Connection) -> None:
        """Record a heartbeat: the id belongs to this connection unless a newer one has it."""
        known = self._ids.get(connection.id)
        if known == client_id and client_id in self._connections:
            return
        if known is not None:
            self.drop(connection)
        self._ids[connection.id] = client_id
        self._connections[client_id] = connection

    def drop(self, connection: Connection) -> None:
        """Remove a connection that no longer has a producer."""
        client_id = self._ids.pop(connection.id, None)
        if client_id is not None and self._connections.get(client_id) is connection:
            del self._connections[client_id]
