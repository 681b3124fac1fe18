"""A master and its slaves as real processes with two nameservers, on links that can be cut one by one.

Every broker has an address of the loopback for itself, and advertises one at which a relay stands
(``support.links``): brokers reach each other, the nameserver and clients by relays only.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

import gantrymq
from gantrymq.failover import promotion
from gantrymq.failover.brokers import broker_rows
from gantrymq.kernel.config.sources import OVERRIDES_PATH
from gantrymq.plugins.ha.epochs import FILE as EPOCHS_PATH
from gantrymq.plugins.ha.epochs import decode_epochs
from support.etcd import EtcdServer
from support.links import Links
from support.loopdisk import LoopDisk
from support.processes import Child, free_ports, gantrymq_child, pause

NAME: Final = "broker-a"
NAMES: Final = "nameserver"
CLIENTS: Final = "clients"
OPERATOR: Final = ""
"""The promoting side, if it is the test itself."""
NAMESERVERS: Final = 2
READY_S: Final = 60.0
_RESPONSE_S: Final = 2.0


class HaCluster:
    """Brokers 0 to ``count`` - 1 of one name; each may be the master. ``disks``: where their stores are, if any."""

    def __init__(
        self,
        home: Path,
        count: int,
        settings: Mapping[str, str],
        disks: Sequence[LoopDisk] = (),
        etcd: Path | None = None,
    ) -> None:
        """``etcd``: the program, for :meth:`watch`."""
        self.home = home
        self.etcd = None if etcd is None else EtcdServer(etcd, home)
        self.watchers: dict[int, Child] = {}
        self.count = count
        self.links = Links()
        self.children: dict[int, Child] = {}
        self.disks = disks
        self._settings = settings
        self._stack = ExitStack()
        ports = free_ports(count + NAMESERVERS, around=(0, 1, -2))
        self._names_ports, self._ports = ports[:NAMESERVERS], ports[NAMESERVERS:]
        self._names: dict[int, Child] = {}

    # -------------------------------------------------------------------------------------------------- addresses

    @property
    def nameservers(self) -> list[str]:
        """The addresses of the nameservers for brokers."""
        return [f"127.0.1.1:{port}" for port in self._names_ports]

    @property
    def _direct_nameservers(self) -> str:
        return ";".join(f"127.0.0.1:{port}" for port in self._names_ports)

    def address(self, number: int) -> str:
        """The broker's advertised address."""
        return f"127.0.1.{10 + number}:{self._ports[number]}"

    @property
    def addresses(self) -> list[str]:
        """The brokers' advertised addresses."""
        return [self.address(number) for number in range(self.count)]

    def direct(self, number: int) -> str:
        """The broker's listening address, which no cut affects."""
        return f"127.0.0.{10 + number}:{self._ports[number]}"

    @staticmethod
    def client_side(address: str) -> str:
        """The address for clients that corresponds to this one."""
        return address.replace("127.0.1.", "127.0.2.")

    @staticmethod
    def label(number: int) -> str:
        """The broker's name among the links."""
        return f"broker {number}"

    def store(self, number: int) -> Path:
        """The broker's folder."""
        return (self.disks[number].folder if self.disks else self.home) / f"data-{number}"

    # -------------------------------------------------------------------------------------------------- processes

    @asynccontextmanager
    async def run(self) -> AsyncIterator[HaCluster]:
        """The nameservers and all relays; at the end nothing is left running."""
        try:
            async with trio.open_nursery() as nursery:
                for names, address in zip(self._names_ports, self.nameservers, strict=True):
                    await self._relay(nursery, address, NAMES, f"127.0.0.1:{names}")
                for number in range(self.count):
                    await self._relay(nursery, self.address(number), self.label(number), self.direct(number))
                    host, port = self.address(number).split(":")
                    replication = f"{host}:{int(port) + 1}"
                    far = f"{self.direct(number).split(':')[0]}:{int(port) + 1}"
                    await nursery.start(self.links.serve, replication, self.label(number), far)
                for number in range(NAMESERVERS):
                    await self.start_nameserver(number)
                if self.etcd is not None:
                    await trio.to_thread.run_sync(self._stack.enter_context, self.etcd)
                yield self
                nursery.cancel_scope.cancel()
        finally:
            for child in self.children.values():
                if child.process.poll() is None:
                    child.process.send_signal(signal.SIGCONT)
                    child.kill()
            self._stack.close()

    async def _relay(self, nursery: trio.Nursery, address: str, name: str, target: str) -> None:
        await nursery.start(self.links.serve, address, name, target)
        await nursery.start(self.links.serve, self.client_side(address), name, target, CLIENTS)

    async def start_nameserver(self, number: int) -> None:
        """Start a nameserver without state of an earlier run."""
        await trio.to_thread.run_sync(self._start_nameserver, number)

    def _start_nameserver(self, number: int) -> None:
        command = ("nameserver", "--listen", f"127.0.0.1:{self._names_ports[number]}")
        child = self._stack.enter_context(gantrymq_child(command, self.home / f"names-{number}.log"))
        self._names[number] = child
        child.wait_line(lambda line: line.startswith("ready"), READY_S)

    async def kill_nameserver(self, number: int) -> None:
        """SIGKILL."""
        await trio.to_thread.run_sync(self._names[number].kill)

    async def watch(self, number: int = 0) -> None:
        """A watcher, ``gantrymq cluster watch``; killed first if it is there, so that its lease must run out."""
        await trio.to_thread.run_sync(self._watch, number)

    def _watch(self, number: int) -> None:
        assert self.etcd is not None
        if number in self.watchers:
            self.watchers[number].kill()
        command = (
            "cluster", "watch", NAME, "--nameserver", self._direct_nameservers, "--etcd", self.etcd.address,
            "--lease", "2",
        )  # fmt: skip
        child = self._stack.enter_context(gantrymq_child(command, self.home / f"watcher-{number}.log"))
        self.watchers[number] = child
        child.wait_line(lambda line: line.startswith("ready"), READY_S)

    async def start(self, number: int, *, master: bool, ready: bool = True) -> Child:
        """Start the broker, whatever it was before; a slave has its number plus one as its id."""
        return await trio.to_thread.run_sync(self._start, number, master, ready)

    def _start(self, number: int, master: bool, ready: bool) -> Child:
        (self.store(number) / OVERRIDES_PATH).unlink(missing_ok=True)
        file = self.home / f"broker-{number}.conf"
        file.write_text("brokerId=0\n" if master else f"brokerRole=SLAVE\nbrokerId={number + 1}\n")
        settings = {"plugins.enable": "ha", "broker.advertise": self.address(number), **self._settings}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = (
            "broker", "--nameserver", ";".join(self.nameservers), "--listen", self.direct(number),
            "--data", str(self.store(number)), "--config", str(file), *sets,
        )  # fmt: skip
        child = self._stack.enter_context(gantrymq_child(command, self.log(number)))
        self.children[number] = child
        self.links.names[child.pid] = self.label(number)
        if ready:
            child.wait_line(lambda line: line.startswith("ready"), READY_S)
        return child

    def pause(self, number: int) -> None:
        """Stop it with SIGSTOP, until :meth:`resume`."""
        pause(self.children[number].process.pid)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self.children[number].process.send_signal(signal.SIGCONT)

    async def kill(self, number: int) -> None:
        """SIGKILL."""
        await trio.to_thread.run_sync(self.children[number].kill)

    async def stop(self, number: int) -> None:
        """Stop the broker cleanly with SIGTERM."""
        await trio.to_thread.run_sync(self.children[number].terminate)

    async def cut_power(self, number: int, chance: random.Random) -> None:
        """Drop unsynced data, except for a random part of it. Needs ``disks``."""
        await trio.to_thread.run_sync(self._cut_power, number, chance)

    def _cut_power(self, number: int, chance: random.Random) -> None:
        child, disk = self.children[number], self.disks[number]
        child.process.send_signal(signal.SIGSTOP)
        for path in sorted(self.store(number).rglob("*")):
            if path.is_file() and chance.random() < 0.2:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        disk.cut_power()
        child.kill()
        disk.unmount()
        disk.mount()

    # ------------------------------------------------------------------------------------------------------- views

    def was_master(self, number: int) -> bool:
        """Whether the stopped broker last served as a master."""
        return decode_epochs((self.store(number) / EPOCHS_PATH).read_bytes())[1] is not None

    def log(self, number: int) -> Path:
        """The log file of all runs of the broker."""
        return self.home / f"broker-{number}.log"

    def events(self, number: int, name: str) -> list[dict[str, Any]]:
        """The log lines of this event."""
        lines = self.log(number).read_text(errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and f'"{name}"' in line]
        return [line for line in found if line.get("event") == name]

    async def rows(self) -> list[promotion.Row]:
        """The brokers as ``gantrymq cluster status`` has them."""
        async with gantrymq.connect(self._direct_nameservers) as client:
            return await broker_rows(client, _RESPONSE_S)
