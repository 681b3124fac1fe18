"""ali-ons, RocketMQ's client for Node, against the system under test. It writes numbers as header fields."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.clients import ForeignClient, check_complete, check_unaltered
from support.content import content
from support.foreign import create_topic, is_routed
from support.processes import wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Names = Callable[[str], str]


@pytest.fixture
def topic(system, names: Names) -> str:
    """A topic of this test alone; ali-ons sends to topics that have a route only."""
    name = names("t")
    create_topic(system.broker, name)
    wait_for(lambda: is_routed(system.nameserver, name))
    return name


def test_a_node_client_sends_and_consumes_every_message_unaltered(
    node_client: ForeignClient, system, topic: str, names: Names
):
    sent = node_client.produce(system.nameserver, topic, 300, seed=21)
    assert [answer.status for answer in sent] == ["SEND_OK"] * 300
    messages = node_client.consume_all(system.nameserver, topic, names("g"), 300)
    check_complete(messages, 21, range(300))
    places = {message.index: (message.queue_id, message.queue_offset) for message in messages}
    assert all(places[answer.index] == (answer.queue_id, answer.queue_offset) for answer in sent)


def test_a_tag_expression_selects_messages(node_client: ForeignClient, system, topic: str, names: Names):
    node_client.produce(system.nameserver, topic, 100, seed=22)
    wanted = [index for index in range(100) if content(22, index).tags in ("TagA", "TagC")]
    messages = node_client.consume_all(system.nameserver, topic, names("g"), len(wanted), tags="TagA || TagC")
    check_complete(messages, 22, wanted)


def test_a_message_sent_back_is_redelivered(node_client: ForeignClient, system, topic: str, names: Names):
    node_client.produce(system.nameserver, topic, 4, seed=23)
    messages = node_client.consume_all(system.nameserver, topic, names("g"), 8, refuse=1)
    check_unaltered([message for message in messages if message.reconsume_times == 0], 23)
    counts = sorted((message.index, message.reconsume_times) for message in messages)
    assert counts == [(index, times) for index in range(4) for times in (0, 1)]
