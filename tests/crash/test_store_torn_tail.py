"""A log cut at any byte of its last records, and zeros or garbage behind the cut."""

from __future__ import annotations

import pytest

from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import batch_of, commit, open_store, read_queue

BODIES = [b"first" * 9, b"second" * 7, b"third" * 8, b"fourth" * 9]


def torn(cut: int, rubbish: bytes) -> tuple[MemoryEnv, list[int]]:
    """A disk whose log has the first record safe and everything from ``cut`` on overwritten; the record's offsets."""
    env = MemoryEnv()
    store, _, _ = open_store(env)
    store.append(batch_of(BODIES[:1]))
    commit(store)
    store.flush_queues()
    batch = batch_of(BODIES[1:])
    store.append(batch)
    file = env.open(f"store/commitlog/{0:020d}")
    end = store.log.end
    file.pwrite((rubbish * (end - cut))[: end - cut], cut)
    return env.kill(), [*batch.offsets, end]


@pytest.mark.parametrize("rubbish", [b"\0", b"\xff", b"\xda\xa3\x20\xa7"], ids=["zeros", "ones", "magics"])
@pytest.mark.slow
def test_truncating_at_every_byte_of_the_last_three_records_keeps_intact_records(rubbish: bytes) -> None:
    _, offsets = torn(200, b"\0")
    for cut in range(offsets[0], offsets[-1] + 1):
        env, _ = torn(cut, rubbish)
        whole = max(index for index, offset in enumerate(offsets) if offset <= cut)
        store, report, replayed = open_store(env)
        # The last bytes of a record are zeros already: cut there, it is whole.
        intact = [index for index in range(whole, len(offsets)) if report.end == offsets[index]]
        assert intact, (cut, report)
        assert report.end - cut < 5
        assert list(read_queue(store).values()) == BODIES[: 1 + intact[0]]
        assert sum(map(len, replayed)) == intact[0]
        assert not report.corrupt
        assert report.cut_bytes == (len(env.read_bytes(report.kept[0])) if report.kept else 0)
        if rubbish != b"\0" and report.end < offsets[-1]:
            assert report.cut_bytes == offsets[-1] - report.end
        # Nothing but zeros is left behind the end, for any reader.
        assert not any(env.read_bytes(f"store/commitlog/{0:020d}")[report.end :])
        batch = batch_of([b"next"])
        store.append(batch)
        commit(store)
        assert batch.queue_offsets == [1 + intact[0]]
        assert list(read_queue(store).values())[-1] == b"next"
