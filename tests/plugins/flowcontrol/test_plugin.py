"""While acknowledgments are late, senders are refused at once, with the stage, the limit and the measured time."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send


class StillEnv(SystemEnv):
    """The clock for measuring is the test's."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class SlowReplica:
    """A gate that a test opens."""

    timeout_s = 1e9
    late_code = 1
    late_remark = "never"
    watermark = 0


class GatePlugin:
    """Puts the gate in front of every acknowledgment."""

    name = "slow_replica"
    gate = SlowReplica()

    @hookimpl
    def register_ack_gates(self, broker: Broker) -> list[SlowReplica]:
        return [self.gate]


@pytest.mark.trio
async def test_messages_are_refused_until_the_oldest_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("gantrymq_slow_replica")
    module.GatePlugin = GatePlugin  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    gate, env = GatePlugin.gate, StillEnv()
    broker = make_broker(tmp_path, env=env, enable=["gantrymq_slow_replica:GatePlugin"])
    async with run_broker(broker), open_channel(broker.address) as channel, trio.open_nursery() as nursery:
        codes: list[int] = []

        async def send_first() -> None:
            codes.append((await channel.call(send("T", b"first"), 30)).code)

        nursery.start_soon(send_first)
        while not broker.log.end:
            await trio.lowlevel.checkpoint()
        env.now += 0.9
        assert broker.unacknowledged_for() == pytest.approx(0.9)
        env.now += 0.6
        refused = await channel.call(send("T", b"second"))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark is not None
        assert "waited 1500 ms" in refused.remark
        assert "the limit is 1000 ms" in refused.remark
        assert codes == [], "the first one still waits"
        gate.watermark = 1 << 40
        broker.wake()
        while not codes:
            await trio.lowlevel.checkpoint()
        assert codes == [ResponseCode.SUCCESS]
        assert (await channel.call(send("T", b"third"))).code == ResponseCode.SUCCESS
        gate.watermark = 1 << 41
