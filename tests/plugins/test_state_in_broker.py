"""Topics, groups, clients and offsets in a real broker, over real sockets."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio

from gantrymq.remoting.bodies.clients import ConsumerData, ConsumerList, HeartbeatData, SubscriptionData
from gantrymq.remoting.bodies.topics import TopicConfigSerializeWrapper
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import run_cluster

QUEUE = {"topic": "orders", "queueId": "0", "consumerGroup": "shop"}


async def call(channel: Channel, code: int, body: bytes = b"", **ext: str) -> Command:
    return await channel.call(Command(code, ext or None, body), 10.0)


async def send(channel: Channel, topic: str) -> Command:
    header = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "j": "0"}
    return await call(channel, 310, b"body", **header)


async def beat(channel: Channel, client_id: str, wish: SubscriptionData | None = None) -> Command:
    subscriptions = [wish or SubscriptionData.for_tags("orders")]
    data = HeartbeatData(client_id, consumer_data_set=[ConsumerData("shop", subscription_data_set=subscriptions)])
    return await call(channel, 34, data.to_bytes())


@pytest.mark.trio
async def test_a_member_whose_connection_breaks_is_gone_at_once_and_the_others_are_notified(tmp_path: Path) -> None:
    notified: list[str] = []
    news = trio.Event()

    def hear(command: Command) -> None:
        assert command.code == 40
        assert command.is_oneway
        notified.append((command.ext or {})["consumerGroup"])
        news.set()

    with trio.fail_after(20):
        async with run_cluster(tmp_path) as cluster, open_channel(cluster.address, hear) as stays:
            assert (await beat(stays, "a@1")).version == 407
            await news.wait()
            async with open_channel(cluster.address) as breaks:
                news = trio.Event()
                await beat(breaks, "b@1")
                await news.wait()
                listed = ConsumerList.from_bytes((await call(stays, 38, consumerGroup="shop")).body)
                assert listed.consumer_id_list == ["a@1", "b@1"]
                news = trio.Event()
            await news.wait()
            listed = ConsumerList.from_bytes((await call(stays, 38, consumerGroup="shop")).body)
            assert listed.consumer_id_list == ["a@1"]
            assert notified == ["shop"] * 3


@pytest.mark.trio
async def test_a_topic_is_on_the_disk_when_its_first_message_is_acknowledged(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with run_cluster(tmp_path) as cluster, open_channel(cluster.address) as channel:
            assert (await send(channel, "orders")).code == 0
            stored = TopicConfigSerializeWrapper.from_bytes((tmp_path / "config/topics.json").read_bytes())
            assert stored.topic_config_table["orders"].write_queue_nums == 4


@pytest.mark.trio
async def test_offsets_and_topics_outlive_a_restart(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with run_cluster(tmp_path) as cluster, open_channel(cluster.address) as channel:
            for _ in range(3):
                await send(channel, "orders")
            assert (await call(channel, 15, **QUEUE, commitOffset="2")).code == 0
            assert (await call(channel, 15, **QUEUE, commitOffset="99")).code == 0
            assert (await call(channel, 14, **QUEUE)).ext == {"offset": "3"}
            assert (await call(channel, 15, **QUEUE, commitOffset="2")).code == 0
        async with run_cluster(tmp_path) as cluster, open_channel(cluster.address) as channel:
            assert (await call(channel, 14, **QUEUE)).ext == {"offset": "2"}
            assert (await call(channel, 30, topic="orders", queueId="0")).ext == {"offset": "3"}
            assert (await call(channel, 31, topic="orders", queueId="0")).ext == {"offset": "0"}
            assert (await call(channel, 29, topic="orders", queueId="0", timestamp="0")).ext == {"offset": "0"}
            assert (await call(channel, 29, topic="orders", queueId="0", timestamp=str(2**62))).ext == {"offset": "2"}


@pytest.mark.trio
async def test_a_deleted_topic_comes_back_empty(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with run_cluster(tmp_path) as cluster, open_channel(cluster.address) as channel:
            await send(channel, "orders")
            await call(channel, 15, **QUEUE, commitOffset="1")
            assert (await call(channel, 215, topic="orders")).code == 0
            assert (await call(channel, 30, topic="orders", queueId="0")).ext == {"offset": "0"}
            assert (await call(channel, 15, **QUEUE, commitOffset="1")).code == 17
            offset = int(((await send(channel, "orders")).ext or {})["queueOffset"])
            low = (await call(channel, 31, topic="orders", queueId="0")).ext
            assert low == {"offset": str(offset)}, "what was deleted stays deleted"


@pytest.mark.trio
async def test_a_heartbeat_in_pieces_with_a_broken_body_costs_nothing(tmp_path: Path) -> None:
    header = b'{"code":34,"flag":0,"language":"JAVA","opaque":1,"version":407}'
    frame = struct.pack(">ii", 4 + len(header) + 3, len(header)) + header + b"{[\xff"
    with trio.fail_after(20):
        async with run_cluster(tmp_path) as cluster:
            host, port = cluster.address.split(":")
            stream = await trio.open_tcp_stream(host, int(port))
            for byte in frame:
                await stream.send_all(bytes([byte]))
            answer = bytes(await stream.receive_some())
            assert b'"code":1' in answer
            assert b"HeartbeatData" in answer
            await stream.aclose()
            async with open_channel(cluster.address) as channel:
                assert (await beat(channel, "a@1")).code == 0


@pytest.mark.trio
async def test_a_subscription_by_sql_is_in_the_file_behind_the_stop(tmp_path: Path) -> None:
    wish = SubscriptionData("orders", "price > 3", sub_version=7, expression_type="SQL92")
    with trio.fail_after(20):
        settings = {"broker.persist_interval": "50ms"}
        async with run_cluster(tmp_path, settings=settings) as cluster, open_channel(cluster.address) as channel:
            assert (await beat(channel, "a@1", wish)).code == 0
            while not (tmp_path / "config/consumerFilter.json").exists():  # noqa: ASYNC110 - a file has no event
                await trio.sleep(0.01)
    text = (tmp_path / "config/consumerFilter.json").read_text()
    assert '"consumerGroup":"shop"' in text
    assert '"expression":"price > 3","expressionType":"SQL92","topic":"orders"' in text
