"""The source, the sink and the planner of streams against a cluster, without a Spark session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gantrymq import Message, sync
from gantrymq.spark.errors import WrongOption
from gantrymq.spark.options import SourceOptions, read_options, read_sink_options, read_stream_options
from gantrymq.spark.planner import StreamPlanner, unpack
from gantrymq.spark.ranges import QueueRange, plan_ranges
from gantrymq.spark.reader import read_range
from gantrymq.spark.sink import send_rows
from gantrymq.spark.wire import GROUP, Wire
from support.foreign import wait_readable
from support.processes import wait_for

COUNT = 300
BATCH_ROWS = 70
NAMES = ["body", "keys", "storeTimestamp"]


def check_sink_and_stream(nameserver: str, topic: str, group: str) -> None:
    """Write rows to ``topic``; read them as a stream in limited batches, then from a time; commit for ``group``."""
    import pyarrow as pa

    bodies = [b"%d" % number for number in range(COUNT)]
    to = read_sink_options({"nameserver": nameserver, "topic": topic})
    for part in (bodies[: COUNT // 2], bodies[COUNT // 2 :]):
        keys = [f"key-{body.decode()}" for body in part]
        send_rows(iter([pa.record_batch({"body": part, "keys": keys})]), to, "")
    with sync.connect(nameserver) as client:
        wait_readable(client, topic, COUNT)

    given = {"nameserver": nameserver, "topic": topic, "groupId": group}
    with Wire(group=group) as wire:
        limited = given | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH_ROWS)}
        planner = StreamPlanner(read_stream_options(limited), wire)
        rows: list[dict[str, Any]] = []
        position = planner.initial()
        while (end := planner.latest(position)) != position:
            batch = _read(planner, wire, position, end)
            assert len(batch) <= BATCH_ROWS
            rows += batch
            position = end
        assert sorted(row["body"] for row in rows) == sorted(bodies)
        assert all(row["keys"] == f"key-{row['body'].decode()}" for row in rows)
        assert _committed(nameserver, topic, group) == {
            key: offset for key, offset in unpack(position).items() if offset
        }

        times = sorted(row["storeTimestamp"] for row in rows)
        for since in (times[0], times[COUNT // 2], times[-1]):
            by_time = given | {"startingTimestamp": str(round(since.timestamp() * 1000))}
            later = StreamPlanner(read_stream_options(by_time), wire)
            begin = later.initial()
            assert later.latest(begin) == begin
            found = _read(later, wire, begin, later.latest(begin))
            expected = [row["body"] for row in rows if row["storeTimestamp"] >= since]
            assert sorted(row["body"] for row in found) == sorted(expected)


def check_options(nameserver: str, topic: str) -> None:
    """Write two topics whose names begin with ``topic``; read them by every option that selects messages or tasks."""
    tags = ("Aa", "BB", "other", None)  # the first two have the same hash code
    at = {"nameserver": nameserver}
    events, other = f"{topic}-events", f"{topic}-other"
    with sync.connect(nameserver) as client, client.producer("spark-tests") as producer:
        for name in (events, other):
            client.admin.create_topic(name, 2)
            for number in range(40):
                producer.send(Message(name, b"%d" % number, tags=tags[number % 4], properties={"price": str(number)}))
            wait_readable(client, name, 40)

    def load(**options: str) -> list[tuple[str, int]]:
        rows = read_rows(at | options, ["topic", "body"])
        return sorted((row["topic"].removeprefix(topic), int(row["body"])) for row in rows)

    assert load(topicPattern=f"{topic}-.*") == [(name, n) for name in ("-events", "-other") for n in range(40)]
    assert load(topic=events, subExpression="BB || nothing") == [("-events", n) for n in range(40) if n % 4 == 1]
    sql = {"subExpression": "price BETWEEN 10 AND 19 AND TAGS IS NOT NULL", "expressionType": "SQL92"}
    assert load(topic=events, **sql) == [("-events", n) for n in range(10, 20) if n % 4 != 3]

    rows = read_rows(at | {"topic": events}, ["broker", "queueId", "queueOffset", "body", "storeTimestamp"])
    broker = rows[0]["broker"]
    last = sum(row["queueId"] == 1 for row in rows) - 1
    assigned = json.dumps({events: {broker: [1]}})
    of_queue = sorted(int(row["body"]) for row in rows if row["queueId"] == 1)
    assert load(assign=assigned) == [("-events", n) for n in of_queue]
    offsets = {"startingOffsets": json.dumps({events: {broker: {"1": last}}})}
    assert len(load(assign=assigned, **offsets)) == 1
    with pytest.raises(WrongOption, match=f"offset {last + 2} lies behind its last message|ends at offset {last + 1}"):
        load(assign=assigned, startingOffsets=json.dumps({events: {broker: {"1": last + 2}}}))

    times = [round(row["storeTimestamp"].timestamp() * 1000) for row in rows]
    middle = sorted(times)[20]
    since = [("-events", int(row["body"])) for row, time in zip(rows, times, strict=True) if time >= middle]
    assert load(topic=events, startingTimestamp=str(middle)) == sorted(since)
    before = [("-events", int(row["body"])) for row, time in zip(rows, times, strict=True) if time < middle]
    assert load(topic=events, endingTimestamp=str(middle)) == sorted(before)
    by_queue = {"startingOffsetsByTimestamp": json.dumps({events: {broker: {"1": middle}}})}
    in_queue = sorted(n for _, n in since if n in of_queue)
    assert load(assign=assigned, **by_queue) == [("-events", n) for n in in_queue]
    later = {"startingTimestamp": str(max(times) + 3_600_000)}
    assert load(topic=events, **later) == []
    with pytest.raises(WrongOption, match="no message"):
        load(topic=events, startingOffsetsByTimestampStrategy="error", **later)

    assert max(item.rows for item in plan(at | {"topic": events, "maxRecordsPerPartition": "7"})) <= 7
    assert len(plan(at | {"topic": events, "minPartitions": "10"})) >= 10
    sizes = {item.rows for item in plan(at | {"topic": events, "maxBytesPerPartition": "1000"})}
    assert max(sizes) <= 1000 // 150, "a record takes more than 150 bytes"


def check_security(options: Mapping[str, str], topic: str) -> None:
    """Write rows to ``topic`` and read them with the ``options`` of a secured cluster."""
    import pyarrow as pa

    to = read_sink_options({name: value for name, value in options.items() if name != "groupId"} | {"topic": topic})
    bodies = [b"secured %d" % number for number in range(20)]
    assert send_rows(iter([pa.record_batch({"body": bodies})]), to, "") == 20

    def has_all() -> bool:
        return {row["body"] for row in read_rows({**options, "topic": topic}, ["body"])} >= set(bodies)

    wait_for(has_all)  # RocketMQ acknowledges a message before its queue has it


def read_rows(given: Mapping[str, str], names: list[str]) -> list[dict[str, Any]]:
    """The rows of a batch read with these options."""
    options = read_options(given)
    with _connect(options) as wire:
        ranges = plan_ranges(options, wire)
        batches = [batch for item in ranges for batch in read_range(wire, item, options, names)]
    return [row for batch in batches for row in batch.to_pylist()]


def plan(given: Mapping[str, str]) -> list[QueueRange]:
    """The tasks of a batch read with these options."""
    options = read_options(given)
    with _connect(options) as wire:
        return plan_ranges(options, wire)


def _connect(options: SourceOptions) -> Wire:
    return Wire(group=options.group or GROUP, security=options.security)


def _read(planner: StreamPlanner, wire: Wire, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        row
        for item in planner.ranges(start, end)
        for batch in read_range(wire, item, planner.options.source, NAMES)
        for row in batch.to_pylist()
    ]


def _committed(nameserver: str, topic: str, group: str) -> dict[tuple[str, str, int], int]:
    with sync.connect(nameserver) as client:
        found = {queue: client.admin.consumer_offset(group, queue) for queue in client.admin.queues(topic)}
    return {(queue.topic, queue.broker_name, queue.queue_id): offset for queue, offset in found.items() if offset}
