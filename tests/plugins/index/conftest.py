"""Fixtures: a store with an index and without a broker: put, save, crash and search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.env import Env
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.index.files import IndexFiles
from gantrymq.plugins.index.layout import Shape
from gantrymq.plugins.index.verify import IndexVerification, StopKind
from gantrymq.testing.tinystore import TINY, commit

FOREVER = 2**62
SHAPE = Shape(slots=7, entries=10)


@attrs.define
class Indexed:
    """An open store and its index, level with each other."""

    env: Env
    store: Store
    index: IndexFiles

    def send(self, *keys: Sequence[str], topic: str = "T", sys_flag: int = 0) -> None:
        """One message for each list of keys; its body names them."""
        batch = AppendBatch()
        for words in keys:
            properties = f"WAIT\x01true\x02KEYS\x01{' '.join(words)}" if words else "WAIT\x01true"
            batch.add(topic, 0, " ".join(words).encode(), properties.encode(), sys_flag=sys_flag)
        self.store.append(batch)
        for dispatched in commit(self.store):
            self.index.put(dispatched)

    def save(self, *, settle: bool = False) -> bool:
        """Save as the plugin does at intervals and at the end."""
        saved = self.index.save(self.store.log, settle=settle)
        self.store.index_timestamp = max(self.store.index_timestamp, self.index.settled_timestamp)
        return saved

    def level(self) -> int:
        """Build what is missing from the log; returns how many bytes of it were read."""
        before = self.index.position
        for batch in self.store.log.scan(before, self.store.dispatched):
            self.index.put(batch)
        return self.index.position - before

    def record(self, offset: int) -> Record:
        """The message there."""
        return self.store.log.read_record(offset)

    def find(self, key: str, *, topic: str = "T", begin: int = 0, end: int = FOREVER) -> list[int]:
        """Queue offsets of what the index finds, newest first; each must have the key."""
        start = self.store.log.min_offset
        records = [self.record(offset) for offset in self.index.find(topic, key, begin, end) if offset >= start]
        return [record.queue_offset for record in records if key in record.body.decode().split()]

    def check_whole(self) -> int:
        """Check that each key finds all of its messages in the log and no others; return the number of messages."""
        wanted: dict[str, list[int]] = {}
        count = 0
        for batch in self.store.log.scan(self.store.log.min_offset, self.store.log.end):
            for offset in batch.offsets:
                record = self.record(offset)
                count += 1
                for key in set(record.body.decode().split()):
                    wanted.setdefault(key, []).insert(0, record.queue_offset)
        assert {key: self.find(key) for key in wanted} == wanted
        return count


OpenIndexed = Callable[..., Indexed]


def _open(env: Env, shape: Shape = SHAPE) -> Indexed:
    store = Store(env, "store", TINY)
    store.open()
    report = store.recover(lambda batch: None)
    index = IndexFiles(env, "store", shape)
    IndexVerification(env, index, store.log, StopKind(report.clean, store.index_timestamp)).load()
    return Indexed(env, store, index)


@pytest.fixture
def open_indexed() -> OpenIndexed:
    """``open_indexed(env, shape)``: recovered and loaded, not yet level."""
    return _open
