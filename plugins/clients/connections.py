"""Administrators' requests about connected clients: consumers (203), producers (204, 328), subscriptions (345).

Source: RocketMQ 4.9.7 ``AdminBrokerProcessor``, 5.3.3 for 345. Only GantryMQ has 47005, which disconnects a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantrymq.kernel.processors import Handler, Request
from gantrymq.plugins.clients.clients import Clients
from gantrymq.plugins.clients.groups import Member
from gantrymq.remoting.bodies.clients import (
    ClientConnection,
    ConsumerConnections,
    GroupSubscription,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
)
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.groups import (
    CloseConnectionsHeader,
    CloseConnectionsResponse,
    ConsumerGroupHeader,
    GroupSubscriptionHeader,
    ProducerGroupHeader,
)
from gantrymq.remoting.headers.header import read_header


class Connections:
    """Handlers of the five codes. ``wake``: called after members have left."""

    def __init__(self, clients: Clients, wake: Callable[[], None]) -> None:
        self._clients = clients
        self._wake = wake

    def processors(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.CLOSE_CLIENT_CONNECTIONS: self.close,
        }

    def consumers(self, request: Request) -> Command:
        """Answer 203. Code 206 for a group without connected members."""
        name = read_header(ConsumerGroupHeader, request.command.ext).consumer_group
        group = self._clients.consumers.groups.get(name)
        if group is None:
            raise RemoteFault(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnections(
            _connections(group.members.values()),
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return request.command.answer(ResponseCode.SUCCESS, body=body.to_bytes())

    def producers(self, request: Request) -> Command:
        """Answer 204. Code 1 for a group without connected members."""
        name = read_header(ProducerGroupHeader, request.command.ext).producer_group
        group = self._clients.producers.groups.get(name)
        if group is None:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnections(_connections(group.members.values()))
        return request.command.answer(ResponseCode.SUCCESS, body=body.to_bytes())

    def all_producers(self, request: Request) -> Command:
        """Answer 328: every producer group."""
        table = {
            name: [
                # the Java class prints an address with a slash in place of a host name
                ProducerInfo(
                    member.client_id,
                    f"/{member.connection.address}",
                    member.language,
                    member.version,
                    member.heard_ms,
                )
                for member in group.members.values()
            ]
            for name, group in self._clients.producers.groups.items()
        }
        return request.command.answer(ResponseCode.SUCCESS, body=ProducerTable(table).to_bytes())

    def subscription(self, request: Request) -> Command:
        """Answer 345: the group's subscription to the topic; empty if the group has no connected member."""
        header = read_header(GroupSubscriptionHeader, request.command.ext)
        wanted = self._clients.subscription(header.group, header.topic)
        body = GroupSubscription(header.group, header.topic, wanted)
        return request.command.answer(ResponseCode.SUCCESS, body=body.to_bytes())

    def close(self, request: Request) -> Command:
        """Answer 47005: close the client's connections, after which its queues go to other members.

        The response has their number, 0 for an unknown client.
        """
        client_id = read_header(CloseConnectionsHeader, request.command.ext).client_id
        closed = self._clients.disconnect(client_id)
        self._wake()
        answer = CloseConnectionsResponse(closed=len(closed))
        return request.command.answer(ResponseCode.SUCCESS, ext=answer.to_ext())


def _connections(members: Iterable[Member]) -> list[ClientConnection]:
    return [
        ClientConnection(member.client_id, member.connection.address, member.language, member.version)
        for member in members
    ]
