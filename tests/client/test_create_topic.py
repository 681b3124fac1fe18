"""Creating topics, and changing their number of queues without other changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gantrymq
from gantrymq import BrokerError
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from gantrymq.remoting.command import Command

pytestmark = pytest.mark.anyio

ONE, ALL = RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_ALL_TOPIC_CONFIG
SET = RequestCode.UPDATE_AND_CREATE_TOPIC
DRAINED = TopicConfig("T", 2, 2, PERM_READ, "MULTI_TAG", 1, order=True)


def answering(code: int, body: bytes = b"") -> Callable[[Command], Command]:
    return lambda request: request.answer(code, None if code == 0 else "no", body=body)


def with_change(cluster: Any, topic: str = "T") -> None:
    """The nameserver hears of the change of each broker at once."""

    def change(request: Command) -> Command:
        assert request.ext is not None
        cluster.nameserver.topics[topic] = int(request.ext["readQueueNums"])
        return request.answer(0)

    for broker in cluster.brokers:
        broker.answers[SET] = change


def settings(broker: Any) -> tuple[str, ...]:
    """The settings in the request to the broker: queues, permissions, filter type, flags, order."""
    (request,) = broker.seen(SET)
    names = ("readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag", "order")
    return tuple(request.ext[name] for name in names)


async def test_a_new_topic_is_readable_and_writable(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(brokers=2) as cluster, gantrymq.connect(cluster.address) as client:
        with_change(cluster, "new")
        await client.admin.create_topic("new", 4)
        for broker in cluster.brokers:
            assert settings(broker) == ("4", "4", "6", "SINGLE_TAG", "0", "false")
            assert not broker.seen(ONE), "the nameserver knows no such topic"


async def test_an_existing_topic_keeps_its_other_settings_at_each_broker(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(brokers=3, T=2) as cluster, gantrymq.connect(cluster.address) as client:
        with_change(cluster)
        full, drained, without = cluster.brokers
        full.answers[ONE] = answering(0, TopicConfig("T", 2, 2).to_bytes())
        drained.answers[ONE] = answering(0, DRAINED.to_bytes())
        without.answers[ONE] = answering(ResponseCode.TOPIC_NOT_EXIST)
        await client.admin.create_topic("T", 4)
        assert settings(full) == ("4", "4", "6", "SINGLE_TAG", "0", "false")
        assert settings(drained) == ("4", "4", "4", "MULTI_TAG", "1", "true")
        assert settings(without) == ("4", "4", "6", "SINGLE_TAG", "0", "false")


async def test_given_permissions_replace_those_of_an_existing_topic(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        with_change(cluster)
        cluster.broker.answers[ONE] = answering(0, DRAINED.to_bytes())
        await client.admin.create_topic("T", 4, perm=PERM_READ | PERM_WRITE)
        assert settings(cluster.broker) == ("4", "4", "6", "MULTI_TAG", "1", "true")


@pytest.mark.parametrize("code", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION])
async def test_settings_come_from_the_list_of_all_topics_if_a_broker_refuses_those_of_one(
    fake_cluster: Callable[..., Any], code: ResponseCode
) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        with_change(cluster)
        cluster.broker.answers[ONE] = answering(code)
        table = TopicConfigSerializeWrapper(topic_config_table={"T": DRAINED, "U": TopicConfig("U")})
        cluster.broker.answers[ALL] = answering(0, table.to_bytes())
        await client.admin.create_topic("T", 4)
        assert settings(cluster.broker) == ("4", "4", "4", "MULTI_TAG", "1", "true")


async def test_no_broker_changes_a_topic_whose_settings_one_of_them_refuses(
    fake_cluster: Callable[..., Any],
) -> None:
    async with fake_cluster(brokers=2, T=2) as cluster, gantrymq.connect(cluster.address) as client:
        with_change(cluster)
        cluster.brokers[0].answers[ONE] = answering(0, DRAINED.to_bytes())
        cluster.brokers[1].answers |= dict.fromkeys((ONE, ALL), answering(ResponseCode.NO_PERMISSION))
        with pytest.raises(BrokerError):
            await client.admin.create_topic("T", 4)
        assert not any(broker.seen(SET) for broker in cluster.brokers)


@pytest.mark.parametrize("code", [0, ResponseCode.REQUEST_CODE_NOT_SUPPORTED])
async def test_the_settings_of_a_topic_in_a_namespace_are_those_of_its_real_name(
    fake_cluster: Callable[..., Any], code: int
) -> None:
    async with fake_cluster(**{"eu%T": 2}) as cluster, gantrymq.connect(cluster.address, namespace="eu") as client:
        with_change(cluster, "eu%T")
        cluster.broker.answers[ONE] = answering(code, DRAINED.to_bytes())
        table = TopicConfigSerializeWrapper(topic_config_table={"eu%T": DRAINED, "T": TopicConfig("T")})
        cluster.broker.answers[ALL] = answering(0, table.to_bytes())
        await client.admin.create_topic("T", 4)
        assert settings(cluster.broker)[2] == "4"
        assert cluster.broker.seen(ONE)[0].ext["topic"] == "eu%T"
