"""Sending: round robin over queues, retries on other brokers, timeouts, batches, wire format."""

from __future__ import annotations

import random
import re
import struct
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq import Message, MessageQueue, SendStatus
from gantrymq.client import sender
from gantrymq.remoting.command import Command
from gantrymq.remoting.properties import decode_properties
from support.batches import rows_of

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


def refuse(code: int) -> Callable[[Command], Command]:
    return lambda request: request.answer(code, "not now")


async def silent(request: Command) -> None:
    await anyio.sleep_forever()


async def test_a_message_is_sent_with_all_its_fields(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer("senders") as producer,
    ):
        result = await producer.send("T", b"body", tags="a", keys=["k1", "k2"], properties={"color": "grün"})
        (request,) = cluster.broker.seen(310)
    properties = decode_properties(request.ext["i"])
    assert properties == {"color": "grün", "KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": result.message_id}
    assert request.body == b"body"
    assert {name: request.ext[name] for name in "abcdefhjkm"} == {
        "a": "senders", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0", "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip
    assert result.status is SendStatus.OK
    assert (result.offset_message_id, result.queue_offset) == ("ID0", 0)
    assert result.queue == MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


async def test_sends_rotate_over_queues_of_all_brokers(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=3) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=60) as producer,
    ):
        queues = [(await producer.send("T", b"x")).queue for _ in range(12)]
        assert await producer.queues("T") == sorted(set(queues))
    assert len(set(queues[:6])) == 6
    assert queues[:6] == queues[6:]


async def test_many_tasks_send_at_once_and_each_gets_its_own_result(fake_cluster: Cluster) -> None:
    results: dict[int, gantrymq.SendResult] = {}
    async with (
        fake_cluster(brokers=2, T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):

        async def send(number: int) -> None:
            results[number] = await producer.send("T", b"%d" % number)

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(send, number)
        for number, result in results.items():
            broker = next(one for one in cluster.brokers if one.name == result.queue.broker_name)
            record = broker.queues["T", result.queue.queue_id][result.queue_offset]
            assert b"%d" % number in record
            assert result.message_id.encode() in record
        assert len({result.message_id for result in results.values()}) == 200
        assert len(cluster.broker.connections) == 1


@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205])
async def test_a_retryable_refusal_is_retried_on_another_broker(fake_cluster: Cluster, code: int) -> None:
    async with (
        fake_cluster(brokers=2, T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        cluster.brokers[0].answers[310] = refuse(code)
        queues = [(await producer.send("T", b"x")).queue.broker_name for _ in range(4)]
        assert queues == ["broker-b"] * 4


async def test_a_master_with_a_new_address_is_found_by_the_next_attempt(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        there, cluster.broker.address = cluster.broker.address, "127.0.0.1:1"
        assert await producer.queues("T")
        cluster.broker.address = there
        asked = len(cluster.nameserver.seen(105))
        results = [await producer.send("T", b"x") for _ in range(3)]
        assert len(results) == len(cluster.broker.seen(310)) == 3
        assert len(cluster.nameserver.seen(105)) == asked + 1


async def test_a_refusing_master_causes_a_route_refresh(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        assert await producer.queues("T")
        asked = len(cluster.nameserver.seen(105))
        refusal = refuse(14)

        def refuse_once(request: Command) -> Any:
            del cluster.broker.answers[310]
            return refusal(request)

        cluster.broker.answers[310] = refuse_once
        await producer.send("T", b"x")
        assert len(cluster.nameserver.seen(105)) == asked + 1


async def test_an_unreachable_master_does_not_cause_a_route_query_for_each_attempt(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        cluster.broker.address = "127.0.0.1:1"
        assert await producer.queues("T")
        asked = len(cluster.nameserver.seen(105))
        with pytest.raises(gantrymq.ConnectError):
            await producer.send("T", b"x", timeout=1)
        assert asked < len(cluster.nameserver.seen(105)) < asked + 4


@pytest.mark.slow
async def test_a_busy_broker_is_asked_again_until_the_timeout(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        free, busy = cluster.brokers
        busy.answers[310] = refuse(2)
        for _ in range(4):
            await producer.send("T", b"x", timeout=60)
        assert len(free.seen(310)) == 4, "the other broker takes what the busy one refuses"
        free.answers[310] = refuse(2)
        with pytest.raises(gantrymq.BrokerError, match="answered 2 SYSTEM_BUSY: not now"):
            await producer.send("T", b"x", timeout=3)
        assert len(free.seen(310)) + len(busy.seen(310)) > 4 + 3, "more than the attempts that count"


async def refuse_slowly(request: Command) -> Command:
    await anyio.sleep(3)
    return refuse(2)(request)


@pytest.mark.slow
async def test_a_refusal_is_reported_if_no_further_answer_would_come_in_time(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        await producer.send("T", b"x")
        cluster.broker.answers[310] = refuse_slowly
        with pytest.raises(gantrymq.BrokerError, match="answered 2 SYSTEM_BUSY: not now"):
            await producer.send("T", b"x", timeout=5)


@pytest.mark.slow
async def test_a_slow_connection_does_not_keep_a_busy_broker_from_a_second_attempt(fake_cluster: Cluster) -> None:
    async def accept_slowly(request: Command) -> Command:
        await anyio.sleep(3)
        return request.answer(0)

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        broker = cluster.broker

        def refuse_once(request: Command) -> Command:
            del broker.answers[310]
            return refuse(2)(request)

        broker.answers |= {34: accept_slowly, 310: refuse_once}
        await producer.send("T", b"x", timeout=5)
        assert len(broker.seen(310)) == 2


@pytest.mark.slow
async def test_a_slow_refusal_leaves_an_attempt_for_another_broker(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(retries=0) as producer,
    ):

        async def refuse_the_first(request: Command) -> Command:
            for broker in cluster.brokers:
                del broker.answers[310]
            return await refuse_slowly(request)

        for broker in cluster.brokers:
            broker.answers[310] = refuse_the_first
        await producer.send("T", b"x", timeout=5)
        assert [len(broker.seen(310)) for broker in cluster.brokers] == [1, 1]


async def test_an_outage_of_a_broker_has_one_line_at_its_begin_and_one_at_its_end(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        (broker,) = cluster.brokers
        await producer.send("T", b"x", timeout=30)  # opens the connection
        opened = len(broker.seen(310))
        broker.answers[310] = refuse(2)
        for _ in range(2):
            with pytest.raises(gantrymq.BrokerError):
                await producer.send("T", b"x", timeout=0.3)
        refused = len(broker.seen(310)) - opened
        del broker.answers[310]
        for _ in range(2):
            await producer.send("T", b"x")
    lines = [record.getMessage() for record in caplog.records if "broker=" in record.getMessage()]
    first, last = lines
    assert "send_failed" in first
    assert "outage_ended" in last
    assert "of='send_failed'" in last
    counted = re.search(r"failures=(\d+)", last)
    assert counted
    # each of the two sends may have reached its deadline before it got the last refusal
    assert refused - 2 <= int(counted[1]) <= refused


@pytest.mark.parametrize("code", [3, 13, 26])
async def test_other_refusals_are_raised_at_once(fake_cluster: Cluster, code: int) -> None:
    async with (
        fake_cluster(brokers=2, T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        for broker in cluster.brokers:
            broker.answers[310] = refuse(code)
        with pytest.raises(gantrymq.BrokerError, match=rf"127.0.0.1:\d+ answered {code} .*: not now") as caught:
            await producer.send("T", b"x")
        assert (caught.value.code, caught.value.remark) == (code, "not now")
        assert caught.value.address in [broker.address for broker in cluster.brokers]
        assert sum(len(broker.seen(310)) for broker in cluster.brokers) == 1


async def test_after_three_attempts_the_last_error_is_raised(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        cluster.broker.answers[310] = refuse(1)
        with pytest.raises(gantrymq.BrokerError):
            await producer.send("T", b"x")
        first, second, third = cluster.broker.seen(310)
        assert first.ext["i"] == second.ext["i"] == third.ext["i"]  # one message, one id, however often it is sent
        assert len({request.ext["e"] for request in (first, second, third)}) == 3


async def test_retries_can_be_disabled(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(retries=0) as producer,
    ):
        cluster.broker.answers[310] = refuse(1)
        with pytest.raises(gantrymq.BrokerError):
            await producer.send("T", b"x")
        assert len(cluster.broker.seen(310)) == 1


async def test_a_send_whose_connection_closes_is_retried_on_another_broker(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):

        async def hang_up(request: Command) -> None:
            for connection in cluster.brokers[0].connections:
                await connection.stream.aclose()

        cluster.brokers[0].answers[310] = hang_up
        for _ in range(2):
            assert (await producer.send("T", b"x")).queue.broker_name == "broker-b"


async def test_a_send_to_an_unreachable_broker_is_retried_on_another_one(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        cluster.brokers[0].address = "127.0.0.1:1"
        for _ in range(2):
            assert (await producer.send("T", b"x")).queue.broker_name == "broker-b"


@pytest.mark.slow
async def test_a_missing_response_is_a_send_timeout_that_explains_possible_outcomes(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=2) as producer,
    ):
        cluster.broker.answers[310] = silent
        with pytest.raises(
            gantrymq.SendTimeout, match=r"broker-a .* T within 2 s: it may be stored all the same"
        ) as caught:
            await producer.send("T", b"x")
        assert cluster.broker.address in str(caught.value)
        assert len(cluster.broker.seen(310)) == 1
        with pytest.raises(gantrymq.SendTimeout, match=r"within 0.01 s"):
            await producer.send("T", b"x", timeout=0.01)


async def test_a_message_is_not_sent_when_no_time_is_left_for_its_response(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        await producer.send("T", b"x")
        with pytest.raises(gantrymq.SendTimeout, match="not sent to broker broker-a within 0 s: no time") as caught:
            await producer.send("T", b"y", timeout=0)
        assert "may be stored" not in str(caught.value)
        assert len(cluster.broker.seen(310)) == 1


async def test_a_send_without_a_response_refreshes_the_route(fake_cluster: Cluster) -> None:
    """Many sends wait for a hanging master: none uses it again while one requests the route."""
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=0.5, retries=0) as producer,
    ):
        await producer.send("T", b"x", timeout=30)
        before = len(cluster.nameserver.seen(105))
        cluster.broker.answers = {310: silent, 320: silent}

        async def time_out() -> None:
            with pytest.raises(gantrymq.SendTimeout):
                await producer.send("T", b"x")

        async with anyio.create_task_group() as senders:
            for _ in range(5):
                senders.start_soon(time_out)
        asked = len(cluster.nameserver.seen(105))
        assert asked <= before + 1, "no sender asks; the client does once if the broker is silent for long"
        cluster.broker.answers = {}
        async with anyio.create_task_group() as senders:
            for _ in range(5):
                senders.start_soon(partial(producer.send, "T", b"x", timeout=30))
        assert len(cluster.nameserver.seen(105)) == asked + 1
        await producer.send("T", b"x", timeout=30)
        assert len(cluster.nameserver.seen(105)) == asked + 1, "it has answered since"


async def test_a_nameserver_that_hangs_does_not_stop_the_sends_after_one_without_a_response(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "RENEW_WAIT_S", 0.5)
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=2.5) as producer,
    ):
        hanging, healthy = await producer.queues("T")
        for queue in (hanging, healthy):
            await producer.send("T", b"before", queue=queue, timeout=30)
        cluster.brokers[0].answers = {310: silent, 320: silent, 34: silent}
        cluster.nameserver.answers[105] = silent
        with pytest.raises(gantrymq.SendTimeout, match="may be stored all the same"):
            await producer.send("T", b"x", queue=hanging, timeout=1)
        assert (await producer.send("T", b"x", queue=healthy)).queue == healthy


@pytest.mark.parametrize("failure", ["unreachable", "refuses"])
async def test_a_nameserver_that_hangs_leaves_a_send_time_for_another_broker(
    fake_cluster: Cluster, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "RENEW_WAIT_S", 0.5)
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=2.5) as producer,
    ):
        if failure == "unreachable":
            cluster.brokers[0].address = "127.0.0.1:1"
        cluster.brokers[0].answers[310] = refuse(14)
        assert await producer.queues("T")
        cluster.nameserver.answers[105] = silent
        for _ in range(2):  # one of them begins with the broker that fails
            assert (await producer.send("T", b"x")).queue.broker_name == "broker-b"


async def test_a_nameserver_that_does_not_answer_is_a_send_timeout(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=0.05) as producer,
    ):
        cluster.nameserver.answers[105] = silent
        with pytest.raises(gantrymq.SendTimeout, match=r"no nameserver returned a route of 'T' within 0\.05 s"):
            await producer.send("T", b"x")


@pytest.mark.parametrize(
    ("code", "status"), [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")]
)
async def test_an_unmet_guarantee_is_a_status_and_not_an_error(fake_cluster: Cluster, code: int, status: str) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        ext = {"msgId": "X", "queueId": "0", "queueOffset": "5"}
        cluster.broker.answers[310] = lambda request: request.answer(code, ext=ext)
        result = await producer.send("T", b"x")
        assert (result.status.name, result.queue_offset) == (status, 5)


async def test_an_unreadable_response_is_reported_with_its_address(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        cluster.broker.answers[310] = lambda request: request.answer(0)
        with pytest.raises(gantrymq.BadResponse, match=rf"{cluster.broker.address} answered what cannot be read"):
            await producer.send("T", b"x")


async def test_a_queue_can_be_given_or_picked_and_then_there_is_one_attempt(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        wanted = MessageQueue(topic="T", broker_name="broker-b", queue_id=2)
        assert (await producer.send("T", b"x", queue=wanted)).queue == wanted
        picked = [
            (await producer.send("T", b"x", queue=lambda queues: queues[7 % len(queues)])).queue for _ in range(3)
        ]
        assert picked == [MessageQueue(topic="T", broker_name="broker-b", queue_id=3)] * 3
        for broker in cluster.brokers:
            broker.answers[310] = refuse(1)
            broker.requests.clear()
        with pytest.raises(gantrymq.BrokerError):
            await producer.send("T", b"x", queue=wanted)
        assert sum(len(broker.seen(310)) for broker in cluster.brokers) == 1


async def test_large_bodies_are_compressed_and_small_or_dense_ones_are_not(fake_cluster: Cluster) -> None:
    dense = zlib.compress(bytes(range(256)) * 100, 9) * 10
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        for body in (b"x" * 4095, b"x" * 4096, b"x" * 300_000, zlib.compress(dense, 9)[:100] * 1 + dense[:1]):
            await producer.send("T", body)
        small, large, larger, tiny = cluster.broker.seen(310)
    assert (small.body, small.ext["f"]) == (b"x" * 4095, "0")
    assert large.body[:2] == b"\x78\x5e"
    assert (zlib.decompress(large.body), large.ext["f"]) == (b"x" * 4096, "1")
    assert (zlib.decompress(larger.body), larger.ext["f"]) == (b"x" * 300_000, "1")
    assert tiny.ext["f"] == "0"


async def test_a_batch_is_one_request_and_has_a_result_for_each_message(fake_cluster: Cluster) -> None:
    messages = [Message("T", b"%d" % number, tags="t", keys=(f"k{number}",)) for number in range(3)]
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        results = await producer.send_batch(messages)
        again = await producer.send_batch(messages)
        first, _ = cluster.broker.seen(320)
    assert [result.queue_offset for result in results + again] == [0, 1, 2, 3, 4, 5]
    assert [result.offset_message_id for result in results] == ["ID0", "ID1", "ID2"]
    assert len({result.message_id for result in results + again}) == 6
    assert (first.ext["m"], first.ext["i"]) == ("true", "")
    properties = f"KEYS\x01k0\x02TAGS\x01t\x02UNIQ_KEY\x01{results[0].message_id}".encode()
    size = 20 + 1 + 2 + len(properties)
    row = struct.pack(">iiiii", size, 0, 0, 0, 1) + b"0" + struct.pack(">h", len(properties)) + properties
    assert first.body.startswith(row)


async def test_a_batch_of_incompatible_messages_is_rejected_before_sending(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        with pytest.raises(gantrymq.InvalidMessage, match="at least one message"):
            await producer.send_batch([])
        with pytest.raises(gantrymq.InvalidMessage, match="one topic, not both T and U"):
            await producer.send_batch([Message("T", b"x"), Message("U", b"x")])
        with pytest.raises(gantrymq.InvalidMessage, match="a delayed message cannot go in a batch"):
            await producer.send_batch([Message("T", b"x"), Message("T", b"x", delay_level=1)])
        assert not cluster.broker.requests


async def test_a_oneway_message_is_sent_without_waiting(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        cluster.broker.answers[310] = silent
        await producer.send_oneway("T", b"x", tags="a")
        (request,) = await cluster.broker.wait_for(310)
        assert request.is_oneway


async def test_an_unknown_topic_is_sent_to_brokers_that_create_topics(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(TBW102=8) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        queues = {(await producer.send("New", b"x")).queue.queue_id for _ in range(8)}
        assert queues == {0, 1, 2, 3}
        assert cluster.nameserver.seen(105)[0].ext == {"topic": "New", "acceptStandardJsonOnly": "true"}


async def test_a_missing_route_is_reported_with_what_to_do(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(Other=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        with pytest.raises(
            gantrymq.NoRoute, match=rf"no route to topic T: nameservers {cluster.address} .*topic create T"
        ):
            await producer.send("T", b"x")


async def test_a_topic_without_a_writable_queue_has_no_route(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        cluster.nameserver.perm = 4
        with pytest.raises(gantrymq.NoRoute, match="T has no writable queue"):
            await producer.send("T", b"x")
        cluster.nameserver.perm = 6
        await producer.send("T", b"x")


async def test_invalid_messages_are_rejected_before_any_request(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        with pytest.raises(gantrymq.InvalidMessage, match="empty"):
            await producer.send("T", b"")
        with pytest.raises(gantrymq.InvalidMessage, match="needs a body"):
            await producer.send("T")
        with pytest.raises(gantrymq.InvalidMessage, match="not both"):
            await producer.send(Message("T", b"x"), tags="a")
        for option in ({"tags": 0}, {"tags": ""}, {"keys": 0}, {"keys": [7]}, {"properties": {"attempt": 0}}):
            for send in (producer.send, producer.enqueue, producer.send_oneway):
                with pytest.raises(gantrymq.InvalidMessage, match=r"give a str|has no value"):
                    await send("T", b"x", **option)  # type: ignore[arg-type]
        with pytest.raises(gantrymq.InvalidMessage, match="or a Message, not bytes"):
            await producer.send_batch([b"x", b"y"])  # type: ignore[list-item]
        with pytest.raises(gantrymq.InvalidName):
            await producer.send("../x", b"x")
        with pytest.raises(gantrymq.InvalidMessage):
            await producer.send_oneway("T", b"")
        assert not cluster.broker.requests
        assert not cluster.nameserver.requests


async def test_a_producer_registers_and_unregisters_with_the_broker(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.producer("senders") as producer:
            await producer.send("T", b"x")
            (beat,) = cluster.broker.seen(34)
            assert b'"producerDataSet":[{"groupName":"senders"}]' in beat.body
        (farewell,) = cluster.broker.seen(35)
        assert farewell.ext == {"clientID": client.client_id, "producerGroup": "senders"}


async def test_a_producer_cannot_be_used_after_its_block(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        async with gantrymq.connect(cluster.address) as client:
            async with client.producer("g") as producer:
                pass
            with pytest.raises(gantrymq.ClientClosed, match="producer of group g is closed"):
                await producer.send("T", b"x")
            with pytest.raises(gantrymq.ClientClosed):
                await producer.send_batch([Message("T", b"x")])
            with pytest.raises(gantrymq.ClientClosed):
                await producer.send_oneway("T", b"x")
        with pytest.raises(gantrymq.ClientClosed, match="client is closed"):
            async with client.producer("g"):
                pytest.fail("a closed client opens nothing")


async def test_a_cancelled_send_leaves_the_producer_usable(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        cluster.broker.answers[310] = silent
        with anyio.move_on_after(0.02):
            await producer.send("T", b"x")
        del cluster.broker.answers[310]
        assert (await producer.send("T", b"y")).status is SendStatus.OK


@pytest.mark.slow
async def test_sends_beyond_the_limit_wait_before_their_timeout_starts(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.sender.IN_FLIGHT_MAX_MESSAGES", 10)
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        working = most = 0

        async def slow(request: Any) -> Any:
            nonlocal working, most
            messages = len(rows_of(request))
            working += messages
            most = max(most, working)
            await anyio.sleep(0.2)
            working -= messages
            if request.code == 310:
                return cluster.broker.on_send_message_v2(request)
            return cluster.broker.on_send_batch_message(request)

        cluster.broker.answers = {310: slow, 320: slow}
        async with client.producer(timeout=3) as producer:
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for number in range(200):  # four seconds of work
                        tasks.start_soon(producer.send, "T", b"%d" % number)
            assert most == 10
            with anyio.move_on_after(0.01):
                async with anyio.create_task_group() as tasks:
                    for _ in range(40):
                        tasks.start_soon(producer.send, "T", b"cancelled")
            await producer.send("T", b"there is room again")


async def test_large_messages_are_limited_by_their_bytes(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        enough = anyio.Event()

        async def hold(request: Any) -> Any:
            await enough.wait()
            return cluster.broker.on_send_message_v2(request)

        cluster.broker.answers[310] = hold
        body = random.Random(1).randbytes(3 * 1024 * 1024)
        async with client.producer(timeout=60) as producer, anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(producer.send, "T", body)
            await cluster.broker.wait_for(310, 2)
            await anyio.sleep(0.2)
            assert len(cluster.broker.seen(310)) == 2
            enough.set()
        assert len(cluster.broker.seen(310)) == 5


@pytest.mark.slow
async def test_a_blocked_event_loop_causes_no_timeout(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.producer(timeout=2) as producer:
            await producer.send("T", b"x")

            async def block() -> None:
                await cluster.broker.wait_for(310, 2)
                time.sleep(2.5)  # noqa: ASYNC251 - what a careless application does

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(block)
                tasks.start_soon(producer.send, "T", b"y")


async def test_slow_task_starts_cause_no_timeout(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.producer(timeout=1.0) as producer, anyio.create_task_group() as tasks:

            async def send() -> None:
                time.sleep(0.1)  # noqa: ASYNC251 - in place of thousands of tasks
                await producer.send("T", b"x")

            for _ in range(16):
                tasks.start_soon(send)
        assert len(cluster.broker.queues["T", 0]) == 16


@pytest.mark.slow
async def test_a_restart_of_a_broker_loses_no_message(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        address = cluster.broker.address
        cluster.broker.address = "127.0.0.1:1"  # nothing listens there
        async with client.producer(retries=0) as producer, anyio.create_task_group() as tasks:
            (queue,) = await producer.queues("T")
            tasks.start_soon(producer.send, "T", b"x")
            tasks.start_soon(lambda: producer.send("T", b"y", queue=queue))
            await anyio.sleep(0.7)
            cluster.broker.address = address
        assert len(cluster.broker.queues["T", 0]) == 2
        cluster.broker.address = "127.0.0.1:1"
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.address = "127.0.0.1:1"
        async with client.producer(timeout=0.5) as producer:
            began = anyio.current_time()
            with pytest.raises(gantrymq.ConnectFailed, match="nothing listens there"):  # so nothing is stored
                await producer.send("T", b"x")
            assert anyio.current_time() - began >= 0.45


async def test_a_stopped_broker_of_two_is_avoided(fake_cluster: Cluster) -> None:
    async with fake_cluster(brokers=2, T=4) as cluster, gantrymq.connect(cluster.address) as client:
        stopped, alive = cluster.brokers

        async def never(request: Any) -> Any:
            await anyio.sleep_forever()

        async with client.producer(timeout=1.5) as producer:
            for _ in range(16):
                await producer.send("T", b"before")
            assert stopped.seen(310)
            assert alive.seen(310)
            before = len(stopped.seen(310))
            stopped.answers = {310: never, 34: never}
            began = anyio.current_time()
            for _ in range(40):
                await producer.send("T", b"now")
            seconds = anyio.current_time() - began
            tries = len(stopped.seen(310)) - before
            assert 1 <= tries <= 1 + seconds  # not each second message
            stopped.answers = {}
            with anyio.fail_after(30):
                while len(stopped.seen(310)) < before + tries + 3:  # it is tried again, and used again
                    await producer.send("T", b"after")
                    await anyio.sleep(0.01)
