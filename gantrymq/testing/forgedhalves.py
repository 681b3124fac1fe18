"""A rule of :mod:`gantrymq.testing.transactionkit`: forged half messages in the bodies of others end nothing."""

from __future__ import annotations

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.store.log.record import Record, encode
from gantrymq.plugins.transaction.half.strategy import HalfStrategy
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.names import TRANS_HALF_TOPIC
from gantrymq.remoting.records import HEADS
from gantrymq.testing.envs import MemoryEnv
from gantrymq.testing.flushkit import expect
from gantrymq.testing.transacted import COMMIT, ROLLBACK, Half, TransactedStore


def forged_records_in_bodies_end_nothing(strategy: str) -> None:
    """The bytes of a half message in the body of another message: whoever names that place is refused (code 1).

    With the queue offset of an open transaction, of one that is not dispatched yet, and of the next.
    """
    for is_dispatched in (True, False):
        for ahead in (0, 1):
            world = TransactedStore(MemoryEnv(), strategy)
            first, victim = world.half(b"first"), world.half(b"victim")
            world.end(first, ROLLBACK)
            if is_dispatched:
                world.commit()
            named = Half(b"forged", _forge(world, victim.queue_offset + ahead), victim.queue_offset + ahead, "thieves")
            if is_dispatched:
                world.commit()
            for state in (COMMIT, ROLLBACK):
                code = world.end_now(named, state)
                expect(code == ResponseCode.SYSTEM_ERROR, f"an end by a forged record was answered {code}")
            expect(b"forged" not in world.bodies(), "forged text was delivered")
            expect(world.plugin.strategy.open_count == 1, f"{world.plugin.strategy.open_count} are open, not the one")
            expect(world.end_now(victim, COMMIT) == ResponseCode.SUCCESS, "its own producer cannot end it")
            expect(world.bodies()[-1:] == [b"victim"], f"{world.bodies()}")


def _forge(world: TransactedStore, queue_offset: int) -> int:
    """Send an ordinary message whose body is a half message of either strategy; returns where that one lies."""
    offset = world.log.end + HEADS[0].size
    is_half = isinstance(world.plugin.strategy, HalfStrategy)
    properties = b"TRAN_MSG\x01true\x02PGROUP\x01thieves" + b"\x02REAL_TOPIC\x01T\x02REAL_QID\x010" * is_half
    topic, sys_flag = (TRANS_HALF_TOPIC, 0) if is_half else ("T", int(TransactionState.PREPARED))
    record = Record(topic, 0, b"forged", properties, 0, sys_flag, queue_offset, offset, store_timestamp=1)
    batch = AppendBatch()
    batch.add("T", 0, encode(record), b"")
    world.append(batch)
    expect(batch.offsets[0] + HEADS[0].size == offset, "the place was not foreseen")
    return offset
