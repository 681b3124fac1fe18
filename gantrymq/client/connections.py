"""The client's connections, one an address, opened when they are first needed and again when they were lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import attrs
from anyio.abc import TaskGroup

from gantrymq.client.connect_options import ConnectOptions
from gantrymq.client.errors import ClientClosed, ConnectFailed
from gantrymq.client.loop_guard import LoopGuard
from gantrymq.client.requests import check_success
from gantrymq.client.silent_connections import SilenceWatch
from gantrymq.remoting.channel import CALL_TIMEOUT_SECONDS, Channel
from gantrymq.remoting.command import Command

Greeting = Callable[[Channel], Awaitable[None]]
"""Called with each new connection before anybody else uses it."""

RequestTaker = Callable[[str, Command], Command | Awaitable[Command | None] | None]
"""Answers a request of the peer at an address, if it wants an answer."""


@attrs.frozen(eq=False)
class _Failure:
    """The failure of an attempt to connect, without the error, whose traceback would keep objects alive."""

    kind: type[ConnectFailed]
    reason: str


class Connections:
    """All connections of one client. They live in ``tasks`` and end with :meth:`aclose`, not when it is cancelled:
    a consumer that is cancelled still has to commit what it has done."""

    def __init__(
        self,
        tasks: TaskGroup,
        take_request: RequestTaker,
        options: ConnectOptions,
    ) -> None:
        self.loop: LoopGuard = LoopGuard()
        self._tasks = tasks
        self._outgoing = options.outgoing
        self._tls = options.tls
        self._take_request = take_request
        self._channels: dict[str, Channel] = {}
        self._started: list[Channel] = []
        self._opening: dict[str, anyio.Lock] = {}
        self._failures: dict[str, _Failure] = {}
        """The failure of the last attempt to connect, by address."""
        self._closed = False

    def open_one(self, address: str) -> Channel | None:
        """The connection to ``address`` if it stands. Raises :class:`ClientClosed` in another event loop."""
        self.loop.ensure()
        channel = self._channels.get(address)
        return None if channel is None or channel.closed else channel

    async def get(self, address: str, greet: Greeting | None = None) -> Channel:
        """The connection to ``address``, opened if need be. Raises :class:`ConnectFailed`, :class:`ClientClosed`.

        One attempt serves all callers that wait for it, also when it fails.
        """
        channel = self.open_one(address)
        if channel is not None:
            return channel
        earlier = self._failures.get(address)
        async with self._opening.setdefault(address, anyio.Lock()):
            channel = self.open_one(address)
            if channel is not None:
                return channel
            if self._closed:
                raise ClientClosed("the client is closed: its `async with` block has ended")
            failure = self._failures.get(address)
            if failure is not None and failure is not earlier:
                raise failure.kind(address, failure.reason)  # an attempt of its own would keep those behind it waiting
            channel = Channel(address, partial(self._take_request, address), sign=self._outgoing, tls=self._tls)
            channel.on_timeout = SilenceWatch(channel).note_timeout
            self._started = [one for one in self._started if not one.closed]
            self._started.append(channel)
            try:
                await self._tasks.start(partial(channel.run, shield=True))
            except ConnectFailed as error:
                self._failures[address] = _Failure(type(error), error.reason)
                raise
            self._failures.pop(address, None)
            if greet is not None:
                try:
                    await greet(channel)
                except BaseException:
                    channel.abandon("the caller no longer waits for the connection")
                    raise
            self._channels[address] = channel
            return channel

    def abandon(self, address: str, reason: str) -> None:
        """End the connections to ``address`` at once, also one that is being opened. Calls that wait there fail."""
        for channel in self._started:
            if channel.address == address:
                channel.abandon(reason)

    def loop_ended(self) -> None:
        """End all connections at once, because the event loop ends before the client."""
        self._closed = True
        for channel in self._started:
            channel.abandon("the event loop of the client has ended")

    async def aclose(self) -> None:
        """Close all connections; none is opened again."""
        self._closed = True
        for channel in self._started:
            await channel.aclose()


async def call(channel: Channel, command: Command, timeout: float = CALL_TIMEOUT_SECONDS) -> Command:
    """The answer to ``command`` if it succeeded; :class:`BrokerError` if not, and what ``channel.call`` raises."""
    answer = await channel.call(command, timeout)
    check_success(answer, channel.address)
    return answer
