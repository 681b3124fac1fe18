"""The plugin in a real broker, seen through a client."""

import pytest
from gantrymq_stamp import StampPlugin

from gantrymq import Outcome

SETTINGS = {"plugin.stamp.topics": "orders", "plugin.stamp.name": "region", "plugin.stamp.value": "eu-1"}


@pytest.mark.parametrize("killed", [False, True])
def test_messages_are_stamped_and_counted_also_after_a_restart(plugin_broker, killed):
    running = plugin_broker(StampPlugin, settings=SETTINGS)
    with running.client.producer() as producer:
        for topic in ("orders", "orders", "others"):
            producer.send(topic, b"x", properties={"n": "1"})
    for topic, region in (("orders", "eu-1"), ("others", None)):
        with running.client.consumer(topic, f"readers-of-{topic}", start="first") as consumer:
            properties = next(consumer).properties
        assert (properties.get("region"), properties["n"]) == (region, "1")
    running.restart(killed=killed)
    assert running.plugin.counts == {"orders": 2}


@pytest.mark.parametrize("strategy", ["half", "state_table"])
def test_only_the_commit_of_a_transaction_counts(plugin_broker, strategy):
    running = plugin_broker(StampPlugin, settings={**SETTINGS, "plugin.transaction.strategy": strategy})
    for outcome in (Outcome.ROLLBACK, Outcome.COMMIT, Outcome.ROLLBACK):
        with running.client.transactional_producer(
            "payments", check=lambda _: Outcome.UNKNOWN, local=lambda *_, outcome=outcome: outcome
        ) as producer:
            producer.send("orders", b"x")
    running.stop()
    assert running.plugin.counts == {"orders": 1}


@pytest.mark.parametrize("strategy", ["half", "state_table"])
def test_delayed_messages_and_transactions_are_stamped(plugin_broker, strategy):
    running = plugin_broker(StampPlugin, settings={**SETTINGS, "plugin.transaction.strategy": strategy})
    with running.client.producer() as producer:
        producer.send("orders", b"level", delay_level=1)
        producer.send("orders", b"time", delay=1.0)
    with running.client.transactional_producer(
        "payments", check=lambda _: Outcome.UNKNOWN, local=lambda *_: Outcome.COMMIT
    ) as producer:
        producer.send("orders", b"transaction")
    with running.client.consumer("orders", "readers", start="first") as consumer:
        messages = [next(consumer) for _ in range(3)]
    regions = {message.body: message.properties.get("region") for message in messages}
    assert regions == dict.fromkeys([b"level", b"time", b"transaction"], "eu-1")
