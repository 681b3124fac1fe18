"""The Spark reader on what Java producers sent, from RocketMQ's own servers and from ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import gantrymq.sync
from gantrymq.spark.columns import COLUMNS
from gantrymq.spark.options import read_options
from gantrymq.spark.ranges import plan_ranges
from gantrymq.spark.reader import read_range
from gantrymq.spark.wire import Wire
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
