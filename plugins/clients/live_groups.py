"""All live groups of one kind, and the groups of each connection, so that closing a connection needs no search."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from gantrymq.plugins.clients.groups import Group
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

G = TypeVar("G", bound=Group)


class LiveGroups(Generic[G]):
    """Groups by name. A group exists while it has members."""

    def __init__(self, make: Callable[[str], G], max_groups: int) -> None:
        self.groups: dict[str, G] = {}
        self._make = make
        self._max_groups = max_groups
        self._joined: dict[int, set[str]] = {}

    def join(self, connection_id: int, name: str) -> G:
        """Return the group for a new member; :class:`RemoteFault` (code 1) if there are too many groups."""
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= self._max_groups:
                raise RemoteFault(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {name!r} is refused: {self._max_groups} live groups are the limit "
                    "(plugin.clients.max_groups)",
                )
            group = self.groups[name] = self._make(name)
        self._joined.setdefault(connection_id, set()).add(name)
        return group

    def has(self, connection_id: int) -> bool:
        """Return whether the connection is in any group."""
        return connection_id in self._joined

    def leave(self, connection_id: int, name: str) -> bool:
        """Remove the connection from one group; return whether it was in it."""
        joined = self._joined.get(connection_id)
        if joined is None or name not in joined:
            return False
        joined.remove(name)
        if not joined:
            del self._joined[connection_id]
        group = self.groups[name]
        group.remove(connection_id)
        if not group.members:
            del self.groups[name]
        return True

    def leave_all(self, connection_id: int) -> list[str]:
        """Remove the connection from every group; return their names."""
        names = sorted(self._joined.get(connection_id, ()))
        for name in names:
            self.leave(connection_id, name)
        return names

    def silent_since(self, moment: float) -> list[Connection]:
        """Return the connections of members whose last heartbeat is older than ``moment``."""
        found = {
            member.connection.id: member.connection
            for group in self.groups.values()
            for member in group.members.values()
            if member.seen < moment
        }
        return list(found.values())
