"""Requests and replies: wire format, timeouts, late replies, the blocking client."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.properties import decode_properties, encode_properties

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
SEND, REPLY, PUSH = 310, 325, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def push(correlation_id: str, body: bytes, *, sys_flag: int = 0, host: str = "10.0.0.1:5000") -> Command:
    """The reply to a request as a broker pushes it."""
    ext = {
        "producerGroup": "CLIENT_INNER_PRODUCER", "topic": "C_REPLY_TOPIC", "defaultTopic": "TBW102", "queueId": "0",
        "defaultTopicQueueNums": "4", "sysFlag": str(sys_flag), "bornTimestamp": "5", "flag": "0",
        "reconsumeTimes": "0", "unitMode": "false", "bornHost": host, "storeHost": "/[::1]:6000", "storeTimestamp": "6",
        "properties": encode_properties({"CORRELATION_ID": correlation_id, "MSG_TYPE": "reply", "own": "1"}),
    }  # fmt: skip
    return Command(PUSH, ext, body)


def taken(request: Command) -> Command:
    return request.answer(0, ext={"msgId": "0", "queueId": "0", "queueOffset": "0"})


def replying(broker: Any, *pushes: Callable[[str], Command]) -> Callable[[Command], Any]:
    """A broker's answer to a send, behind which it pushes replies."""

    async def answer(request: Command) -> Command:
        correlation_id = decode_properties(request.ext["i"])["CORRELATION_ID"]
        for make in pushes:
            await broker.connections[0].write(make(correlation_id))
        return broker.on_send_message_v2(request)

    return answer


async def test_a_request_has_its_client_id_and_gets_its_own_reply(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer("askers") as producer,
    ):
        packed = zlib.compress(b"the answer" * 100)
        cluster.broker.answers[SEND] = replying(
            cluster.broker,
            lambda _: push("of nobody", b"another's"),
            lambda ours: push(ours, packed, sys_flag=1),
            lambda ours: push(ours, b"once more"),
        )
        reply = await producer.request("T", b"question", tags="a", keys=["k"], properties={"p": "1"}, timeout=20)
        assert reply.body == b"the answer" * 100
        assert reply.properties["own"] == "1"
        assert (reply.topic, reply.born_host, reply.store_host) == ("C_REPLY_TOPIC", "10.0.0.1:5000", "[::1]:6000")
        (request,) = cluster.broker.seen(SEND)
        asked = decode_properties(request.ext["i"])
        assert (asked["REPLY_TO_CLIENT"], asked["TTL"]) == (client.client_id, "20000")
        assert (asked["TAGS"], asked["KEYS"], asked["p"]) == ("a", "k", "1")
        # the broker had a heartbeat of the producer before it got the request
        codes = [one.code for one in cluster.broker.requests]
        assert codes.index(34) < codes.index(SEND)
        pushes = await cluster.broker.wait_for(0, 3)
        assert [one.code for one in pushes] == [0, 0, 0]
        assert not client._cluster.replies._waiting


@pytest.mark.slow
async def test_a_request_without_a_reply_times_out(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        with pytest.raises(gantrymq.ReplyTimeout, match=r"request to T within 2.5 s: the request is stored"):
            await producer.request("T", b"question", timeout=2.5)
        assert not client._cluster.replies._waiting
        with pytest.raises(gantrymq.InvalidMessage):
            await producer.request("T", b"")
        cluster.broker.answers[SEND] = lambda request: request.answer(13, "no")
        with pytest.raises(gantrymq.BrokerError):
            await producer.request("T", b"question")
        del cluster.broker.answers[SEND]
        with anyio.move_on_after(0.1):
            await producer.request("T", b"question")
        assert not client._cluster.replies._waiting


async def test_a_reply_is_sent_to_the_broker_of_its_request(fake_cluster: Cluster) -> None:
    asked = {"CORRELATION_ID": "id", "REPLY_TO_CLIENT": "asker", "TTL": "3000", "CLUSTER": "C"}
    async with fake_cluster(brokers=2, T=1) as cluster, gantrymq.connect(cluster.address) as client:
        second = cluster.brokers[1]
        second.store("T", 0, b"question", encode_properties(asked))
        for missing in ("CORRELATION_ID", "CLUSTER"):
            second.store("T", 0, b"none", encode_properties({k: v for k, v in asked.items() if k != missing}))
        second.answers[REPLY] = lambda request: request.answer(
            0, ext={"msgId": "0", "queueId": "0", "queueOffset": "0"}
        )
        async with client.consumer("T", "g", start="first") as messages:
            request = await anext(messages)
            await request.reply(b"answer" * 1000)
            (sent,) = second.seen(REPLY)
            assert zlib.decompress(sent.body) == b"answer" * 1000
            assert (sent.ext["b"], sent.ext["e"], sent.ext["f"]) == ("C_REPLY_TOPIC", "0", "1")
            sent_properties = decode_properties(sent.ext["i"])
            assert sent_properties.pop("UNIQ_KEY")
            assert sent_properties == {
                "MSG_TYPE": "reply",
                "CORRELATION_ID": "id",
                "REPLY_TO_CLIENT": "asker",
                "TTL": "3000",
            }
            second.answers[REPLY] = lambda request: request.answer(1, "push reply message fail, channel of <asker>")
            with pytest.raises(gantrymq.BrokerError, match="push reply message fail"):
                await request.reply(b"answer")
            for _ in range(2):
                with pytest.raises(gantrymq.InvalidMessage):
                    await (await anext(messages)).reply(b"answer")
            with pytest.raises(gantrymq.InvalidMessage):
                await request.reply(b"")
        with pytest.raises(gantrymq.ClientClosed):
            await request.reply(b"answer")


async def test_all_brokers_know_the_client_before_its_first_request_to_each_topic(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.producer.HEARTBEAT_WAIT_SECONDS", 20.0)
    async with (
        fake_cluster(brokers=2, A=1, B=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer("askers") as producer,
    ):
        first, second = cluster.brokers
        cluster.nameserver.places["A"] = [first]
        answer = replying(first, lambda correlation_id: push(correlation_id, b"reply"))
        known: list[bool] = []

        async def take(request: Command) -> Command:
            known.append(bool(second.seen(RequestCode.HEART_BEAT)))
            return await answer(request)

        first.answers[SEND] = take
        assert (await producer.request("A", b"question", timeout=20)).body == b"reply"
        assert (await producer.request("B", b"question", queue=0, timeout=20)).body == b"reply"
        assert known == [False, True], "the reply may come through the second broker"


async def test_a_broker_that_hangs_does_not_stop_requests_through_others(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.producer.HEARTBEAT_WAIT_SECONDS", 0.05)
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        first, second = cluster.brokers

        async def hang(request: Command) -> None:
            await anyio.sleep_forever()

        second.answers[RequestCode.HEART_BEAT] = hang
        first.answers[SEND] = replying(first, lambda ours: push(ours, b"answer"))
        for _ in range(2):
            assert (await producer.request("T", b"question", queue=0)).body == b"answer"
        assert len(await second.wait_for(RequestCode.HEART_BEAT, 1)) == 1


async def test_an_invalid_push_is_refused_and_affects_no_other(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        bad = push("x", b"bad")
        assert bad.ext is not None
        bad.ext["properties"] = ""
        cluster.broker.answers[SEND] = replying(
            cluster.broker,
            lambda _: bad,
            lambda _: Command(PUSH, {"topic": "T"}),
            lambda ours: push(ours, b"good", host="no address"),
        )
        assert (await producer.request("T", b"question", timeout=20)).body == b"good"
        assert len(await cluster.broker.wait_for(1, 2)) == 2


def test_the_blocking_client_sends_requests_and_replies(fake_in_thread: Any) -> None:
    broker = fake_in_thread.broker
    broker.answers[SEND] = replying(broker, lambda ours: push(ours, b"answer"))
    broker.answers[REPLY] = taken
    asked = {"CORRELATION_ID": "id", "REPLY_TO_CLIENT": "asker", "CLUSTER": "C"}
    broker.store("T", 0, b"question", encode_properties(asked))
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.producer() as producer:
            assert producer.request("T", b"question", timeout=20).body == b"answer"
        with client.consumer("T", "g", start="first") as messages:
            next(messages).reply(b"answer")
            assert len(broker.seen(REPLY)) == 1
