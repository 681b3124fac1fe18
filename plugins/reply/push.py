"""Push replies to the requesting clients, a limited number at a time to each.

Source: RocketMQ 4.9.7 ``ReplyMessageProcessor.pushReplyMessage``, ``Broker2Client.callClient``. In RocketMQ each push
blocks one of about twenty threads for up to ten seconds; in GantryMQ a slow client delays only its own replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio

from gantrymq.plugins.reply.config import ReplyConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError, RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

IN_FLIGHT_MAX: Final = 48
"""The most unacknowledged pushes of one client. Below ``connection.ASKED_MAX``, so that administrators can still query
it."""
SHARE: Final = 4
"""One client may use this fraction of the limits for waiting replies."""
CONGESTED_S: Final = 0.02
"""How often to check whether a client has read its data."""

Done = Callable[[str | None], None]
"""Called once when a push has ended, with the remark for the replier; None: the requester has the reply."""

log = structlog.get_logger("gantrymq.reply")


@attrs.define(eq=False)
class _Lane:
    """The waiting replies of one client, which take turns."""

    in_flight: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(IN_FLIGHT_MAX))
    room: trio.Lock = attrs.field(factory=trio.Lock)
    """Its holder waits until the client reads again."""
    waiting: int = 0
    waiting_bytes: int = 0

    def has_room(self, connection: Connection) -> bool:
        """Return whether another push may leave at once; it then counts as in flight."""
        if not self.in_flight.value or self.room.locked() or connection.is_congested():
            return False
        self.in_flight.acquire_nowait()
        return True

    async def wait_for_room(self, connection: Connection) -> None:
        """Wait until another push may leave; it then counts as in flight."""
        await self.in_flight.acquire()
        try:
            async with self.room:
                while connection.is_congested():  # noqa: ASYNC110 - there is no event for a peer that reads again
                    await trio.sleep(CONGESTED_S)
        except trio.Cancelled:
            self.in_flight.release()
            raise


class Pusher:
    """Pushes replies in separate tasks; the task ``reply.push`` runs :meth:`run`."""

    def __init__(self, config: ReplyConfig) -> None:
        self.waiting = 0
        """Replies that were not acknowledged yet."""
        self.pushed = 0
        self.failed = 0
        self._config = config
        self._waiting_bytes = 0
        self._lanes: dict[Connection, _Lane] = {}
        self._tasks: trio.Nursery | None = None

    async def run(self) -> None:
        """Push until cancelled; waiting replies are then dropped with their connections."""
        async with trio.open_nursery() as self._tasks:
            await trio.sleep_forever()

    def is_full(self, size: int) -> bool:
        """Return whether a reply of ``size`` bytes exceeds the limits. A single reply always fits, because the largest
        message may exceed them."""
        config = self._config
        return self.waiting > 0 and (
            self.waiting >= config.max_waiting or self._waiting_bytes + size > config.max_waiting_bytes
        )

    def push(self, connection: Connection, client_id: str, command: Command, size: int, done: Done) -> None:
        """Push ``command``, a reply of ``size`` bytes, when the client can receive it; ``done`` gets the result.

        A client with too many waiting replies gets no further one.
        """
        assert self._tasks is not None  # tasks start before the sockets open
        config = self._config
        lane = self._lanes.get(connection)
        if lane is None:
            lane = self._lanes[connection] = _Lane()
        # As in is_full, a single reply always fits.
        elif (
            lane.waiting >= max(1, config.max_waiting // SHARE)
            or lane.waiting_bytes + size > config.max_waiting_bytes // SHARE
        ):
            waiting = f"{lane.waiting} replies of {lane.waiting_bytes} bytes wait for it already"
            self._fail(client_id, f"{waiting} (plugin.reply.max_waiting, .max_waiting_bytes)", done)
            return
        lane.waiting += 1
        lane.waiting_bytes += size
        self.waiting += 1
        self._waiting_bytes += size
        self._tasks.start_soon(self._push, lane, connection, client_id, command, size, done)

    async def _push(
        self, lane: _Lane, connection: Connection, client_id: str, command: Command, size: int, done: Done
    ) -> None:
        try:
            reason = await self._ask(lane, connection, command)
        finally:
            lane.waiting -= 1
            lane.waiting_bytes -= size
            self.waiting -= 1
            self._waiting_bytes -= size
            if not lane.waiting:
                del self._lanes[connection]
        if reason is None:
            self.pushed += 1
            done(None)
        else:
            self._fail(client_id, reason, done)

    async def _ask(self, lane: _Lane, connection: Connection, command: Command) -> str | None:
        """Return why the client did not get the reply; None if it did."""
        timeout = self._config.push_timeout
        too_late = f"it had not taken the replies before within {timeout:g} s"
        if not lane.has_room(connection):
            started = trio.current_time()
            with trio.move_on_after(timeout) as waiting:
                await lane.wait_for_room(connection)
            if waiting.cancelled_caught:
                return too_late
            timeout -= trio.current_time() - started
        try:
            if timeout <= 0:
                return too_late
            answer = await connection.ask(command, timeout)
        except (ConnectError, RemoteFault) as error:
            return str(error)
        finally:
            lane.in_flight.release()
        return None if answer.code == ResponseCode.SUCCESS else f"it answered {answer.code}: {answer.remark}"

    def _fail(self, client_id: str, reason: str, done: Done) -> None:
        self.failed += 1
        log.info("reply_not_pushed", client_id=client_id, reason=reason)
        done(f"push reply message to {client_id}fail.")
