"""A long run at a part of the broker's limit: memory, pauses, and what caused them.

``python benchmarks/soak.py`` (``make bench-soak MINUTES=60``) measures for ten seconds how many messages the broker
takes and delivers. Then it sends 70 % of that for an hour, each message with a key for the index, while consumers
follow and old log files are deleted. Once a second it notes the broker's memory. Three observers look for pauses:

- a client that sends one message every 5 ms: how long each took;
- a thread that flushes a page of its own file on the same disk;
- a thread that only sleeps: how late it wakes up is the machine's own share.

A pause of the client is explained by the disk or the machine if one of these waited at the same time for at least half
as long. The broker is GantryMQ with its default plugins and the chosen flush mode.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))  # support, which systems imports

import trio
from msgspec.structs import replace
from systems import Running, Setup, processor_seconds, resident_bytes, start

from gantrymq.bench.cluster import prepare_topic, targets_at_end, targets_of
from gantrymq.bench.plan import Load, Plan, Target
from gantrymq.bench.running import Outcome, run_together
from gantrymq.client import connect
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.command import decode, encode
from gantrymq.remoting.errors import GantryError
from gantrymq.remoting.frame import cut_frames
from gantrymq.testing.requests import send

TOPIC = "gantrymq-soak"
QUEUES = 8
LIMIT_SECONDS = 10.0
PAUSE_S = 0.05
"""A message that took longer is a pause."""
PROBE_S = 0.005
REFUSED_S = 60.0
"""After so many seconds without a response the broker counts as lost."""
LOG_FILE_BYTES = 256 * 2**20
KEEP = "2m"
"""How long the log's files are kept, so that some are deleted all the time."""
LOG_LEVEL = "warning,server=info,sweep=debug"
"""Also why connections were closed, and which signal stopped the broker; nothing for each message."""
PROPERTIES = "KEYS\x01order-%d\x02"


@attrs.frozen
class Wait:
    """Something waited from ``began`` on, for ``seconds``."""

    began: float
    seconds: float

    def meets(self, other: Wait) -> bool:
        """Whether ``other`` waited at the same time, for at least half as long."""
        together = min(self.began + self.seconds, other.began + other.seconds) - max(self.began, other.began)
        return together > 0 and other.seconds >= self.seconds / 2


class Observer:
    """A thread that does something again and again and keeps what took longer than a tenth of a pause."""

    def __init__(self, act: Callable[[], float], close: Callable[[], object] = lambda: None) -> None:
        """``act`` returns for how many seconds it waited; ``close`` is called at the end."""
        self.waits: list[Wait] = []
        self.longest = 0.0
        self._act, self._close = act, close
        self._failure: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe during the block; afterwards raises what ended the thread."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()
            self._close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                began = time.perf_counter()
                waited = self._act()
                self.longest = max(self.longest, waited)
                if waited > PAUSE_S / 10:
                    self.waits.append(Wait(began, waited))
        except Exception as failure:  # without an observer the report would have no pauses
            self._failure = failure


def sleeper() -> Observer:
    """An observer that sleeps a millisecond: how late it wakes up."""

    def sleep() -> float:
        began = time.perf_counter()
        time.sleep(0.001)
        return time.perf_counter() - began - 0.001

    return Observer(sleep)


def flusher(folder: Path) -> Observer:
    """An observer that writes and flushes a page in ``folder``, twenty times a second."""
    descriptor = os.open(folder / "probe", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, bytes(2**20), 0)
    os.fdatasync(descriptor)

    def flush() -> float:
        began = time.perf_counter()
        os.pwrite(descriptor, b"x" * 4096, 0)
        os.fdatasync(descriptor)
        waited = time.perf_counter() - began
        time.sleep(max(0.0, 0.05 - waited))
        return waited

    return Observer(flush, partial(os.close, descriptor))


def sender(address: str) -> Observer:
    """An observer that sends a message every :data:`PROBE_S` seconds on a connection of its own."""
    connection = socket.create_connection(parse_address(address), REFUSED_S)
    frame = encode(send(TOPIC, b"x" * 100, queues=QUEUES, properties=PROPERTIES % 0))

    def send_one() -> float:
        began = time.perf_counter()
        connection.sendall(frame)
        received = b""
        while not (frames := cut_frames(received)[0]):
            data = connection.recv(65_536)
            if not data:
                raise ConnectionResetError("the broker closed the connection of the observer")
            received += data
        waited = time.perf_counter() - began
        answer = decode(frames[0])
        if answer.code:
            raise RuntimeError(f"the observer's message was refused: {answer.code} {answer.remark}")
        time.sleep(PROBE_S)
        return waited

    return Observer(send_one, connection.close)


@attrs.define
class Sample:
    """One second: since the start of the load, the broker's memory that is no file, its processor time, and the first
    offset of its log."""

    second: float
    memory: int
    processor: float
    log_start: int


@attrs.define
class Soak:
    """What one run found. Rates are messages a second, times are seconds."""

    minutes: float
    flush: str
    limit: float
    rate: float
    sent: Outcome
    received: Outcome
    samples: list[Sample]
    pauses: list[Wait]
    disk: list[Wait]
    machine: list[Wait]
    longest: dict[str, float]

    @property
    def unexplained(self) -> list[Wait]:
        """The pauses in which neither the disk nor the machine waited."""
        return [pause for pause in self.pauses if not any(map(pause.meets, [*self.disk, *self.machine]))]

    def memory_at(self, share: float) -> int:
        """The broker's memory in bytes when this share of the time was over: the mean of a twentieth around it."""
        middle, around = share * len(self.samples), max(1, len(self.samples) // 40)
        near = self.samples[max(0, int(middle) - around) : int(middle) + around]
        return sum(sample.memory for sample in near) // len(near)

    def lines(self) -> list[str]:
        """The report."""
        deleted = self.samples[-1].log_start
        by_disk = sum(any(map(pause.meets, self.disk)) for pause in self.pauses)
        others = len(self.pauses) - by_disk - len(self.unexplained)
        memory = ", ".join(f"{self.memory_at(share) / 2**20:.0f}" for share in (0.1, 0.25, 0.5, 0.75, 0.97))
        used = self.samples[-1].processor - self.samples[0].processor
        behind = "" if self.sent.rate > 0.99 * self.rate else f"; {self.rate:,.0f}/s were due, so the times grow"
        return [
            f"{self.minutes:g} minutes, {self.flush} flush, limit {self.limit:,.0f}/s, sent {self.sent.rate:,.0f}/s, "
            f"received {self.received.rate:,.0f}/s",
            f"sent {self.sent.messages:,} messages, received {self.received.messages:,}, "
            f"deleted {deleted / 2**30:.1f} GiB of the log",
            "time from when a message was due to its response: "
            + ", ".join(f"{name} {value:,} us" for name, value in self.sent.latencies.items())
            + behind,
            f"memory that is no file, after 10, 25, 50, 75 and 97 % of the time: {memory} MiB",
            f"processor time of the broker for a message: {used / max(1, self.sent.messages) * 1e6:.2f} us",
            f"pauses of more than {PAUSE_S * 1000:.0f} ms: {len(self.pauses)}, {by_disk} while the disk waited, "
            f"{others} while the machine did, {len(self.unexplained)} unexplained",
            "longest wait: " + ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in self.longest.items()),
        ]


def soak(minutes: float, share: float, flush: str) -> Soak:
    """Run it. ``share`` of the limit is sent."""
    every_hour = ";".join(map(str, range(24)))
    settings = ("--set", f"plugin.retention.keep={KEEP}", "--set", f"plugin.retention.at={every_hour}")
    setup = Setup(flush, log_file_bytes=LOG_FILE_BYTES, log_level=LOG_LEVEL, arguments=settings)
    with start("gantrymq", setup) as running:
        targets = trio.run(_targets, running)
        sends = Load(
            kind="send", topic=TOPIC, targets=targets[0], connections=8, in_flight=16, properties=PROPERTIES % 1
        )
        follow = Load(kind="follow", topic=TOPIC, targets=targets[1], connections=4, in_flight=2, batch=32)
        limit = _together(sends, follow, LIMIT_SECONDS)[0].rate
        print(f"limit: {limit:,.0f}/s", file=sys.stderr, flush=True)
        follow = replace(follow, targets=trio.run(_targets, running)[1])
        paced = replace(sends, rate=limit * share)
        observers = {"client": sender(running.address), "disk": flusher(running.store.parent), "machine": sleeper()}
        sampler = _Sampler(running)
        with ExitStack() as stack:
            for observer in (*observers.values(), sampler):
                stack.enter_context(observer.watching())
            sent, received = _together(paced, follow, minutes * 60)
        pauses = [wait for wait in observers["client"].waits if wait.seconds > PAUSE_S]
        return Soak(
            minutes, flush, limit, limit * share, sent, received, sampler.samples,
            pauses, observers["disk"].waits, observers["machine"].waits,
            {name: observer.longest for name, observer in observers.items()},
        )  # fmt: skip


class _Sampler(Observer):
    """Takes a sample once a second."""

    def __init__(self, running: Running) -> None:
        super().__init__(self._sample)
        self.samples: list[Sample] = []
        self._running = running
        self._began = time.perf_counter()

    def _sample(self) -> float:
        pid, folder = self._running.pid, self._running.store / "commitlog"
        first = min(map(int, os.listdir(folder)))
        self.samples.append(
            Sample(time.perf_counter() - self._began, resident_bytes(pid)[1], processor_seconds(pid), first)
        )
        self._over.wait(1.0)
        return 0.0


async def _targets(running: Running) -> tuple[list[Target], list[Target]]:
    async with connect(running.nameserver) as client:
        await prepare_topic(client, TOPIC, QUEUES)
        return await targets_of(client, TOPIC), await targets_at_end(client, TOPIC)


def _together(sends: Load, follow: Load, seconds: float) -> list[Outcome]:
    results = run_together(
        [Plan(loads=[load], warm_up=1.0, seconds=seconds, timeout=REFUSED_S) for load in (sends, follow)]
    )
    for result in results:
        outcome = result.outcomes[0]
        if result.ended or outcome.failures:
            reasons = [result.ended, *(f"{name}: {each.remark}" for name, each in outcome.failures.items())]
            raise RuntimeError("; ".join(filter(None, reasons)))
    return [result.outcomes[0] for result in results]


def main() -> int:
    """Print the report, and write all samples as JSON if asked to. The exit code is 1 for an unexplained pause, and
    for a run that ended early."""
    parser = argparse.ArgumentParser(prog="make bench-soak", description="A long run at a part of the broker's limit.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--share", type=float, default=0.7, help="of the limit")
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    try:
        found = soak(given.minutes, given.share, given.flush)
    except (GantryError, OSError, RuntimeError) as error:
        print(f"the run ended early: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    print("\n".join(found.lines()))
    for pause in found.unexplained:
        second = pause.began - found.pauses[0].began
        print(f"unexplained: {pause.seconds * 1000:.0f} ms, {second:.1f} s after the first pause")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        values = attrs.asdict(found, filter=lambda attribute, _: attribute.name not in ("sent", "received"))
        given.json.write_text(json.dumps(values) + "\n")
    return 1 if found.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
