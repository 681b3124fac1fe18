"""The plugin in a real broker, seen through a client."""

import pytest
from gantrymq_route import RoutePlugin

import gantrymq
from gantrymq.kernel.errors import StartError

RULES = "copy orders audit;move orders TAGS=urgent urgent-orders;copy orders region=eu eu-orders"


def bodies(client, topic, count):
    with client.consumer(topic, f"readers-of-{topic}", start="first") as consumer:
        found = []
        for _ in range(count):
            message = next(consumer)
            message.ack()
            found.append(message.body)
    return sorted(found)


def stored(client, topic):
    """How many messages the topic has."""
    return sum(client.admin.max_offset(queue) for queue in client.admin.queues(topic))


def open_transactions(running):
    plugins = running.cluster.broker.manager.plugins
    return next(info.plugin for info in plugins if info.name == "transaction").strategy.open_count


def test_messages_are_copied_and_moved_by_the_rules(plugin_broker):
    client = plugin_broker(RoutePlugin, settings={"plugin.route.rules": RULES}).client
    with client.producer() as producer:
        producer.send("orders", b"1", tags="urgent")
        producer.send("orders", b"2", properties={"region": "eu"})
        producer.send("orders", b"3", tags="urgently")
        producer.send("others", b"4", tags="urgent")
    assert bodies(client, "urgent-orders", 1) == [b"1"]
    assert bodies(client, "eu-orders", 1) == [b"2"]
    assert bodies(client, "orders", 2) == [b"2", b"3"]
    assert bodies(client, "audit", 3) == [b"1", b"2", b"3"]
    assert [stored(client, topic) for topic in ("urgent-orders", "eu-orders", "orders", "audit")] == [1, 1, 2, 3]


def test_a_delayed_message_is_routed_once_and_when_it_is_due(plugin_broker):
    settings = {"plugin.route.rules": "copy orders audit", "plugin.delay.levels": "1s 2s"}
    client = plugin_broker(RoutePlugin, settings=settings).client
    with client.producer() as producer:
        producer.send(gantrymq.Message("orders", b"later", delay_level=1))
        assert stored(client, "audit") == 0
    assert bodies(client, "orders", 1) == [b"later"]
    assert bodies(client, "audit", 1) == [b"later"]
    assert stored(client, "audit") == 1


@pytest.mark.parametrize("strategy", ["half", "state_table"])
@pytest.mark.parametrize(
    ("action", "expected"), [("copy", {"orders": 3, "audit": 3}), ("move", {"orders": 0, "audit": 3})]
)
def test_a_transaction_is_routed_once_and_when_it_is_committed(plugin_broker, strategy, action, expected):
    settings = {"plugin.route.rules": f"{action} orders audit", "plugin.transaction.strategy": strategy}
    running = plugin_broker(RoutePlugin, settings=settings)
    for number, outcome in enumerate(
        (gantrymq.Outcome.COMMIT, gantrymq.Outcome.ROLLBACK, gantrymq.Outcome.COMMIT, gantrymq.Outcome.COMMIT)
    ):
        with running.client.transactional_producer(
            "payments", check=lambda _: gantrymq.Outcome.UNKNOWN, local=lambda *_, outcome=outcome: outcome
        ) as producer:
            producer.send("orders", b"%d" % number)
    for topic, count in expected.items():
        assert bodies(running.client, topic, count) == [b"0", b"2", b"3"][:count]
        assert stored(running.client, topic) == count
    assert open_transactions(running) == 0
    running.restart()
    assert open_transactions(running) == 0


def test_a_message_that_was_acknowledged_has_its_copy_after_a_kill(plugin_broker):
    running = plugin_broker(RoutePlugin, settings={"plugin.route.rules": "copy orders audit"})
    with running.client.producer() as producer:
        for number in range(5):
            producer.send("orders", b"%d" % number)
    running.restart(killed=True)
    assert bodies(running.client, "audit", 5) == [b"%d" % number for number in range(5)]
    assert stored(running.client, "audit") == 5


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("orders audit", "write 'copy' or 'move'"),
        ("drop orders audit", "write 'copy' or 'move'"),
        ("copy orders urgent audit", "'urgent' is not PROPERTY=VALUE"),
        ("copy orders =urgent audit", "'=urgent' is not PROPERTY=VALUE"),
        ("move orders orders", "topic and target are the same"),
    ],
)
def test_a_wrong_rule_refuses_the_start(plugin_broker, rule, says):
    with pytest.raises(StartError, match=says):
        plugin_broker(RoutePlugin, settings={"plugin.route.rules": rule})
