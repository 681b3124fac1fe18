"""Real processes: a master is paused, its slave is promoted, and the master resumes with queued requests.

Seen failing with a lease of ten minutes: the old master stored what had waited, and as `async_master` acknowledged it.
"""

from __future__ import annotations

import signal
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import gantrymq
from gantrymq import SendStatus
from gantrymq.failover import promotion
from gantrymq.failover.brokers import broker_rows
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.ledger import Ledger
from gantrymq.testing.requests import send
from support.foreign import ask
from support.hapair import NAME, HaPair, read_all
from support.processes import wait_for

TOPIC, QUEUES, MESSAGES, WAITING = "LedgerTopic", 4, 100, 20
SETTINGS = {
    "plugin.ha.heartbeat": "200ms",
    "plugin.ha.housekeeping": "2s",
    "plugin.ha.sync_timeout": "1s",
    "plugin.ha.sync_tables": "500ms",
    "plugin.ha.lease": "2s",
}

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(120)]


async def produce(nameserver: str, ledger: Ledger, count: int, *, alone: bool = False) -> None:
    """Send until ``count`` messages were acknowledged, or stored by a synchronous master that is ``alone``.

    Failed sends have no guarantee.
    """
    wanted = SendStatus.SLAVE_NOT_AVAILABLE if alone else SendStatus.OK
    async with gantrymq.connect(nameserver) as client, client.producer("ledger", timeout=2.0) as producer:
        left = count
        with trio.fail_after(60):
            while left:
                body = ledger.next_body(0)
                try:
                    result = await producer.send(TOPIC, body)
                except gantrymq.GantryError:
                    await trio.sleep(0.1)
                    continue
                if result.status is wanted:
                    ledger.acknowledge(body, result.queue.queue_id, result.queue_offset)
                    left -= 1


async def create_topic(nameserver: str) -> None:
    async with gantrymq.connect(nameserver) as client:
        await client.admin.create_topic(TOPIC, queues=QUEUES)


async def master_of(client: Any) -> str:
    """The master's address for clients; empty if there is none."""
    found = (await client.admin.cluster()).broker_addr_table.get(NAME)
    return "" if found is None else str(found.broker_addrs.get(0, ""))


def is_follower(pair: HaPair) -> bool:
    """Whether the slave follows, has the topic and all of the log."""
    topics = str(ask(pair.addresses[1], Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    return "haSlave_0" in pair.runtime(0) and TOPIC in topics and pair.level()


@pytest.mark.soak(1)  # tests/cluster/test_fencing.py has both
@pytest.mark.parametrize("role", ["SYNC_MASTER", pytest.param("ASYNC_MASTER", marks=pytest.mark.once)])
def test_row_5_a_master_paused_during_a_promotion_stores_none_of_its_queued_requests(tmp_path: Path, role: str) -> None:
    ledger = Ledger(uuid.uuid4().hex)
    with HaPair(tmp_path, SETTINGS) as pair:
        first, second = pair.addresses
        master = pair.start(0, role)
        pair.start(1, "SLAVE")
        trio.run(create_topic, pair.nameserver)
        wait_for(lambda: is_follower(pair))
        trio.run(produce, pair.nameserver, ledger, MESSAGES)
        wait_for(pair.level)
        end = pair.end(0)

        async def script() -> list[Command]:
            answers: list[Command] = []

            async def wait_for_answer() -> None:
                answers.append(await channel.call(send(TOPIC, b"waited"), 60.0))

            async with open_channel(first) as channel, gantrymq.connect(pair.nameserver) as client:
                master.process.send_signal(signal.SIGSTOP)
                async with trio.open_nursery() as nursery:
                    for _ in range(WAITING):
                        nursery.start_soon(wait_for_answer)
                    promoted = await promotion.promote(NAME, lambda: broker_rows(client))
                    assert promoted.address == second
                    with trio.fail_after(30):
                        while await master_of(client) != second:  # noqa: ASYNC110 - the nameserver tells nobody
                            await trio.sleep(0.1)
                    master.process.send_signal(signal.SIGCONT)
            return answers

        answers = trio.run(script)
        assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * WAITING
        wait_for(lambda: pair.runtime(0)["haFenced"] != "")
        # the promoted slave has its master's role, and no slave of its own yet
        trio.run(partial(produce, alone=role == "SYNC_MASTER"), pair.nameserver, ledger, MESSAGES)
        assert pair.end(0) == end, "the old master took something"
        assert "master_fenced" in (tmp_path / "broker-0.log").read_text()
        assert pair.runtime(1)["haEpoch"].startswith("1-")
        ledger.check(read_all(second, TOPIC, QUEUES, ledger))

        master.process.terminate()
        assert master.wait() == 0
        pair.start(0, "SLAVE")
        wait_for(pair.same)
        ledger.check(read_all(first, TOPIC, QUEUES, ledger))
