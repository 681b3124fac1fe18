"""Does not store a message again that has the key of a stored one: its sender gets the answer of the first message.

Slot: none. Hooks: config_section, configure, before_append, dispatch, load_state, save_state, collect_metrics.
Files: the state that the kernel keeps, ``config/plugins/dedup.state``. Config ``[plugin.dedup]``: ``property``, whose
value is the key (``KEYS``; ``UNIQ_KEY`` is what clients keep when they retry a send); ``window``, how long a key counts
after its message is stored; ``max_keys``, how many of the newest keys count; ``topics``, all of them without it. A key
counts within its topic.

What is a duplicate:

- A message whose key is stored, delivered already or not (a delayed one, say): it gets the first one's id and place.
- A half message whose key is an open half message: it is the same transaction. A rolled back one does not count.
- A half message whose key is stored is refused (MESSAGE_ILLEGAL), so that its local transaction does not run again.
- An ordinary message whose key is an open half message is stored: that transaction may be rolled back.
- Retries, dead letters, deliveries of delayed messages and commits are the broker's own, and pass.

The keys are built from the log by ``dispatch`` alone, so they are exact after any stop, and a slave has them too. What
is appended and not dispatched yet is kept beside them until it is. A key takes about 300 bytes of memory.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import Source, Trait
from gantrymq.kernel.config.fields import duration, filled, number
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from gantrymq.remoting.properties import find_property

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import AppendBatch, DispatchBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.plugin_state import SavedState

log = structlog.get_logger("gantrymq.dedup")

DIGEST_BYTES: Final = 16
NO_HALF: Final = -(2**63)
PLACE: Final = struct.Struct(">qiqqq")
"""Log offset, queue id, queue offset, store timestamp (ms), and which open half message it is, else ``NO_HALF``."""
ENTRY_BYTES: Final = DIGEST_BYTES + PLACE.size
WAITING: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC})
"""Where messages wait before they enter their topic, which the properties REAL_TOPIC and REAL_QID name."""
STATE_BITS: Final = 12
PREPARED: Final = 4
COMMIT: Final = 8
ROLLBACK: Final = 12


@attrs.frozen
class DedupConfig:
    """``[plugin.dedup]``."""

    property: str = filled("KEYS")
    window: float = duration("10m", minimum="1ms")
    max_keys: int = number(100_000, minimum=1, maximum=10_000_000)
    topics: tuple[str, ...] = ()


@attrs.frozen
class Pending:
    """A row that was admitted and is not dispatched yet."""

    batch: AppendBatch
    row: int
    queue_id: int
    is_half: bool


@attrs.frozen
class Earlier:
    """The message that counts for a key. ``row``: it is in the batch that is being checked, and has no place yet."""

    offset: int
    queue_id: int
    queue_offset: int
    is_half: bool
    row: int | None = None


class DedupPlugin:
    """One object a broker."""

    name = "dedup"
    version = "1.0.0"
    sources = (Source.CLIENT, Source.TRANSACTION)
    """Messages of clients are checked; ends of transactions are only looked at."""

    def __init__(self) -> None:
        self.keys: OrderedDict[bytes, bytes] = OrderedDict()
        """Packed places by digest of topic and key, oldest first."""
        self._halves: dict[int, bytes] = {}
        """The digests of open half messages, by the last field of their places."""
        self._pending: dict[bytes, Pending] = {}
        self._rollbacks: dict[bytes, AppendBatch] = {}
        """By digest: the batch that rolls a half message back and is not dispatched yet."""
        self._copies: dict[bytes, Pending] = {}
        """By digest: the copy of an open half message that the broker asks about, not dispatched yet."""
        self._undispatched: deque[tuple[AppendBatch, list[bytes]]] = deque()
        self._settled = 0

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "dedup", DedupConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Take the section."""
        section = config.section(DedupConfig)
        self._broker = broker
        self._property = section.property.encode()
        self._window_ms = max(1, round(section.window * 1000))
        self._max_keys = section.max_keys
        self._topics = frozenset(section.topics)

    # --------------------------------------------------------------------------------------------- before the append

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        """Settle what is stored already; first of all plugins, so that topics and queues are the sender's."""
        self._forget_dispatched()
        noted: list[bytes] = []
        if batch.source == Source.TRANSACTION:
            self._note_ends(batch, noted)
        else:
            oldest = self._broker.env.wall_ms() - self._window_ms
            for row in batch.live:
                digest = self._digest(batch.queue_of(row)[0], batch.property_of(row, self._property))
                if digest is not None:
                    self._check(batch, row, digest, oldest)
                    noted.append(digest)
        if noted:
            self._undispatched.append((batch, noted))

    def _check(self, batch: AppendBatch, row: int, digest: bytes, oldest: int) -> None:
        is_half = bool(batch.traits & Trait.PREPARED) and _is_true(batch.property_of(row, b"TRAN_MSG"))
        earlier = self._find(batch, digest, oldest)
        if earlier is None or (earlier.is_half and not is_half):
            self._pending[digest] = Pending(batch, row, batch.queue_of(row)[1], is_half)
        elif is_half and not earlier.is_half:
            text = f"a message with this key ({self._property.decode()}) is stored already"
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, text)
        else:
            self._settled += 1
            if earlier.row is not None:
                batch.settle_as(row, earlier.row)
            else:
                batch.settle(row, offset=earlier.offset, queue_id=earlier.queue_id, queue_offset=earlier.queue_offset)

    def _find(self, batch: AppendBatch, digest: bytes, oldest: int) -> Earlier | None:
        """The message that counts for this key; one that is not dispatched yet goes before one that is."""
        pending, known, rollback = self._pending.get(digest), self.keys.get(digest), self._rollbacks.get(digest)
        if pending is not None and pending.batch is batch:
            return Earlier(-1, 0, 0, pending.is_half, pending.row)
        earlier = None
        if known is not None:
            offset, queue_id, queue_offset, stored, half = PLACE.unpack(known)
            if stored >= oldest:
                earlier = Earlier(offset, queue_id, queue_offset, half != NO_HALF)
        if pending is not None:
            offset, queue_offset = pending.batch.place_of(pending.row)
            if offset >= 0:  # else it was refused
                earlier = Earlier(offset, pending.queue_id, queue_offset, pending.is_half)
        if earlier is not None and earlier.is_half and rollback is not None and rollback.start > earlier.offset:
            return None
        return earlier

    def _note_ends(self, batch: AppendBatch, noted: list[bytes]) -> None:
        """A half message that is being committed or rolled back is not open, although its end is not dispatched."""
        for row in batch.live:
            if batch.topics[row] == TRANS_HALF_TOPIC:
                own_topic = (batch.property_of(row, b"REAL_TOPIC") or b"").decode("utf-8", "replace")
                digest = self._digest(own_topic, batch.property_of(row, self._property))
                if digest is not None:
                    self._copies[digest] = Pending(batch, row, 0, is_half=True)
                    noted.append(digest)
        for row in batch.live:
            topic, bits = batch.topics[row], batch.sys_flags[row] & STATE_BITS
            if topic == TRANS_OP_HALF_TOPIC:  # of a commit the message comes before
                ended = [self._half(one) for one in numbers_in(batch.bodies[row])]
                digests = [one for one in ended if one is not None and not self._is_committed(batch, one)]
                self._rollbacks.update(dict.fromkeys(digests, batch))
                noted += digests
            elif bits in (COMMIT, ROLLBACK):
                digest = self._digest(topic, batch.property_of(row, self._property))
                if digest is None:
                    continue
                if bits == COMMIT:
                    self._pending[digest] = Pending(batch, row, batch.queue_ids[row], is_half=False)
                else:
                    self._rollbacks[digest] = batch
                noted.append(digest)

    def _is_committed(self, batch: AppendBatch, digest: bytes) -> bool:
        pending = self._pending.get(digest)
        return pending is not None and pending.batch is batch

    def _half(self, queue_offset: int) -> bytes | None:
        """The digest of the open half message at this place of the half messages' queue."""
        found = self._halves.get(queue_offset)
        if found is not None:
            return None if found in self._copies else found  # the copy is what is open
        halves = [(digest, one) for digest, one in self._pending.items() if one.is_half]
        for digest, one in (*halves, *self._copies.items()):
            if one.batch.place_of(one.row)[1] == queue_offset:
                return digest
        return None

    def _forget_dispatched(self) -> None:
        dispatched, undispatched = self._broker.store.dispatched, self._undispatched
        while undispatched and undispatched[0][0].end <= dispatched:
            batch, digests = undispatched.popleft()
            for digest in digests:
                if digest in self._pending and self._pending[digest].batch is batch:
                    del self._pending[digest]
                if digest in self._copies and self._copies[digest].batch is batch:
                    del self._copies[digest]
                if self._rollbacks.get(digest) is batch:
                    del self._rollbacks[digest]

    def _digest(self, topic: str, key: bytes | None) -> bytes | None:
        """None for a message that is not deduplicated."""
        if not key or (self._topics and topic not in self._topics) or is_the_brokers(topic):
            return None
        return blake2b(topic.encode() + b"\0" + key, digest_size=DIGEST_BYTES).digest()

    # --------------------------------------------------------------------------------------------- what the log says

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """Committed messages in log order, each once."""
        columns = (batch.offsets, batch.topics, batch.queue_ids, batch.queue_offsets, batch.store_timestamps,
                   batch.sys_flags, batch.prepared_offsets, batch.properties)  # fmt: skip
        for row in zip(*columns, strict=True):
            self._take(*row)
        if len(batch):
            self._evict(batch.newest_timestamp - self._window_ms)

    def _take(
        self,
        offset: int,
        topic: str,
        queue_id: int,
        queue_offset: int,
        stored: int,
        sys_flag: int,
        prepared_offset: int,
        properties: bytes,
    ) -> None:
        """Take one message of the log in."""
        bits = sys_flag & STATE_BITS
        if topic == TRANS_OP_HALF_TOPIC:
            for one in numbers_in(self._broker.log.read_record(offset).body):
                self._rolled_back(one)
            return
        if bits == ROLLBACK:
            self._rolled_back(-1 - prepared_offset)
            return
        own_topic = find_property(properties, b"REAL_TOPIC")
        waits = topic in WAITING
        if waits:
            topic, half_topic = (own_topic or b"").decode("utf-8", "replace"), topic == TRANS_HALF_TOPIC
            own_queue = find_property(properties, b"REAL_QID") or b""
            queue_id = int(own_queue) if own_queue.isdigit() and len(own_queue) < 10 else 0
        else:
            half_topic = False
        digest = self._digest(topic, find_property(properties, self._property))
        if digest is None or find_property(properties, b"TIMER_ROLL_TIMES") is not None:
            return
        half = queue_offset if half_topic else -1 - offset if bits == PREPARED else NO_HALF
        if half_topic and find_property(properties, b"TRAN_PREPARED_QUEUE_OFFSET") is not None:
            self._copied(digest, half)
            return
        known = self.keys.get(digest)
        if known is None:
            # The delivery of a delayed message is no new one, but a commit is the first that consumers see.
            if own_topic is not None and not waits and bits != COMMIT:
                return
        else:
            _, _, _, since, known_half = PLACE.unpack(known)
            is_over = since < stored - self._window_ms
            if not is_over and (known_half == NO_HALF or half != NO_HALF):
                return
        self._store(digest, PLACE.pack(offset, queue_id, queue_offset, stored, half))

    def _store(self, digest: bytes, place: bytes) -> None:
        self._remove(digest)
        self.keys[digest] = place
        half = PLACE.unpack(place)[4]
        if half != NO_HALF:
            self._halves[half] = digest

    def _copied(self, digest: bytes, half: int) -> None:
        """The broker asked about a half message and stored it again; its first place stays what its producer names."""
        known = self.keys.get(digest)
        if known is not None and PLACE.unpack(known)[4] != NO_HALF:
            *place, before = PLACE.unpack(known)
            self._halves.pop(before, None)
            self._halves[half] = digest
            self.keys[digest] = PLACE.pack(*place, half)

    def _rolled_back(self, half: int) -> None:
        """A commit removed the half message when its message was stored; an older copy is none any more."""
        digest = self._halves.get(half)
        if digest is not None:
            self._remove(digest)

    def _remove(self, digest: bytes) -> None:
        known = self.keys.pop(digest, None)
        if known is not None:
            self._halves.pop(PLACE.unpack(known)[4], None)

    def _evict(self, oldest: int) -> None:
        keys = self.keys
        while keys:
            digest = next(iter(keys))
            if len(keys) <= self._max_keys and PLACE.unpack(keys[digest])[3] >= oldest:
                return
            self._remove(digest)

    # --------------------------------------------------------------------------------------------------------- state

    @hookimpl
    def load_state(self, state: SavedState) -> None:
        """The keys of the broker's earlier lives; ``dispatch`` brings what came after them."""
        if state.missing is not None:
            log.warning("keys_not_seen", start=state.missing[0], end=state.missing[1])
        for table in (self.keys, self._halves, self._pending, self._rollbacks, self._copies, self._undispatched):
            table.clear()  # a broker may start again in the same process
        data = state.data or b""
        for at in range(0, len(data), ENTRY_BYTES):
            entry = data[at : at + ENTRY_BYTES]
            self._store(entry[:DIGEST_BYTES], entry[DIGEST_BYTES:])

    @hookimpl
    def save_state(self) -> bytes:
        """The keys, oldest first; the kernel notes to which place in the log they belong."""
        return b"".join([digest + place for digest, place in self.keys.items()])

    @hookimpl
    def collect_metrics(self, metrics: Metrics) -> None:
        """How many keys there are, and how many messages were duplicates."""
        metrics.gauge("gantrymq_dedup_keys", "Keys that count", len(self.keys))
        metrics.counter("gantrymq_dedup_duplicates_total", "Messages that were stored already", self._settled)


def _is_true(value: bytes | None) -> bool:
    return value is not None and value.lower() == b"true"


def is_the_brokers(topic: str) -> bool:
    """Whether messages of the topic are not what a client sent: retries, dead letters, system topics."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX, SYSTEM_TOPIC_PREFIX)) or topic in SYSTEM_TOPICS


def numbers_in(body: bytes) -> list[int]:
    """The queue offsets of half messages that a message of RMQ_SYS_TRANS_OP_HALF_TOPIC ends."""
    return [int(one) for one in body.split(b",") if one.isdigit() and len(one) <= 18]
