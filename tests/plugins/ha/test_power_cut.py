"""After power cuts of both machines, each of them has all acknowledged messages."""

from __future__ import annotations

import random

import pytest

from gantrymq.kernel.store.store import Store
from gantrymq.plugins.ha.copies import CopiedGate, Copies, Copy
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import batch_of, commit, open_store, read_queue


def send_some(master: Store, slave: Store, rng: random.Random) -> None:
    """Bring a random part of what the slave does not have, as a stream would, cut anywhere."""
    start = slave.log.end
    size = rng.randrange(1, 2000)
    segment = master.log.segments.at(start)
    if segment is not None and start < master.log.end:
        stop = min(start + size, segment.end, master.log.end)
        slave.append_encoded(start, bytes(master.log.view(start, stop - start)))


@pytest.mark.parametrize("seed", range(40))
def test_row_60_acknowledged_messages_survive_on_both_machines(seed: int) -> None:
    rng = random.Random(seed)
    machines = [MemoryEnv(seed), MemoryEnv(seed + 1)]
    master, slave = (open_store(machine)[0] for machine in machines)
    copies = Copies(lambda: None)
    copy = Copy("slave:1", "slave", 0.0, start=0)
    copies.add(copy)
    gate = CopiedGate(master.log, copies, 1, 3.0, 1 << 30)
    sent: list[tuple[int, bytes]] = []
    for number in range(rng.randrange(20, 400)):
        action = rng.randrange(6)
        if action < 2:
            batch = batch_of([b"%d." % number * rng.randrange(1, 60)])
            master.append(batch)
            sent.append((batch.end, batch.bodies[0]))
        elif action == 2:
            master.flush()
        elif action == 3:
            send_some(master, slave, rng)
        elif action == 4:
            slave.flush()
        else:
            copies.acknowledge(copy, slave.log.durable, 0.0)
    acknowledged = min(master.log.durable, gate.watermark)
    promised = [body for end, body in sent if end <= acknowledged]
    for machine in machines:
        survivor, report, _ = open_store(machine.power_cut(rng.randrange(1 << 30)))
        assert report.corrupt == ()
        commit(survivor)
        found = list(read_queue(survivor).values())
        assert found[: len(promised)] == promised


def test_some_power_cuts_happen_after_acknowledgments() -> None:
    """Without acknowledgments before the cut, the tests above would pass on any broker."""
    master, slave = open_store(MemoryEnv(1))[0], open_store(MemoryEnv(2))[0]
    copies, rng = Copies(lambda: None), random.Random(1)
    copy = Copy("slave:1", "slave", 0.0, start=0)
    copies.add(copy)
    gate = CopiedGate(master.log, copies, 1, 3.0, 1 << 30)
    master.append(batch_of([b"x" * 100] * 10))
    master.flush()
    while slave.log.end < master.log.end:
        send_some(master, slave, rng)
    copies.acknowledge(copy, slave.log.durable, 0.0)
    assert gate.watermark == 0
    slave.flush()
    copies.acknowledge(copy, slave.log.durable, 0.0)
    assert gate.watermark == master.log.end
