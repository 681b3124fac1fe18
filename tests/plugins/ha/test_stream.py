"""The replication stream without a network, cut at every byte and with every byte flipped: row 57."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import structlog.testing

from gantrymq.kernel.errors import OutOfLog
from gantrymq.kernel.store.log.record import BLANK_MAGIC, BadRecord
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.plugins.ha.frames import CHUNK_MAX_BYTES, HEADER, BadFrame, Pieces
from gantrymq.plugins.ha.slave import Tail
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of, commit, open_store, read_all, read_queue

CHECKSUM_AT, BODY_SIZE_AT = 8, 84
"""Positions in one of RocketMQ's records with IPv4 addresses."""


@pytest.fixture(scope="module")
def master() -> Store:
    """A store of several tiny files."""
    store = open_store(MemoryEnv())[0]
    for number in range(40):
        store.append(batch_of([b"%d" % number * (number * 7 % 90 + 1)], queue_id=number % 3))
    commit(store)
    assert len(store.log.segments) > 1
    return store


class Slave:
    """A store that takes what a stream brings; each connection begins at its log's end."""

    def __init__(self, config: StoreConfig = TINY) -> None:
        self.store = open_store(MemoryEnv(), config=config)[0]
        section = SimpleNamespace(max_message_bytes=config.max_message_bytes)
        self._broker: Any = SimpleNamespace(
            config=SimpleNamespace(store=section), log=self.store.log, append_encoded=self.store.append_encoded
        )

    def connect(self, stream: bytes, at_once: int = 97) -> str:
        """Feed these bytes over one connection; return the error that ended it, if any."""
        tail, pieces = Tail(self._broker), Pieces()
        try:
            for at in range(0, len(stream), at_once):
                for piece in pieces.feed(stream[at : at + at_once]):
                    tail.add(piece.offset, piece.data)
                assert tail.settle()
        except (BadFrame, BadRecord, OutOfLog) as error:
            return type(error).__name__
        return ""


def test_pieces_are_committed_together_on_request(master: Store) -> None:
    slave, asked = Slave(), []
    slave._broker.commit_encoded = lambda: asked.append(slave.store.log.end)
    tail, data = Tail(slave._broker), memoryview(bytes_of(master))
    for at in range(0, len(data), 500):
        tail.add(at, data[at : at + 500])
        assert tail.settle()
    assert (asked, tail.uncommitted) == ([], master.log.end)
    tail.commit()
    tail.commit()
    assert (asked, tail.uncommitted) == ([master.log.end], 0)


def test_records_from_a_time_with_a_higher_limit_of_bodies_are_received() -> None:
    config = attrs.evolve(TINY, commit_log_file_bytes=8 << 20)
    bodies = [b"first", bytes(3 << 20), b"last"]
    store = open_store(MemoryEnv(), config=attrs.evolve(config, max_message_bytes=4 << 20))[0]
    store.append(batch_of(bodies))
    commit(store)
    slave = Slave(config)
    assert slave.connect(stream_from(store, 0, batch=CHUNK_MAX_BYTES), at_once=512 * 1024) == ""
    commit(slave.store)
    assert list(read_queue(slave.store).values()) == bodies


def bytes_of(store: Store) -> bytes:
    size = store.log.segments.file_bytes
    bases = range(0, store.log.end, size)
    return b"".join(store.log.segments.pread(base, min(size, store.log.end - base)) for base in bases)


def stream_from(master: Store, offset: int, batch: int = 150) -> bytes:
    """The stream to a slave that has the log up to ``offset``: no batch crosses the end of a file."""
    data, size, parts = bytes_of(master), master.log.segments.file_bytes, []
    while offset < len(data):
        part = data[offset : min(offset + batch, offset - offset % size + size)]
        parts.append(HEADER.pack(offset, len(part)) + part)
        offset += len(part)
    return b"".join((*parts, HEADER.pack(offset, 0)))


def around_the_end_of_a_file(master: Store, stream: bytes) -> range:
    """Places in the stream: some records and batches, the blank that ends a file, and the next file's beginning."""
    where = stream.index(HEADER.pack(master.log.segments.file_bytes, 150))
    return range(where - 500, where + 400)


def places_of_bodies(store: Store) -> list[range]:
    """The positions of body checksums in the log, and of the bodies."""
    found = []
    for batch in store.log.scan(0, store.log.end):
        for offset in batch.offsets:
            size = int.from_bytes(store.log.view(offset + BODY_SIZE_AT, 4), "big")
            start = offset + BODY_SIZE_AT + 4
            found += [range(start, start + size), range(offset + CHECKSUM_AT, offset + CHECKSUM_AT + 4)]
    return found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of stores are opened here."""
    with structlog.testing.capture_logs():
        yield


@pytest.mark.slow
def test_row_57_a_connection_cut_at_any_byte_resumes_to_the_same_log(master: Store) -> None:
    whole = stream_from(master, 0)
    for cut in around_the_end_of_a_file(master, whole):
        slave = Slave()
        assert slave.connect(whole[:cut]) == ""
        assert bytes_of(master).startswith(bytes_of(slave.store))
        assert slave.connect(stream_from(master, slave.store.log.end)) == ""
        assert bytes_of(slave.store) == bytes_of(master)


@pytest.mark.parametrize("at", [1, 2, 3, BODY_SIZE_AT + 1, BODY_SIZE_AT + 2, BODY_SIZE_AT + 3])
def test_row_57_a_wrong_length_is_rejected_without_waiting(at: int, master: Store) -> None:
    """Else the slave would confirm nothing until so many bytes have come, and senders would wait for it in vain."""
    record = bytearray(master.log.view(0, int.from_bytes(master.log.view(0, 4), "big")))
    record[at] ^= 1 << 6
    slave = Slave()
    assert slave.connect(HEADER.pack(0, len(record)) + record) == "BadRecord"
    assert slave.connect(stream_from(master, 0)) == ""
    assert bytes_of(slave.store) == bytes_of(master)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_row_57_a_blank_of_wrong_size_is_rejected_without_waiting(at: int, master: Store) -> None:
    size = master.log.segments.file_bytes
    first = bytearray(bytes_of(master)[:size])
    blank_at = max(place for place in range(size - 8) if first[place + 4 : place + 8] == BLANK_MAGIC.to_bytes(4, "big"))
    first[blank_at + at] ^= 1 << 6
    slave = Slave()
    assert slave.connect(HEADER.pack(0, blank_at + 8) + first[: blank_at + 8]) == "BadRecord"
    assert slave.store.log.end == blank_at
    assert slave.connect(stream_from(master, blank_at)) == ""
    assert bytes_of(slave.store) == bytes_of(master)


@pytest.mark.slow
def test_row_57_any_flipped_byte_alters_no_body_and_no_offset(master: Store) -> None:
    """RocketMQ's records have a checksum of the body alone: a flip elsewhere may be taken where it makes sense."""
    rng, whole, refused = random.Random(57), stream_from(master, 0), 0
    messages, bodies_at = read_all(master), places_of_bodies(master)
    places = around_the_end_of_a_file(master, whole)
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        slave = Slave()
        refused += slave.connect(bytes(flipped)) != ""
        again = slave.connect(stream_from(master, slave.store.log.end))
        theirs, ours = bytes_of(master), bytes_of(slave.store)
        differing = [at for at, (one, other) in enumerate(zip(theirs, ours, strict=False)) if one != other]
        assert len(differing) <= 1, f"byte {place}"
        assert not any(at in body for at in differing for body in bodies_at), f"byte {place}"
        if not differing:
            assert (again, ours) == ("", theirs), f"byte {place}"
            commit(slave.store)
            assert read_all(slave.store) == messages
    assert refused > len(places) // 2
