"""``gantrymq message why``: each reason that keeps a message from a group, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.sync import Client
from support.processes import wait_for

pytestmark = pytest.mark.timeout(120)


def test_each_reason_is_named(
    cli: Callable[..., Any], gantry_broker: Any, gantry_client: Client, gantry_topic: str
) -> None:
    group = f"g-{gantry_topic[-8:]}"

    def codes(message_id: str) -> list[str]:
        outcome = cli("message", "why", message_id, "--topic", gantry_topic, "--group", group, "--json",
                      "--nameserver", gantry_broker.nameserver)  # fmt: skip
        assert outcome.code == 0, outcome.err
        lines = outcome.out.splitlines()
        start = lines.index("[")
        return [each["code"] for each in json.loads("\n".join(lines[start : lines.index("]", start) + 1]))]

    with gantry_client.producer() as producer:
        blue = producer.send(gantry_topic, b"blue", tags="blue").message_id
        red = producer.send(gantry_topic, b"red", tags="red").message_id
        assert codes("0" * 32) == ["not_found"]
        wait_for(lambda: codes(red) == ["no_members", "waiting"])
        with gantry_client.consumer(gantry_topic, group, tags="red", start="first", max_retries=0) as consumer:
            message = next(iter(consumer))
            assert message.body == b"red"
            wait_for(lambda: "filtered" in codes(blue))
            message.retry()
            wait_for(lambda: codes(red)[0] == "dead_letter")
