"""``query`` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import gantrymq.sync
from gantrymq import Message, SendResult
from support.processes import wait_for

pytestmark = pytest.mark.timeout(60)

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def sent(shared_nameserver: str) -> list[SendResult]:
    """Three messages with one key in common, which the index has: it follows the log."""
    with gantrymq.sync.connect(shared_nameserver) as client, client.producer("p") as producer:
        results = [producer.send(Message("Orders", b"order %d" % n, keys=[f"o-{n}", "all"])) for n in range(3)]

        def are_found() -> bool:
            try:
                return len(client.admin.find("Orders", "all")) == len(results)
            except gantrymq.NoRoute:  # the topic is new
                return False

        wait_for(are_found)
        return results


@pytest.fixture
def query(cli: Cli, shared_nameserver: str, sent: list[SendResult]) -> Cli:
    return lambda *arguments: cli("query", "--nameserver", shared_nameserver, "--topic", "Orders", *arguments)


def test_a_key_finds_its_newest_messages(query: Cli) -> None:
    assert query("--key", "all").out.splitlines() == ["order 0", "order 1", "order 2"]
    assert query("--key", "all", "--max", "2").out.splitlines() == ["order 1", "order 2"]
    assert query("--key", "o-1").out == "order 1\n"


def test_a_message_is_found_by_the_producers_and_by_the_brokers_id(query: Cli, sent: list[SendResult]) -> None:
    for number, result in enumerate(sent):
        assert query("--id", result.message_id).out == f"order {number}\n"
        assert query("--id", result.offset_message_id).out == f"order {number}\n"


def test_a_message_is_found_by_its_queue_offset(query: Cli, sent: list[SendResult]) -> None:
    for number, result in enumerate(sent):
        place = ("--queue", str(result.queue.queue_id), "--offset", str(result.queue_offset))
        (line,) = query(*place, "--broker", result.queue.broker_name, "--json").out.splitlines()
        fields = json.loads(line)
        assert (fields["body"], fields["broker"], fields["keys"]) == (
            f"order {number}",
            "broker-a",
            [f"o-{number}", "all"],
        )
        assert (fields["queue"], fields["queue_offset"]) == (result.queue.queue_id, result.queue_offset)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--key", "nobody"),
        ("--id", "7F0000010D5418B4AAC2000000000001"),
        ("--id", "not hex"),
        ("--id", "00"),
        ("--queue", "0", "--offset", "77"),
        ("--queue", "99", "--offset", "0"),
        ("--queue", "0", "--offset", "0", "--broker", "other"),
    ],
)
def test_a_missing_message_is_reported_with_exit_code_1(query: Cli, arguments: tuple[str, ...]) -> None:
    outcome = query(*arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert "no such message in topic Orders" in outcome.err


@pytest.mark.parametrize(
    "arguments", [(), ("--key", "a", "--id", "b"), ("--offset", "1"), ("--key", "a", "--queue", "1"), ("--max", "65")]
)
def test_wrong_usage_exits_with_2(query: Cli, arguments: tuple[str, ...]) -> None:
    outcome = query(*arguments)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err


def test_a_time_range_bounds_what_the_client_finds(shared_nameserver: str, sent: list[SendResult]) -> None:
    with gantrymq.sync.connect(shared_nameserver) as client:
        found = client.admin.find("Orders", "all")
        assert [message.message_id for message in found] == [result.message_id for result in sent]
        times = [message.store_timestamp for message in found]
        assert client.admin.find("Orders", "all", end=times[0] - 1) == []
        assert client.admin.find("Orders", "all", begin=times[-1] + 1) == []
        assert client.admin.find("Orders", "all", limit=0) == []
        assert len(client.admin.find("Orders", "all", begin=times[0], end=times[-1])) == 3
