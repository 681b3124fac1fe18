"""A store with delayed messages on a machine in memory, driven step by step, without an event loop."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.plugins.delay.levels.delivery import Delivery
from gantrymq.plugins.delay.levels.levels import Levels
from gantrymq.plugins.delay.levels.positions import Positions
from gantrymq.plugins.delay.rewrite import TimerTerms, move_delayed
from gantrymq.remoting.names import SCHEDULE_TOPIC
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY

DELAY_FILE = "store/config/delayOffset.json"
NO_TIMER = TimerTerms(
    now=lambda: 0, at_wall=lambda wall: wall, longest_ms=0, broker="b", moved=lambda batch, row, slot, recalls: None
)
"""Terms for batches without timed messages."""


class DelayedStore:
    """The parts of the plugin ``delay`` around a store on ``env``, driven only by the methods of this class.

    ``refuse`` may take rows out of what is brought back, as another plugin might.
    """

    def __init__(
        self, env: MemoryEnv, levels: str = "1s 5s 10s", *, pipelined: bool = True, config: StoreConfig = TINY
    ) -> None:
        self.env = env
        self.levels = Levels.parse(levels)
        self.refuse: Callable[[AppendBatch], None] = lambda batch: None
        self.store = Store(env, "store", config)
        self.store.queues.tag_code_rules[SCHEDULE_TOPIC] = self.levels.due_code
        self.store.open()
        self.report = self.store.recover(lambda batch: None)
        self.positions = Positions(env, DELAY_FILE)
        self.delivery = Delivery(self.store, self.levels, self.positions, self._append, pipelined=pipelined)

    def _append(self, batch: AppendBatch) -> None:
        self.refuse(batch)
        if batch.refused < len(batch):
            self.store.append(batch)

    def send(self, body: bytes, level: int, topic: str = "T", queue_id: int = 0, more: bytes = b"") -> None:
        """A message with a delay level, written but not committed."""
        batch = AppendBatch(traits=Trait.DELAY)
        batch.add(topic, queue_id, body, b"DELAY\x01%d" % level + more)
        move_delayed(batch, self.levels, NO_TIMER)
        self._append(batch)

    def commit(self) -> None:
        """Flush and dispatch all appended records."""
        for _ in self.store.dispatch(self.store.flush()):
            pass

    def settle(self, turns: int = 1000) -> int:
        """Bring back all that is due, and commit it. Returns after how many ms there may be more."""
        for _ in range(turns):
            wait = self.delivery.turn()
            committed = self.store.dispatched == self.store.log.end
            self.commit()
            if wait and committed:
                return wait
        raise AssertionError(f"not done after {turns} turns")

    def persist(self) -> None:
        """Write the file, if there is anything new."""
        for path, data in (self.positions.changes(self.delivery.safe()) or {}).items():
            self.env.replace(path, data)

    def close(self) -> None:
        """Stop in order."""
        self.commit()
        self.persist()
        self.store.close()

    def delivered(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """The messages of a queue, in its order."""
        queue = self.store.queues.get(topic, queue_id)
        if queue is None:
            return []
        entries = queue.entries(queue.min_offset, queue.max_offset - queue.min_offset)
        return [self.store.log.read_record(offset) for offset, _, _ in ENTRY.iter_unpack(entries)]

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """The bodies of a queue's messages."""
        return [record.body for record in self.delivered(topic, queue_id)]
