"""Fixtures: masters and slaves in the test's process, on free ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.env import Env
from gantrymq.plugins.ha import HaPlugin
from gantrymq.plugins.interfaces import Replication
from gantrymq.testing.harness import make_broker, run_broker

PLUGIN = "gantrymq.plugins.ha:HaPlugin"


class Pair:
    """Makes brokers of one name that find each other without a nameserver."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.flush: list[object] = []
        """The plugin that takes the place of ``flush`` on masters, if there is one."""

    @asynccontextmanager
    async def master(self, home: str = "master", *, env: Env | None = None, **settings: str) -> AsyncIterator[Broker]:
        """A running master; ``sync_slaves="2"`` is a setting of the plugin, keys with a dot are whole."""
        given = {
            "plugin.ha.listen": "127.0.0.1:0",
            **{key if "." in key else f"plugin.ha.{key}": value for key, value in settings.items()},
        }
        disable = ["flush"] if self.flush else []
        broker = make_broker(self.root / home, settings=given, enable=[PLUGIN, *self.flush], disable=disable, env=env)
        async with run_broker(broker):
            yield broker

    def make_slave(
        self, master: Broker | str, home: str = "slave", *, env: Env | None = None, **settings: str
    ) -> Broker:
        """A slave of ``master``, a broker or an address, that is not running yet; keys with a dot are whole."""
        given = {
            "broker.id": "1",
            "plugin.ha.master": master if isinstance(master, str) else master.registry.get(Replication).ha_address,
            "plugin.ha.sync_tables": "100ms",
            **({} if isinstance(master, str) else {"plugin.ha.master_broker": master.address}),
            **{key if "." in key else f"plugin.ha.{key}": value for key, value in settings.items()},
        }
        return make_broker(self.root / home, settings=given, enable=[PLUGIN], env=env)

    @asynccontextmanager
    async def slave(
        self, master: Broker | str, home: str = "slave", *, env: Env | None = None, **settings: str
    ) -> AsyncIterator[Broker]:
        """A running slave."""
        async with run_broker(self.make_slave(master, home, env=env, **settings)) as broker:
            yield broker

    @staticmethod
    async def send(broker: Broker, *bodies: bytes, topic: str = "T", timeout: float = 10.0) -> list[int]:
        """The codes with which the messages were answered."""
        batch, done = AppendBatch(), trio.Event()
        for body in bodies:
            batch.add(topic, 0, body, b"")
        batch.done = lambda _finished: done.set()
        broker.append(batch)
        broker.wake()
        with trio.fail_after(timeout):
            await done.wait()
        return [int(code) for code in batch.statuses]

    @staticmethod
    async def until(true: Callable[[], bool], timeout: float = 30.0) -> None:
        """Returns when it is so."""
        with trio.fail_after(timeout):
            while not true():  # noqa: ASYNC110 - what is waited for has no event
                await trio.sleep(0.005)

    @classmethod
    async def connected(cls, master: Broker, slaves: int = 1) -> None:
        """Returns when so many slaves have said how far they are."""
        ha = next(info.plugin for info in master.manager.plugins if isinstance(info.plugin, HaPlugin))
        await cls.until(lambda: sum(copy.start >= 0 for copy in ha.copies) >= slaves)

    @staticmethod
    def bytes_of(broker: Broker) -> bytes:
        """The log, from its first byte to its end."""
        log = broker.log
        return b"".join(
            log.segments.pread(segment.base, max(min(segment.end, log.end) - segment.base, 0))
            for segment in log.segments
        )


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Brokers whose stores are below one folder."""
    return Pair(tmp_path)
