"""The offset of each consumer group in each queue: ``consumerOffset.json``.

Source: RocketMQ 4.9.7 ``ConsumerOffsetManager``; the file is ``{"offsetTable":{"topic@group":{queueId:offset}}}`` with
unquoted queue ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.store.state_file import load_state
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson import dumps

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

SEPARATOR = "@"
"""The separator of topic and group in the file; neither name can contain it."""

MaxOffset = Callable[[str, int], int]
"""The offset behind the last readable message of a queue, by topic and queue id; 0 for a missing queue."""

log = structlog.get_logger("gantrymq.offsets")

Key = tuple[str, str]


class Offsets:
    """Provides ``ConsumerOffsets``: offsets by topic and group, then by queue id."""

    def __init__(self, env: Env, path: str, max_entries: int, max_offset: MaxOffset) -> None:
        """``max_entries``: the most pairs of topic and group. :class:`StartError` for unreadable files."""
        self.path = path
        self._max_entries = max_entries
        self._max_offset = max_offset
        self._table: dict[Key, dict[int, int]] = {}
        self._texts: dict[Key, bytes] = {}
        self._stale: dict[Key, None] = {}
        self._changed = False
        self.committed: dict[tuple[str, str, int], int] | None = None
        """Changed offsets by group, topic and queue, for the hook ``offsets_committed``; None if no plugin has it."""
        self.wake: Callable[[], None] = _ignore_wake
        """Called for each change that :attr:`committed` gets."""
        stored = load_state(env, path, ConsumerOffsetSerializeWrapper.from_bytes)
        if stored is not None:
            self._take(stored)
            self.encode()  # now, because later clients would wait for it

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's offset; it may be lower than before.

        An offset beyond the queue's end is set to the end. A negative offset changes nothing, and neither does any new
        one that :meth:`check_room` refuses.
        """
        key = (topic, group)
        queues = self._table.get(key)
        if offset < 0 or (queues is not None and queues.get(queue_id) == offset):
            return
        if queues is None:
            if self._is_full(group, topic):
                return
            queues = self._table[key] = {}
        offset = min(offset, self._max_offset(topic, queue_id))
        before = queues.get(queue_id, 0)
        if offset < before:
            log.warning("offset_set_back", group=group, topic=topic, queue_id=queue_id, offset=offset, before=before)
        queues[queue_id] = offset
        self._stale[key] = None
        self._changed = True
        if self.committed is not None:
            self.committed[group, topic, queue_id] = offset
            self.wake()

    def clamp(self) -> None:
        """Set every offset beyond its queue's end back to the end, with one warning for each group and topic.

        The file may be newer than the log: with asynchronous flush a power cut can lose consumed messages, and
        truncating a slave's log removes those that its master never had. Other messages then get their offsets.
        """
        for (topic, group), queues in self._table.items():
            ends = {queue_id: self._max_offset(topic, queue_id) for queue_id in queues}
            beyond = {queue_id: offset for queue_id, offset in queues.items() if offset > ends[queue_id]}
            if not beyond:
                continue
            log.warning(
                "offsets_clamped_to_queue_ends",
                group=group,
                topic=topic,
                queues={queue_id: f"{offset} -> {ends[queue_id]}" for queue_id, offset in sorted(beyond.items())},
            )
            queues.update({queue_id: ends[queue_id] for queue_id in beyond})
            self._stale[topic, group] = None
            self._changed = True

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's offset, or None if it never committed."""
        queues = self._table.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the group's offsets by queue. Do not change the result."""
        return self._table.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has committed offsets."""
        return [topic for topic, other in self._table if other == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets in ``topic``."""
        return [group for other, group in self._table if other == topic]

    def pairs(self) -> list[Key]:
        """Return every pair of topic and group with an offset."""
        return list(self._table)

    def check_room(self, group: str, topic: str) -> None:
        """:class:`RemoteFault` if this is a new pair beyond the limit, whose offsets are not stored."""
        if self._is_full(group, topic):
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                "the offset is not stored: too many pairs of topic and group (plugin.offsets.max_entries)",
            )

    def forget(self, group: str, topic: str) -> None:
        """Remove the group's offsets in the topic."""
        self._drop([(topic, group)] if (topic, group) in self._table else [])

    def forget_group(self, group: str) -> None:
        """Remove the offsets of a deleted group."""
        self._drop(key for key in self._table if key[1] == group)

    def forget_topic(self, topic: str) -> None:
        """Remove the offsets in a deleted topic."""
        self._drop(key for key in self._table if key[0] == topic)

    def encode(self) -> bytes:
        """Return the file's text; only changed parts are encoded again."""
        for key in self._stale:
            topic, group = key
            offsets = b",".join([b"%d:%d" % item for item in sorted(self._table[key].items())])
            self._texts[key] = b"%s:{%s}" % (dumps(f"{topic}{SEPARATOR}{group}"), offsets)
        self._stale.clear()
        return b'{"offsetTable":{%s}}' % b",".join(self._texts.values())

    def changes(self) -> dict[str, bytes] | None:
        """Return the file's path and content if anything changed since the last call, else None."""
        if not self._changed:
            return None
        self._changed = False
        return {self.path: self.encode()}

    def _is_full(self, group: str, topic: str) -> bool:
        return (topic, group) not in self._table and len(self._table) >= self._max_entries

    def _take(self, stored: ConsumerOffsetSerializeWrapper) -> None:
        for name, offsets in stored.offset_table.items():
            topic, separator, group = name.partition(SEPARATOR)
            # a negative offset means none in RocketMQ
            known = {queue_id: offset for queue_id, offset in offsets.items() if queue_id >= 0 and offset >= 0}
            if not separator or not topic or not group or len(known) < len(offsets):
                log.warning("stored_offsets_ignored", path=self.path, name=name[:300], kept=len(known))
            if separator and topic and group and known:
                self._table[topic, group] = known
                self._stale[topic, group] = None

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in list(keys):
            del self._table[key]
            self._texts.pop(key, None)
            self._stale.pop(key, None)
            self._changed = True


def _ignore_wake() -> None:
    pass
