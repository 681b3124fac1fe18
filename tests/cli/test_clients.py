"""``gantrymq client list`` and ``kick`` on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gantrymq.sync
from support.processes import wait_for


def test_clients_are_listed_by_group_and_a_kicked_one_loses_its_queues_until_it_is_back(
    cli: Callable[..., Any], gantry_broker: Any, gantry_topic: str
) -> None:
    at = ("--nameserver", gantry_broker.nameserver)
    group = f"g-{gantry_topic[-8:]}"

    def rows(*options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(cli("client", "list", "--json", *options, *at).out)
        return found

    with (
        gantrymq.sync.connect(gantry_broker.nameserver) as client,
        client.producer(f"p-{group}") as producer,
        client.consumer(gantry_topic, group, start="first") as consumer,
    ):
        producer.send(gantry_topic, b"1")
        next(iter(consumer)).ack()
        wait_for(lambda: len(rows("--group", group)) == len(rows("--group", f"p-{group}")) == 1)
        (member,), (sender,) = rows("--group", group), rows("--group", f"p-{group}")
        assert (member["kind"], sender["kind"]) == ("consumer", "producer")
        assert member["client_id"] == sender["client_id"]
        assert (member["language"], member["version"], member["brokers"]) == ("PYTHON", "V4_9_7", ["broker-a"])
        assert (member["last_heartbeat_ms"], sender["last_heartbeat_ms"] > 1_700_000_000_000) == (None, True)
        assert member["address"].startswith("127.0.0.1:")
        table = cli("client", "list", *at).out
        assert {row.split()[2] for row in table.splitlines()[1:]} >= {group, f"p-{group}"}

        kicked = cli("client", "kick", member["client_id"], "--json", *at)
        assert kicked.code == 0, kicked.err
        (row,) = json.loads(kicked.out)
        assert (row["broker"], row["closed"], row["error"]) == ("broker-a", 1, None)
        producer.send(gantry_topic, b"2")
        assert next(iter(consumer)).body == b"2", "a client that works connects again"
        wait_for(lambda: [each["address"] for each in rows("--group", group)] not in ([], [member["address"]]))

    unknown = cli("client", "kick", "nobody", *at)
    assert (unknown.code, "no connection of client nobody was closed" in unknown.err) == (1, True)
