"""Namespaces: users see names without the prefix, and brokers get RocketMQ's names with it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message, MessageQueue, Outcome
from gantrymq.client.namespace import Namespace
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.clients import HeartbeatData
from gantrymq.remoting.bodies.queues import LockBatchRequestBody
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.signing import make_signature
from support.routes import wait_routed

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
PATIENCE_SECONDS = 60


@pytest.fixture
def namespace() -> str:
    return f"NS_{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("orders", "NS%orders"),
        ("NS%orders", "NS%orders"),
        ("other%orders", "NS%other%orders"),
        ("%RETRY%billing", "%RETRY%NS%billing"),
        ("%RETRY%NS%billing", "%RETRY%NS%billing"),
        ("%DLQ%billing", "%DLQ%NS%billing"),
        ("TBW102", "TBW102"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("TOOLS_CONSUMER", "TOOLS_CONSUMER"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ],
)
async def test_namespaced_names_equal_those_of_rocketmqs_clients(name: str, real: str) -> None:
    names = Namespace("NS")
    assert (names.topic(name), names.group(name)) == (real, real)
    assert names.without(real) == name.replace("NS%", "")
    assert Namespace("N").without("NS%orders") == "NS%orders"


async def test_invalid_namespaces_and_overlong_names_are_rejected(fake_cluster: Cluster) -> None:
    for bad in ("a%b", "ä", "a b"):
        with pytest.raises(ValueError, match="characters other than letters"):
            gantrymq.connect("127.0.0.1:9876", namespace=bad)
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address, namespace="N" * 100) as client:
        async with client.producer() as producer:
            with pytest.raises(gantrymq.InvalidName, match="with its namespace"):
                await producer.send("orders-of-customers-in-the-east", b"x")
        with pytest.raises(gantrymq.InvalidName, match="with its namespace"):
            client.consumer("orders-of-customers-in-the-east", "g")
        with pytest.raises(gantrymq.InvalidName, match="with its namespace"):
            client.consumer("orders", "g" * 200)


async def test_every_request_has_namespaced_names(fake_cluster: Cluster) -> None:
    topics = {"NS%T": 2, "%RETRY%NS%g": 1}
    async with (
        fake_cluster(**topics) as cluster,
        gantrymq.connect(cluster.address, namespace="NS") as client,
        client.producer("p") as producer,
        client.consumer("T", "g", start="first", ordered=True) as messages,
    ):
        broker = cluster.broker
        sent = await producer.send("T", b"1", tags="a")
        assert sent.queue.topic == "T"
        assert [queue.topic for queue in messages.queues] == ["T", "T"]
        message = await anext(messages)
        assert (message.topic, message.queue) == ("T", sent.queue)
        await message.ack()
        await messages.commit()
        assert broker.offsets["NS%g", "NS%T", sent.queue.queue_id] == 1
        assert await client.admin.consumer_offset("g", sent.queue) == 1
        assert await client.admin.search_offset(sent.queue, 0) == 1
        beat = HeartbeatData.from_bytes(broker.seen(RequestCode.HEART_BEAT)[-1].body)
        assert [each.group_name for each in beat.producer_data_set] == ["NS%p"]
        (consumer,) = beat.consumer_data_set
        assert consumer.group_name == "NS%g"
        assert {each.topic for each in consumer.subscription_data_set} == {"NS%T", "%RETRY%NS%g"}
        locks = LockBatchRequestBody.from_bytes(broker.seen(RequestCode.LOCK_BATCH_MQ)[0].body)
        assert {queue.topic for queue in locks.mq_set} == {"NS%T", "%RETRY%NS%g"}
        routed = {each.ext["topic"] for each in cluster.nameserver.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)}
        assert routed == {"NS%T", "%RETRY%NS%g"}


async def test_an_ordered_consumer_holds_the_lock_of_its_retry_queue(fake_cluster: Cluster, no_pause: None) -> None:
    async with (
        fake_cluster(**{"NS%T": 2, "%RETRY%NS%g": 1}) as cluster,
        gantrymq.connect(cluster.address, namespace="NS") as client,
        client.consumer("T", "g", start="first", ordered=True) as messages,
    ):
        broker = cluster.broker
        table = messages.running_info().mq_table
        assert [(queue.topic, each.locked) for queue, each in sorted(table.items())] == [
            ("%RETRY%NS%g", True), ("T", True), ("T", True),
        ]  # fmt: skip
        broker.store("%RETRY%NS%g", 0, b"again", "RETRY_TOPIC\x01NS%T\x02")
        with anyio.fail_after(PATIENCE_SECONDS):
            message = await anext(messages)
        assert (message.topic, message.body) == ("T", b"again")
        await message.ack()
        await anyio.sleep(0.2)  # rebalances that are not settled would be repeated without a pause
        assert len(broker.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) <= 3  # at joining, and for each new route
        asked = {"topic": "%RETRY%NS%g", "group": "NS%g"}
        for connection in broker.connections:
            await connection.write(Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, asked))
        (status,) = await broker.wait_for(0)
        assert b'"topic":"%RETRY%NS%g"' in status.body
        name = {"brokerName": "broker-a", "queueId": 0, "topic": "%RETRY%NS%g"}
        body = b'{"offsetTable":{' + str(name).replace("'", '"').encode() + b":0}}"
        for connection in broker.connections:
            ext = {**asked, "timestamp": "0", "isForce": "true"}
            await connection.write(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body))
        with anyio.fail_after(PATIENCE_SECONDS):
            assert (await anext(messages)).body == b"again"


async def test_administration_uses_namespaced_names(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(**{"NS%T": 1}) as cluster,
        gantrymq.connect(cluster.address, namespace="NS") as client,
        client.consumer("T", "g", start="first") as messages,
    ):
        for number in range(4):
            cluster.broker.store("NS%T", 0, b"%d" % number)
        assert [(await anext(messages)).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        asked = {"topic": "NS%T", "group": "NS%g"}
        name = {"brokerName": "broker-a", "queueId": 0, "topic": "NS%T"}
        for connection in cluster.broker.connections:
            await connection.write(Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, asked))
            await connection.write(
                Command(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "NS%g", "clientId": client.client_id})
            )
        status, received = (await cluster.broker.wait_for(0, 2))[-2:]
        assert b'"topic":"NS%T"' in status.body
        assert received.body.count(b'"topic":"NS%T"') == 2  # the queue, the subscription
        assert b'"topic":"T"' not in received.body
        body = b'{"offsetTable":{' + str(name).replace("'", '"').encode() + b":2}}"
        for connection in cluster.broker.connections:
            ext = {**asked, "timestamp": "0", "isForce": "true"}
            await connection.write(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body))
        with anyio.fail_after(PATIENCE_SECONDS):
            assert [(await anext(messages)).body for _ in range(2)] == [b"2", b"3"]
        await messages.commit()


async def test_a_5x_namespace_is_sent_and_signed_with_each_request(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, namespace_v2="NS", access_key="a", secret_key="b") as client,
        client.producer("p") as producer,
    ):
        result = await producer.send("T", b"1")
        assert result.queue.topic == "T"
        (request,) = cluster.broker.seen(RequestCode.SEND_MESSAGE_V2)
        assert (request.ext["nsd"], request.ext["ns"], request.ext["b"]) == ("true", "NS", "T")
        assert request.ext["Signature"] == make_signature(request.ext, request.body, "b")
        (route,) = [
            one for one in cluster.nameserver.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC) if one.ext["topic"] == "T"
        ]
        assert route.ext["ns"] == "NS"


def topic_of(messages: list[DeliveredRecord]) -> set[str]:
    return {message.topic for message in messages}


@pytest.mark.twins
async def test_a_client_is_limited_to_its_namespace(cluster: str, namespace: str) -> None:
    async with (
        gantrymq.connect(cluster, namespace=namespace) as client,
        gantrymq.connect(cluster) as plain,
        client.producer("p") as producer,
    ):
        await client.admin.create_topic("T", queues=2)
        assert f"{namespace}%T" in await plain.admin.topics()
        first = await producer.send("T", b"0", keys="k")
        await producer.send("T", b"1", queue=lambda queues: queues[1])
        await producer.send("T", b"2", queue=first.queue)
        batch = await producer.send_batch([Message("T", b"3"), Message("T", b"4")])
        deliveries = [await producer.enqueue("T", b"%d" % number) for number in (5, 6)]
        results = [first, *batch, *[await delivery for delivery in deliveries]]
        assert {result.queue.topic for result in results} == {"T"}
        assert {queue.topic for queue in await producer.queues("T")} == {"T"}

        async with client.consumer("T", "g", start="first", tags="*") as messages:
            bodies, again = set(), None
            with anyio.fail_after(PATIENCE_SECONDS):
                while len(bodies) < 7:
                    message = await anext(messages)
                    assert message.topic == "T"
                    if message.body == b"0" and message.reconsume_times == 0:
                        await message.retry(1)
                        continue
                    again = message if message.reconsume_times else again
                    bodies.add(message.body)
                    await message.ack()
                assert again is not None
                assert again.queue.topic == f"%RETRY%{namespace}%g"
            dead = await producer.send("T", b"poison")
            with anyio.fail_after(PATIENCE_SECONDS):
                await (await anext(messages)).retry(-1)
            await messages.commit()
            assert {queue.topic for queue in messages.queues} == {"T"}
            for queue in messages.queues:
                real = MessageQueue(topic=f"{namespace}%T", broker_name=queue.broker_name, queue_id=queue.queue_id)
                committed = await plain.admin.consumer_offset(f"{namespace}%g", real)
                assert committed == await client.admin.consumer_offset("g", queue)
        with anyio.fail_after(PATIENCE_SECONDS):
            await wait_routed(client, "%DLQ%g")
            async with client.reader("%DLQ%g") as reader:
                assert (await anext(reader)).body == b"poison"
            async with plain.reader(f"{namespace}%T", until="end") as reader:
                everything = [message async for message in reader]
            async with client.reader("T", until="end", group="g") as reader:
                assert [message async for message in reader] == []
                await reader.seek_to_beginning()
                assert topic_of([message async for message in reader]) == {"T"}
        assert len(everything) == 8
        assert topic_of(everything) == {f"{namespace}%T"}
        with anyio.fail_after(PATIENCE_SECONDS):
            while not await client.admin.find_by_id("T", dead.message_id):  # noqa: ASYNC110 - the index comes later
                await anyio.sleep(0.05)
        (found,) = await client.admin.find("T", "k")
        assert found.body == b"0"
        assert await client.admin.message_at(first.queue, first.queue_offset)
        with pytest.raises(gantrymq.NoRoute):
            await plain.admin.route("T")


@pytest.mark.twins
async def test_transactions_and_requests_use_their_namespace(cluster: str, namespace: str) -> None:
    asked: list[tuple[str, bytes]] = []

    def check(half: DeliveredRecord) -> Outcome:
        asked.append((half.topic, half.body))
        return Outcome.COMMIT

    async with gantrymq.connect(cluster, namespace=namespace) as client:
        await client.admin.create_topic("T", queues=1)
        async with (
            client.transactional_producer("payers", check=check, local=lambda *_: Outcome.UNKNOWN) as payer,
            client.consumer("T", "g", start="first") as messages,
            client.producer("askers") as asker,
        ):
            await payer.send("T", b"now", local=lambda *_: Outcome.COMMIT)
            await payer.send("T", b"later")
            with anyio.fail_after(PATIENCE_SECONDS):
                bodies = []
                while b"later" not in bodies:
                    message = await anext(messages)
                    assert message.topic == "T"
                    bodies.append(message.body)
                    await message.ack()
            assert set(bodies) == {b"now", b"later"}
            assert ("T", b"later") in asked
            # 5.x brokers record ends of transactions with a delay, so they can ask about one that has ended and commit
            # it twice
            assert bodies.count(b"now") == 1 or ("T", b"now") in asked

            async with anyio.create_task_group() as tasks:

                async def answer() -> None:
                    while (question := await anext(messages)).body in (b"now", b"later"):
                        await question.ack()
                    await question.reply(question.body[::-1])
                    await question.ack()

                tasks.start_soon(answer)
                reply = await asker.request("T", b"abc", timeout=PATIENCE_SECONDS)
            assert reply.body == b"cba"


@pytest.mark.twins
def test_the_blocking_client_supports_namespaces(cluster: str, namespace: str) -> None:
    with gantrymq.sync.connect(cluster, namespace=namespace) as client:
        client.admin.create_topic("T", queues=1)
        with client.producer() as producer:
            assert producer.send("T", b"x").queue.topic == "T"
        with client.consumer("T", "g", start="first", ordered=True) as messages:
            message = next(messages)
            assert (message.topic, message.body) == ("T", b"x")
            message.ack()
