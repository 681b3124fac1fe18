"""A disk that reports writes it did not make: no reader gets a wrong message, and losses are reported as damage.

Row 33 of the fault catalogue. One machine alone cannot restore data that its disk dropped, but it can detect
the loss. Broken on purpose: with the watermark ignored by the recovery, and with the flush left out, both tests failed.
"""

from __future__ import annotations

import pytest

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.store.log.record import BadRecord
from gantrymq.kernel.store.store import Store
from gantrymq.testing.fault_env import FaultEnv, FaultFile
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import batch_of, open_store

TURNS = 12
LOG = "store/commitlog/"


def body(number: int) -> bytes:
    return b"%04d:" % number + b"x" * 120


class OnlyTheLogLies(FaultEnv):
    """Every other file is written and synced honestly."""

    def open(self, path: str, create: bool = False):
        if path.startswith(LOG):
            return FaultFile(self, self.env.open(path, create))
        return NewFile(self, self.env.open(path, create)) if "/staging/" in path else self.env.open(path, create)


class NewFile(FaultFile):
    """A file that has no name yet: one of the log, whose room is reserved, or of a queue, which just grows."""

    def truncate(self, size: int) -> None:
        self.pwrite, self.datasync = self._file.pwrite, self._file.datasync
        self._file.truncate(size)


def read(store: Store, count: int) -> dict[int, bytes | None]:
    """Body by queue offset; None where the store says that it cannot be read."""
    queue = store.queues.get("T", 0)
    found: dict[int, bytes | None] = {}
    for number in range(count):
        found[number] = None
        entry = queue.entries(number, 1) if queue is not None else b""
        if entry:
            try:
                found[number] = store.log.read_record(int.from_bytes(entry[:8], "big")).body
            except (CorruptRange, OutOfLog, BadRecord):
                continue
    return found


def run(env: FaultEnv, *, turns_after: int, save: bool) -> tuple[int, range, int]:
    """Fill a store until ``turns_after`` turns behind the lie; then, with ``save``, note the watermark.

    Returns how many messages were acknowledged, which of them were flushed by the turn of the lie, and the watermark.
    """
    store, _, _ = open_store(env)
    acknowledged, doubtful, left = 0, range(0), turns_after
    failed_before = env.failed
    for _ in range(TURNS):
        first = acknowledged
        batch = batch_of([body(first + row) for row in range(6)])
        store.append(batch)
        list(store.dispatch(store.flush()))
        acknowledged += len(batch)
        if env.failed > failed_before and not doubtful:
            doubtful = range(first, acknowledged)
        elif doubtful:
            left -= 1
        if doubtful and left <= 0:
            break
    if save:
        store.flush_queues()
    marks = store._files.marks
    return acknowledged, doubtful, marks.durable if marks else 0


@pytest.mark.parametrize("save", [False, True], ids=["no mark after it", "marked as durable"])
@pytest.mark.parametrize("turns_after", [0, 1, 4])
@pytest.mark.parametrize("kind", ["datasync", "pwrite"])
@pytest.mark.slow
def test_row_33_data_lost_by_a_lying_disk_is_reported_and_its_offsets_are_not_reused(
    kind: str, turns_after: int, save: bool
) -> None:
    lies = noticed = 0
    while True:
        disk = MemoryEnv(lies)
        env = OnlyTheLogLies(disk, lies + 1, lie=True, kinds=(kind,))
        acknowledged, doubtful, durable = run(env, turns_after=turns_after, save=save)
        if not env.failed:
            break
        lies += 1
        store, _, _ = open_store(disk.power_cut())
        found = read(store, acknowledged)
        missing = [number for number, data in found.items() if data is None]
        strange = {number: data for number, data in found.items() if data not in (None, body(number))}
        assert not strange, "never another message"
        if durable:
            assert set(missing) <= set(doubtful), "what was synced in truth is there, before the hole and behind it"
            noticed += bool(missing)
        else:
            kept = acknowledged - len(missing)
            assert missing == list(range(kept, acknowledged)), "a tail is gone, as after a crash before the sync"
            assert kept >= doubtful.start
        # It continues, at offsets that no client knows yet.
        batch = batch_of([b"afterwards"])
        store.append(batch)
        list(store.dispatch(store.flush()))
        again = read(store, batch.queue_offsets[0] + 1)
        assert again[batch.queue_offsets[0]] == b"afterwards"
        if durable:
            assert batch.queue_offsets[0] == acknowledged
        store.close()
    assert lies >= 8
    assert noticed or not save


def test_row_33_a_replay_reports_the_range_lost_by_a_lying_disk() -> None:
    disk = MemoryEnv()
    env = OnlyTheLogLies(disk, 3, lie=True, kinds=("pwrite",))
    acknowledged, doubtful, durable = run(env, turns_after=3, save=True)
    assert durable
    store, report, _ = open_store(disk.power_cut(), replay_from=0)
    (damaged,) = report.corrupt
    assert report.end == durable
    missing = [number for number, data in read(store, acknowledged).items() if data is None]
    assert missing == list(doubtful)
    assert damaged[1] - damaged[0] > len(missing) * 120
