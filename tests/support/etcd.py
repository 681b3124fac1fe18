"""A real etcd for tests: the one that is installed, or Debian's package, unpacked into a cache folder."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

from support.foreign import ToolMissing, hold_lock
from support.processes import Child, ChildFailed, free_ports, wait_for

PACKAGE = "etcd-server"
DOWNLOAD_S = 300.0


def find_etcd(cache: Path) -> Path:
    """The program ``etcd``; Debian's package is fetched into ``cache`` once, which needs no root.

    ToolMissing where there is neither.
    """
    installed = shutil.which("etcd")
    if installed is not None:
        return Path(installed)
    target = (cache / "etcd").absolute()
    program = target / "usr" / "bin" / "etcd"
    with hold_lock(cache / "etcd.lock"):
        if not program.exists():
            apt, unpack = shutil.which("apt-get"), shutil.which("dpkg-deb")
            if apt is None or unpack is None:
                raise ToolMissing(f"etcd is not installed; the tests of `cluster watch` need it (Debian: {PACKAGE})")
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            try:
                _run(target, apt, "download", PACKAGE)
                _run(target, unpack, "-x", str(next(target.glob("*.deb"))), str(target))
            except (subprocess.SubprocessError, StopIteration) as error:
                raise ToolMissing(f"{PACKAGE} cannot be fetched: {error}") from None
    return program


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=DOWNLOAD_S, check=True)


class EtcdServer:
    """One member alone, at ``address`` for as long as it runs; its data stay in ``home``. ``options``: etcd's own."""

    def __init__(self, program: Path, home: Path, options: Sequence[str] = ()) -> None:
        self._program = program
        self._options = options
        self._home = home
        client, peer = free_ports(2)
        self.address = f"{'https' if '--cert-file' in options else 'http'}://127.0.0.1:{client}"
        self._peer = f"http://127.0.0.1:{peer}"
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
        self._child = Child(
            [
                str(self._program), "--data-dir", str(self._home / "etcd"), "--name", "one",
                "--listen-client-urls", self.address, "--advertise-client-urls", self.address,
                "--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer,
                "--initial-cluster", f"one={self._peer}", *self._options,
            ],
            self._home / "etcd.log",
        )  # fmt: skip
        wait_for(self._answers)

    def kill(self) -> None:
        """As by kill -9."""
        self._running.kill()
        self._running.stop()

    def pause(self) -> None:
        """SIGSTOP."""
        self._running.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._running.process.send_signal(signal.SIGCONT)

    @property
    def _running(self) -> Child:
        if self._child is None:
            raise ChildFailed("etcd was not started")
        return self._child

    def _answers(self) -> bool:
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
