"""Ask the nameservers: they are alike, so one that answers is enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from gantrymq.client.connections import Connections
from gantrymq.client.errors import ConnectError, ConnectFailed, TlsFailed
from gantrymq.client.requests import Rotation, read_body, read_route, read_topics, route_request, topics_request
from gantrymq.remoting.bodies.routes import ClusterInfo, TopicRouteData
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command

UNANSWERED_SECONDS: Final = 0.1
"""A nameserver has failed if a request to it is cancelled after waiting so long for the answer."""


class Nameservers:
    """Uses the nameserver that answered last, and the next one when it fails.

    A caller whose own timeout is shorter than that of a request cancels it before it fails. That counts as a failure
    too, or a nameserver that hangs would be asked again each time.
    """

    def __init__(self, addresses: tuple[str, ...], connections: Connections) -> None:
        self._rotation = Rotation(addresses)
        self._connections = connections

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of them."""
        return self._rotation.addresses

    def update(self, addresses: tuple[str, ...]) -> None:
        """Ask these from now on; connections to others end. The one in use stays so where it is among them."""
        before = self.addresses
        self._rotation.update(addresses)
        for address in before:
            if address not in addresses:
                self._connections.abandon(address, "it is no longer a nameserver")

    async def connect(self) -> Channel:
        """A connection to some nameserver; :class:`ConnectFailed` names all that were tried."""
        failures: list[str] = []
        kinds: set[type[ConnectError]] = set()
        for address in self._rotation.order():
            try:
                with self._skipping(address):
                    channel = await self._connections.get(address)
            except ConnectError as error:
                failures.append(error.reason if len(self.addresses) == 1 else str(error))
                kinds.add(type(error))
            else:
                self._rotation.use(address)
                return channel
        kind = TlsFailed if kinds == {TlsFailed} else ConnectFailed
        raise kind(";".join(self.addresses), f"no nameserver can be reached: {'; '.join(failures)}")

    async def call(self, command: Command) -> Command:
        """The answer of one nameserver, whatever its code. Raises :class:`ConnectError` when none answers."""
        failure: ConnectError | None = None
        for _ in self.addresses:
            channel = await self.connect()
            try:
                with self._skipping(channel.address, channel):
                    return await channel.call(command)
            except ConnectError as error:
                failure = error
        assert failure is not None  # there is at least one address
        raise failure

    @contextmanager
    def _skipping(self, address: str, channel: Channel | None = None) -> Iterator[None]:
        """Ask the next nameserver first if ``address`` fails in the block, or has not answered when it is cancelled."""
        began = anyio.current_time()
        try:
            yield
        except ConnectError:
            self._rotation.skip(address)
            raise
        except anyio.get_cancelled_exc_class():
            if anyio.current_time() - began >= UNANSWERED_SECONDS:
                self._rotation.skip(address)
                if channel is not None and channel.on_timeout is not None:
                    channel.on_timeout()
            raise

    async def route(self, topic: str) -> TopicRouteData | None:
        """Where ``topic`` lies; None when no broker has it."""
        return read_route(await self.call(route_request(topic)), self._rotation.current)

    async def cluster(self) -> ClusterInfo:
        """All brokers and clusters."""
        answer = await self.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        return read_body(ClusterInfo, answer, self._rotation.current)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return read_topics(await self.call(topics_request()), self._rotation.current)
