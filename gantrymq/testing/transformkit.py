"""The contract of plugins that change bodies in ``before_append`` or ``before_deliver``, as rules that a test can call.

Each of :data:`RULES` starts a broker with the plugin by the fixture ``plugin_broker``, and raises ``AssertionError`` if
the plugin violates the rule. With ``GANTRYMQ_PURE=1`` in the environment the broker uses the plain twins; run the tests
with and without it.

    @pytest.mark.parametrize("rule", transformkit.RULES, ids=lambda rule: rule.__name__)
    def test_my_plugin_changes_each_body_once(plugin_broker, rule):
        rule(plugin_broker, transformkit.Transform(MyPlugin, {"plugin.mine.topics": "orders"}))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import trio

from gantrymq.client.errors import NoRoute
from gantrymq.kernel import hookimpl
from gantrymq.kernel.api import Broker
from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.message import DeliveredRecord, Message, Outcome
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import dlq_topic, retry_topic
from gantrymq.remoting.records import BodyError
from gantrymq.sync import Consumer, ReceivedMessage
from gantrymq.testing.fixtures import StartPluginBroker
from gantrymq.testing.plugin_broker import PluginBroker
from gantrymq.testing.requests import send

BODIES: Final = (b"1", b"three apples", bytes(range(256)), b"long and easy to compress " * 400)
"""The bodies that the rules send: a short one, a binary one, and one that the client compresses."""
WAIT_S: Final = 20.0
"""The longest wait for a message, in seconds."""
_DELAYS: Final = {"plugin.delay.levels": "1s 1s 1s 1s"}
_CHECKS: Final = {"plugin.transaction.check_interval": "100ms", "plugin.transaction.timeout": "10ms"}
_APPEND_TO: Final = "transformkit-append-to-"


def _unchanged(body: bytes) -> bytes:
    return body


@attrs.frozen
class Transform:
    """A plugin under test. ``plugin`` and ``settings``: as for ``plugin_broker``.

    ``delivered``: returns the body that consumers must get for a sent body; by default the same. The broker gets
    bodies as the client compressed them: a plugin that decompresses one clears the bits in ``batch.sys_flags``.
    ``topic``: a topic whose messages the plugin changes.
    """

    plugin: Any
    settings: Mapping[str, str] = attrs.field(factory=dict)
    delivered: Callable[[bytes], bytes] = _unchanged
    topic: str = "orders"

    def start(
        self, plugin_broker: StartPluginBroker, *others: Any, settings: Mapping[str, str] | None = None
    ) -> PluginBroker:
        """Return a broker with the plugin and the topic. Its delay levels are one second each.

        ``others``: plugins that it has too. ``settings``: added to those of the case.
        """
        running = plugin_broker(self.plugin, *others, settings={**_DELAYS, **self.settings, **(settings or {})})
        running.client.admin.create_topic(self.topic)
        return running

    def check(self, found: list[bytes], sent: tuple[bytes, ...], where: str) -> None:
        """Raise ``AssertionError`` unless ``found`` are the bodies to deliver for ``sent``, in any order."""
        wanted = sorted(self.delivered(body) for body in sent)
        if sorted(found) != wanted:
            different = [f"{body[:60]!r}" for body in found if body not in wanted]
            raise AssertionError(
                f"{where}: {len(found)} messages for {len(wanted)} that were sent; not expected: {', '.join(different)}"
            )


def _next(consumer: Consumer) -> ReceivedMessage:
    batch = consumer.next_batch(1, timeout=WAIT_S)
    if not batch:
        raise AssertionError(f"no message arrived within {WAIT_S:g} seconds")
    return batch[0]


def _wait_for_route(running: PluginBroker, topic: str) -> None:
    """Return when the nameserver knows the topic. A member that joins before that looks for it 20 seconds later."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            running.client.admin.route(topic)
            return
        except NoRoute:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _body(message: DeliveredRecord) -> bytes:
    try:
        return message.body
    except BodyError as error:
        raise AssertionError(f"a delivered body cannot be decompressed: {error}") from None


def _receive(running: PluginBroker, topic: str, count: int, group: str = "readers") -> list[bytes]:
    with running.client.consumer(topic, group, start="first") as consumer:
        found = []
        for _ in range(count):
            message = _next(consumer)
            message.ack()
            found.append(_body(message))
    return found


def each_body_is_changed_once(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """Two groups get single messages and a batch, each body changed once."""
    running = case.start(plugin_broker)
    with running.client.producer() as producer:
        for body in BODIES:
            producer.send(case.topic, body)
        producer.send_batch([Message(case.topic, body) for body in BODIES])
    for group in ("one", "two"):
        case.check(_receive(running, case.topic, 2 * len(BODIES), group), BODIES * 2, f"group {group!r}")


def a_delayed_body_is_changed_once(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """The broker appends a delayed message twice: when it arrives and when it is due."""
    running = case.start(plugin_broker)
    with running.client.producer() as producer:
        for body in BODIES:
            producer.send(Message(case.topic, body, delay_level=1))
    case.check(_receive(running, case.topic, len(BODIES)), BODIES, "after a delay")


def a_timed_body_is_changed_once(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """The broker appends a message with a time of its own twice too: when it arrives and when it is due."""
    running = case.start(plugin_broker)
    with running.client.producer() as producer:
        for body in BODIES:
            producer.send(Message(case.topic, body, delay=0.2))
    case.check(_receive(running, case.topic, len(BODIES)), BODIES, "after a time")


def a_committed_body_is_changed_once(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """The broker appends a half message, and the message when it is committed."""
    running = case.start(plugin_broker)
    opened = running.client.transactional_producer(
        "transactions", check=lambda _message: Outcome.COMMIT, local=lambda _message, _id: Outcome.COMMIT
    )
    with opened as producer:
        for body in BODIES:
            producer.send(case.topic, body)
    case.check(_receive(running, case.topic, len(BODIES)), BODIES, "after a transaction")


def a_producer_is_asked_with_the_body_that_consumers_get(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """The broker shows a half message to its producer in a check-back, and appends it when the producer commits."""
    asked: dict[str, DeliveredRecord] = {}

    def check(message: DeliveredRecord) -> Outcome:
        asked.setdefault(message.message_id, message)
        return Outcome.COMMIT

    running = case.start(plugin_broker, settings=_CHECKS)
    opened = running.client.transactional_producer(
        "transactions", check=check, local=lambda _message, _id: Outcome.UNKNOWN
    )
    with opened as producer:
        for body in BODIES:
            producer.send(case.topic, body)
        found = _receive(running, case.topic, len(BODIES))
    case.check([_body(message) for message in asked.values()], BODIES, "in check-backs")
    case.check(found, BODIES, "after the check-back")


def a_retried_body_is_changed_once(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """A consumer sends each message back once: the broker appends it to the group's retry topic, after a delay."""
    running = case.start(plugin_broker)
    with running.client.producer() as producer:
        for body in BODIES:
            producer.send(case.topic, body)
    again: list[bytes] = []
    first: list[bytes] = []
    with running.client.consumer(case.topic, "readers", start="first") as consumer:
        while len(again) < len(BODIES):
            message = _next(consumer)
            if message.reconsume_times:
                message.ack()
                again.append(_body(message))
            else:
                first.append(_body(message))
                message.retry(1)
    case.check(first, BODIES, "before the retry")
    case.check(again, BODIES, "after the retry")


def a_resent_body_is_changed_once(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """A client that cannot send a message back sends what it got to the group's retry topic.

    So the broker gets the body that it delivered, and delivers it unchanged.
    """
    running = case.start(plugin_broker)
    delivered = tuple(case.delivered(body) for body in BODIES)
    with running.client.producer() as producer:
        producer.send(case.topic, BODIES[0])
    _receive(running, case.topic, 1)

    async def resend() -> None:
        async with open_channel(running.address) as channel:
            for body in delivered:
                command = send(retry_topic("readers"), body, properties=f"RETRY_TOPIC\x01{case.topic}")
                answer = await channel.call(command)
                if answer.code != ResponseCode.SUCCESS:
                    raise AssertionError(f"sent to the retry topic: {answer.code} {answer.remark}")

    trio.run(resend)
    _wait_for_route(running, retry_topic("readers"))
    found = _receive(running, case.topic, len(BODIES))
    attrs.evolve(case, delivered=_unchanged).check(found, delivered, "sent to the retry topic by its consumer")


def a_dead_letter_has_the_body_that_consumers_got(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """A consumer gives up each message: the broker appends it to the group's dead-letter topic."""
    running = case.start(plugin_broker)
    with running.client.producer() as producer:
        for body in BODIES:
            producer.send(case.topic, body)
    with running.client.consumer(case.topic, "readers", start="first") as consumer:
        for _ in BODIES:
            _next(consumer).retry(-1)
    case.check(_receive(running, dlq_topic("readers"), len(BODIES), "inspectors"), BODIES, "as a dead letter")


class _Appender:
    """Appends the bodies to a topic when a message tells it to."""

    name = "transformkit-appender"

    @hookimpl
    def configure(self, broker: Broker) -> None:
        self._broker = broker

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        for topic in batch.topics:
            if topic.startswith(_APPEND_TO):
                own = AppendBatch()
                for body in BODIES:
                    own.add(topic.removeprefix(_APPEND_TO), 0, body, b"")
                self._broker.append(own)


def a_body_of_another_plugin_is_delivered(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """Another plugin appends messages. They are changed as those of clients, or not at all, but not damaged."""
    running = case.start(plugin_broker, _Appender)
    with running.client.producer() as producer:
        producer.send(_APPEND_TO + case.topic, b"now")
    found = _receive(running, case.topic, len(BODIES))
    if sorted(found) != sorted(BODIES):
        case.check(found, BODIES, "appended by a plugin")


def bodies_from_before_the_plugin_are_delivered(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """The plugin is enabled on a store with messages. They are delivered as they were sent."""
    running = plugin_broker(_Appender)
    running.client.admin.create_topic(case.topic)
    with running.client.producer() as producer:
        for body in BODIES:
            producer.send(case.topic, body)
    running.restart(plugins=[case.plugin], settings={**_DELAYS, **case.settings})
    found = _receive(running, case.topic, len(BODIES))
    if sorted(found) != sorted(BODIES):
        case.check(found, BODIES, "from before the plugin")


def stored_bodies_are_read_after_a_kill(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """Recovery replays messages to the hook ``dispatch`` and does not append them again."""
    running = case.start(plugin_broker)
    with running.client.producer() as producer:
        for body in BODIES:
            producer.send(case.topic, body)
    running.restart(killed=True)
    case.check(_receive(running, case.topic, len(BODIES)), BODIES, "after a kill")


def a_query_finds_what_consumers_get(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """A query by message id returns the bodies that consumers get."""
    running = case.start(plugin_broker)
    with running.client.producer() as producer:
        ids = [producer.send(case.topic, body).message_id for body in BODIES]
    found = [_body(record) for each in ids for record in running.client.admin.find_by_id(case.topic, each)]
    case.check(found, BODIES, "found by id")


def other_topics_are_left_alone(plugin_broker: StartPluginBroker, case: Transform) -> None:
    """A plugin for some topics does not change bodies of other topics."""
    running = case.start(plugin_broker)
    with running.client.producer() as producer:
        for body in BODIES:
            producer.send("a-topic-without-rules", body)
    found = _receive(running, "a-topic-without-rules", len(BODIES))
    attrs.evolve(case, delivered=_unchanged).check(found, BODIES, "another topic")


Rule = Callable[[StartPluginBroker, Transform], None]
"""A rule of the contract; it raises ``AssertionError`` if the plugin violates it."""

RULES: Final[tuple[Rule, ...]] = (
    each_body_is_changed_once,
    a_delayed_body_is_changed_once,
    a_timed_body_is_changed_once,
    a_committed_body_is_changed_once,
    a_producer_is_asked_with_the_body_that_consumers_get,
    a_retried_body_is_changed_once,
    a_resent_body_is_changed_once,
    a_dead_letter_has_the_body_that_consumers_got,
    a_body_of_another_plugin_is_delivered,
    bodies_from_before_the_plugin_are_delivered,
    stored_bodies_are_read_after_a_kill,
    a_query_finds_what_consumers_get,
    other_topics_are_left_alone,
)
"""All rules. Omit :func:`other_topics_are_left_alone` for a plugin that changes all topics."""
