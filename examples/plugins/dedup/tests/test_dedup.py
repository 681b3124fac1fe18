"""The plugin in a real broker, seen through a client."""

import pytest
from gantrymq_dedup import DedupPlugin

from gantrymq.message import Message


def stored(client, topic):
    """How many messages the topic has."""
    return sum(client.admin.max_offset(queue) for queue in client.admin.queues(topic))


@pytest.mark.parametrize("killed", [False, True])
def test_a_key_is_stored_once_also_after_a_restart(plugin_broker, killed):
    running = plugin_broker(DedupPlugin)
    with running.client.producer() as producer:
        first = producer.send(Message("orders", b"1", keys=("k",)))
        again = producer.send(Message("orders", b"2", keys=("k",)))
        assert (again.queue, again.queue_offset) == (first.queue, first.queue_offset)
        producer.send(Message("orders", b"3", keys=("other",)))
        producer.send("orders", b"4")
        producer.send("orders", b"4")
    running.restart(killed=killed)
    with running.client.producer() as producer:
        last = producer.send(Message("orders", b"5", keys=("k",)))
    assert (last.queue, last.queue_offset) == (first.queue, first.queue_offset)
    assert stored(running.client, "orders") == 4
