"""``group``, ``dlq``, ``topic delete`` and ``topic peek`` against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import gantrymq.sync
from gantrymq import Message
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE
from support.processes import Child, gantrymq_child, wait_for

pytestmark = pytest.mark.timeout(90)

Cli = Callable[..., Any]


@pytest.fixture
def shell(cli: Cli, nameserver: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line, whose nameserver is the cluster's."""
    monkeypatch.setenv("GANTRYMQ_NAMESERVER", nameserver)
    return cli


def fill(nameserver: str, topic: str, count: int, *, queues: int = 2) -> None:
    with gantrymq.sync.connect(nameserver) as client, client.producer() as producer:
        client.admin.create_topic(topic, queues)
        for number in range(count):
            producer.send(Message(topic, b"%d" % number))


def read(nameserver: str, topic: str, group: str, count: int) -> list[bytes]:
    """The messages that a member of the group gets and acknowledges."""
    with gantrymq.sync.connect(nameserver) as client, client.consumer(topic, group, start="first") as consumer:
        bodies = []
        for _, message in zip(range(count), consumer, strict=False):
            bodies.append(bytes(message.body))
            message.ack()
        return bodies


def make_dead_letters(nameserver: str, topic: str, group: str, count: int) -> None:
    """A member refuses each message for the last time."""
    fill(nameserver, topic, count)
    with (
        gantrymq.sync.connect(nameserver) as client,
        client.consumer(topic, group, start="first", max_retries=0) as consumer,
    ):
        for _, message in zip(range(count), consumer, strict=False):
            message.retry()


def test_a_group_is_listed_and_described_with_its_members_and_its_lag(shell: Cli, nameserver: str) -> None:
    fill(nameserver, "described", 10)
    assert len(read(nameserver, "described", "describer", 4)) == 4
    with gantrymq.sync.connect(nameserver) as client, client.consumer("described", "describer", tags="a || b"):
        wait_for(lambda: json.loads(shell("group", "describe", "describer", "--json").out)["members"])
        described = json.loads(shell("group", "describe", "describer", "--json").out)
        (member,) = described["members"]
        assert member["subscriptions"] == {"described": "a || b"}
        rows = [row for row in described["queues"] if row["topic"] == "described"]
        assert [(row["broker"], row["queue"], row["end"]) for row in rows] == [("broker-a", 0, 5), ("broker-a", 1, 5)]
        listed = {row["group"]: row for row in json.loads(shell("group", "list", "--json").out)}
        assert (listed["describer"]["members"], listed["describer"]["topics"]) == (1, 1)
        table = shell("group", "describe", "describer").out
        assert "described: a || b" in table
        assert "1 member" in table
    assert "TOOLS_CONSUMER" not in listed
    unknown = shell("group", "describe", "nobody")
    assert (unknown.code, "no broker has members or offsets of a group nobody" in unknown.err) == (1, True)


def test_the_lag_is_shown_in_messages_and_time(shell: Cli, nameserver: str) -> None:
    fill(nameserver, "lagging", 1, queues=1)
    read(nameserver, "lagging", "lagger", 1)
    fill(nameserver, "lagging", 3, queues=1)
    time.sleep(1.1)  # the time that is measured
    (row,) = [
        row
        for row in json.loads(shell("group", "describe", "lagger", "--json").out)["queues"]
        if row["topic"] == "lagging"
    ]
    assert (row["committed"], row["end"], row["lag"]) == (1, 4, 3)
    assert 1.0 <= row["behind"] < 60


def test_members_with_different_subscriptions_are_warned_about(shell: Cli, nameserver: str) -> None:
    fill(nameserver, "mixed", 1)
    with (
        gantrymq.sync.connect(nameserver) as one,
        gantrymq.sync.connect(nameserver) as other,
        one.consumer("mixed", "mixers", tags="a"),
        other.consumer("mixed", "mixers", tags="b"),
    ):
        wait_for(lambda: len(json.loads(shell("group", "describe", "mixers", "--json").out)["members"]) == 2)
        assert "subscribe to different topics or expressions" in shell("group", "describe", "mixers").err


@pytest.mark.parametrize("online", [False, True])
def test_offsets_are_reset_with_and_without_members(shell: Cli, nameserver: str, online: bool) -> None:
    topic, group = f"reset-{online}", f"resetter-{online}"
    fill(nameserver, topic, 6)
    assert len(read(nameserver, topic, group, 6)) == 6
    dry = json.loads(shell("group", "reset-offsets", group, "--to", "first", "--dry-run", "--json").out)
    assert [(row["topic"], row["queue"], row["before"], row["after"]) for row in dry] == [
        (topic, 0, 3, 0), (topic, 1, 3, 0),
    ]  # fmt: skip
    assert (
        json.loads(shell("group", "reset-offsets", group, "--to", "last", "--dry-run", "--json").out)[0]["after"] == 3
    )
    if not online:
        assert "offsets of 2 queues set\n" in shell("group", "reset-offsets", group, "--to", "first").err
        assert len(read(nameserver, topic, group, 6)) == 6
        return
    with gantrymq.sync.connect(nameserver) as client, client.consumer(topic, group) as consumer:
        outcome = shell("group", "reset-offsets", group, "--to", "first")
        assert outcome.err == "offsets of 2 queues set\n"
        got = {bytes(message.body) for _, message in zip(range(6), consumer, strict=False)}
    assert got == {b"%d" % number for number in range(6)}


def test_offsets_are_reset_to_a_time(shell: Cli, nameserver: str) -> None:
    fill(nameserver, "timed", 2, queues=1)
    time.sleep(0.05)
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    time.sleep(0.05)
    fill(nameserver, "timed", 2, queues=1)
    read(nameserver, "timed", "timer", 4)
    assert shell("group", "reset-offsets", "timer", "--to", moment).code == 0
    rows = json.loads(shell("group", "reset-offsets", "timer", "--to", "last", "--dry-run", "--json").out)
    assert [row["before"] for row in rows] == [2]
    assert shell("group", "reset-offsets", "timer", "--to", "yesterday").code == 2
    nobody = shell("group", "reset-offsets", "nobody", "--to", "first")
    assert (nobody.code, "has committed no offsets; name a topic" in nobody.err) == (1, True)


def test_running_members_get_nothing_after_a_reset_to_a_time_after_the_last_message(
    shell: Cli, nameserver: str
) -> None:
    fill(nameserver, "passed", 4)
    assert len(read(nameserver, "passed", "passer", 4)) == 4
    with gantrymq.sync.connect(nameserver) as client, client.consumer("passed", "passer") as consumer:
        queues = client.admin.queues("passed")
        wait_for(lambda: "1 member" in shell("group", "describe", "passer").out)
        outcome = shell("group", "reset-offsets", "passer", "--to", "2037-01-01T00:00:00Z", "--json")
        rows = {row["queue"]: row["after"] for row in json.loads(outcome.out)}
        with client.producer() as producer:
            for queue in queues:
                producer.send("passed", b"new", queue=queue)
        got = [bytes(message.body) for _, message in zip(range(2), consumer, strict=False)]
        assert got == [b"new", b"new"]
        assert rows == {0: 2, 1: 2}


def test_queues_that_a_reset_leaves_out_are_named(shell: Cli, nameserver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gantrymq.client import groups

    async def reset_one(
        admin: object, group: str, resets: list[groups.OffsetReset], to: object
    ) -> list[groups.OffsetReset]:
        return resets[:1]

    monkeypatch.setattr(groups, "reset_offsets", reset_one)
    fill(nameserver, "half", 2)
    outcome = shell("group", "reset-offsets", "halves", "--to", "first", "--topic", "half", "--json")
    assert [row["queue"] for row in json.loads(outcome.out)] == [0]
    assert outcome.err == (
        "gantrymq: broker broker-a left out queue 1 of topic half; it keeps its offset\noffsets of 1 queue set\n"
    )


def test_a_topic_that_exists_gets_more_queues_and_loses_none_with_messages(shell: Cli, nameserver: str) -> None:
    assert shell("topic", "update", "not-there", "--queues", "2").code == 1
    assert "not-there" not in json.loads(shell("topic", "list", "--json").out)
    with gantrymq.sync.connect(nameserver) as client:
        client.admin.create_topic("growing", 2)
        with client.producer() as producer:
            for queue in client.admin.queues("growing"):
                producer.send("growing", b"x", queue=queue)
    assert json.loads(shell("topic", "update", "growing", "--queues", "4", "--json").out)["queues"] == 4
    assert len(json.loads(shell("topic", "describe", "growing", "--json").out)) % 4 == 0
    refused = shell("topic", "update", "growing", "--queues", "1")
    assert (refused.code, "--force removes the queues all the same" in refused.err) == (1, True)


@pytest.mark.parametrize("command", [("update",), ("create", "--update")])
def test_more_queues_do_not_make_a_read_only_topic_writable(
    shell: Cli, nameserver: str, command: tuple[str, ...]
) -> None:
    topic = f"drained-{command[0]}"
    with gantrymq.sync.connect(nameserver) as client:
        client.admin.create_topic(topic, 2)
        client.admin.create_topic(topic, 3, perm=PERM_READ)
    assert shell("topic", command[0], topic, "--queues", "4", *command[1:]).code == 0
    rows = json.loads(shell("topic", "describe", topic, "--json").out)
    assert [row["perm"] for row in rows] == ["read"] * 4


def test_the_lag_of_a_group_is_shown_without_its_members(shell: Cli, nameserver: str) -> None:
    fill(nameserver, "lagged", 5)
    read(nameserver, "lagged", "lagger", 2)
    described = json.loads(shell("group", "describe", "lagger", "--json").out)["queues"]
    lags = json.loads(shell("group", "lag", "lagger", "--json").out)
    assert [row["lag"] for row in lags] == [row["lag"] for row in described]
    waiting = sum(row["lag"] for row in lags)
    assert waiting > 1
    assert f"{waiting} messages wait" in shell("group", "lag", "lagger").out
    unknown = shell("group", "lag", "nobody")
    assert (unknown.code, "no broker has offsets of a group nobody" in unknown.err) == (1, True)


def test_a_group_is_deleted_only_without_members(shell: Cli, nameserver: str) -> None:
    fill(nameserver, "left", 2)
    read(nameserver, "left", "leaver", 2)
    with gantrymq.sync.connect(nameserver) as client, client.consumer("left", "leaver"):
        wait_for(lambda: json.loads(shell("group", "describe", "leaver", "--json").out)["members"])
        refused = shell("group", "delete", "leaver", "--yes")
        assert (refused.code, "has 1 member; stop them first" in refused.err) == (1, True)
    wait_for(lambda: not json.loads(shell("group", "describe", "leaver", "--json").out)["members"])
    assert json.loads(shell("group", "delete", "leaver", "--yes", "--json").out) == {"group": "leaver", "deleted": True}
    again = shell("group", "delete", "leaver", "--yes")
    assert (again.code, again.err) == (
        1, "gantrymq: no broker knows a group leaver; gantrymq group list has the names\n"
    )  # fmt: skip
    assert "leaver" not in shell("group", "list").out
    assert shell("group", "describe", "leaver").code == 1


@pytest.mark.slow
def test_dead_letters_are_counted_printed_and_replayed_once_to_their_group(shell: Cli, nameserver: str) -> None:
    nothing = [{"group": "failer", "messages": 0, "unreplayed": 0}]
    assert json.loads(shell("dlq", "list", "failer", "--json").out) == nothing
    for command in ("peek", "replay"):
        refused = shell("dlq", command, "failer")
        assert (refused.code, refused.err) == (
            1, "gantrymq: group failer has no dead letters; gantrymq dlq list has the groups\n"
        )  # fmt: skip
    make_dead_letters(nameserver, "failing", "failer", 3)
    wait_for(lambda: json.loads(shell("dlq", "list", "failer", "--json").out)[0]["messages"] == 3)
    assert sorted(shell("dlq", "peek", "failer").out.splitlines()) == ["0", "1", "2"]
    assert len(shell("dlq", "peek", "failer", "--max", "1").out.splitlines()) == 1
    assert shell("dlq", "replay", "failer", "--max", "1").out == "replayed 1 message\n"
    (row,) = json.loads(shell("dlq", "list", "failer", "--json").out)
    assert row == {"group": "failer", "messages": 3, "unreplayed": 2}
    began = time.monotonic()
    assert shell("dlq", "replay", "failer", "--rate", "4").out == "replayed 2 messages\n"
    assert time.monotonic() - began >= 0.25
    assert shell("dlq", "replay", "failer").out == "replayed 0 messages\n"
    with gantrymq.sync.connect(nameserver) as client, client.consumer("failing", "failer") as consumer:
        got = [(message.topic, bytes(message.body)) for _, message in zip(range(3), consumer, strict=False)]
    assert sorted(got) == [("failing", b"0"), ("failing", b"1"), ("failing", b"2")]


def set_permission(nameserver: str, topic: str, queues: int, perm: int) -> None:
    with gantrymq.sync.connect(nameserver) as client:
        client.admin.create_topic(topic, queues, perm=perm)
        wait_for(lambda: client.admin.route(topic).queue_datas[0].perm == perm)


def test_dead_letters_that_cannot_be_read_are_counted_and_replayed_only_with_permission(
    shell: Cli, nameserver: str
) -> None:
    make_dead_letters(nameserver, "unread", "unreader", 1)
    wait_for(lambda: json.loads(shell("dlq", "list", "unreader", "--json").out)[0]["messages"] == 1)
    set_permission(nameserver, "%DLQ%unreader", 1, PERM_WRITE)  # as brokers of RocketMQ before 4.9.2 create the topic
    assert json.loads(shell("dlq", "list", "unreader", "--json").out) == [
        {"group": "unreader", "messages": 1, "unreplayed": 1}
    ]
    described = json.loads(shell("topic", "describe", "%DLQ%unreader", "--json").out)
    assert [(row["queue"], row["perm"], row["messages"]) for row in described] == [(0, "write", 1)]
    for command in ("peek", "replay"):
        refused = shell("dlq", command, "unreader")
        assert (refused.code, refused.err) == (
            1, "gantrymq: topic %DLQ%unreader cannot be read at broker-a: its permission is write; "
            "mqadmin updateTopicPerm -c DefaultCluster -t %DLQ%unreader -p 6 changes it\n"
        )  # fmt: skip
    set_permission(nameserver, "%DLQ%unreader", 1, PERM_READ | PERM_WRITE)
    assert shell("dlq", "replay", "unreader").out == "replayed 1 message\n"
    set_permission(nameserver, "%DLQ%unreader", 1, PERM_WRITE)
    assert shell("topic", "delete", "%DLQ%unreader", "--yes").out == (
        "topic %DLQ%unreader is deleted, with 1 messages\n"
    )


def test_a_write_only_topic_loses_no_queues_with_messages(shell: Cli, nameserver: str) -> None:
    fill(nameserver, "write-only", 8, queues=4)
    set_permission(nameserver, "write-only", 4, PERM_WRITE)
    refused = shell("topic", "update", "write-only", "--queues", "2")
    assert (refused.code, "could no longer read 4 messages" in refused.err) == (1, True)


KILLED_BEFORE_COMMIT = """
import os, signal, sys
from gantrymq.cli.__main__ import run
from gantrymq.client.reader import Reader

commit, calls = Reader.commit, 0

async def counted(reader, *arguments, **named):
    global calls
    calls += 1
    if calls == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return await commit(reader, *arguments, **named)

Reader.commit = counted
run(sys.argv[1:])
"""


def test_a_replay_killed_between_send_and_commit_repeats_one_message_and_loses_none(
    shell: Cli, nameserver: str
) -> None:
    make_dead_letters(nameserver, "killed", "killer", 4)
    wait_for(lambda: json.loads(shell("dlq", "list", "killer", "--json").out)[0]["messages"] == 4)
    child = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_COMMIT, "dlq", "replay", "killer", "--nameserver", nameserver],
        timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL
    assert json.loads(shell("dlq", "list", "killer", "--json").out)[0]["unreplayed"] == 3
    assert shell("dlq", "replay", "killer").out == "replayed 3 messages\n"
    with gantrymq.sync.connect(nameserver) as client, client.consumer("killed", "killer") as consumer:
        got = [bytes(message.body) for _, message in zip(range(5), consumer, strict=False)]
    assert (set(got), len(got)) == ({b"0", b"1", b"2", b"3"}, 5)


def test_a_replay_after_one_with_again_sends_only_new_dead_letters(shell: Cli, nameserver: str) -> None:
    make_dead_letters(nameserver, "repeated", "repeater", 3)
    wait_for(lambda: json.loads(shell("dlq", "list", "repeater", "--json").out)[0]["messages"] == 3)
    assert shell("dlq", "replay", "repeater", "--max", "2").out == "replayed 2 messages\n"
    assert shell("dlq", "replay", "repeater", "--again", "--max", "1").out == "replayed 1 message\n"
    assert json.loads(shell("dlq", "list", "repeater", "--json").out)[0]["unreplayed"] == 1
    assert shell("dlq", "replay", "repeater").out == "replayed 1 message\n"
    assert shell("dlq", "replay", "repeater", "--again").out == "replayed 3 messages\n"
    assert shell("dlq", "replay", "repeater").out == "replayed 0 messages\n"


def test_dead_letters_are_replayed_to_a_topic_with_their_tags_keys_and_properties(shell: Cli, nameserver: str) -> None:
    with gantrymq.sync.connect(nameserver) as client, client.producer() as producer:
        client.admin.create_topic("tagged", 1)
        producer.send(Message("tagged", b"x", tags="t", keys=("k",), properties={"own": "1"}))
        with client.consumer("tagged", "tagger", start="first", max_retries=0) as consumer:
            next(iter(consumer)).retry()
    wait_for(lambda: json.loads(shell("dlq", "list", "tagger", "--json").out)[0]["messages"] == 1)
    assert shell("dlq", "replay", "tagger", "--to", "again").out == "replayed 1 message\n"
    assert shell("dlq", "replay", "tagger", "--to", "again", "--again").out == "replayed 1 message\n"
    wait_for(lambda: shell("topic", "peek", "again").code == 0)
    rows = [json.loads(line) for line in shell("topic", "peek", "again", "--json").out.splitlines()]
    assert [(row["body"], row["tags"], row["keys"], row["properties"]["own"]) for row in rows] == [
        ("x", "t", ["k"], "1")
    ] * 2


@pytest.mark.slow
def test_a_topic_is_peeked_without_a_group_and_deleted(shell: Cli, nameserver: str, tmp_path: Path) -> None:
    fill(nameserver, "peeked", 6)
    groups = shell("group", "list").out
    assert sorted(shell("topic", "peek", "peeked").out.splitlines()) == ["0", "1", "2", "3", "4", "5"]
    assert len(shell("topic", "peek", "peeked", "--queue", "1", "--max", "2").out.splitlines()) == 2
    assert shell("topic", "peek", "peeked", "--from", "last").out == ""
    assert shell("topic", "peek", "peeked", "--queue", "7").code == 1
    with gantrymq_child(["topic", "peek", "peeked", "--follow", "--from", "last", "--nameserver", nameserver],
                        tmp_path / "log") as child:  # fmt: skip
        line = _sent_until_seen(child, nameserver)
        assert line == "6"
    assert shell("group", "list").out == groups
    deleted = shell("topic", "delete", "peeked", "--yes")
    assert (deleted.code, deleted.out.startswith("topic peeked is deleted, with ")) == (0, True)
    assert "peeked" not in shell("topic", "list").out.splitlines()
    assert shell("topic", "delete", "peeked", "--yes").code == 1


def _sent_until_seen(child: Child, nameserver: str) -> str | None:
    """The reader begins some moment after its start: messages are sent until it prints one."""
    with gantrymq.sync.connect(nameserver) as client, client.producer() as producer:
        for _ in range(100):
            producer.send(Message("peeked", b"6"))
            if line := child.try_line(0.2):
                return line
    return None
