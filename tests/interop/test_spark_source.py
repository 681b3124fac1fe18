"""The Spark reader gets the messages of Java producers from RocketMQ's servers and from ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gantrymq.sync
from gantrymq.spark.columns import COLUMNS
from gantrymq.spark.options import read_options
from gantrymq.spark.ranges import plan_ranges
from gantrymq.spark.reader import read_range
from gantrymq.spark.wire import Wire, connect
from support.clients import ForeignClient
from support.content import content
from support.foreign import wait_readable

pytestmark = [pytest.mark.once, pytest.mark.interop, pytest.mark.slow]
pytest.importorskip("pyarrow", reason="the columns are Arrow's: pip install 'gantrymq[spark]'")

COUNT = 600


@pytest.mark.parametrize("system_name", ["java_system", "gantry"])
def test_every_message_of_a_java_producer_becomes_a_row(
    java_client: ForeignClient, system_name: str, names: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    system = request.getfixturevalue(system_name)
    topic = names("t")
    sent = java_client.produce(system.nameserver, topic, COUNT, seed=9, modes="sync,batch")
    with gantrymq.sync.connect(system.nameserver) as client:
        wait_readable(client, topic, 2 * COUNT)
    options = read_options({"nameserver": system.nameserver, "topic": topic, "minPartitions": "9"})
    with Wire() as wire:
        ranges = plan_ranges(options, wire)
        batches = [batch for item in ranges for batch in read_range(wire, item, options, list(COLUMNS))]
    rows = {int(dict(row["properties"])["index"]): row for batch in batches for row in batch.to_pylist()}
    assert sum(batch.num_rows for batch in batches) == len(rows) == 2 * COUNT
    for index, row in rows.items():
        wanted = content(9, index)
        assert (row["body"], row["tags"], row["keys"]) == (wanted.body, wanted.tags, wanted.keys)
        assert wanted.all_properties.items() <= dict(row["properties"]).items()
    assert any(row["sysFlag"] & 1 for row in rows.values())
    for answer in sent:
        row = rows[answer.index]
        assert (row["broker"], row["queueId"], row["queueOffset"]) == (
            answer.broker,
            answer.queue_id,
            answer.queue_offset,
        )
        if answer.count == 1:  # the id of a batch is made up differently by each release
            assert answer.msg_id == row["msgId"]


def test_a_reset_of_the_group_in_rocketmq_5_skips_no_message(java5_system: Any, names: Callable[[str], str]) -> None:
    """Its broker answers the first pull after the reset with the offset of the reset."""
    topic, group = names("t"), names("g")
    given = {"nameserver": java5_system.nameserver, "topic": topic, "groupId": group, "subExpression": "a"}
    options = read_options(given)
    with gantrymq.sync.connect(java5_system.nameserver) as client, connect(options) as wire:
        client.admin.create_topic(topic, 1)
        with client.producer() as producer:
            for number in range(40):
                producer.send(topic, b"%d" % number, tags="a")
        wait_readable(client, topic, 40)
        (wanted,) = plan_ranges(options, wire)

        def read() -> list[int]:
            batches = list(read_range(wire, wanted, options, ["queueOffset"]))
            return [row["queueOffset"] for batch in batches for row in batch.to_pylist()]

        assert read() == list(range(40))  # the broker has the group from now on
        assert [reset.after for reset in client.admin.reset_offsets(group, "last", topics=topic)] == [40]
        assert read() == list(range(40))
        with client.reader(topic, group=group, until="end") as reader:
            reader.seek_to_beginning()
            assert len(list(reader)) == 40
            client.admin.reset_offsets(group, "last", topics=topic)
            reader.seek_to_beginning()
            assert len(list(reader)) == 40
