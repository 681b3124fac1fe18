"""Messages with a time of their own: how late they come with many waiting, and how fast a burst leaves.

``python benchmarks/delays.py`` starts GantryMQ on an empty store, then RocketMQ 5.3.3 (4.9.7 has no such messages),
lets a million messages wait over an hour, sends 10,000 a second for a while, a tenth of them with times of a few
seconds, then lets 100,000 be due at one moment. What was late is read from the store: the moment at which each message
was stored for its own topic, less the one it named. What was due while the million came in, as fast as the broker
takes them, is reported separately: there the broker is overloaded.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))  # support, which systems imports

from systems import Setup, start

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import properties_in, store_timestamp_in
from gantrymq.kernel.store.store import Store
from gantrymq.remoting.properties import find_property

AT_ONCE = 512
HOUR_MS = 3_600_000
BODY = b"x" * 100
PENDING, LIVE, BURST, PLAIN = "delays-pending", "delays-live", "delays-burst", "delays-plain"
_LENGTHS = struct.Struct(">ii")
JAVA_VERSION = "5.3.3"
JAVA_SETTINGS = {"timerWheelEnable": "true"}
"""RocketMQ keeps the times in seconds, so messages arrive up to a second early."""


@attrs.frozen
class Sizes:
    """How many messages are sent, and for how long."""

    pending: int = 1_000_000
    rate: int = 10_000
    seconds: int = 30
    burst: int = 100_000


@attrs.frozen
class Figures:
    """What was measured: times in ms, rates in messages a second, memory in MiB; ``cores`` is the broker's share.

    ``late``: of what was due while 10,000 a second came in; ``filling``: before, while all that waits was sent. What is
    due behind the burst comes when the burst has left, and is in neither.
    ``sleeper``: how late in the same time a process woke up that only sleeps, which is the machine's own share.
    """

    pending: int
    taken_a_second: float
    taken_processor_us: float
    """The broker's processor time for a message that waits: its one sender waits too, so the broker is only partly
    busy."""
    memory_before: float
    memory_pending: float
    cores_live: float
    late_messages: int
    early: int
    late_p50: int
    late_p99: int
    late_max: int
    sleeper_p99: int
    sleeper_max: int
    filling_messages: int
    filling_p99: int
    filling_max: int
    burst: int
    burst_seconds: float
    drained_a_second: float
    burst_processor_us: float
    """The broker's processor time for a message of the burst: gives the rate that a processor of its own would
    allow."""


class Sleeper:
    """A process that repeatedly sleeps for 5 ms and records how late it woke up."""

    _PROGRAM = """
import select, sys, time
late = []
while not select.select([sys.stdin], [], [], 0)[0]:
    began = time.perf_counter()
    time.sleep(0.005)
    late.append(time.perf_counter() - began - 0.005)
late.sort()
print(int(late[int(len(late) * 0.99)] * 1000), int(late[-1] * 1000))
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def stop(self) -> tuple[int, int]:
        """Return the 99th of 100 lags, and the longest, in ms."""
        text, _ = self._process.communicate(timeout=60)
        p99, longest = text.split()
        return int(p99), int(longest)


class Sender:
    """One connection that sends and waits for the responses, many at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def send(self, topic: str, dues: Iterable[int | None]) -> None:
        """Send messages that are due at a time (ms since 1970), or at once."""
        frames = [_frame(topic, due, number) for number, due in enumerate(dues)]
        self._socket.sendall(b"".join(frames))
        for _ in frames:
            size = int.from_bytes(self._stream.read(4), "big")
            answer = self._stream.read(size)
            header = json.loads(answer[4 : 4 + int.from_bytes(answer[1:4], "big")])
            if header["code"] != 0:
                raise RuntimeError(f"refused: {header}")

    def count(self, topic: str) -> int:
        """Return how many messages the topic has, without its first one."""
        total = 0
        for queue in range(4):
            fields = json.dumps({"topic": topic, "queueId": str(queue)})
            header = f'{{"code":30,"extFields":{fields},"flag":0,"language":"JAVA","opaque":1,"version":399}}'.encode()
            self._socket.sendall(_LENGTHS.pack(4 + len(header), len(header)) + header)
            answer = self._stream.read(int.from_bytes(self._stream.read(4), "big"))
            total += int(json.loads(answer[4 : 4 + int.from_bytes(answer[1:4], "big")])["extFields"]["offset"])
        return total - 1

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()


def _frame(topic: str, due: int | None, number: int) -> bytes:
    properties = "" if due is None else f"TIMER_DELIVER_MS\\u0001{due}\\u0002"
    header = (
        f'{{"code":310,"extFields":{{"a":"bench","b":"{topic}","c":"TBW102","d":"4","e":"{number % 4}","f":"0",'
        f'"g":"1700000000000","h":"0","i":"{properties}","j":"0","k":"false","m":"false"}},'
        f'"flag":0,"language":"JAVA","opaque":{number},"serializeTypeCurrentRPC":"JSON","version":399}}'
    ).encode()
    return _LENGTHS.pack(4 + len(header) + len(BODY), len(header)) + header + BODY


def measure(system: str, sizes: Sizes, home: Path) -> Figures:
    """Measure everything, one phase after the other."""
    chance = random.Random(1)
    with start(system, Setup(java_version=JAVA_VERSION, java_settings=JAVA_SETTINGS), home) as running:
        sender = Sender(running.address)
        for topic in (PENDING, LIVE, BURST, PLAIN):
            sender.send(topic, [None])
        memory_before = _memory(running.pid)
        worked, began = _processor(running.pid), time.monotonic()
        for _ in _paced(0, sizes.pending, sender, PENDING, lambda: _now() + 30_000 + chance.randrange(HOUR_MS)):
            pass
        taken = sizes.pending / (time.monotonic() - began) if sizes.pending else 0.0
        time.sleep(2)
        taking = (_processor(running.pid) - worked) / max(sizes.pending, 1) * 1e6
        memory_pending = _memory(running.pid)
        cores = _processor(running.pid)
        filled, began = _now(), time.monotonic()
        sleeper = Sleeper()
        wanted_live = _live(sender, sizes, chance)
        cores = (_processor(running.pid) - cores) / (time.monotonic() - began)
        time.sleep(11)
        slept, quiet = sleeper.stop(), _now()
        due = _now() + 10_000 + int(1500 * sizes.burst / max(taken, 1000))
        for _ in _paced(0, sizes.burst, sender, BURST, lambda: due):
            pass
        time.sleep(max(due - 500 - _now(), 0) / 1000)
        worked = _processor(running.pid)
        give_up = time.monotonic() + 120
        while sender.count(BURST) < sizes.burst and time.monotonic() < give_up:
            time.sleep(0.5)
        worked = _processor(running.pid) - worked
        sender.close()
        running.stop()
        pending, live = (list(_delivered(running.store, topic)) for topic in (PENDING, LIVE))
        stored = sorted(moment for _, moment in _delivered(running.store, BURST))
    if len(stored) != sizes.burst:
        raise RuntimeError(f"{len(stored)} of the burst's {sizes.burst} messages came")
    if len(live) != wanted_live:
        raise RuntimeError(f"{len(live)} of {wanted_live} messages with times of 1 to 10 s came")
    delivered = pending + live
    late = sorted(moment - wanted for wanted, moment in delivered if filled <= wanted < quiet)
    filling = sorted(moment - wanted for wanted, moment in delivered if wanted < filled) or [0]
    drain = max(stored[-1] - due, 1) / 1000
    return Figures(
        sizes.pending, taken, taking, memory_before, memory_pending, cores, len(late),
        sum(each < 0 for each in (*late, *filling)), late[len(late) // 2], late[int(len(late) * 0.99)], late[-1],
        *slept, len(filling), filling[int(len(filling) * 0.99)], filling[-1], sizes.burst, drain, sizes.burst / drain,
        worked / max(sizes.burst, 1) * 1e6,
    )  # fmt: skip


def _paced(rate: int, count: int, sender: Sender, topic: str, due: Callable[[], int | None]) -> Iterator[int]:
    """Send ``count`` messages at a rate (0: as fast as possible); yields how many are sent."""
    began, sent = time.monotonic(), 0
    while sent < count:
        if rate:
            sent_by_now = int((time.monotonic() - began) * rate)
            if sent_by_now <= sent:
                time.sleep(0.005)
                continue
            share = min(sent_by_now - sent, AT_ONCE, count - sent)
        else:
            share = min(AT_ONCE, count - sent)
        sender.send(topic, [due() for _ in range(share)])
        sent += share
        yield sent


def _live(sender: Sender, sizes: Sizes, chance: random.Random) -> int:
    """A tenth of the messages of this phase have a time of 1 to 10 seconds. Returns how many these are."""
    timed = 0
    for sent in _paced(sizes.rate * 9 // 10, sizes.rate * 9 // 10 * sizes.seconds, sender, PLAIN, lambda: None):
        if sent // 9 > timed:
            now = _now()
            sender.send(LIVE, [now + 1000 + chance.randrange(9000) for _ in range(sent // 9 - timed)])
            timed = sent // 9
    return timed


def _now() -> int:
    return time.time_ns() // 1_000_000


def _memory(pid: int) -> float:
    """Return the process's own memory in MiB, without mapped files, which the system can reclaim."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _delivered(folder: Path, topic: str) -> Iterator[tuple[int, int]]:
    """When each delayed message of the topic was due, and when the broker stored it."""
    store = Store(SystemEnv(), str(folder))
    store.open()
    try:
        store.recover(lambda batch: None)
        for queue in [queue for queue in store.queues if queue.topic == topic]:
            entries = queue.entries(0, queue.max_offset)
            for offset, size, _ in ENTRY.iter_unpack(entries):
                record = store.log.view(offset, size)
                due = find_property(properties_in(record), b"TIMER_DELIVER_MS")
                if due is not None:
                    yield int(due), store_timestamp_in(record)
    finally:
        store.close()


def main() -> int:
    """Measure and report; the sizes as options, ``--json`` for programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for field in attrs.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without RocketMQ")
    given = vars(parser.parse_args())
    as_json, systems = given.pop("json"), ["gantrymq", *([] if given.pop("alone") else ["java"])]
    figures: dict[str, dict[str, float]] = {}
    for system in systems:
        with TemporaryDirectory() as home:
            figures[system] = attrs.asdict(measure(system, Sizes(**given), Path(home)))
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"{'':>18}" + "".join(f"{system:>14}" for system in systems))
        for name in figures[systems[0]]:
            values = [figures[system][name] for system in systems]
            texts = [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in values]
            print(f"{name:>18}" + "".join(f"{text:>14}" for text in texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
