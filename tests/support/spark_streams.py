"""The sink and the planner of streams against a cluster, without a Spark session."""

from __future__ import annotations

from typing import Any

from gantrymq import sync
from gantrymq.spark.options import read_sink_options, read_stream_options
from gantrymq.spark.planner import StreamPlanner, unpack
from gantrymq.spark.reader import read_range
from gantrymq.spark.sink import send_rows
from gantrymq.spark.wire import Wire

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
