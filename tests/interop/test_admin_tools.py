"""RocketMQ's own ``mqadmin`` 4.9.7 against the system under test, and that of 5.3.3 where it says more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gantrymq.sync
from gantrymq.testing.harness import cluster_in_thread
from support.clients import ForeignClient, check_complete
from support.foreign import Java
from support.mqadmin import KeyedMqAdmin

pytestmark = [pytest.mark.once, pytest.mark.interop, pytest.mark.slow]


def test_topics_made_by_mqadmin_are_listed_routed_and_usable(
    java: Java,
    java4_client: ForeignClient,
    system,
    homes: Callable[[str], Path],
    names: Callable[[str], str],
):
    home, topic = homes("mqadmin"), names("t")
    made = java.mqadmin(
        home, "updateTopic", "-n", system.nameserver, "-b", system.broker, "-t", topic, "-r", "3", "-w", "3"
    )
    assert f"create topic to {system.broker} success" in made

    listed = java.mqadmin(home, "topicList", "-n", system.nameserver)
    assert topic in listed.split()

    route = "".join(java.mqadmin(home, "topicRoute", "-n", system.nameserver, "-t", topic).split())
    assert f'"brokerAddrs":{{0:"{system.broker}"}}' in route.replace('"0"', "0")
    assert '"readQueueNums":3' in route
    assert '"writeQueueNums":3' in route

    sent = java4_client.produce(system.nameserver, topic, 30, seed=21)
    assert {answer.queue_id for answer in sent} == {0, 1, 2}
    check_complete(java4_client.consume_all(system.nameserver, topic, names("g"), 30), 21, range(30))


def test_mqadmin_of_rocketmq_5_moves_one_queue_of_a_group(mqadmin5: KeyedMqAdmin, tmp_path: Path) -> None:
    with cluster_in_thread(tmp_path) as cluster, gantrymq.sync.connect(cluster.nameserver) as client:
        client.admin.create_topic("orders", 2)
        with client.producer() as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number, queue=number % 2)
        with client.consumer("orders", "billing", start="first") as consumer:
            assert {next(consumer).body for _ in range(10)} == {b"%d" % number for number in range(10)}
            consumer.commit()
            at = ("-n", cluster.nameserver, "-b", cluster.address, "-g", "billing", "-t", "orders", "-s", "now")
            said = mqadmin5(None, "resetOffsetByTime", *at, "-q", "1", "-o", "3")
            again = [message.body for message in consumer.next_batch(timeout=60)]
            further = [message.body for message in consumer.next_batch(timeout=3)]
    assert sorted(again + further) == [b"7", b"9"], said


def test_mqadmin_of_rocketmq_5_shows_no_negative_inflight_and_an_active_broker(
    mqadmin5: KeyedMqAdmin, tmp_path: Path
) -> None:
    with cluster_in_thread(tmp_path) as cluster, gantrymq.sync.connect(cluster.nameserver) as client:
        client.admin.create_topic("orders", 1)
        with client.producer() as producer:
            for number in range(5):
                producer.send("orders", b"%d" % number)
        with client.consumer("orders", "billing", start="first") as consumer:
            for _ in range(5):
                next(consumer).ack()
            consumer.commit()
        progress = mqadmin5(None, "consumerProgress", "-n", cluster.nameserver, "-g", "billing")
        brokers = mqadmin5(None, "clusterList", "-n", cluster.nameserver)
    assert "Consume Diff Total: 0\nConsume Inflight Total: 0" in progress
    assert [line.split()[-1] for line in brokers.splitlines() if cluster.address in line] == ["true"]
