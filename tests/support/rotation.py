"""A nameserver and a broker that enforce TLS, and whose authority is replaced while their clients run."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.nameserver import NameServer, NameServerConfig, server
from gantrymq.plugins.interfaces import Registration
from gantrymq.remoting.tls import ServerTls
from gantrymq.testing.harness import make_broker, run_broker
from support.authority import Authority

HA = "gantrymq.plugins.ha:HaPlugin"
TLS = "gantrymq.plugins.tls:TlsPlugin"


class Rotation:
    """The files of two authorities: ``trusted`` is what servers and clients read; ``logs`` is what was logged."""

    def __init__(self, folder: Path, logs: list[MutableMapping[str, Any]]) -> None:
        self._first, self._second = (Authority(folder, name) for name in ("first", "second"))
        self.trusted, self.certificate = folder / "trusted.pem", folder / "server.pem"
        self.trusted.write_bytes(self._first.file.read_bytes())
        self._first.issue("server")
        self.logs = logs
        self.nameserver = ""

    async def seen(self, event: str, times: int = 1) -> None:
        """Wait until ``event`` was logged so many times."""
        with trio.fail_after(20):
            while sum(each["event"] == event for each in self.logs) < times:  # noqa: ASYNC110 - a list
                await trio.sleep(0.02)

    async def replace_authority(self) -> None:
        """Rotate as docs/howto/rotate-keys.md describes; each step waits for both servers."""
        self.trusted.write_bytes(self._first.file.read_bytes() + self._second.file.read_bytes())
        await self.seen("tls_files_loaded", 2)
        self._second.issue("server")
        await self.seen("tls_files_loaded", 4)
        self.trusted.write_bytes(self._second.file.read_bytes())
        await self.seen("tls_files_loaded", 6)


@asynccontextmanager
async def run_rotation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rotation]:
    """Run both servers, with the broker registered."""
    monkeypatch.setattr(server, "WATCH_SECONDS", 0.05)
    with capture_logs() as logs:
        rotation = Rotation(folder, logs)
        files = ServerTls(str(rotation.certificate), ca=str(rotation.trusted))
        settings = {"plugin.tls.certificate": files.certificate, "plugin.tls.ca": files.ca}
        settings["plugin.tls.interval"] = "100ms"
        async with trio.open_nursery() as nursery:
            names = NameServer(NameServerConfig(port=0, tls=files, plain=False))
            rotation.nameserver = await nursery.start(names.serve)
            broker = make_broker(folder / "store", [rotation.nameserver], settings=settings, enable=[HA, TLS])
            async with run_broker(broker):
                assert await broker.registry.get(Registration).wait_first(20.0)
                yield rotation
            nursery.cancel_scope.cancel()
