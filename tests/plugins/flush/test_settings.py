"""RocketMQ's keys for the flush in a ``broker.conf``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.kernel.config.broker_conf import translate
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.fast.plain_flusher import Flusher
from gantrymq.kernel.network.sweep import LONE_TURNS
from gantrymq.plugins.flush import FlushConfig
from gantrymq.plugins.flush.sync import FAST_FLUSHES
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.javaproperties import read_properties
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        ("transientStorePoolEnable=true", "buffered"),
        ("transientStorePoolEnable=true\nflushDiskType=ASYNC_FLUSH", "buffered"),
        ("transientStorePoolEnable=true\nflushDiskType=SYNC_FLUSH", "sync"),
        ("transientStorePoolEnable=false\nflushDiskType=ASYNC_FLUSH", "async"),
    ],
)
def test_the_transient_pool_is_the_flush_mode_buffered_where_the_disk_may_be_late(lines: str, mode: str) -> None:
    found = translate(read_properties(lines.encode()), {"plugin.flush": FlushConfig})
    assert found.settings["plugin.flush", "mode"] == mode
    assert found.unmapped == ()


class CountingFlusher(Flusher):
    """Counts what the thread is asked to flush."""

    asked = 0

    def ask(self) -> None:
        self.asked += 1
        super().ask()


class CountingEnv(SystemEnv):
    """The system with one :class:`CountingFlusher`."""

    def __init__(self) -> None:
        super().__init__()
        self.made = CountingFlusher(10.0)  # the machine may have other work

    def flusher(self) -> Flusher:
        return self.made


@pytest.mark.trio
@pytest.mark.parametrize(("settings", "direct"), [({}, True), ({"plugin.flush.direct": "false"}, False)])
async def test_with_direct_a_lone_senders_messages_are_durable_without_the_thread(
    tmp_path: Path, settings: dict[str, str], direct: bool
) -> None:
    env = CountingEnv()
    broker = make_broker(tmp_path, env=env, settings=settings)
    async with run_broker(broker), open_channel(broker.address) as channel:
        for number in range(FAST_FLUSHES + LONE_TURNS + 25):
            if number == FAST_FLUSHES + LONE_TURNS + 5:
                before = env.made.asked
            assert (await channel.call(send("T", b"%d" % number))).code == ResponseCode.SUCCESS
            assert broker.log.durable == broker.log.end
        # a flush of the log by another thread may be in the way of one or two
        assert (env.made.asked - before < 10) is direct
