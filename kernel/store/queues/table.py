"""The consume queues: for each topic and queue the log offsets of its messages, 20 bytes each.

They are derived from the log and can always be rebuilt. Entries wait in memory for :meth:`ConsumeQueues.flush`; readers
see them at once. Offsets of queues count entries, offsets of the log count bytes. ``docs/format/consume-queue.md`` has
the grammar. Source: RocketMQ 4.9.7 ``ConsumeQueue``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from threading import Lock

import attrs
import structlog

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env import Env, TreeFlusher
from gantrymq.kernel.errors import LogPoisoned, NoRoom
from gantrymq.kernel.fast import QueueEntries, queue_entries
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import TOPIC_PATTERN
from gantrymq.kernel.store.queues.consume_queue import UNIT, ConsumeQueue
from gantrymq.kernel.store.queues.deletions import Deletions
from gantrymq.kernel.store.queues.extension import FILE_BYTES, QueueExtension
from gantrymq.kernel.store.queues.open_files import OpenFiles
from gantrymq.kernel.store.queues.queue_outages import QueueOutages
from gantrymq.kernel.store.queues.search import TimeBound
from gantrymq.remoting.descriptors import descriptors_allowed

log = structlog.get_logger("gantrymq.queues")

DESCRIPTOR_SHARE = 4
"""Queues keep at most a quarter of the process's file descriptors open."""

MANY_NEW = 64
MANY = 256
"""With so many new queues, or so many in all, one flush of the whole file system costs less than one of each queue: a
new one takes four. With fewer it may cost more, because other programs' files are flushed with it."""

SUSPECTS_MAX = 1024
SETTLED_MAX = 65_536
"""The most entries that wait for repair, and the most that are remembered as repaired."""
RETRY_S = 5.0
LONGEST_RETRY_S = 120.0
"""The pause after a failed repair of an entry, which doubles with each failure, and its maximum."""
_QUEUE_ID = re.compile(r"[0-9]{1,10}")

TagCodeRule = Callable[[int, bytes, int], int]
"""Returns the tag code of a message's queue entry, given its queue id, encoded properties and store timestamp (ms)."""


class QueuesPoisoned(LogPoisoned):
    """The disk failed under a consume queue: the broker must stop, and the next start rebuilds the missing part."""


def check_topic(topic: str) -> None:
    """:class:`ValueError` for a name that must not become part of a path (``TopicValidator`` of RocketMQ)."""
    if not TOPIC_PATTERN.fullmatch(topic):
        raise ValueError(f"not the name of a topic: {topic[:64]!r}")


@attrs.frozen
class ExtensionPlace:
    """Folder and file size of the queues' extensions, and whether new entries use them."""

    folder: str
    file_bytes: int = FILE_BYTES
    writes: bool = False


class ConsumeQueues:
    """All consume queues under ``folder``, and the table of the next queue offsets.

    One thread puts and deletes; :meth:`flush` may be called from another thread, reading methods from any. ``units``
    counts all entries ever put, including deleted ones.
    """

    def __init__(
        self,
        env: Env,
        folder: str,
        staging: str,
        *,
        file_units: int,
        tail_bytes: int,
        extension: ExtensionPlace | None = None,
        deletions: Deletions | None = None,
    ) -> None:
        """``deletions``: topics whose records before a log offset get no queue entries."""
        self._env = env
        self.deletions = deletions or Deletions(env, f"{folder}.deleted")
        self._extension = extension or ExtensionPlace(f"{folder}_ext")
        self.folder = folder
        self._staging = staging
        self._file_units = file_units
        self._tail_bytes = tail_bytes
        self._outages = QueueOutages(env)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._unflushed: set[ConsumeQueue] = set()
        self._guard = Lock()
        self._flushing = Lock()
        self._tree: TreeFlusher | None = None
        self._owes_tree = False
        """Whether queues were written that only :attr:`_tree` can flush."""
        self._poison: str | None = None
        self.open_files = OpenFiles(descriptors_allowed(DESCRIPTOR_SHARE))
        self.next_offsets: dict[tuple[str, int], int] = {}
        """The queue offset that the next message gets, by (topic, queue id); the commit log advances it."""
        self.suspects: dict[tuple[ConsumeQueue, int], tuple[float, float]] = {}
        """Entries that readers found to be wrong, by queue and queue offset; they wait for repair. The values: when it
        is due (monotonic seconds), and the pause after its last failure, 0 before the first attempt."""
        self._settled: set[tuple[ConsumeQueue, int]] = set()
        self.units = 0
        self.tag_code_rules: dict[str, TagCodeRule] = {}
        """By topic: the rule for the tag codes of its entries. Set before recovery, which uses it too."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def keys(self) -> Collection[tuple[str, int]]:
        """Topic and number of each queue."""
        return self._queues.keys()

    def open(self) -> None:
        """Find the queues on the disk. Damaged ones are deleted and rebuilt from the log."""
        self._tree = self._env.tree_flusher(self.folder)
        for topic in self._env.listdir(self.folder):
            if not TOPIC_PATTERN.fullmatch(topic) or not self._env.is_dir(f"{self.folder}/{topic}"):
                log.warning("foreign_folder_ignored", path=f"{self.folder}/{topic}")
                continue
            for name in self._env.listdir(f"{self.folder}/{topic}"):
                if _QUEUE_ID.fullmatch(name) and self._env.is_dir(f"{self.folder}/{topic}/{name}"):
                    queue = self._make(topic, int(name))
                    queue.load()
        for queue in self:
            if queue.max_offset and queue.log_end <= self.deletions.ends.get(queue.topic, -1):
                log.info("queue_of_deleted_topic_removed", topic=queue.topic, queue_id=queue.queue_id)
                del self._queues[queue.topic, queue.queue_id]
                queue.discard()
                self._env.rmtree(queue.folder)
        self.count()

    def count(self) -> None:
        """Recompute ``units`` and the next offsets from the queues."""
        self.units = sum(queue.max_offset for queue in self)
        self.next_offsets.clear()
        self.next_offsets.update({key: queue.max_offset for key, queue in self._queues.items()})

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if it never had an entry."""
        return self._queues.get((topic, queue_id))

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message gets."""
        return self.next_offsets.get((topic, queue_id), 0)

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        check_topic(topic)
        if queue_id < 0:
            raise ValueError(f"not the number of a queue: {queue_id}")
        queue = ConsumeQueue(
            self._env,
            f"{self.folder}/{topic}/{queue_id}",
            self._staging,
            topic,
            queue_id,
            file_units=self._file_units,
            tail_bytes=self._tail_bytes,
            open_files=self.open_files,
            report=self._report,
            outages=self._outages,
            extension=QueueExtension(
                self._env,
                f"{self._extension.folder}/{topic}/{queue_id}",
                self._staging,
                self._extension.file_bytes,
                self._outages,
            ),
        )
        self._queues[topic, queue_id] = queue
        return queue

    def deleted(self, topic: str) -> bool:
        """Return whether a deletion of the topic is known: its messages from before, or later ones, are in the log."""
        return topic in self.deletions.ends

    def is_whole_since_deletion(self, topic: str, log_start: int) -> bool:
        """Return whether the topic was deleted and a log from ``log_start`` on still has all its later messages."""
        return log_start <= self.deletions.ends.get(topic, -1)

    # ------------------------------------------------------------------------------------------------------- put

    def put(self, batch: DispatchBatch) -> None:
        """Add the entries of ``batch``, except for prepared and rolled back messages. Existing entries are skipped."""
        self._check()
        touched = []
        # With an extension, each row costs extra work.
        stored = dict(zip(batch.offsets, batch.store_timestamps, strict=True)) if self._extension.writes else None
        for entries in self.entries_of(batch):
            queue = self._queues.get((entries.topic, entries.queue_id))
            if queue is None:
                try:
                    queue = self._make(entries.topic, entries.queue_id)
                except ValueError as error:
                    log.error("records_without_queue", reason=str(error), records=len(entries.entries) // UNIT)
                    continue
            before = queue.max_offset
            try:
                queue.put(entries, stored)
            except OSError as error:
                raise self._poisoned("writing", queue.folder, error) from error
            self.units += queue.max_offset - before
            touched.append(queue)
        with self._guard:
            self._unflushed.update(touched)

    def extend(self, topic: str, queue_id: int, end: int, log_start: int) -> None:
        """See :meth:`ConsumeQueue.extend`; creates the queue. ``ValueError`` for an invalid topic or number."""
        queue = self._queues.get((topic, queue_id)) or self._make(topic, queue_id)
        before = queue.max_offset
        if end <= before:
            return
        queue.extend(end, log_start)
        self.units += queue.max_offset - before
        self.next_offsets[topic, queue_id] = queue.max_offset
        with self._guard:
            self._unflushed.add(queue)

    def entries_of(self, batch: DispatchBatch) -> Iterator[QueueEntries]:
        """Yield the entries of a batch, without records that existed when their topic was deleted."""
        for each in queue_entries(batch, self.tag_code_rules):
            entries = each if each.begin >= self.deletions.end else self._alive(each)
            if entries is not None:
                yield entries

    def _alive(self, entries: QueueEntries) -> QueueEntries | None:
        """``entries`` without those of records that existed when the topic was deleted; None if none remains."""
        end = self.deletions.ends.get(entries.topic, 0)
        places = [offset for offset, _, _ in ENTRY.iter_unpack(entries.entries)]
        dead = sum(place < end for place in places)
        if dead == len(places):
            return None
        queue_offsets = entries.queue_offsets[dead:] if entries.queue_offsets else None
        return entries._replace(
            first=queue_offsets[0] if queue_offsets else entries.first + dead,
            begin=places[dead],
            entries=entries.entries[dead * UNIT :],
            queue_offsets=queue_offsets,
        )

    def _report(self, queue: ConsumeQueue, offset: int) -> bool:
        """See :meth:`ConsumeQueue.suspect`."""
        place = (queue, offset)
        if place in self._settled:
            return False
        if place not in self.suspects:
            if len(self.suspects) >= SUSPECTS_MAX and not self._forget_failing():
                return True  # its reader pulls again
            log.error("consume_queue_disagrees", topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset)
            self.suspects[place] = (0.0, 0.0)
        return True

    def _forget_failing(self) -> bool:
        """Forget a suspect entry whose repair has failed for minutes, until a reader reports it again; False if there
        is none."""
        for place, (_, pause) in list(self.suspects.items()):
            if pause >= LONGEST_RETRY_S:
                self.suspects.pop(place, None)
                return True
        return False

    def next_suspect(self) -> tuple[ConsumeQueue, int] | None:
        """Return the suspect entry whose repair is due first; None if none is due now."""
        waiting = list(self.suspects.items())
        if not waiting:
            return None
        place, (due, _) = min(waiting, key=itemgetter(1))
        return place if due <= self._env.monotonic() else None

    def settle(self, queue: ConsumeQueue, offset: int) -> None:
        """An entry was checked and agrees with the log now; if its record is missing, it is lost."""
        if len(self._settled) >= SETTLED_MAX:
            self._settled.clear()
        self._settled.add((queue, offset))
        self.suspects.pop((queue, offset), None)
        self._flush_later(queue)

    def postpone(self, queue: ConsumeQueue, offset: int) -> None:
        """An entry could not be repaired now, perhaps others beside it: it stays suspect, and is due again
        after a pause."""
        known = self.suspects.get((queue, offset))
        if known is not None:  # otherwise another one has taken its place
            pause = min(max(2 * known[1], RETRY_S), LONGEST_RETRY_S)
            self.suspects[queue, offset] = (self._env.monotonic() + pause, pause)
        self._flush_later(queue)

    def _flush_later(self, queue: ConsumeQueue) -> None:
        with self._guard:
            self._unflushed.add(queue)

    def limit_log_ends(self, bound: int) -> None:
        """See :meth:`ConsumeQueue.limit_log_end`."""
        for queue in self:
            queue.limit_log_end(bound)

    def flush(self) -> None:
        """Flush every entry that was put before; for a worker thread.

        :class:`NoRoom` without disk space: the entries stay in memory, and a later call tries again. Any other failure
        is :class:`QueuesPoisoned`, permanently.
        """
        with self._flushing:
            self._check()
            with self._guard:
                unflushed, self._unflushed = self._unflushed, set()
            if self._tree is not None and (self._owes_tree or self._are_many(unflushed)):
                self._flush_tree(self._tree, unflushed)
                return
            while unflushed:
                queue = unflushed.pop()
                try:
                    queue.flush()
                except NoRoom:
                    with self._guard:
                        self._unflushed |= {queue, *unflushed}
                    raise
                except OSError as error:
                    raise self._poisoned("flushing", queue.folder, error) from error

    def _are_many(self, unflushed: Collection[ConsumeQueue]) -> bool:
        if len(unflushed) < MANY_NEW or self._extension.writes:
            return False
        return len(unflushed) >= MANY or sum(not queue.has_files for queue in unflushed) >= MANY_NEW

    def _flush_tree(self, tree: TreeFlusher, unflushed: set[ConsumeQueue]) -> None:
        """Write all these queues, then flush them together."""
        self._owes_tree = True
        for queue in unflushed:
            try:
                queue.write()
            except NoRoom:
                with self._guard:
                    self._unflushed |= unflushed
                raise
            except OSError as error:
                raise self._poisoned("writing", queue.folder, error) from error
        try:
            tree.flush()
        except OSError as error:
            raise self._poisoned("flushing", self.folder, error) from error
        self._owes_tree = False

    def _poisoned(self, doing: str, folder: str, error: OSError) -> QueuesPoisoned:
        self._poison = (
            f"{doing} the consume queue {folder} failed: {error}. Check the disk, then start the broker again: "
            "it rebuilds the queue from the log"
        )
        log.error("consume_queues_poisoned", doing=doing, path=folder, error=str(error))
        return QueuesPoisoned(self._poison)

    def _check(self) -> None:
        if self._poison is not None:
            raise QueuesPoisoned(self._poison)

    # ------------------------------------------------------------------------------------------------------ search

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp: int,
        stored_at: Callable[[int], int | None],
        bound: TimeBound = "nearest",
    ) -> int:
        """Return the queue offset of the message whose store time is nearest to ``timestamp`` (ms); the lower one of
        two equally near, and of several with exactly that timestamp the first. ``bound`` asks for another one.

        ``stored_at`` returns the store timestamp of the record at a log offset, None if it is lost. The result is 0 for
        a missing or empty queue. It reads the disk: call it in a worker thread. ``OSError`` if a file cannot be read.
        """
        queue = self.get(topic, queue_id)
        return 0 if queue is None else queue.offset_by_time(timestamp, stored_at, bound)

    def correct_min(self, log_min: int) -> None:
        """Let each queue begin with the first entry whose record is still in the log."""
        for queue in self:
            queue.correct_min(log_min)
            queue.drop_expired()

    def drop_expired(self) -> None:
        """Delete the files of entries that lie before their queue's ``min_offset``; for a worker thread.

        :class:`OSError` if that fails for a queue, after all others.
        """
        failure: OSError | None = None
        for queue in self:
            try:
                queue.drop_expired()
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def truncate(self, bound: int, is_entry: Callable[[ConsumeQueue, int, int], bool | None]) -> int:
        """Truncate every queue before the first entry whose record lies at or behind the log offset ``bound``.

        ``is_entry`` (queue, log offset, size) checks the last remaining entries; None means unknown, and then an entry
        that lies behind its predecessor is accepted. Returns the lowest log offset of an entry before ``bound`` that
        was removed too, else ``bound``. The numbers are recomputed (:meth:`count`).
        """
        lowest = bound
        for queue in self:
            lowest = min(lowest, queue.truncate(bound, is_entry))
        self.count()
        return lowest

    def delete_topic(self, topic: str) -> None:
        """Delete all queues of ``topic``. If it is created again while the broker runs, its queue offsets continue."""
        check_topic(topic)
        for key, queue in list(self._queues.items()):
            if key[0] == topic:
                del self._queues[key]
                with self._guard:
                    self._unflushed.discard(queue)
                self.units -= queue.max_offset
                queue.discard()
        self._env.rmtree(f"{self.folder}/{topic}")
        if self._env.is_dir(f"{self._extension.folder}/{topic}"):
            self._env.rmtree(f"{self._extension.folder}/{topic}")
        if self._env.is_dir(self.folder):
            self._env.sync_dir(self.folder)

    def close(self) -> None:
        """Close all files; unflushed entries are lost."""
        if self._tree is not None:
            self._tree.close()
        for queue in self:
            queue.close()
