"""Python and Java members of one ordered group process each queue in order."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import gantrymq.sync
from support.clients import ForeignClient

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(240)]


def test_queues_move_between_python_and_java_members_in_order(
    java_client: ForeignClient, system: Any, names: Callable[[str], str]
) -> None:
    topic, group = names("t"), names("g")
    java_client.produce(system.nameserver, topic, 40)
    events: dict[int, list[tuple[int, str]]] = defaultdict(list)
    with gantrymq.sync.connect(system.nameserver) as client:

        def consume(messages: gantrymq.sync.Consumer, seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                for message in messages.next_batch(1, timeout=0.2):
                    events[message.queue.queue_id].append((message.queue_offset, "python"))
                    message.ack()

        with client.consumer(topic, group, start="first", ordered=True) as messages:
            deadline = time.monotonic() + 60
            while len(messages.queues) != 4 or sum(map(len, events.values())) < 40:
                assert time.monotonic() < deadline, messages.queues
                consume(messages, 0.5)
            with java_client.consumer(system.nameserver, topic, group, kind="retry-push", orderly="true") as theirs:
                deadline = time.monotonic() + 60
                while len(messages.queues) != 2 and time.monotonic() < deadline:
                    consume(messages, 0.5)
                java_client.produce(system.nameserver, topic, 40, first=40)
                while sum(map(len, events.values())) + len(theirs.messages) < 80 and time.monotonic() < deadline:
                    consume(messages, 0.5)
                    theirs.poll(0.1)
                received = theirs.close()
            java_client.produce(system.nameserver, topic, 40, first=80)
            deadline = time.monotonic() + 60
            while sum(map(len, events.values())) + len(received) < 120 and time.monotonic() < deadline:
                consume(messages, 0.5)
    for message in received:
        events[message.queue_id].append((message.queue_offset, "java"))
    assert {who for queue in events.values() for _, who in queue} == {"python", "java"}
    for queue in events.values():
        mine = [offset for offset, who in queue if who == "python"]
        assert mine == sorted(mine)
        assert sorted(offset for offset, _ in queue) == list(range(len(queue))), "each once, since all left in order"
