"""``delayed list`` and ``delayed recall`` against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import gantrymq.sync
from gantrymq import Message

pytestmark = pytest.mark.timeout(60)

Cli = Callable[..., Any]


def test_waiting_messages_are_listed_until_they_are_recalled(cli: Cli, nameserver: str) -> None:
    def listed(*arguments: str) -> list[dict[str, Any]]:
        out = cli("delayed", "list", "--nameserver", nameserver, "--json", *arguments).out
        found: list[Any] = json.loads(out)
        return found

    assert listed() == []
    now = time.time_ns() // 1_000_000
    with gantrymq.sync.connect(nameserver) as client, client.producer("p") as producer:
        later = producer.send(Message("Orders", b"later", properties={"TIMER_DELIVER_MS": str(now + 7_200_000)}))
        soon = producer.send(Message("Orders", b"soon", properties={"TIMER_DELAY_SEC": "3600"}))
        producer.send(Message("Bills", b"bill", properties={"TIMER_DELAY_SEC": "60"}))
    deadline = time.monotonic() + 30
    while len(found := listed()) < 3:  # the timer topic's route reaches the nameserver a moment later
        assert time.monotonic() < deadline
    assert [one["topic"] for one in found] == ["Bills", "Orders", "Orders"]
    orders = listed("--topic", "Orders")
    assert [one["message_id"] for one in orders] == [soon.message_id, later.message_id]
    assert orders[1]["due_ms"] == now + 7_200_000
    assert len(listed("--max", "1")) == 1

    done = cli("delayed", "recall", "Orders", orders[0]["recall_handle"], "--nameserver", nameserver, "--json")
    assert json.loads(done.out) == {"message_id": soon.message_id}
    assert [one["message_id"] for one in listed("--topic", "Orders")] == [later.message_id]
    table = cli("delayed", "list", "--nameserver", nameserver).out
    assert later.message_id in table
    assert soon.message_id not in table


def test_an_invalid_recall_handle_is_a_usage_error(cli: Cli, nameserver: str) -> None:
    outcome = cli("delayed", "recall", "Orders", "nonsense", "--nameserver", nameserver)
    assert (outcome.code, "recall handle is invalid" in outcome.err) == (2, True)
