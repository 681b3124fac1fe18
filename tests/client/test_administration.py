"""Requests of administrators to a running consumer, from a scripted broker and from RocketMQ's own mqadmin."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message, MessageQueue
from gantrymq.client.interceptors import Interceptor
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.offsets import ClientStatus, ResetOffsets
from gantrymq.remoting.bodies.running import DirectlyConsumed
from gantrymq.remoting.command import Command
from support.foreign import JAVA_VERSIONS, ToolMissing, cache_folder, find_java
from support.mqadmin import MqAdmin, run_mqadmin

pytestmark = pytest.mark.anyio

INTEROP = Path(__file__).parents[1] / "interop"
GROUP = {"group": "g", "topic": "T", "consumerGroup": "g", "timestamp": "0", "clientId": "c"}


def queue_of(broker: Any, number: int = 0) -> MessageQueue:
    return MessageQueue(topic="T", broker_name=broker.name, queue_id=number)


async def tell(broker: Any, code: int, body: bytes = b"", *, oneway: bool = True, **more: str) -> None:
    for connection in broker.connections:
        await connection.write(Command(code, GROUP | more, body, opaque=9, flag=2 if oneway else 0))


async def ask(broker: Any, code: int, body: bytes = b"", **more: str) -> Command:
    """The client's answer to a request of the broker."""
    await tell(broker, code, body, oneway=False, **more)
    with anyio.fail_after(20):
        while True:
            for request in broker.requests:
                if request.is_response and request.opaque == 9:
                    broker.requests.remove(request)
                    return request
            await broker.changed.wait()


async def test_a_reset_takes_effect_in_a_running_consumer(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for number in range(6):
            broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first") as messages:
            with anyio.fail_after(20):
                got = [await anext(messages) for _ in range(4)]
                table = {queue_of(broker): 1, queue_of(broker, 77): 5}
                await tell(broker, 220, ResetOffsets(table).to_bytes())
                while broker.offsets.get(("g", "T", 0)) != 1:
                    await broker.changed.wait()
                again = [(await anext(messages)) for _ in range(5)]
                assert [message.body for message in again] == [b"1", b"2", b"3", b"4", b"5"]
                for message in got:
                    await message.ack()  # of the time before: does not count
                assert messages.statistics().outstanding == 5
                await again[0].ack()
                await messages.commit()
                assert broker.offsets["g", "T", 0] == 2
                await tell(broker, 220, ResetOffsets({queue_of(broker): 6}).to_bytes())
                while broker.offsets["g", "T", 0] != 6:
                    await broker.changed.wait()
                broker.store("T", 0, b"later")
                assert (await anext(messages)).body == b"later"
                await tell(broker, 220, ResetOffsets({queue_of(broker): 0}).to_bytes(), group="another")
                await tell(broker, 220)


@pytest.mark.slow
async def test_a_failed_offset_reset_is_retried(
    fake_cluster: Callable[..., Any], no_pause: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for number in range(3):
            broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g") as messages:
            refusals = iter(["one", "two"])

            def keep_silent(request: Command) -> Command | None:
                if next(refusals, None) is None:
                    return broker.on_update_consumer_offset(request)
                return None

            broker.answers[15] = keep_silent
            await tell(broker, 220, ResetOffsets({queue_of(broker): 1}).to_bytes())
            with anyio.fail_after(20):
                assert (await anext(messages)).body == b"1"
            assert broker.offsets["g", "T", 0] == 1
            assert messages.statistics().last_error is not None


async def test_administrators_can_query_a_consumers_progress(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for number in range(3):
            broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", tags="*") as messages:
            with anyio.fail_after(20):
                await (await anext(messages)).ack()
            answer = await ask(broker, 221)
            assert ClientStatus.from_bytes(answer.body).queues == [(queue_of(broker), 1)]
            answer = await ask(broker, 307)
            assert b'"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"' in answer.body
            assert b'"commitOffset":1' in answer.body
            assert b"jstack" not in answer.body
            answer = await ask(broker, 307, jstackEnable="true")
            assert b"MainThread" in answer.body
            for code in (221, 307, 309):
                answer = await ask(broker, code, group="other", consumerGroup="other")
                assert (answer.code, "does not consume as group other" in (answer.remark or "")) == (1, True)


async def test_administrators_can_have_a_message_consumed_directly(
    fake_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.direct.RESPONSE_SECONDS", 0.3)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for number in range(3):
            broker.store("T", 0, b"%d" % number)
        record = broker.queues["T", 0][1]
        async with client.consumer("T", "g", start="last") as messages, anyio.create_task_group() as tasks:
            seen: list[gantrymq.ReceivedMessage] = []
            actions = iter(["ack", "retry", "nothing"])

            async def handle() -> None:
                async for message in messages:
                    seen.append(message)
                    action = next(actions)
                    if action == "ack":
                        await message.ack()
                    elif action == "retry":
                        await message.retry()

            tasks.start_soon(handle)
            results = [
                DirectlyConsumed.from_bytes((await ask(broker, 309, record, brokerName=broker.name)).body)
                for _ in range(3)
            ]
            tasks.cancel_scope.cancel()
    assert [message.body for message in seen] == [b"1"] * 3
    assert seen[0].queue == queue_of(broker)
    assert [result.consume_result for result in results] == ["CR_SUCCESS", "CR_LATER", "CR_LATER"]
    assert [result.remark for result in results] == [None, "sent back with retry()", "not acknowledged within 0.3 s"]
    assert not broker.seen(36)
    assert broker.offsets["g", "T", 0] == 3  # as before


@pytest.mark.parametrize("deserializer", [None, "json"])
async def test_a_worker_continues_after_a_direct_message_that_it_cannot_decompress(
    fake_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, deserializer: Any
) -> None:
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    handled: list[bytes] = []

    async def handle(message: gantrymq.ReceivedMessage) -> None:
        handled.append(message.body)

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=[Interceptor()]) as client,
        anyio.create_task_group() as tasks,
    ):
        broker = cluster.broker
        broker.store("T", 0, b"packed", sys_flag=0x101)
        record = broker.queues["T", 0].pop()
        run = partial(client.run, handle, "T", "g", start="first", deserializer=deserializer, signals=False)
        tasks.start_soon(run)
        await broker.wait_for(11)
        result = DirectlyConsumed.from_bytes((await ask(broker, 309, record, brokerName=broker.name)).body)
        assert (result.consume_result, result.remark) == ("CR_LATER", "sent back with retry()")
        broker.store("T", 0, b"1")
        with anyio.fail_after(20):
            while not handled:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert handled == [b"1"]


class ClientOffsetsByMember(Body):
    """Answer to 223, as a reader sees it."""

    consumer_table: dict[str, list[tuple[MessageQueue, int]]] = {}  # noqa: RUF012

    @property
    def queues(self) -> list[tuple[MessageQueue, int]]:
        (found,) = self.consumer_table.values()
        return [each for each in found if not each[0].topic.startswith("%RETRY%")]


@pytest.fixture(scope="module", params=JAVA_VERSIONS)
def admin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    """RocketMQ's tool of each version."""
    try:
        java = find_java(request.param, INTEROP / "java", cache_folder(INTEROP / ".cache"))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    with run_mqadmin(java, tmp_path_factory.mktemp("mqadmin")) as tool:
        yield tool


@pytest.mark.soak(2)
@pytest.mark.interop
@pytest.mark.once
async def test_mqadmin_reaches_a_running_consumer(cluster: str, admin: MqAdmin) -> None:
    async def run(command: str) -> str:
        return await anyio.to_thread.run_sync(lambda: admin.run([*command.split(), "-n", cluster]))

    number = uuid.uuid4().hex
    topic, group = f"T-{number}", f"g-{number}"
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        (queue,) = await client.admin.queues(topic)
        results = await producer.send_batch([Message(topic, b"%d" % each) for each in range(10)], queue=queue)
        async with client.consumer(topic, group, start="first") as messages:
            with anyio.fail_after(120):
                for _ in range(10):
                    await (await anext(messages)).ack()
                await messages.commit()

                said = await run(f"consumerStatus -g {group} -i {client.client_id} -s true")
                assert "CONSUME_PASSIVELY" in said
                assert re.search(rf"{topic}\s+{queue.broker_name}\s+0\s+10\b", said), said
                assert "MainThread" in said
                # the tool has no command for it, but brokers have: 223, which goes on as 221
                channel = await client._cluster.broker(client._cluster.routes.master(queue))
                answer = await channel.call(Command(223, {"topic": topic, "group": group}))
                assert ClientOffsetsByMember.from_bytes(answer.body).queues == [(queue, 10)]

                said = await run(f"resetOffsetByTime -g {group} -t {topic} -s 0 -f true")
                assert "ERROR" not in said, said
                assert [(await anext(messages)).body for _ in range(10)] == [b"%d" % each for each in range(10)]
                assert messages.statistics().outstanding == 10

                async def handle() -> None:
                    message = await anext(messages)
                    assert message.body == b"3"
                    await message.ack()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(handle)
                    wanted = f"-i {results[3].message_id} -t {topic} -g {group} -d {client.client_id}"
                    said = await run(f"queryMsgByUniqueKey {wanted}")
                    assert "CR_SUCCESS" in said, said
                assert messages.statistics().outstanding == 10
