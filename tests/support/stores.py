"""Reading a store's files from outside: the records of a log, and the expected consume queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gantrymq.sync
from gantrymq.kernel.fast import tag_code
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import BLANK_MAGIC, Record, decode, encode
from gantrymq.testing.harness import cluster_in_thread
from support.processes import wait_for

Queues = dict[str, bytes]
"""``topic/queue id`` to the entries of that consume queue."""


def read_records(log: bytes, start: int = 0) -> Iterator[tuple[Record, bytes]]:
    """The records of one log file that begins at offset ``start``, each with its bytes; zeros or a blank mark end it.

    AssertionError for a record that we would write otherwise, or that lies elsewhere than it says.
    """
    position = 0
    while position + 8 <= len(log) and log[position : position + 4] != bytes(4):
        if int.from_bytes(log[position + 4 : position + 8], "big") == BLANK_MAGIC:
            return
        record, end = decode(log, position)
        raw = log[position:end]
        if record.offset != start + position or encode(record) != raw:
            raise AssertionError(f"the record at {start + position} is not as we write it: {record}")
        yield record, raw
        position = end


def expected_queues(records: Iterator[tuple[Record, bytes]]) -> Queues:
    """The consume queue entries that follow from the records, in log order; AssertionError for a gap in a queue."""
    queues: dict[str, bytearray] = {}
    for record, raw in records:
        entries = queues.setdefault(f"{record.topic}/{record.queue_id}", bytearray())
        if record.queue_offset * ENTRY.size != len(entries):
            raise AssertionError(f"{record} follows {len(entries) // ENTRY.size} others in its queue")
        entries += ENTRY.pack(record.offset, len(raw), tag_code(record.properties))
    return {name: bytes(entries) for name, entries in queues.items()}


def make_store(folder: Path, settings: dict[str, str], queues: int, messages: int, body_bytes: int) -> Path:
    """A broker's store with ``messages`` of the topic ``orders``, each with a key and the tag ``red``, in the index."""
    with cluster_in_thread(folder, settings=settings) as cluster, gantrymq.sync.connect(cluster.nameserver) as client:
        client.admin.create_topic("orders", queues)
        with client.producer() as producer:
            for number in range(messages):
                producer.send("orders", b"%03d " % number + b"x" * body_bytes, keys=[f"k{number}"], tags="red")
        wait_for(lambda: bool(client.admin.find("orders", f"k{messages - 1}")))
    return folder


def log_records(store: Path) -> Iterator[tuple[Record, bytes]]:
    """All records of the store in ``store``."""
    for path in sorted((store / "commitlog").iterdir()):
        yield from read_records(path.read_bytes(), int(path.name))


def written_queues(store: Path) -> Queues:
    """The content of a store's consume queue files, without the unused rest."""
    queues: Queues = {}
    for folder in sorted((store / "consumequeue").glob("*/*")):
        whole = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
        used = len(whole.rstrip(b"\0"))
        if used:
            used += -used % ENTRY.size
            queues[f"{folder.parent.name}/{folder.name}"] = whole[:used]
    return queues
