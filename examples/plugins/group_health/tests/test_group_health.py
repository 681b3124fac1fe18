"""The plugin in a real broker, with groups that stop, go on, and fail."""

import time

import pytest
from gantrymq_group_health import GroupHealthPlugin

from gantrymq import Message

SETTINGS = {"plugin.group_health.stalled_after": "100ms", "plugin.group_health.check_every": "10ms"}
WAIT_S = 20


def wait(condition):
    until = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    assert condition()


def send(running, *bodies):
    """In one request: the group never sees only some of them."""
    with running.client.producer() as producer:
        return producer.send_batch([Message("orders", body) for body in bodies])


def consume(running, count, group="billing"):
    with running.client.consumer("orders", group, start="first") as messages:
        for _ in range(count):
            next(messages).ack()


@pytest.fixture
def lines(monkeypatch):
    """What the plugin logs."""
    found = []

    class Log:
        def __getattr__(self, _level):
            return lambda event, **fields: found.append({"event": event, **fields})

    monkeypatch.setattr("gantrymq_group_health.log", Log())
    return found


def events(lines, name):
    return [line for line in lines if line["event"] == name]


def test_a_group_is_reported_while_messages_wait_and_it_commits_nothing(plugin_broker, lines):
    running = plugin_broker(GroupHealthPlugin, settings=SETTINGS)
    send(running, b"1")
    consume(running, 1)
    time.sleep(0.2)
    assert running.plugin.stalled == {}, "nothing waits"
    waiting = send(running, b"2", b"3")
    wait(lambda: ("billing", "orders") in running.plugin.stalled)
    consume(running, 2)
    wait(lambda: not running.plugin.stalled)
    stalled, *again = events(lines, "group_stalled")
    assert (stalled["waiting"], stalled["members"]) == (2, [])
    assert stalled["first"] in {sent.offset_message_id for sent in waiting}
    assert len(events(lines, "group_resumed")) == 1 + len(again), "again only if the consumer was slow"


def test_offsets_of_the_last_run_are_known_after_a_restart(plugin_broker):
    running = plugin_broker(GroupHealthPlugin, settings=SETTINGS)
    send(running, b"1", b"2")
    consume(running, 1)
    running.restart()
    wait(lambda: ("billing", "orders") in running.plugin.stalled)


def test_a_group_that_lost_its_members_and_dead_letters_are_reported(plugin_broker, lines):
    running = plugin_broker(GroupHealthPlugin, settings={"plugin.group_health.groups": "bill*"})
    send(running, b"poison")
    for group in ("billing", "shipping"):
        with running.client.consumer("orders", group, start="first") as messages:
            message = next(messages)
            message.retry(-1)
    wait(lambda: events(lines, "group_without_members"))
    assert [line["group"] for line in lines if line["event"] == "group_without_members"] == ["billing"]
    [letter] = events(lines, "group_dead_letters")
    assert (letter["group"], letter["count"], letter["topic"]) == ("billing", 1, "orders")
    assert letter["message_id"] == message.offset_message_id
    assert running.plugin.dead_letters == {"billing": 1}
