"""kill -9 of a broker that drops duplicates: the log has each repeated message once, at the acknowledged offset.

Each round sends numbered messages, each of them twice at some time, kills the broker at a random instant, and sends
what had no answer again after the next start, with some that had one. ``GANTRYMQ_DEDUP_KILLS`` sets how often.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import pytest
import trio

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.remoting.command import decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.properties import find_property
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.slices import is_whole

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KILLS = int(os.environ.get("GANTRYMQ_DEDUP_KILLS", 100 if is_whole() else 6))
SENDERS = 3
IN_FLIGHT = 8
LONGEST_S = 0.6
FILE_BYTES = 256 * 1024
SOURCE = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "dedup"


@contextmanager
def forked(folder: Path, flush: str) -> Iterator[tuple[int, str]]:
    """A broker in a process of its own: its id and its address. It is killed at the end, if it still lives."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # never returns
        with suppress(BaseException):
            trio.run(serve, folder, flush, writing)
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
        "broker.persist_interval": "100ms", "plugin.flush.mode": flush, "store.commit_log_file_bytes": str(FILE_BYTES),
        "store.max_message_bytes": "64 KiB", "plugin.dedup.max_keys": "1000000",
    }  # fmt: skip
    async with run_broker(make_broker(folder, enable=["gantrymq_dedup:DedupPlugin"], settings=settings)) as broker:
        os.write(writing, f"{broker.address}\n".encode())
        await trio.sleep_forever()


@attrs.define
class Sender:
    """Sends the keys in order, some requests in flight, and then new ones until the broker is gone."""

    name: str
    address: str
    keys: list[str]
    placed: dict[str, set[str]]
    """The message ids in the responses, by key."""
    unanswered: list[str] = attrs.field(factory=list)

    def run(self) -> None:
        rng = random.Random(self.name)
        waiting: dict[int, str] = {}
        number = 0

        def following() -> bytes:
            nonlocal number
            number += 1
            known = list(self.placed)[-50:]
            if self.keys:
                key = self.keys.pop()
            elif known and rng.random() < 0.4:
                key = rng.choice(known)
            else:
                key = f"{self.name}-{number}"
            waiting[number] = key
            command = send("T", bytes(100), queues=4, queue_id=rng.randrange(4), properties=f"KEYS\x01{key}")
            command.opaque = number
            return encode(command)

        host, _, port = self.address.rpartition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"".join(following() for _ in range(IN_FLIGHT)))
            buffer = bytearray()
            while piece := connection.recv(65536):
                buffer += piece
                frames, taken = cut_frames(buffer)
                del buffer[:taken]
                for frame in frames:
                    answer = decode(frame)
                    key = waiting.pop(answer.opaque)
                    assert answer.code == 0, answer.remark
                    self.placed.setdefault(key, set()).add((answer.ext or {})["msgId"][16:])
                    connection.sendall(following())
        self.unanswered = list(waiting.values()) + self.keys


def stored(folder: Path) -> dict[str, set[str]]:
    """The places of the messages in the log, by key; no message twice."""
    store = Store(SystemEnv(), str(folder), StoreConfig(commit_log_file_bytes=FILE_BYTES))
    store.open()
    try:
        store.recover(lambda batch: None)
        places: dict[str, set[str]] = {}
        for batch in store.log.scan(store.log.min_offset, store.log.end):
            for topic, offset, properties in zip(batch.topics, batch.offsets, batch.properties, strict=True):
                key = find_property(properties, b"KEYS")
                if topic == "T" and key is not None:
                    places.setdefault(key.decode(), set()).add(f"{offset:016X}")
        return places
    finally:
        store.close()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_deduplication_stores_each_acknowledged_message_once_through_kills(
    tmp_path: Path, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SOURCE))
    rng = random.Random(KILLS)
    placed: dict[str, set[str]] = {}
    repeated: list[str] = []
    again = 0
    for round_number in range(KILLS // 2):
        with forked(tmp_path / "store", flush) as (child, address):
            shares: list[list[str]] = [repeated[index::SENDERS] for index in range(SENDERS)]
            again += len(repeated)
            tables: list[dict[str, set[str]]] = [{} for _ in range(SENDERS)]
            senders = [
                Sender(f"{round_number}-{index}", address, shares[index], tables[index]) for index in range(SENDERS)
            ]
            threads = [threading.Thread(target=sender.run) for sender in senders]
            for thread in threads:
                thread.start()
            time.sleep(0.1 + rng.random() * LONGEST_S)
            os.kill(child, signal.SIGKILL)
            for thread in threads:
                thread.join()
        for sender in senders:
            for key, places in sender.placed.items():
                placed.setdefault(key, set()).update(places)
        repeated = [key for sender in senders for key in sender.unanswered]
        repeated += rng.sample(sorted(placed), min(20, len(placed)))
    places = stored(tmp_path / "store")
    assert not [key for key, found in places.items() if len(found) != 1], "stored twice"
    assert not {key for key, found in placed.items() if found != places.get(key)}, "lost, or acknowledged elsewhere"
    assert again > 0
