"""A master and its slaves with a nameserver, an etcd and watchers, each a real process."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from gantrymq.kernel.config.sources import OVERRIDES_PATH
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.etcd import EtcdCluster
from support.foreign import ask, runtime_info
from support.processes import Child, free_ports, gantrymq_child, wait_for

NAME = "broker-a"
FILE_BYTES = 16 << 20


class HaGroup:
    """One broker for each of ``roles`` (``plugin.ha.role`` as a master); the first begins as the master.

    ``settings``: of all, as ``section.key: value``. ``with`` starts the nameserver and etcd, and ends everything.
    """

    def __init__(
        self,
        home: Path,
        etcd: Path,
        roles: Sequence[str],
        settings: Mapping[str, str] | None = None,
        *,
        etcd_members: int = 1,
    ) -> None:
        self.home = home
        self.etcd = EtcdCluster(etcd, home, etcd_members)
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(len(roles), around=(0, 1, -2))]
        self.nameserver = f"127.0.0.1:{free_ports()[0]}"
        self.brokers: dict[int, Child] = {}
        self.watchers: list[Child] = []
        self._roles = list(roles)
        self._settings = dict(settings or {})
        self._stack = ExitStack()

    def __enter__(self) -> HaGroup:
        try:
            self._stack.enter_context(self.etcd)
            self.start_nameserver()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*self.brokers.values(), *self.watchers]:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)
        self._stack.close()

    def _child(self, log: str, *arguments: str) -> Child:
        return self._stack.enter_context(gantrymq_child(arguments, self.home / f"{log}.log"))

    def start_nameserver(self) -> Child:
        """Start the nameserver and wait until it is ready."""
        data = str(self.home / "names")
        child = self._child("names", "nameserver", "--listen", self.nameserver, "--data", data)
        child.wait_line(lambda line: line.startswith("ready"))
        return child

    def start(self, number: int, broker_id: int, *, ready: bool = True) -> Child:
        """The broker on store ``number``, with this id (0 for the master), whatever a promotion has written there."""
        (self.home / f"data-{number}" / OVERRIDES_PATH).unlink(missing_ok=True)
        file = self.home / f"broker-{number}.conf"
        role = "SLAVE" if broker_id else "ASYNC_MASTER"
        file.write_text(f"brokerRole={role}\nbrokerId={broker_id}\nmappedFileSizeCommitLog={FILE_BYTES}\n")
        sets = [word for key, value in self._settings.items() for word in ("--set", f"{key}={value}")]
        child = self.brokers[number] = self._child(
            f"broker-{number}", "broker", "--nameserver", self.nameserver, "--listen", self.addresses[number],
            "--data", str(self.home / f"data-{number}"), "--config", str(file), "--enable", "ha",
            "--set", f"broker.name={NAME}", "--set", f"plugin.ha.role={self._roles[number]}", *sets,
        )  # fmt: skip
        if ready:
            child.wait_line(lambda line: line.startswith("ready"))
        return child

    def start_all(self) -> None:
        """Returns when the slaves follow the master."""
        for number in range(len(self.addresses)):
            self.start(number, number)
        self.wait_followed(0, len(self.addresses) - 1)

    def wait_followed(self, master: int, slaves: int, timeout: float = 40.0) -> None:
        """Returns when so many slaves have all that the broker has."""

        def is_followed() -> bool:
            found = [text for key, text in self.runtime(master).items() if key.startswith("haSlave_")]
            return len(found) == slaves and all("lagBytes=0" in text for text in found)

        wait_for(is_followed, timeout)

    def wait_connected(self, master: int, slaves: int, timeout: float = 40.0) -> None:
        """Returns when so many slaves follow the broker, and the nameserver knows them all."""

        def is_connected() -> bool:
            copies = [text for key, text in self.runtime(master).items() if key.startswith("haSlave_")]
            known = ask(self.nameserver, Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body
            return (
                sum("start=-1" not in text for text in copies) == slaves
                and sum(address.encode() in known for address in self.addresses) == slaves + 1
            )

        wait_for(is_connected, timeout)

    def watch(self, *options: str) -> Child:
        """Start one more watcher and wait until it is ready."""
        child = self._child(
            f"watcher-{len(self.watchers)}", "cluster", "watch", NAME, "--nameserver", self.nameserver,
            "--etcd", self.etcd.address, *options,
        )  # fmt: skip
        self.watchers.append(child)
        child.wait_line(lambda line: line.startswith("ready"))
        return child

    def events(self, watcher: int, event: str) -> list[dict[str, object]]:
        """A watcher's log events of this name."""
        lines = (self.home / f"watcher-{watcher}.log").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [line for line in found if line["event"] == event]

    def runtime(self, number: int) -> dict[str, str]:
        """The broker's runtime information (code 28)."""
        return runtime_info(self.addresses[number])
