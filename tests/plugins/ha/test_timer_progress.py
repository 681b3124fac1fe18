"""A slave knows its master's timer progress, limited to its own durable log."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from gantrymq.kernel.registry import Registry
from gantrymq.plugins.delay.timer.check import TimerCheck
from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.ha.timer_progress import EVERY_S, TimerReports
from gantrymq.plugins.interfaces import TimerProgress
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.requests import send


class ScriptedMaster(Channel):
    """A master that answers with ``code`` and its growing log."""

    def __init__(self, code: int = ResponseCode.SUCCESS) -> None:
        super().__init__("m:2")
        self.code = code
        self.asked = 0
        self.log_end = 100

    async def call(self, command: Command, timeout: float = 3.0) -> Command:
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {"table": {"commitLogMaxOffset": str(self.log_end)}}
            return Command(ResponseCode.SUCCESS, body=json.dumps(table).encode())
        assert command.code == RequestCode.GET_TIMER_CHECK_POINT
        self.asked += 1
        return Command(self.code, body=b"%d" % self.asked)


class Slave:
    """The slave's log, and what it has adopted."""

    def __init__(self) -> None:
        self.adopted: list[tuple[bytes, int]] = []
        self.log = SimpleNamespace(durable=0)
        self.following = "m:2"
        registry = Registry()
        registry.provide(TimerProgress, self)
        broker: Any = SimpleNamespace(registry=registry, log=self.log)
        self.reports = TimerReports(
            broker, MasterAddress("", "m:1", "m:2"), 10.0, lambda address: address == self.following
        )

    def adopt_timer(self, body: bytes, log_end: int) -> None:
        self.adopted.append((body, log_end))

    async def stay(self, channel: Channel) -> None:
        await self.reports._stay(channel, "m:2", self)


@pytest.fixture
def slave() -> Slave:
    return Slave()


@pytest.mark.trio
async def test_a_report_is_adopted_when_the_log_has_reached_the_masters_end(
    slave: Slave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    channel = ScriptedMaster()
    nursery.start_soon(slave.stay, channel)
    await trio.sleep(EVERY_S / 2)
    channel.log_end = 200
    await trio.sleep(5 * EVERY_S)
    assert slave.adopted == []
    slave.log.durable = 100
    await trio.sleep(EVERY_S)
    assert slave.adopted == [(b"1", 100)], "although the master's log has grown"
    slave.log.durable = 200
    await trio.sleep(EVERY_S)
    assert slave.adopted[-1] == (b"%d" % channel.asked, 200)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_report_from_before_another_connection_is_not_adopted(
    slave: Slave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    nursery.start_soon(slave.stay, ScriptedMaster())
    await trio.sleep(EVERY_S / 2)
    slave.following = ""
    slave.log.durable = 100
    await trio.sleep(3 * EVERY_S)
    assert slave.adopted == []
    nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize(
    ("code", "asked"), [(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 1), (ResponseCode.SYSTEM_ERROR, 10)]
)
async def test_masters_without_a_timer_are_tolerated_silently(
    slave: Slave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, code: int, asked: int
) -> None:
    """RocketMQ 4 does not know the request; 5.3.3 answers with an error while its timer is off."""
    channel = ScriptedMaster(code)
    with structlog.testing.capture_logs() as logs:
        nursery.start_soon(slave.stay, channel)
        await trio.sleep(9.5 * EVERY_S)
    assert channel.asked == asked
    assert slave.adopted == []
    assert logs == []
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_master_reports_its_timer_as_rocketmq_does(pair: Any) -> None:
    async with pair.master() as master, open_channel(master.address) as channel:
        answer = await channel.call(Command(RequestCode.GET_TIMER_CHECK_POINT))
        assert answer.code == ResponseCode.SUCCESS
        read_ms, *rest = struct.unpack(">7q", answer.body)
        assert rest == [0] * 6
        assert 0 <= master.log.clock.now_ms() - read_ms < 60_000
        answer = await channel.call(Command(RequestCode.GET_TIMER_METRICS))
        assert json.loads(answer.body)["timingCount"] == {}


@pytest.mark.trio
async def test_a_slave_without_a_report_answers_as_rocketmq_without_a_timer(pair: Any) -> None:
    async with pair.slave("127.0.0.1:1") as slave, open_channel(slave.address) as channel:
        answer = await channel.call(Command(RequestCode.GET_TIMER_CHECK_POINT))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        slave.registry.get(TimerProgress).adopt_timer(TimerCheck(5000, 0, 0).to_body(), 0)
        answer = await channel.call(Command(RequestCode.GET_TIMER_CHECK_POINT))
        assert struct.unpack(">7q", answer.body)[0] == 5000


def timed(body: bytes, delay_ms: int) -> Any:
    return send("T", body, properties=f"TIMER_DELAY_MS\x01{delay_ms}\x02UNIQ_KEY\x01{body.decode()}\x02")


@pytest.mark.slow
@pytest.mark.trio
async def test_a_promoted_slave_delivers_only_what_its_master_has_not_delivered(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as slave, open_channel(master.address) as channel:
        progress = next(info.plugin for info in slave.manager.plugins if info.name == "delay")._master_progress
        assert (await channel.call(timed(b"delivered", 1))).code == ResponseCode.SUCCESS
        assert (await channel.call(timed(b"waiting", 12_000))).code == ResponseCode.SUCCESS
        await pair.until(lambda: master.queues.get("T", 0) is not None)
        delivered_ms = master.log.clock.now_ms()
        await pair.until(lambda: progress.check.read_ms > delivered_ms + 3000, 20.0)
        await channel.aclose()
    async with pair.master(home="slave") as promoted:
        assert promoted.queues.get("T", 0).max_offset == 1
        await pair.until(lambda: promoted.queues.get("T", 0).max_offset == 2, 20.0)
        await trio.sleep(1.5)
        assert promoted.queues.get("T", 0).max_offset == 2
