"""The hooks ``appended`` and ``acked`` see sends, refusals and late flushes, in this order."""

from __future__ import annotations

import select
import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.acks import AckedBatch
from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Source
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.network.sweep import LONE_TURNS
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send

pytestmark = pytest.mark.trio


class Gate:
    """Holds responses while it is closed."""

    timeout_s = 30.0
    late_code = ResponseCode.FLUSH_DISK_TIMEOUT
    late_remark = "late"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.closed_at: int | None = None

    @property
    def watermark(self) -> int:
        return self.broker.log.end if self.closed_at is None else self.closed_at


class Diary:
    """Notes what the observing hooks see."""

    name = "diary"
    running: Diary

    def __init__(self) -> None:
        self.lines: list[Any] = []
        Diary.running = self

    @hookimpl
    def register_ack_gates(self, broker: Broker) -> list[Gate]:
        self.broker, self.gate = broker, Gate(broker)
        return [self.gate]

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            if batch.bodies[row] == b"no":
                batch.refuse(row, ResponseCode.NO_PERMISSION, "no")

    @hookimpl
    def appended(self, batch: AppendBatch) -> None:
        places = [batch.place_of(row)[1] for row in range(len(batch))]
        self.lines.append(("appended", batch.source, places, batch.end == self.broker.log.end))

    @hookimpl
    def acked(self, batch: AckedBatch) -> None:
        readable = self.broker.store.dispatched >= batch.messages.end
        statuses = [int(status) for status in batch.messages.statuses]
        assert len(batch) == len(statuses)
        assert 0 <= batch.seconds < 60
        self.lines.append(("acked", batch.messages.source, statuses, readable))


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("gantrymq_diary")
    made.Diary = Diary  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)


async def test_observing_hooks_see_each_batch_of_clients_and_of_plugins_once(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path / "store", enable=["gantrymq_diary:Diary"])) as broker:
        diary = Diary.running
        async with open_channel(broker.address) as channel:
            assert (await channel.call(send("T", b"yes"))).code == 0
            assert (await channel.call(send("T", b"no"))).code == ResponseCode.NO_PERMISSION
        assert diary.lines == [
            ("appended", Source.CLIENT, [0], True),
            ("acked", Source.CLIENT, [0], True),
            ("acked", Source.CLIENT, [ResponseCode.NO_PERMISSION], True),
        ]
        diary.lines.clear()
        done = trio.Event()
        own = AppendBatch(done=lambda finished: done.set())
        own.add("T", 0, b"own", b"")
        own.add("T", 0, b"no", b"")
        broker.append(own)
        await done.wait()
        # a batch of a plugin passes before_append of those alone that ask for it
        assert diary.lines == [("appended", Source.PLUGIN, [1, 2], True), ("acked", Source.PLUGIN, [0, 0], True)]


class Patient:
    """Waits in the hooks behind a send until the client has its response."""

    name = "patient"
    client: socket.socket
    found: list[tuple[str, bool]]

    def look(self, hook: str) -> None:
        readable, _, _ = select.select([self.client], [], [], 10.0)
        self.found.append((hook, bool(readable)))

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        self.look("dispatch")

    @hookimpl
    def acked(self, batch: AckedBatch) -> None:
        self.look("acked")


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_sender_has_its_response_before_the_hooks_that_follow_run(tmp_path: Path, mode: str) -> None:
    patient = Patient()
    broker = make_broker(tmp_path / "store", enable=[patient], settings={"plugin.flush.mode": mode})
    async with run_broker(broker):
        with socket.create_connection(parse_address(broker.address), 30) as patient.client:
            for _ in range(LONE_TURNS + 2):  # the last ones as a lone sender
                patient.found = []
                patient.client.sendall(encode(send("T", b"yes")))
                with trio.fail_after(30):
                    while len(patient.found) < 2:  # noqa: ASYNC110 - the hook has no event of trio
                        await trio.sleep(0.005)
                assert patient.found == [("dispatch", True), ("acked", True)]
                (answer,), _ = cut_frames(patient.client.recv(65_536))
                assert decode(answer).code == 0


async def test_acked_waits_for_the_gates_and_appended_does_not(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path / "store", enable=["gantrymq_diary:Diary"])) as broker:
        diary = Diary.running
        diary.gate.closed_at = broker.log.end
        async with open_channel(broker.address) as channel, trio.open_nursery() as nursery:
            nursery.start_soon(channel.call, send("T", b"yes"))
            with trio.fail_after(20):
                while not diary.lines:  # noqa: ASYNC110 - the hook has no event of trio
                    await trio.sleep(0.005)
            await trio.sleep(0.05)
            assert [line[0] for line in diary.lines] == ["appended"]
            assert broker.store.dispatched < broker.log.end
            diary.gate.closed_at = None
            broker.wake()
        assert diary.lines[1:] == [("acked", Source.CLIENT, [0], True)]


async def test_a_late_gate_is_seen_by_its_code(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path / "store", enable=["gantrymq_diary:Diary"])) as broker:
        diary = Diary.running
        diary.gate.closed_at, diary.gate.timeout_s = broker.log.end, 0.05
        async with open_channel(broker.address) as channel:
            assert (await channel.call(send("T", b"yes"))).code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert diary.lines[1:] == [("acked", Source.CLIENT, [ResponseCode.FLUSH_DISK_TIMEOUT], False)]
        diary.gate.closed_at = None
