"""Links between processes on the loopback that can be cut one by one, in one direction or both.

Each address has a relay in front of it. The relay finds the process that owns the other end of a connection (Linux,
``/proc``), so that one relay serves all sources and each of them can be cut off alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from gantrymq.remoting.address import parse_address

_PIECE_BYTES: Final = 64 * 1024
_INODE_FIELD: Final = 9
_ENDED: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Links:
    """``names``: by process id, the name of each process that connects; the names of other processes are empty."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._changed = trio.Event()

    def block(self, source: str, target: str) -> None:
        """Let nothing through from one name to the other until :meth:`heal`. Connections stay open; what is sent
        waits, as with TCP, and new connections carry nothing."""
        self._blocked.add((source, target))

    def heal(self) -> None:
        """Let everything through, also what has waited."""
        self._blocked.clear()
        self._changed.set()
        self._changed = trio.Event()

    async def serve(
        self,
        address: str,
        name: str,
        target: str,
        source: str = "",
        *,
        task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Lead from ``address`` to ``target``, which belongs to ``name``, until cancelled; both are ``host:port``.

        ``source``: the process that connects there, if it is always the same.
        """
        host, port = parse_address(address)

        async def join(near: trio.SocketStream) -> None:
            peer = near.socket.getpeername()[1]
            known = source or await trio.to_thread.run_sync(self._source, peer)
            with suppress(*_ENDED):
                await self._join(near, known, name, target)
            await near.aclose()

        await trio.serve_tcp(join, port, host=host, task_status=task_status)

    async def _join(self, near: trio.SocketStream, source: str, name: str, target: str) -> None:
        host, port = parse_address(target)
        await self._passable(source, name)
        async with await trio.open_tcp_stream(host, port) as far, trio.open_nursery() as nursery:
            end = nursery.cancel_scope
            nursery.start_soon(self._carry, near, far, (source, name), end)
            nursery.start_soon(self._carry, far, near, (name, source), end)

    async def _carry(
        self, source: trio.SocketStream, sink: trio.SocketStream, link: tuple[str, str], end: trio.CancelScope
    ) -> None:
        with suppress(*_ENDED):
            while data := await source.receive_some(_PIECE_BYTES):
                await self._passable(*link)
                await sink.send_all(data)
        await self._passable(*link)  # the end of a connection is not seen across a cut either
        end.cancel()

    async def _passable(self, source: str, target: str) -> None:
        while (source, target) in self._blocked:
            await self._changed.wait()

    def _source(self, port: int) -> str:
        """The name of the process that has a connection from this local port."""
        inode = _inode_of(port)
        for pid, name in list(self.names.items()):
            with suppress(OSError):  # it has ended
                folder = f"/proc/{pid}/fd"
                if any(_leads_to(f"{folder}/{number}", inode) for number in os.listdir(folder)):
                    return name
        return ""


def _leads_to(descriptor: str, inode: str) -> bool:
    with suppress(OSError):  # it was closed meanwhile
        return os.readlink(descriptor) == f"socket:[{inode}]"
    return False


def _inode_of(port: int) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[_INODE_FIELD] != "0":
            return fields[_INODE_FIELD]
    return ""
