"""A relay on loopback that simulates a bad network: it holds bytes back, delays them, and closes connections.

A seed chooses its actions, so that a run can be repeated; it never changes or reorders bytes within a connection, as
with TCP.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import trio

_PIECE_BYTES: Final = 16 * 1024


class Relay:
    """Listens on ``address`` and passes on to ``target``, both ``host:port``, while :meth:`serve` runs.

    ``delay_s``: up to how long each piece is kept, another time for each. ``cut``: the chance that a piece is the last
    one of its connection; half of it still comes through.
    """

    def __init__(self, port: int, target: str, seed: int = 0) -> None:
        self.address = f"127.0.0.1:{port}"
        self.target = target
        self.delay_s = 0.0
        self.cut = 0.0
        self.connections = 0
        self._port = port
        self._chance = random.Random(seed)
        self._open = {"to": trio.Event(), "from": trio.Event()}
        self.heal()

    def block(self, *directions: str) -> None:
        """Let nothing through ``to`` the target, or ``from`` it, until :meth:`heal`; connections stay open."""
        for direction in directions:
            self._open[direction] = trio.Event()

    def heal(self) -> None:
        """Forward everything again, including held-back bytes."""
        for event in self._open.values():
            event.set()

    async def serve(self, *, task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
        """Relay until cancelled."""
        await trio.serve_tcp(self._join, self._port, host="127.0.0.1", task_status=task_status)

    async def _join(self, near: trio.SocketStream) -> None:
        host, _, port = self.target.rpartition(":")
        self.connections += 1
        try:
            async with await trio.open_tcp_stream(host, int(port)) as far, trio.open_nursery() as nursery:
                end = nursery.cancel_scope.cancel
                nursery.start_soon(self._pump, "to", near, far, end)
                nursery.start_soon(self._pump, "from", far, near, end)
        except OSError:
            await near.aclose()  # nobody is there: neither is the relay

    async def _pump(
        self, direction: str, source: trio.SocketStream, sink: trio.SocketStream, end: Callable[[], None]
    ) -> None:
        try:
            while data := await source.receive_some(_PIECE_BYTES):
                if self.delay_s:
                    await trio.sleep(self._chance.uniform(0, self.delay_s))
                await self._open[direction].wait()
                if self._chance.random() < self.cut:
                    await sink.send_all(data[: len(data) // 2])
                    break
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        end()
