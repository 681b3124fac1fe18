"""kill -9 of a broker whose plugin counts messages: after each start the count is exact.

Each round starts a broker in a process of its own on the store of the round before, compares, loads it from some
connections and kills it at a random instant. ``GANTRYMQ_STATE_KILLS`` sets how often; ``make soak`` has 500.
The broker is forked from the test's process, so that a round takes well below a second.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.plugin_state import SavedState
from gantrymq.kernel.processors import Processor, Request
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.foreign import ask
from support.processes import wait_for
from support.slices import is_whole

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KILLS = int(os.environ.get("GANTRYMQ_STATE_KILLS", 500 if is_whole() else 20))
REPORT_CODE = 19_001
SENDERS = 4
IN_FLIGHT = 8
LONGEST_S = 0.7
"""A load lasts at most so long; the state is saved each 0.1 s."""


class Counter:
    """Counts messages; what it saves has the count, and the sum of their offsets, so that no two errors even out."""

    name = "kill_counter"

    def __init__(self) -> None:
        self.count = self.total = 0

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        def report(request: Request) -> Command:
            """The plugin's count, and what the log has from the offset ``from`` on."""
            end = broker.store.dispatched
            dispatched = [
                (offset, topic)
                for batch in broker.log.scan(int((request.command.ext or {})["from"]), end)
                for offset, topic in zip(batch.offsets, batch.topics, strict=True)
            ]
            wanted = [offset for offset, topic in dispatched if topic == "T"]
            report = {"is": [self.count, self.total], "more": [len(wanted), sum(wanted)], "end": end}
            return request.command.answer(0, body=json.dumps(report).encode())

        return {REPORT_CODE: report}

    @hookimpl
    def load_state(self, state: SavedState) -> None:
        assert state.missing is None
        if state.data is not None:
            self.count, self.total = json.loads(state.data)

    @hookimpl
    def save_state(self) -> bytes:
        return json.dumps([self.count, self.total]).encode()

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        for offset, topic in zip(batch.offsets, batch.topics, strict=True):
            if topic == "T":
                self.count += 1
                self.total += offset


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("kill_counter_of_a_test")
    module.Counter = Counter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


@contextmanager
def forked(folder: Path, flush: str) -> Iterator[tuple[int, str]]:
    """A broker in a process of its own: its id and its address. It is killed at the end, if it still lives."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # never returns
        try:
            trio.run(serve, folder, flush, writing)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        os._exit(1)
    os.close(writing)
    try:
        with os.fdopen(reading) as stream:
            address = stream.readline().strip()
        assert address, "the broker did not start"
        yield child, address
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def serve(folder: Path, flush: str, writing: int) -> None:
    settings = {
        "broker.persist_interval": "100ms", "plugin.flush.mode": flush, "store.commit_log_file_bytes": "256 KiB",
        "store.max_message_bytes": "64 KiB",
    }  # fmt: skip
    async with run_broker(make_broker(folder, enable=["kill_counter_of_a_test:Counter"], settings=settings)) as broker:
        os.write(writing, f"{broker.address}\n".encode())
        await trio.sleep_forever()


@attrs.define
class Sender:
    """Sends with some requests in flight until the broker is gone; ``acknowledged`` counts the answers."""

    address: str
    acknowledged: int = 0

    def run(self) -> None:
        host, _, port = self.address.rpartition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"".join(encode(send("T", bytes(100), queues=4)) for _ in range(IN_FLIGHT)))
            buffer = bytearray()
            while piece := connection.recv(65536):
                buffer += piece
                frames, taken = cut_frames(buffer)
                del buffer[:taken]
                done = sum(decode(frame).code == 0 for frame in frames)
                self.acknowledged += done
                connection.sendall(b"".join(encode(send("T", bytes(100), queues=4)) for _ in frames))


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_plugins_count_is_exact_after_kills(tmp_path: Path, flush: str) -> None:
    rng = random.Random(KILLS)
    acknowledged = killed_with = end = 0
    count = total = 0  # of the log up to ``end``; a kill of the process removes nothing that was readable
    for round_number in range(KILLS // 2 + 1):
        with forked(tmp_path / "store", flush) as (child, address):
            report = json.loads(ask(address, Command(REPORT_CODE, {"from": str(end)}), 60.0).body)
            count, total, end = count + report["more"][0], total + report["more"][1], report["end"]
            assert report["is"] == [count, total], f"round {round_number}"
            assert report["is"][0] >= acknowledged, f"round {round_number}: acknowledged messages are not counted"
            if round_number == KILLS // 2:
                break
            before = report["is"][0]
            senders = [Sender(address) for _ in range(SENDERS)]
            threads = [threading.Thread(target=sender.run) for sender in senders]
            for thread in threads:
                thread.start()
            if round_number % 4:  # a slow machine would acknowledge nothing in most rounds
                wait_for(lambda senders=senders: any(sender.acknowledged for sender in senders))
            time.sleep(rng.random() * LONGEST_S)
            os.kill(child, signal.SIGKILL)
            for thread in threads:
                thread.join()
            acknowledged = before + sum(sender.acknowledged for sender in senders)
            killed_with += acknowledged > before
    assert killed_with > KILLS // 4, "most kills hit a broker that had acknowledged something"
