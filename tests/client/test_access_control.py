"""Clients with credentials: every request is signed, and a refusal reaches the application at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

import gantrymq
import gantrymq.sync
from gantrymq import Message
from gantrymq.client.errors import broker_error
from gantrymq.remoting.bodies.clients import HeartbeatData
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.signing import make_signature

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
KEYS = {"access_key": "worker", "secret_key": "hush-hush", "security_token": "tok-en"}
WRONG_KEY = "org.apache.rocketmq.acl.common.AclException: No acl config for worker, org.apache.rocketmq.acl.plain"
WRONG_SECRET = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=worker, org.apache"
NO_PERMISSION = "org.apache.rocketmq.acl.common.AclException: No default permission for T, org.apache.rocketmq.acl"


def refuse(remark: str, code: int = 1) -> Callable[[Command], Command]:
    return lambda request: request.answer(code, remark)


def assert_signed(request: Command) -> None:
    ext = dict(request.ext or {})
    assert (ext["AccessKey"], ext["SecurityToken"]) == ("worker", "tok-en")
    signature = ext.pop("Signature")
    ext.pop("_UNIQUE_KEY_QUERY", None)
    assert signature == make_signature(ext, request.body, "hush-hush")


async def test_requests_of_every_kind_are_signed(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address, **KEYS) as client:
        async with client.producer() as producer, client.consumer("T", "g", start="first") as messages:
            await producer.send("T", b"one", properties={"color": "grün"})
            await producer.send_batch([Message("T", b"two"), Message("T", b"three")])
            await producer.send_oneway("T", b"four")
            for _ in range(4):
                await (await anext(messages)).ack()
            await messages.commit()
        cluster.broker.answers[RequestCode.QUERY_MESSAGE] = lambda request: request.answer(22, "nothing")
        assert await client.admin.find_by_id("T", "0A") == []
        seen = cluster.broker.requests + cluster.nameserver.requests
    for request in seen:
        assert_signed(request)
    assert {310, 320, 11, 34, 35, 38, 15, 12, 105} <= {request.code for request in seen}
    assert any(request.is_oneway for request in seen)


async def test_responses_to_the_broker_are_not_signed(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, **KEYS) as client,
        client.consumer("T", "g"),
    ):
        await cluster.broker.connections[0].write(Command(307, {"consumerGroup": "none", "clientId": "c"}, opaque=5))
        with anyio.fail_after(20):
            while not (found := [each for each in cluster.broker.requests if each.is_response]):
                await cluster.broker.changed.wait()
    assert found[0].ext is None


@pytest.mark.parametrize(
    ("code", "remark", "error"),
    [
        (1, WRONG_KEY, gantrymq.AuthenticationFailed),
        (1, WRONG_SECRET, gantrymq.AuthenticationFailed),
        (1, NO_PERMISSION, gantrymq.AccessDenied),
        (16, "check signature failed.", gantrymq.AuthenticationFailed),
        (16, "User:worker is not found.", gantrymq.AuthenticationFailed),
        (
            16,
            "User:worker has no permission to access Topic:T from 1.2.3.4, no policies",
            gantrymq.AccessDenied,
        ),
    ],
)
async def test_an_unauthorized_send_is_not_retried(fake_cluster: Cluster, code: int, remark: str, error: type) -> None:
    async with fake_cluster(brokers=2, T=1) as cluster:
        for broker in cluster.brokers:
            broker.answers[RequestCode.SEND_MESSAGE_V2] = refuse(remark, code)
        async with gantrymq.connect(cluster.address, **KEYS) as client, client.producer() as producer:
            with pytest.raises(gantrymq.AccessDenied, match=r"worker|check signature|default permission") as caught:
                await producer.send("T", b"x")
    assert type(caught.value) is error
    assert sum(len(broker.seen(RequestCode.SEND_MESSAGE_V2)) for broker in cluster.brokers) == 1


async def test_other_refusals_are_retried_on_another_broker(fake_cluster: Cluster) -> None:
    async with fake_cluster(brokers=2, T=1) as cluster:
        cluster.broker.answers[RequestCode.SEND_MESSAGE_V2] = refuse("the broker's sending message is forbidden", 16)
        async with gantrymq.connect(cluster.address, **KEYS) as client, client.producer() as producer:
            for _ in range(2):
                assert (await producer.send("T", b"x")).queue.broker_name == "broker-b"


async def test_an_unauthorized_consumer_fails_at_its_start(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = refuse(WRONG_KEY)
        async with gantrymq.connect(cluster.address, **KEYS) as client:
            with pytest.raises(gantrymq.AuthenticationFailed, match="check access_key and secret_key"):
                async with client.consumer("T", "g"):
                    pass
    assert cluster.broker.seen(RequestCode.PULL_MESSAGE) == []


async def test_a_heartbeat_that_is_refused_fails_only_the_consumer_whose_topic_it_is(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, S=1) as cluster, gantrymq.connect(cluster.address, **KEYS) as client:
        async with client.producer() as producer, client.consumer("T", "g", start="first") as messages:

            def beat(request: Command) -> Command:
                data = HeartbeatData.from_bytes(request.body)
                topics = {each.topic for one in data.consumer_data_set for each in one.subscription_data_set}
                return request.answer(1, NO_PERMISSION) if "S" in topics else cluster.broker.on_heart_beat(request)

            cluster.broker.answers[RequestCode.HEART_BEAT] = beat
            with anyio.fail_after(20), pytest.raises(gantrymq.AccessDenied, match="No default permission"):
                async with client.consumer("S", "other"):
                    pass
            await producer.send("T", b"x")
            assert (await anext(messages)).body == b"x"


async def test_the_first_message_needs_no_permission_for_offset_queries(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address, **KEYS) as client:
        cluster.broker.store("T", 0, b"first")
        cluster.broker.answers[RequestCode.GET_MIN_OFFSET] = refuse(
            "User:worker has no permission to access Topic:T", 16
        )
        with anyio.fail_after(20):
            async with client.consumer("T", "g", start="first") as messages:
                assert (await anext(messages)).body == b"first"


async def test_unauthorized_pulls_end_the_iteration(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address, **KEYS) as client:
        async with client.consumer("T", "g", start="first") as messages:
            cluster.broker.store("T", 0, b"before")
            assert (await anext(messages)).body == b"before"
            cluster.broker.answers[RequestCode.PULL_MESSAGE] = refuse(NO_PERMISSION)
            cluster.broker.store("T", 0, b"wakes the held pulls")
            cluster.broker.store("T", 1, b"as well")
            with anyio.fail_after(20), pytest.raises(gantrymq.AccessDenied, match="No default permission for T"):
                [message async for message in messages]
            with pytest.raises(gantrymq.AccessDenied):
                await messages.next_batch()
            assert "No default permission" in str(messages.statistics().last_error)


async def test_secrets_are_neither_logged_nor_part_of_errors(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        async with fake_cluster(T=1) as cluster:
            for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
                cluster.broker.answers[code] = refuse(WRONG_SECRET)
            async with gantrymq.connect(cluster.address, **KEYS) as client, client.producer() as producer:
                with pytest.raises(gantrymq.AuthenticationFailed) as caught:
                    await producer.send("T", b"x")
                shown = f"{client!r} {vars(client)} {producer!r} {client._cluster.connections!r}"
    for text in (str(logs), caplog.text, repr(caught.value), str(caught.value), shown):
        assert "hush-hush" not in text
        assert "tok-en" not in text


async def test_half_of_the_credentials_is_rejected_before_any_request(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        with pytest.raises(ValueError, match="secret_key is missing"):
            async with gantrymq.connect(cluster.address, access_key="worker"):
                pass
    assert cluster.nameserver.connections == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_blocking_client_signs_requests(fake_in_thread: Any, backend: Any) -> None:
    with gantrymq.sync.connect(fake_in_thread.address, backend=backend, **KEYS) as client:
        with client.producer() as producer, client.consumer("T", "g", start="first") as messages:
            producer.send("T", b"x")
            assert next(messages).body == b"x"
            fake_in_thread.broker.answers[RequestCode.SEND_MESSAGE_V2] = refuse(WRONG_KEY)
            with pytest.raises(gantrymq.AuthenticationFailed):
                producer.send("T", b"x")
    for request in fake_in_thread.broker.requests:
        assert_signed(request)


def test_an_error_with_a_similar_text_is_an_ordinary_error() -> None:
    for code, remark in (
        (1, "disk full"),
        (16, "the topic[T] is forbidden"),
        (2, WRONG_KEY),
        (1, None),
    ):
        assert type(broker_error(Command(code, remark=remark), "b:1")) is gantrymq.BrokerError
