"""rocketmq-client-go against the system under test. It reads routes only in RocketMQ's unquoted, spaceless form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.clients import ForeignClient, check_complete
from support.content import content

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Names = Callable[[str], str]


def test_a_go_client_sends_and_consumes_every_message_unaltered(go_client: ForeignClient, system, names: Names):
    topic = names("t")
    sent = go_client.produce(system.nameserver, topic, 1000, seed=11)
    assert [answer.status for answer in sent] == [0] * 1000
    messages = go_client.consume_all(system.nameserver, topic, names("g"), 1000)
    check_complete(messages, 11, range(1000))
    places = {message.index: message.place for message in messages}
    assert all(places[answer.index] == (answer.broker, answer.queue_id, answer.queue_offset) for answer in sent)


def test_a_tag_expression_selects_messages(go_client: ForeignClient, system, names: Names):
    topic = names("t")
    go_client.produce(system.nameserver, topic, 200, seed=12)
    wanted = [index for index in range(200) if content(12, index).tags in ("TagA", "TagC")]
    messages = go_client.consume_all(system.nameserver, topic, names("g"), len(wanted), tags="TagA || TagC")
    check_complete(messages, 12, wanted)


def test_go_and_java_clients_consume_each_others_messages(
    go_client: ForeignClient, java4_client: ForeignClient, system, names: Names
):
    topic = names("t")
    go_client.produce(system.nameserver, topic, 100, seed=13)
    check_complete(java4_client.consume_all(system.nameserver, topic, names("g-java"), 100), 13, range(100))
    java4_client.produce(system.nameserver, topic, 100, seed=13, first=100, modes="async")
    check_complete(go_client.consume_all(system.nameserver, topic, names("g-go"), 200), 13, range(200))
