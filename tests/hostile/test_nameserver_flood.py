"""A flood of requests to the nameserver costs the flood's sender, and no other client its routes."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from gantrymq.nameserver import NameServer
from gantrymq.nameserver.server import NameServerConfig
from gantrymq.remoting import headers
from gantrymq.remoting.bodies import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode, ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.register_body import RegisterBrokerBody

TOPICS = 2_000
REQUESTS = 200


async def register(channel: Channel) -> None:
    table = {f"topic-{number:06}": TopicConfig(f"topic-{number:06}") for number in range(TOPICS)}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table))
    header = headers.RegisterBrokerHeader(
        broker_name="a", broker_addr="127.0.0.1:1", cluster_name="c", ha_server_addr="", broker_id=0
    )
    answer = await channel.call(Command(RequestCode.REGISTER_BROKER, header.to_ext(), body.encode(compressed=False)))
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.trio
async def test_a_client_gets_its_route_while_another_asks_for_all_topics_hundreds_of_times(
    nursery: trio.Nursery,
) -> None:
    server = NameServer(NameServerConfig(port=0))
    address = await nursery.start(server.serve)
    handle = server.requests.handlers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER]
    answered = 0
    done = trio.Event()

    async def counted(request: Command, connection: object) -> Command:
        nonlocal answered
        answered += 1
        if answered == REQUESTS:
            done.set()
        return await handle(request, connection)

    server.requests.handlers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = counted
    # One way: there are no answers whose writing would give others a turn.
    flood = encode(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, flag=ONEWAY_FLAG)) * REQUESTS
    async with open_channel(address) as client:
        await register(client)
        async with await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])) as attacker:
            await attacker.send_all(flood)
            route = await client.call(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "topic-000001"}))
            before = answered
            assert route.code == ResponseCode.SUCCESS
            assert before < REQUESTS / 2
            with trio.fail_after(60):
                await done.wait()
    nursery.cancel_scope.cancel()
