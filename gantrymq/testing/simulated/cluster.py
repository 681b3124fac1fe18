"""Nameservers, a master and its slaves, and clients on separate simulated machines in one process."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

import gantrymq
from gantrymq.kernel.broker import Broker
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.ledger import ReadObserver
from gantrymq.testing.requests import pull
from gantrymq.testing.simulated.machine import Machine
from gantrymq.testing.simulated.network import OBSERVER, Network, Process, on

_HA = "gantrymq.plugins.ha:HaPlugin"
HA_PORT = 10912
"""The port at which a simulated master serves its slaves."""
SAFE = {"plugin.flush.mode": "sync", "plugin.ha.role": "sync_master"}
"""Settings with which acknowledged messages survive the loss of either machine (SYNC_FLUSH and SYNC_MASTER)."""
_STEP_S = 0.05


class Cluster:
    """The machines of a simulation by their addresses, and the network between them."""

    def __init__(self, network: Network, nursery: trio.Nursery) -> None:
        self.network = network
        self.seed = network.seed
        self.chance = random.Random(f"{network.seed} scenario")  # noqa: S311 - for the scenario's own choices
        self.nameservers: list[str] = []
        self.log: list[Any] = []
        """The log events: their fields, and ``at``, the simulated time in seconds."""
        self._nursery = nursery
        self._machines: dict[str, Machine] = {}

    def machine(self, host: str) -> Machine:
        """Return the machine at this address."""
        if host not in self._machines:
            self._machines[host] = Machine(self.network, self._nursery, host)
        return self._machines[host]

    def is_master(self, host: str) -> bool:
        """Return whether a master runs at this machine."""
        broker = self.machine(host).broker
        return broker is not None and broker.broker_id == 0

    def slaves_of(self, host: str) -> int:
        """Return the number of slaves that follow the broker at this machine; 0 if it is not a master."""
        broker = self.machine(host).broker
        if broker is None or broker.broker_id:
            return 0
        ha = next(info.plugin for info in broker.manager.plugins if info.name == "ha")
        return sum(copy.start >= 0 for copy in ha.copies)

    async def start_nameserver(self, host: str, peers: Sequence[str] = ()) -> Machine:
        """Start a nameserver at this machine; brokers and clients that start later use it. See ``Machine``."""
        machine = self.machine(host)
        address = await machine.start_nameserver(peers)
        if address not in self.nameservers:
            self.nameservers.append(address)
        return machine

    async def start_broker(self, host: str, broker_id: int = 0, settings: Mapping[str, str] | None = None) -> Broker:
        """Start a broker with the plugin ``ha`` at this machine, a master or (``broker_id`` above 0) a slave."""
        given = {"broker.id": str(broker_id), "plugin.ha.peers": "10.0.0.0/8", **(settings or {})}
        return await self.machine(host).start_broker(self.nameservers, given, [_HA])

    def end(self) -> None:
        """Switch all machines off permanently."""
        self.resume()
        for machine in self._machines.values():
            machine.vanish()

    def resume(self) -> None:
        """Resume all paused processes."""
        for machine in self._machines.values():
            machine.resume()

    @asynccontextmanager
    async def client(self, host: str = OBSERVER) -> AsyncIterator[Any]:
        """A client at this machine with the addresses of all nameservers; the code of the block runs at the machine
        too."""
        with on(Process(host)):
            async with gantrymq.connect(self.nameservers) as client:
                yield client

    async def until(self, true: Callable[[], bool], seconds: float = 60.0, what: str = "") -> None:
        """Return when the condition holds; AssertionError if it does not within the given simulated seconds."""
        with trio.move_on_after(seconds):
            while not true():  # noqa: ASYNC110 - what is waited for has no event
                await trio.sleep(_STEP_S)
        if not true():
            raise AssertionError(f"not within {seconds:g} simulated seconds: {what or true}")


async def read_all(
    address: str, topic: str, queues: int, observer: ReadObserver, patience: int = 200
) -> dict[int, int]:
    """Pass all readable messages of the topic to the observer; returns the end of each queue.

    It reads over faultless links, and retries while the broker is not ready (``patience`` times).
    """
    ends: dict[int, int] = {}
    with on(Process(OBSERVER)):
        async with open_channel(address) as channel:
            for queue_id in range(queues):
                end = await _end(channel, topic, queue_id)
                offset = 0
                while offset < end:
                    answer = await channel.call(pull(topic, queue_id, offset))
                    if answer.code != ResponseCode.SUCCESS and patience:
                        patience -= 1
                        await trio.sleep(_STEP_S)
                        continue
                    if answer.code != ResponseCode.SUCCESS:
                        raise AssertionError(f"queue {queue_id} at {offset}: {answer.code} {answer.remark}")
                    for record in decode_records(answer.body):
                        observer.observe(record.body, record.queue_id, record.queue_offset)
                        offset = record.queue_offset + 1
                ends[queue_id] = offset
    return ends


async def _end(channel: Channel, topic: str, queue_id: int) -> int:
    ask = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": topic, "queueId": str(queue_id)})
    answer = await channel.call(ask)
    if answer.code != ResponseCode.SUCCESS:
        raise AssertionError(f"queue {queue_id}: {answer.code} {answer.remark}")
    return int((answer.ext or {})["offset"])
