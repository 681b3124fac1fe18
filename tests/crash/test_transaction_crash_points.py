"""The machine stops before each system call while transactions end and are checked back: rows 2, 62, 64.

A run sends half messages, commits and rolls back, lets check scans send check-backs, put messages back and discard
them, and writes its state files. It is repeated with a stop before its first call, its second, and so on; then a broker
starts on the remaining files, and the test checks its messages.
Seen failing with progress saved before it is durable (an open transaction without a check-back), with the op message of
an end written before the message (a message that is neither stored nor open), and without joining copies at the start
(two check-backs of one transaction).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from gantrymq.kernel.errors import LogPoisoned
from gantrymq.plugins.transaction.strategies import STRATEGIES
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.transacted import COMMIT, ROLLBACK, Half, Producer, TransactedStore

SEEDS = 2
TURNS = 4


class Stopped(BaseException):
    """The machine is off. Nothing in the product may catch this."""


class StoppingEnv(FaultEnv):
    """Another environment, up to its ``fail_at``-th call; what tidies up behind that one is off as well."""

    def is_due(self, kind: str) -> bool:
        if super().is_due(kind) or self.failed:
            raise Stopped
        return False

    def enter(self, kind: str) -> None:
        self.is_due(kind)


class Life:
    """The acknowledgments of one run: half messages, and their commits and rollbacks."""

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.sent: dict[bytes, Half] = {}
        self.said: dict[bytes, int] = {}
        self.acknowledged: set[bytes] = set()
        self.answered: set[bytes] = set()

    def run(self, env: FaultEnv) -> None:
        world = TransactedStore(env, self.strategy)
        producer = world.producers.join()
        for turn in range(TURNS):
            bodies = [b"%d/%d:" % (turn, number) + b"x" * 200 for number in range(6)]
            batch = world.halves(bodies)
            for row, body in enumerate(bodies):
                self.sent[body] = Half(body, batch.offsets[row], batch.queue_offsets[row])
            world.commit()
            self.acknowledged.update(bodies)
            self._say(world, {body: COMMIT if number % 2 else ROLLBACK for number, body in enumerate(bodies[:4])})
            world.pass_time(70)
            world.scan()
            check_backs = {check_back.record.body: check_back.half for check_back in producer.take_check_backs()}
            assert set(bodies[4:]) <= set(check_backs)
            self.sent |= check_backs
            self._say(world, {bodies[4]: COMMIT if turn % 2 else ROLLBACK})
            self._go_on_unsafe(world, turn)
        world.close()

    def _go_on_unsafe(self, world: TransactedStore, turn: int) -> None:
        """Ends and check_backs that are not on the disk, when the tables are written."""
        late = [body for body in self.sent if body not in self.said]
        if turn % 2:
            for body in late:
                self.said[body] = COMMIT
                world.end(self.sent[body], COMMIT, oneway=True)
        else:
            world.pass_time(70)
            for _ in world.plugin.strategy.scan():
                pass
        world.persist()
        world.persist()

    def _say(self, world: TransactedStore, words: dict[bytes, int]) -> None:
        peers: dict[bytes, Producer] = {}
        for body, state in words.items():
            self.said[body] = state
            peers[body] = world.end(self.sent[body], state)
        world.commit()
        self.answered.update(body for body, peer in peers.items() if peer.sent[0].code == ResponseCode.SUCCESS)

    def check(self, world: TransactedStore) -> None:
        """Open transactions get a check-back and are committed; all others are as acknowledged."""
        seen = Counter(world.bodies())
        for body, count in seen.items():
            assert self.said.get(body) == COMMIT, f"{body[:8]!r} was never committed"
            assert count == 1, f"{body[:8]!r} is there {count} times"
        for body in self.answered:
            assert (self.said[body] == COMMIT) == bool(seen[body]), f"{body[:8]!r}: the answer was a lie"
        producer = world.producers.join()
        world.pass_time(70)
        world.scan()
        asked = producer.take_check_backs()
        names = [check_back.record.body for check_back in asked]
        assert len(names) == len(set(names)) == world.plugin.strategy.open_count
        assert not set(names) & self.answered, "somebody is asked about what has ended"
        assert self.acknowledged - set(self.said) <= set(names), "nobody is asked about what is open"
        for body in self.acknowledged:
            if self.said.get(body) == COMMIT:
                assert seen[body] or body in names, f"{body[:8]!r} is neither there nor open"
        assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == []
        for check_back in asked:
            world.end(check_back.half, COMMIT, oneway=True)
        world.commit()
        for body, count in Counter(world.bodies()).items():
            assert count <= 2, f"{body[:8]!r} is there {count} times"
        assert set(names) <= set(world.bodies())
        assert world.plugin.strategy.open_count == 0


def survivors(disk: MemoryEnv, seed: int) -> Iterator[MemoryEnv]:
    yield disk.kill()
    yield disk.power_cut()
    for number in range(SEEDS):
        yield disk.power_cut(seed * SEEDS + number)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_crash_before_any_call_keeps_every_transaction(strategy: str) -> None:
    stop_at = 0
    while True:
        stop_at += 1
        disk = MemoryEnv(stop_at)
        life = Life(strategy)
        try:
            life.run(StoppingEnv(disk, stop_at))
        except Stopped:
            pass
        except LogPoisoned as poisoned:  # whatever ends an append half done
            if not isinstance(poisoned.__cause__, Stopped):
                raise
        else:
            break
        for after in survivors(disk, stop_at):
            world = TransactedStore(after, strategy)
            life.check(world)
            world.close()
    assert stop_at > 100
