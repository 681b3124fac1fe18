"""Two brokers take turns as master, with kills, power cuts and truncated logs: the last log's messages are on time."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.testing.memory_env import MemoryEnv
from support.timers import SlaveStore, TimedStore

START_MS = 1_700_000_000_000
MARGIN_MS = 95_000
"""Messages delivered this long before the last report are not repeated. A master whose tail is cut repeats the most,
because marks older than half a minute are a minute apart."""


class Pair:
    """A master and its slave. Each body is sent once; ``due`` is on the clocks, which agree."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.master = TimedStore(MemoryEnv(seed, START_MS))
        self.slave = SlaveStore(MemoryEnv(seed + 1000, START_MS))
        self.due: dict[bytes, int] = {}
        self.recalled: set[bytes] = set()
        self.reported_ms = START_MS
        """The last time at which the slave had stored the complete log and progress."""
        self.repeatable: set[bytes] = set()
        self.number = 0

    @property
    def now(self) -> int:
        return self.master.env.wall

    def act(self) -> None:
        choice = self.random.random()
        if choice < 0.35:
            self.send()
        elif choice < 0.42:
            self.recall()
        elif choice < 0.80:
            self.pass_time(self.random.choice([100, 500, 1000, 1000, 3000, 9000]))
        elif choice < 0.88:
            self.slave.copy(self.master, self.random.choice([300, 2000, 1 << 20]), flush=self.random.random() < 0.7)
        elif choice < 0.96:
            self.report()
        elif choice < 0.98:
            self.restart_slave()
        else:
            self.switch()

    def send(self) -> None:
        for _ in range(self.random.choice([1, 1, 3, 20])):
            self.number += 1
            body, delay = b"%d" % self.number, self.random.choice([300, 1000, 2500, 8000, 30_000, 61_000, 100_000])
            self.due[body] = self.now + delay
            self.master.send_in(body, delay)
        if self.random.random() < 0.7:
            self.master.settle()

    def recall(self) -> None:
        """Recall a message that is due within the wheel's window, because a recall may have to wait as well."""
        in_log, now = set(self.master.waiting()), self.now
        bodies = [body for body, due in self.due.items() if now + 3000 < due < now + 55_000 and body in in_log]
        if bodies:
            body = self.random.choice(bodies)
            self.master.recall(body, self.due[body])
            self.master.settle()
            self.recalled.add(body)

    def pass_time(self, milliseconds: int) -> None:
        for _ in range(max(milliseconds // 1000, 1)):
            for env in (self.master.env, self.slave.env):
                env.advance(min(milliseconds, 1000))
            if self.random.random() < 0.9:
                self.master.settle()
                self.master.save()

    def report(self) -> None:
        self.slave.copy(self.master)
        if self.slave.adopt(self.master) and self.random.random() < 0.8:
            self.slave.save()
            self.reported_ms = self.now

    def restart_slave(self) -> None:
        env = self.slave.env.kill() if self.random.random() < 0.5 else self.slave.env.power_cut(0)
        self.slave = SlaveStore(env)

    def switch(self) -> None:
        """The master dies, at times with records that the slave does not have, and comes back as its slave."""
        planned = self.random.random() < 0.3
        if planned:
            self.slave.copy(self.master)
        # A message that waits for long is enqueued again in between, and this can be repeated too.
        for record in (*self.master.delivered(), *self.master.delivered(TIMER_TOPIC)):
            is_moved = record.topic != TIMER_TOPIC or b"TIMER_ROLL_TIMES" in record.properties
            if is_moved and record.store_timestamp > self.reported_ms - MARGIN_MS:
                self.repeatable.add(record.body)
        old = self.master.env.kill() if self.random.random() < 0.7 else self.master.env.power_cut(0)
        if self.random.random() < 0.6:
            self.slave.close()
            new = self.slave.env
        else:
            new = self.slave.env.kill()
        self.master = TimedStore(new)
        end = self.master.store.log.end
        probe = TimedStore(old)
        old_end = probe.store.log.end
        probe.store.close()
        # A power cut may have left the old master behind its slave; otherwise its tail is cut off.
        self.slave = SlaveStore(old, cut=end if old_end > end else None)
        self.reported_ms = min(self.reported_ms, self.now)
        self.forget_lost()

    def forget_lost(self) -> None:
        """Messages and recalls that only the old master had are lost: replication was asynchronous."""
        waiting = Counter(self.master.waiting())
        names = {name for record in self.master.delivered(TIMER_TOPIC) for name in recalls(record.properties)}
        self.due = {body: due for body, due in self.due.items() if body in waiting}
        self.recalled &= names

    def check(self) -> None:
        """Check that every message in the master's log is delivered."""
        for record in self.master.delivered():
            assert record.store_timestamp >= self.due.get(record.body, 0), f"{record.body!r} is early"
        counts = Counter(self.master.bodies())
        for body in self.due:
            if body in self.recalled:
                assert not counts[body], f"{body!r} was recalled"
            else:
                assert counts[body] >= 1, f"{body!r} is lost"
                assert counts[body] == 1 or body in self.repeatable, f"{body!r} came {counts[body]} times"


def recalls(properties: bytes) -> list[bytes]:
    pairs = (pair.split(b"\x01") for pair in properties.split(b"\x02") if pair)
    return [value.removeprefix(b"T+") for name, value in pairs if name == b"TIMER_DEL_UNIQKEY"]


@pytest.mark.soak(10)
@pytest.mark.parametrize("seed", range(100))
def test_messages_of_the_last_masters_log_come_in_time_and_recalled_ones_do_not(seed: int) -> None:
    pair = Pair(seed)
    for _ in range(400):
        pair.act()
    pair.master.settle()
    for _ in range(130):
        pair.pass_time(1000)
    pair.master.settle()
    pair.check()
