"""RocketMQ's own ``mqadmin`` 4.9.7 against the system under test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.clients import ForeignClient, check_complete
from support.foreign import Java

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
