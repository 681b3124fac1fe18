"""``topic delete`` with several nameservers, of which one does not answer or has forgotten the topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import gantrymq
from gantrymq.client.errors import BrokerError, ConnectError, NoRoute
from gantrymq.client.topics import delete_topic
from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.operations.topics import is_routed
from gantrymq.remoting.bodies.routes import ClusterInfo
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.topics import DeleteTopicInNameserverHeader
from gantrymq.testing.harness import make_broker, run_broker

pytestmark = pytest.mark.trio


class FakeAdmin:
    """A cluster without brokers, whose first nameserver cannot be reached; the second one may have the topic."""

    nameservers = ("down:9876", "up:9876")

    def __init__(self, *, has_topic: bool = True) -> None:
        self.asked: list[str] = []
        self.has_topic = has_topic

    async def cluster(self) -> ClusterInfo:
        return ClusterInfo({}, {})

    async def route(self, topic: str) -> Any:
        raise NoRoute(f"topic {topic} does not exist")

    async def request(self, address: str, command: Command) -> Command:
        self.asked.append(address)
        if address == "down:9876":
            raise ConnectError(address, "refused")
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and not self.has_topic:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no route", address)
        return Command(ResponseCode.SUCCESS)


async def test_a_topic_is_deleted_from_the_other_nameservers_if_one_is_down() -> None:
    admin: Any = FakeAdmin()
    with pytest.raises(ConnectError, match="down:9876"):
        await delete_topic(admin, "T")
    assert admin.asked == ["down:9876", "up:9876"]


@pytest.mark.parametrize("has_topic", [True, False])
async def test_a_topic_is_looked_for_at_the_other_nameservers_if_one_is_down(has_topic: bool) -> None:
    client: Any = SimpleNamespace(admin=FakeAdmin(has_topic=has_topic))
    assert await is_routed(client, "T") is has_topic


async def test_a_topic_that_only_the_second_nameserver_still_has_can_be_deleted(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        forgets, has = [NameServer(NameServerConfig(port=0)) for _ in range(2)]
        for server in (forgets, has):
            await nursery.start(server.serve)
        addresses = f"{forgets.address};{has.address}"
        broker = make_broker(tmp_path, nameservers=[forgets.address, has.address])
        async with run_broker(broker), gantrymq.connect(addresses) as client, open_channel(forgets.address) as channel:
            await client.admin.create_topic("T", queues=2)
            header = DeleteTopicInNameserverHeader(topic="T")
            answer = await channel.call(Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, header.to_ext()))
            assert answer.code == ResponseCode.SUCCESS
            outcome = await trio.to_thread.run_sync(cli, "topic", "delete", "T", "--yes", "--nameserver", addresses)
            assert outcome.code == 0, outcome.err
            assert not [server for server in (forgets, has) if "T" in server.routes.topics().topic_list]
            outcome = await trio.to_thread.run_sync(cli, "topic", "delete", "T", "--yes", "--nameserver", addresses)
            assert (outcome.code, outcome.err.startswith("gantrymq: ")) == (1, True)
        nursery.cancel_scope.cancel()
