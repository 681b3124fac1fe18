"""A plugin that replaces the flush strategy: senders wait for its gate, and a missing gate logs a warning."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.acks import AckGate, DurableGate
from gantrymq.kernel.api import Broker
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send


class Regularly:
    def __init__(self, log: CommitLog, wake: Callable[[], None], may_flush: threading.Event) -> None:
        self._log = log
        self._wake = wake
        self._may_flush = may_flush

    def appended(self, end: int) -> None: ...

    async def run(self) -> None:
        try:
            while True:
                await trio.sleep(0.01)
                if self._may_flush.is_set():
                    await trio.to_thread.run_sync(self._log.flush)
                    self._wake()
        finally:
            self._log.flush()


class OwnFlush:
    name = "own_flush"
    slot = "flush"

    def __init__(self, *, has_gate: bool) -> None:
        self.may_flush = threading.Event()
        self._has_gate = has_gate

    @hookimpl
    def configure(self, broker: Broker) -> None:
        self._broker = broker

    @hookimpl
    def make_flush_strategy(self, log: CommitLog) -> Regularly:
        return Regularly(log, self._broker.wake, self.may_flush)

    @hookimpl
    def register_ack_gates(self, broker: Broker) -> list[AckGate]:
        return [DurableGate(broker.log, 0.2)] if self._has_gate else []


@pytest.mark.trio
@pytest.mark.parametrize(
    ("has_gate", "code", "logged"),
    [(True, ResponseCode.FLUSH_DISK_TIMEOUT, []), (False, ResponseCode.SUCCESS, ["own_flush"])],
)
async def test_senders_wait_for_the_gate_of_the_plugin_that_flushes(
    tmp_path: Path, has_gate: bool, code: int, logged: list[str]
) -> None:
    plugin = OwnFlush(has_gate=has_gate)
    with structlog.testing.capture_logs() as lines:
        broker = make_broker(tmp_path, enable=[plugin], disable=["flush"])
        async with run_broker(broker), open_channel(broker.address) as channel:
            first = await channel.call(send("T", b"not durable"), 10.0)
            plugin.may_flush.set()
            with trio.fail_after(20):  # on a busy machine a flush may take longer than the gate waits
                while (await channel.call(send("T", b"durable"), 10.0)).code != ResponseCode.SUCCESS:
                    pass
    assert first.code == code
    assert [line["plugin"] for line in lines if line["event"] == "flush_without_gate"] == logged
