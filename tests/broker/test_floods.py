"""Clients that create topics, groups and offsets without end reach a limit, and existing ones keep working."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import Cluster, cluster_in_thread
from gantrymq.testing.requests import pull, send
from support.rawpeer import RawPeer

LIMIT = 50
FLOOD = 300


@pytest.fixture
def flooded(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster in which 50 topics, groups, live groups and offsets are the limit."""
    limits = ("topics.max_topics", "topics.max_groups", "clients.max_groups", "offsets.max_entries")
    settings = {f"plugin.{limit}": str(LIMIT) for limit in limits}
    with cluster_in_thread(tmp_path, settings=settings) as running:
        with RawPeer(running.address) as peer:
            for command in (send("T", b"x"), pull("T", group="mine"), update_offset("mine", 1)):
                answer = peer.ask(command)
                assert answer is not None
                assert answer.code == 0
            yield running
            for command in (send("T", b"y"), pull("T", group="mine"), update_offset("mine", 2)):
                answer = peer.ask(command)
                assert answer is not None
                assert answer.code == 0, "earlier clients continue"


def update_offset(group: str, offset: int, topic: str = "T") -> Command:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def heartbeat(name: str) -> Command:
    wish = SubscriptionData.for_tags("T", "*", 1)
    body = HeartbeatData(name, [ProducerData(name)], [ConsumerData(name, subscription_data_set=[wish])])
    return Command(RequestCode.HEART_BEAT, body=body.to_bytes())


def codes(address: str, commands: list[Command]) -> Counter[int]:
    with RawPeer(address) as peer:
        for number, command in enumerate(commands):
            command.opaque = number
        peer.send(*commands)
        answers = [peer.answer_to(number) for number in range(len(commands))]
    assert None not in answers
    return Counter(answer.code for answer in answers if answer is not None)


def test_a_flood_of_topics_reaches_the_limit(flooded: Cluster) -> None:
    received = codes(flooded.address, [send(f"Flood{number}", b"x") for number in range(FLOOD)])
    assert set(received) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}
    assert received[ResponseCode.SUCCESS] < LIMIT
    with RawPeer(flooded.address) as peer:
        refused = peer.ask(send("One", b"x"))
    assert refused is not None
    assert f"{LIMIT} topics are the limit" in (refused.remark or "")


def test_a_flood_of_groups_reaches_the_limit(flooded: Cluster) -> None:
    received = codes(flooded.address, [pull("T", group=f"flood{number}") for number in range(FLOOD)])
    assert set(received) == {ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
    assert received[ResponseCode.SUCCESS] < LIMIT
    received = codes(flooded.address, [send(f"%RETRY%flood{number}", b"x") for number in range(FLOOD)])
    assert received[ResponseCode.SUCCESS] < LIMIT, "a retry topic needs its group"


def test_a_flood_of_offsets_reaches_the_limit(flooded: Cluster) -> None:
    with RawPeer(flooded.address) as peer:
        for number in range(LIMIT // 2):
            assert peer.ask(send(f"Flood{number}", b"x")) is not None
    groups, topics = range(5), range(LIMIT // 2)
    received = codes(
        flooded.address, [update_offset(f"g{group}", 1, f"Flood{number}") for group in groups for number in topics]
    )
    assert set(received) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}
    assert received[ResponseCode.SUCCESS] == LIMIT - 1


def test_a_flood_of_live_groups_reaches_the_limit_and_ends_with_its_connection(flooded: Cluster) -> None:
    received = codes(flooded.address, [heartbeat(f"flood{number}") for number in range(FLOOD)])
    assert received[ResponseCode.SUCCESS] <= LIMIT
    with RawPeer(flooded.address) as peer:
        answer = peer.ask(heartbeat("mine"))
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS, "the flood's groups went with its connection"
