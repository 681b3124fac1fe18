"""The extension of a consume queue: RocketMQ's bytes, reads through it, and its state after a crash."""

from __future__ import annotations

import struct

import attrs
import pytest
from structlog.testing import capture_logs

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.fast import tag_code
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.queues.extension import ExtensionUnit, QueueExtension
from gantrymq.kernel.store.store import Store
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, commit, open_store

EXTENDED = attrs.evolve(TINY, queue_extension=True, queue_extension_file_bytes=100)
"""Four units of 20 bytes a file, and 16 bytes that none fits into."""
FOLDER = "store/consumequeue_ext/T/0"
LOWEST = -(2**63)


def batch(first: int, count: int) -> AppendBatch:
    made = AppendBatch()
    for number in range(first, first + count):
        made.add("T", 0, b"%d" % number, b"TAGS\x01Tag%d" % number)
    return made


def code(number: int) -> int:
    return tag_code(b"TAGS\x01Tag%d" % number)


def fill(store: Store, first: int, count: int) -> None:
    store.append(batch(first, count))
    commit(store)
    store.flush_queues()


def codes(store: Store) -> list[int]:
    """The tag codes that readers see."""
    queue = store.queues.get("T", 0)
    assert queue is not None
    data = queue.entries(queue.min_offset, queue.max_offset - queue.min_offset)
    assert queue.peek(queue.min_offset, queue.max_offset - queue.min_offset) == data
    return [found for _, _, found in ENTRY.iter_unpack(data)]


def written(env: MemoryEnv) -> list[int]:
    """The third fields of the entries on the disk."""
    data = b"".join(env.read_bytes(path) for path in sorted(env.files) if path.startswith("store/consumequeue/T/0/"))
    return [found for _, size, found in ENTRY.iter_unpack(data) if size]


def test_extension_units_have_rocketmqs_bytes_and_stop_before_the_end_of_their_file() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env, config=EXTENDED)
    fill(store, 0, 6)
    first, second = (env.read_bytes(f"{FOLDER}/{base:020d}") for base in (0, 100))
    stamp = env.wall
    units = [struct.pack(">hqqh", 20, code(number), stamp, 0) for number in range(6)]
    assert first == b"".join(units[:4]) + b"\xff\xff" + bytes(18)
    assert second == b"".join(units[4:]) + bytes(60)
    assert written(env) == [LOWEST + place for place in (0, 20, 40, 60, 100, 120)]
    assert codes(store) == [code(number) for number in range(6)]
    store.close()


@pytest.mark.parametrize("writes", [True, False], ids=["goes on", "switched off"])
@pytest.mark.parametrize("end", ["stopped", "killed", "power cut"])
def test_extension_files_survive_any_crash_and_continue(end: str, writes: bool) -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env, config=EXTENDED)
    fill(store, 0, 6)
    store.append(batch(6, 5))
    list(store.dispatch(store.flush()))
    if end == "stopped":
        store.close()
    after = env.power_cut(7) if end == "power cut" else env.kill()
    store, _, _ = open_store(after, config=attrs.evolve(EXTENDED, queue_extension=writes))
    fill(store, 11, 3)
    assert codes(store) == [code(number) for number in range(14)]
    places = [place for place in written(after) if place < 0]
    assert len(set(places)) == len(places) >= (14 if writes else 6)
    store.close()
    store, _, _ = open_store(after.kill(), config=EXTENDED)
    assert codes(store) == [code(number) for number in range(14)]


def test_a_bit_map_written_by_rocketmq_is_kept_and_skipped() -> None:
    env = MemoryEnv()
    env.mkdirs("x")
    env.mkdirs("staging")
    file = env.open("x/00000000000000000000", create=True)
    file.preallocate(100)
    with_bits = struct.pack(">hqqh", 28, 77, 1234, 8) + b"\x01" * 8
    file.pwrite(with_bits + struct.pack(">hqqh", 20, -5, 1235, 0), 0)
    extension = QueueExtension(env, "x", "staging", 100)
    extension.load()
    assert extension.unit(LOWEST) == ExtensionUnit(28, 77, 1234, b"\x01" * 8)
    extension.cut_behind(LOWEST + 28)
    assert extension.put([(9, 1236)]) == [LOWEST + 48]
    assert [extension.unit(LOWEST + at).tag_code for at in (0, 28, 48)] == [77, -5, 9]  # type: ignore[union-attr]
    assert extension.unit(LOWEST + 68) is None
    extension.cut_behind(LOWEST)
    assert extension.unit(LOWEST + 28) is None


def test_entries_without_their_extension_files_match_any_tag() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env, config=EXTENDED)
    fill(store, 0, 6)
    store.close()
    after = env.kill()
    after.rmtree(FOLDER)
    store, _, _ = open_store(after)
    assert codes(store) == [LOWEST + place for place in (0, 20, 40, 60, 100, 120)]


@pytest.mark.parametrize("kind", ["pwrite", "truncate", "rename"])
def test_tag_codes_stay_in_the_entries_if_the_extension_cannot_be_written(kind: str) -> None:
    class OnlyThere(FaultEnv):
        def is_due(self, what: str) -> bool:
            return super().is_due(what) and self.there

        there = False

    env = OnlyThere(MemoryEnv(), 1, forever=True, kinds=(kind,))
    store, _, _ = open_store(env, config=EXTENDED)
    fill(store, 0, 1)
    put = QueueExtension.put

    def failing(self: QueueExtension, rows: list[tuple[int, int]]) -> list[int]:
        env.there = True
        try:
            return put(self, rows)
        finally:
            env.there = False

    with pytest.MonkeyPatch.context() as patch, capture_logs() as logs:
        patch.setattr(QueueExtension, "put", failing)
        store.append(batch(1, 5))
        commit(store)
        store.append(batch(6, 1))
        commit(store)
    assert env.failed
    assert codes(store) == [code(number) for number in range(7)]
    with capture_logs() as later:
        fill(store, 7, 2)
    assert [each["event"] for each in logs + later] == ["queue_extension_not_written", "outage_ended"]
    assert codes(store) == [code(number) for number in range(9)]
    store.close()


def test_extension_files_of_deleted_messages_and_topics_are_deleted() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env, config=EXTENDED)
    fill(store, 0, 60)
    queue = store.queues.get("T", 0)
    assert queue is not None
    before = len(env.listdir(FOLDER))
    low = ENTRY.unpack(queue.entries(50, 1))[0]
    store.queues.correct_min(low)
    assert len(env.listdir(FOLDER)) < before
    assert codes(store) == [code(number) for number in range(50, 60)]
    store.queues.delete_topic("T")
    assert not env.is_dir("store/consumequeue_ext/T")
    store.close()
