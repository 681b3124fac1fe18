"""Senders and readers that write a history (``gantrymq.testing.history``) while brokers of one name come and go.

They speak the protocol by hand and send nothing twice. Each connection belongs to one term of one broker, for a broker
that changes its role closes its connections: so it is known which broker promised what, and as what.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from gantrymq.remoting.bodies.routes import ClusterInfo
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_KEY
from gantrymq.remoting.errors import ConnectError, FatalRemoteFault, RemoteFault
from gantrymq.remoting.records import decode_records
from gantrymq.testing.history import GroupOffset, History, Outcome, Read, Term
from gantrymq.testing.requests import pull, send

GROUP: Final = "ha-readers"
LAST: Final = 8
"""The number of messages at the end of a queue that a reader without a group reads."""
STORED: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
FAILURES: Final = (ConnectError, RemoteFault, FatalRemoteFault, OSError, ValueError, KeyError)


class HaClients:
    """The clients of one topic of the broker ``name``; run the methods that end in ``_forever`` as tasks.

    ``brokers``, ``nameservers``: their addresses. ``reach``: where clients connect to reach an address.
    """

    def __init__(
        self,
        history: History,
        topic: str,
        queues: int,
        brokers: Sequence[str],
        nameservers: Sequence[str],
        *,
        name: str = "broker-a",
        seed: int = 0,
        reach: Callable[[str], str] = str,
        pause_s: float = 0.01,
        patience_s: float = 2.0,
    ) -> None:
        """``pause_s``: how long each waits at most between two requests. ``patience_s``: for an answer."""
        self.history = history
        self._topic = topic
        self._queues = queues
        self._brokers = brokers
        self._nameservers = nameservers
        self._name = name
        self._seed = seed
        self._reach = reach
        self.pause_s = pause_s
        self._patience_s = patience_s

    # ---------------------------------------------------------------------------------------------------- senders

    async def send_forever(self, sender: int) -> None:
        """Send one message after the other to the master that the nameservers name."""
        chance = random.Random(f"{self._seed} sender {sender}")
        while True:
            with suppress(*FAILURES):
                address = await self.find_master()
                if address:
                    async with open_channel(self._reach(address)) as channel:
                        await self._send_to(channel, await self._term(channel, address), sender, chance)
            await trio.sleep(chance.uniform(0.02, 0.06))

    async def _send_to(self, channel: Channel, term: Term, sender: int, chance: random.Random) -> None:
        """Send until the broker refuses a message, or does not respond."""
        while True:
            queue_id = chance.randrange(self._queues)
            message = self.history.begin_send(sender, trio.current_time(), term)
            request = send(self._topic, message.body, queue_id=queue_id, queues=self._queues)
            answer = await channel.call(request, self._patience_s)
            ext, now = answer.ext or {}, trio.current_time()
            if answer.code == ResponseCode.SUCCESS:
                place = int(ext["queueId"]), int(ext["queueOffset"])
                self.history.end_send(message, now, Outcome.OK, *place)
            elif answer.code in STORED:
                self.history.end_send(message, now, Outcome.STORED)
            else:
                self.history.end_send(message, now, Outcome.REFUSED)
                return
            await trio.sleep(chance.uniform(0, self.pause_s))

    async def find_master(self) -> str:
        """The master's address in the first response of a nameserver; empty if there is none."""
        for nameserver in self._nameservers:
            with suppress(*FAILURES):
                async with open_channel(self._reach(nameserver)) as channel:
                    answer = await channel.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), self._patience_s)
                    found = ClusterInfo.from_bytes(answer.body or b"{}").broker_addr_table.get(self._name)
                    return "" if found is None else str(found.broker_addrs.get(0, ""))
        return ""

    # ---------------------------------------------------------------------------------------------------- readers

    async def consume_forever(self, group: str = GROUP) -> None:
        """Consume all queues at the master, or at any other broker while it does not respond."""
        chance = random.Random(f"{self._seed} {group}")
        while True:
            address = await self.find_master() if chance.random() < 0.8 else ""
            address = address or chance.choice(self._brokers)
            with suppress(*FAILURES):
                async with open_channel(self._reach(address)) as channel:
                    term = await self._term(channel, address)
                    for _ in range(10):
                        for queue_id in range(self._queues):
                            await self.consume(channel, term, queue_id, group)
                        await trio.sleep(chance.uniform(0, 8 * self.pause_s))
            await trio.sleep(chance.uniform(0.02, 0.1))

    async def consume(self, channel: Channel, term: Term, queue_id: int, group: str = GROUP) -> bool:
        """Read on from where the group is, and commit; whether there was anything."""
        place = {"consumerGroup": group, "topic": self._topic, "queueId": str(queue_id)}
        known = await channel.call(Command(RequestCode.QUERY_CONSUMER_OFFSET, place), self._patience_s)
        offset = int((known.ext or {})["offset"]) if known.code == ResponseCode.SUCCESS else 0
        last = await self._read(channel, term, queue_id, offset, group)
        if last < offset:
            return False
        commit = Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": str(last + 1)})
        await channel.call(commit, self._patience_s)
        return True

    async def read_forever(self, number: int = 0) -> None:
        """Read the last messages, and the group's offsets, at any broker, without a group."""
        chance = random.Random(f"{self._seed} looker {number}")
        while True:
            with suppress(*FAILURES):
                address = chance.choice(self._brokers)
                async with open_channel(self._reach(address)) as channel:
                    term = await self._term(channel, address)
                    for _ in range(5):
                        queue_id = chance.randrange(self._queues)
                        end = await self.look_at_group(channel, address, queue_id)
                        await self._read(channel, term, queue_id, max(end - LAST, 0))
                        await trio.sleep(chance.uniform(0, 4 * self.pause_s))
            await trio.sleep(chance.uniform(0, 10 * self.pause_s))

    async def look_at_group(self, channel: Channel, address: str, queue_id: int) -> int:
        """Note where the group is in this queue; where the queue ends."""
        place = {"consumerGroup": GROUP, "topic": self._topic, "queueId": str(queue_id)}
        known = await channel.call(Command(RequestCode.QUERY_CONSUMER_OFFSET, place), self._patience_s)
        answer = await channel.call(Command(RequestCode.GET_MAX_OFFSET, place), self._patience_s)
        end = int((answer.ext or {})["offset"])
        if known.code == ResponseCode.SUCCESS:
            offset = int((known.ext or {})["offset"])
            self.history.group_offsets.append(GroupOffset(GROUP, queue_id, offset, end, address))
        return end

    async def read_all(self, address: str) -> dict[int, list[bytes]]:
        """All messages that the broker serves; AssertionError for a queue with a hole."""
        log: dict[int, list[bytes]] = {}
        async with open_channel(self._reach(address)) as channel:
            for queue_id in range(self._queues):
                place = {"topic": self._topic, "queueId": str(queue_id)}
                answer = await channel.call(Command(RequestCode.GET_MAX_OFFSET, place))
                end = int((answer.ext or {})["offset"])
                bodies = log[queue_id] = []
                while len(bodies) < end:
                    answer = await channel.call(pull(self._topic, queue_id, len(bodies)))
                    assert answer.code == ResponseCode.SUCCESS, f"{queue_id}/{len(bodies)}: {answer.remark}"
                    for record in decode_records(answer.body):
                        assert record.queue_offset == len(bodies), f"{queue_id}/{len(bodies)} is missing"
                        bodies.append(bytes(record.body))
        return log

    async def finish(self, address: str, group: str = GROUP) -> None:
        """Let the group consume all that the broker has."""
        async with open_channel(self._reach(address)) as channel:
            term = await self._term(channel, address)
            for queue_id in range(self._queues):
                while await self.consume(channel, term, queue_id, group):
                    pass
                await self.look_at_group(channel, address, queue_id)

    async def _read(self, channel: Channel, term: Term, queue_id: int, offset: int, group: str = "") -> int:
        """The offset of the last message that was given from ``offset`` on; one less than ``offset`` for none."""
        answer = await channel.call(pull(self._topic, queue_id, offset, group=group or "lookers"), self._patience_s)
        last = offset - 1
        if answer.code == ResponseCode.SUCCESS:
            for record in decode_records(answer.body):
                last = record.queue_offset
                read = Read(queue_id, last, bytes(record.body), trio.current_time(), term, group)
                self.history.reads.append(read)
        return last

    async def _term(self, channel: Channel, address: str) -> Term:
        answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO), self._patience_s)
        table = KVTable.from_bytes(answer.body or b"{}").table
        return Term(
            address, table.get("bootTimestamp", ""), table.get(EPOCH_KEY, ""), table.get("brokerRole", "") == "SLAVE"
        )
