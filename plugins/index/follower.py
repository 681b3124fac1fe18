"""Keep the index up to date: add dispatched batches, and build the missing part from the log.

The index follows the dispatch while each batch begins at the end of the previous one. If a batch does not, after a
start or because the disk was full, the index ignores batches, and a worker thread reads the log until the index has
caught up. So a start never waits for the index.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog
import trio

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.errors import NO_DESCRIPTORS, CorruptRange, UnreadableRange
from gantrymq.kernel.store.recovery.salvage import find_record
from gantrymq.plugins.index.config import IndexConfig
from gantrymq.plugins.index.files import WAITING_MAX_BYTES, IndexFiles
from gantrymq.plugins.index.verify import IndexVerification, StopKind
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.index")

STEPS_A_SECOND = 8
"""Catching up works in steps, so that a stopping broker does not wait long."""
_SCAN_ROWS = 1024


class Follower:
    """Runs the index of a broker.

    ``ready`` is set when the files are loaded, ``caught_up`` while the index is complete.
    """

    def __init__(self, broker: Broker, index: IndexFiles, config: IndexConfig) -> None:
        self._broker = broker
        self._index = index
        self._config = config
        self._outages = Outages(log, broker.env.monotonic)
        self._following = False
        self._behind = trio.Event()
        self.ready = trio.Event()
        self.caught_up = trio.Event()

    def take(self, batch: DispatchBatch) -> None:
        """Add a dispatched batch if the index follows the dispatch."""
        index = self._index
        if not self._following:
            return
        if batch.start != index.position or index.failed or index.waiting_bytes > WAITING_MAX_BYTES:
            self._following = False
            self.caught_up = trio.Event()
            self._behind.set()
            return
        index.put(batch)

    # ------------------------------------------------------------------------------------------------------- tasks

    async def follow(self) -> None:
        """Load the files, catch up whenever the index is behind, until cancelled."""
        store, index = self._broker.store, self._index
        while not await self._try(self._load):
            pass
        self.ready.set()
        try:
            while not index.failed:
                if index.position < store.dispatched:
                    await self._catch_up()
                    continue
                # No await since the comparison: the next batch begins here.
                self._following = True
                self.caught_up.set()
                self._behind = trio.Event()
                await self._behind.wait()
        finally:
            self._following = False
        await trio.sleep_forever()

    async def keep(self) -> None:
        """Write new entries, flush them periodically, delete files without messages in the log, until cancelled."""
        await self.ready.wait()
        next_sync = trio.current_time() + self._config.sync_interval
        while True:
            await trio.sleep(min(self._config.flush_interval, self._config.sync_interval))
            if trio.current_time() >= next_sync or self._has_full_file():
                next_sync = trio.current_time() + self._config.sync_interval
                await trio.to_thread.run_sync(self._save)
            elif self._index.waiting_bytes:
                await trio.to_thread.run_sync(self._index.write)

    def settle(self) -> None:
        """Leave files that need no repair. Call it after the broker has stopped."""
        if self.ready.is_set():
            self._index.save(self._broker.log, settle=True)
            self._broker.store.index_timestamp = max(self._broker.store.index_timestamp, self._index.settled_timestamp)
            self._index.close()

    # --------------------------------------------------------------------------------------------- in worker threads

    def _load(self) -> None:
        broker = self._broker
        recovered = broker.store.recovered
        stop = StopKind(recovered is not None and recovered.clean, broker.store.index_timestamp)
        IndexVerification(broker.env, self._index, broker.log, stop).load()

    def _save(self) -> None:
        self._index.save(self._broker.log)
        store = self._broker.store
        store.index_timestamp = max(store.index_timestamp, self._index.settled_timestamp)
        with suppress(OSError):  # what is left is tried again the next time
            self._index.delete_before(self._broker.log.min_offset)

    def _has_full_file(self) -> bool:
        return any(file.is_full and not file.is_settled for file in self._index.files)

    async def _catch_up(self) -> None:
        """Make one step towards the dispatched end of the log."""
        index = self._index
        began = trio.current_time()
        if index.waiting_bytes > WAITING_MAX_BYTES // 4 and not await trio.to_thread.run_sync(index.write):
            await trio.sleep(self._config.flush_interval)
            return
        if not await self._try(self._build, self._broker.store.dispatched):
            return
        if index.position < self._broker.store.dispatched and not index.failed:
            log.info("index_building", position=index.position, log_end=self._broker.store.dispatched)
            await trio.sleep(max(began + 1 / STEPS_A_SECOND - trio.current_time(), 0))

    async def _try(self, work: Callable[..., None], *arguments: Any) -> bool:
        """Call ``work`` in a worker thread. False, after a pause, if the process had no file descriptor left for it.

        Any other failure of the disk stops the index.
        """
        try:
            await trio.to_thread.run_sync(work, *arguments)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self._outages.warning("index_waits_for_descriptor", reason=str(error))
                await trio.sleep(self._config.flush_interval)
                return False
            self._index.failed = True
            log.error("index_stopped", error=str(error))
        self._outages.over("index_waits_for_descriptor")
        return True

    def _build(self, target: int) -> None:
        """Add the keys between the index's position and ``target``, at most as much of the log as one step may read.

        ``OSError`` if the process has no file descriptor left to read the log.
        """
        index, commit_log = self._index, self._broker.log
        index.skip_to(commit_log.min_offset)
        enough = index.position + self._config.catch_up_bytes // STEPS_A_SECOND
        if self._put_until(target, enough):
            return
        if index.position < commit_log.min_offset:
            return  # deleted meanwhile: the next step continues behind it
        # Damage: continue at the next intact record.
        found = find_record(commit_log.segments, index.position + 1)
        after = target if found is None else min(found[0], target)
        log.error("damaged_records_not_indexed", start=index.position, end=after)
        index.skip_to(after)

    def _put_until(self, target: int, enough: int) -> bool:
        """Add records up to ``target``, or ``enough`` of them; False if the log is damaged behind those added."""
        index = self._index
        before = index.position
        try:
            for batch in self._broker.log.scan(before, target, rows=_SCAN_ROWS):
                index.skip_to(batch.start)  # the start of the log may have been deleted meanwhile
                index.put(batch)
                if batch.end >= enough:
                    break
        except UnreadableRange as error:
            error.raise_if_temporary()
            return False
        except CorruptRange:
            return False
        return index.position > before
