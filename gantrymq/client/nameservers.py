"""Ask the nameservers: they are alike, so one that answers is enough."""

from __future__ import annotations

from typing import TypeVar

from gantrymq.client.connections import Connections, reading
from gantrymq.client.errors import ConnectError, ConnectFailed, NotANameserver, TlsFailed, broker_error
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.routes import ClusterInfo, TopicRouteData
from gantrymq.remoting.bodies.topics import TopicList
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.nameserver import RouteHeader

B = TypeVar("B", bound=Body)


class Nameservers:
    """Uses the nameserver that answered last, and the next one when it fails."""

    def __init__(self, addresses: tuple[str, ...], connections: Connections) -> None:
        self.addresses: tuple[str, ...] = addresses
        self._connections = connections
        self._current = 0

    def update(self, addresses: tuple[str, ...]) -> None:
        """Ask these from now on; connections to others end. The one in use stays so where it is among them."""
        before, self.addresses = self.addresses, addresses
        used = before[self._current] if before else ""
        self._current = addresses.index(used) if used in addresses else 0
        for address in before:
            if address not in addresses:
                self._connections.abandon(address, "it is no nameserver any more")

    async def connect(self) -> Channel:
        """A connection to some nameserver; :class:`ConnectFailed` names all that were tried."""
        failures: list[str] = []
        kinds: set[type[ConnectError]] = set()
        for attempt in range(len(self.addresses)):
            index = (self._current + attempt) % len(self.addresses)
            try:
                channel = await self._connections.get(self.addresses[index])
            except ConnectError as error:
                failures.append(error.reason if len(self.addresses) == 1 else str(error))
                kinds.add(type(error))
            else:
                self._current = index
                return channel
        kind = TlsFailed if kinds == {TlsFailed} else ConnectFailed
        raise kind(";".join(self.addresses), f"no nameserver can be reached: {'; '.join(failures)}")

    async def call(self, command: Command) -> Command:
        """The answer of one nameserver, whatever its code. Raises :class:`ConnectError` when none answers."""
        failure: ConnectError | None = None
        for _ in self.addresses:
            channel = await self.connect()
            try:
                return await channel.call(command)
            except ConnectError as error:
                failure = error
                self._current = (self._current + 1) % len(self.addresses)
        assert failure is not None  # there is at least one address
        raise failure

    async def route(self, topic: str) -> TopicRouteData | None:
        """Where ``topic`` lies; None when no broker has it."""
        header = RouteHeader(topic=topic, accept_standard_json_only=True)
        answer = await self.call(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext()))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return self._read(TopicRouteData, answer)

    async def cluster(self) -> ClusterInfo:
        """All brokers and clusters."""
        return self._read(ClusterInfo, await self.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO)))

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        answer = await self.call(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        return sorted(self._read(TopicList, answer).topic_list)

    def _read(self, kind: type[B], answer: Command) -> B:
        address = self.addresses[self._current]
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotANameserver(address)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer, address)
        with reading(address):
            return kind.from_bytes(answer.body)
