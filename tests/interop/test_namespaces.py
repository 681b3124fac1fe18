"""A Python client in a namespace shares topics and groups with Java clients that have the names with the prefix.

RocketMQ's Java clients put the prefix before a name themselves; at a broker it is the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gantrymq.sync
from support.clients import ForeignClient
from support.foreign import create_topic, is_routed
from support.processes import wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]


@pytest.mark.parametrize("library", ["java4_client", "java5_client"])
def test_java_and_python_members_share_a_group_of_a_namespace(
    library: str, system: Any, names: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    java: ForeignClient = request.getfixturevalue(library)
    topic, group = names("t"), names("g")
    create_topic(system.broker, f"NS%{topic}")
    wait_for(lambda: is_routed(system.nameserver, f"NS%{topic}"))
    with (
        gantrymq.sync.connect(system.nameserver, namespace="NS") as client,
        client.consumer(topic, group, start="first") as messages,
        java.consumer(system.nameserver, f"NS%{topic}", f"NS%{group}") as member,
    ):
        wait_for(lambda: 0 < len(messages.queues) < len(client.admin.queues(topic)))
        java.produce(system.nameserver, f"NS%{topic}", 20)
        with client.producer(names("p")) as producer:
            for number in range(20):
                assert producer.send(topic, b"x", properties={"index": str(number + 20)}).queue.topic == topic
        ours: list[gantrymq.sync.ReceivedMessage] = []

        def have_all() -> bool:
            for message in messages.next_batch(timeout=0.1):
                ours.append(message)
                message.ack()
            member.poll(0.05)
            return len(ours) + len(member.messages) >= 40

        wait_for(have_all, 60)
        assert {message.topic for message in ours} == {topic}
        indexes = [int(message.properties["index"]) for message in ours]
        assert sorted(indexes + [message.index for message in member.messages]) == list(range(40))
        assert ours
        assert member.messages
