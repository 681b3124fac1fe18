"""A real etcd for tests: the one that is installed, or Debian's package, unpacked into a cache folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from support.debian import find_unpacked
from support.processes import Child, ChildFailed, free_ports, pause, wait_for


def find_etcd(cache: Path) -> Path:
    """The program ``etcd``; ToolMissing if it is not installed and cannot be fetched into ``cache``."""
    return find_unpacked(cache, "etcd", "etcd-server")


class EtcdServer:
    """One member, at ``address`` for as long as it runs; its data stay in ``home``. ``options``: etcd's own.

    It is alone unless ``peers`` has the peer addresses of all members by their names, its own ``name`` among them.
    """

    def __init__(
        self,
        program: Path,
        home: Path,
        options: Sequence[str] = (),
        *,
        name: str = "one",
        peers: Mapping[str, str] | None = None,
    ) -> None:
        self._program = program
        self._options = options
        self._home = home
        self.address = f"{'https' if '--cert-file' in options else 'http'}://127.0.0.1:{free_ports()[0]}"
        self._name = name
        self._peers = peers or {name: _peer_address()}
        self._child: Child | None = None

    def __enter__(self) -> EtcdServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self.resume()
            self._child.stop()
            self._child = None

    def start(self) -> None:
        """Returns when it answers."""
        self.spawn()
        wait_for(self.answers)

    def spawn(self) -> None:
        """Start it; as one of several it answers when most of them run."""
        own = self._peers[self._name]
        self._child = Child(
            [
                str(self._program), "--data-dir", str(self._home / f"etcd-{self._name}"), "--name", self._name,
                "--listen-client-urls", self.address, "--advertise-client-urls", self.address,
                "--listen-peer-urls", own, "--initial-advertise-peer-urls", own,
                "--initial-cluster", ",".join(f"{name}={peer}" for name, peer in self._peers.items()), *self._options,
            ],
            self._home / f"etcd-{self._name}.log",
        )  # fmt: skip

    def kill(self) -> None:
        """Kill it with kill -9."""
        self._running.kill()
        self._running.stop()

    def pause(self) -> None:
        """Stop it with SIGSTOP, until :meth:`resume`."""
        pause(self._running.process.pid)

    def resume(self) -> None:
        """SIGCONT."""
        self._running.process.send_signal(signal.SIGCONT)

    @property
    def _running(self) -> Child:
        if self._child is None:
            raise ChildFailed("etcd was not started")
        return self._child

    def answers(self) -> bool:
        """Whether it serves requests; ChildFailed when it has ended."""
        if self._running.process.poll() is not None:
            raise ChildFailed(f"etcd has ended: {self._running.log.read_text()[-2000:]}")
        if self._options:  # with TLS etcd answers only clients that have a certificate
            return "ready to serve client requests" in self._running.log.read_text()
        with closing(HTTPConnection(self.address.removeprefix("http://"), timeout=1.0)) as connection:
            try:
                connection.request("GET", "/health")
                return b"true" in connection.getresponse().read()
            except OSError:
                return False

    def leads(self) -> bool:
        """Whether it is the leader; False if it does not respond."""
        with closing(HTTPConnection(self.address.removeprefix("http://"), timeout=1.0)) as connection:
            try:
                connection.request("POST", "/v3/maintenance/status", body="{}")
                status = json.loads(connection.getresponse().read())
            except (OSError, HTTPException, ValueError):
                return False
        return "leader" in status and status["leader"] == status["header"]["member_id"]


class EtcdCluster:
    """Several members; ``address`` has the addresses of all. Their data stay in ``home``."""

    def __init__(self, program: Path, home: Path, members: int = 3) -> None:
        names = ["one", "two", "three", "four", "five"][:members]
        peers = {name: _peer_address() for name in names}
        self.members = [EtcdServer(program, home, name=name, peers=peers) for name in names]
        self.address = ",".join(member.address for member in self.members)

    def __enter__(self) -> EtcdCluster:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            member.__exit__(*error)

    def start(self) -> None:
        """Returns when all answer."""
        for member in self.members:
            member.spawn()
        for member in self.members:
            wait_for(member.answers)

    def kill(self) -> None:
        """All of them, as by kill -9."""
        for member in self.members:
            member.kill()

    def leader(self) -> EtcdServer:
        """The member that leads; waits until there is one."""
        found: list[EtcdServer] = []

        def is_found() -> bool:
            found[:] = [member for member in self.members if member.leads()]
            return bool(found)

        wait_for(is_found)
        return found[0]


def _peer_address() -> str:
    return f"http://127.0.0.1:{free_ports()[0]}"
