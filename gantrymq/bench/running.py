"""Starts, watches and stops workers as child processes, and adds up their tallies."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any

import attrs
import msgspec

from gantrymq.bench.latencies import Latencies
from gantrymq.bench.plan import BenchFailed, Done, Failure, Load, Plan

STOP_SECONDS = 10.0


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of one load over all workers. ``cpu`` is the processor time of the generator in cores, ``cpu_most``
    that of its busiest process: at 0.9 and more the generator may be the bottleneck. ``latencies`` are microseconds."""

    kind: str
    messages: int
    requests: int
    bytes: int
    seconds: float
    latencies: dict[str, int]
    failures: dict[str, Failure]
    cpu: float
    cpu_most: float
    processes: int

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        failures = {what: msgspec.to_builtins(failure) for what, failure in self.failures.items()}
        return attrs.asdict(self) | {
            "failures": failures,
            "messages_per_second": self.rate,
            "bytes_per_second": self.bytes / self.seconds if self.seconds else 0.0,
        }


@attrs.frozen
class Result:
    """The outcomes in the order of the loads; ``ended`` says why it ended early, if it did."""

    outcomes: list[Outcome]
    ended: str = ""
    interrupted: bool = False


def share(plan: Plan, processes: int) -> list[Plan]:
    """Divide connections and requests among several workers."""
    plans = []
    for worker in range(processes):
        loads = []
        for load in plan.loads:
            connections = load.connections // processes + (worker < load.connections % processes)
            first = worker * (load.connections // processes) + min(worker, load.connections % processes)
            requests = load.requests // processes + (worker < load.requests % processes)
            if connections and (requests or not load.requests):
                rate = load.rate * connections / load.connections
                part = {"connections": connections, "first": first, "requests": requests, "rate": rate}
                loads.append(msgspec.structs.replace(load, **part))
        if loads:
            plans.append(msgspec.structs.replace(plan, loads=loads))
    return plans


def run(
    plan: Plan,
    processes: int = 1,
    progress: Callable[[int], None] | None = None,
    before_start: Callable[[], object] | None = None,
) -> Result:
    """Run ``plan`` in so many processes; ``progress`` is called with the messages counted so far,
    ``before_start`` once all connections are open, before the first request.

    Raises :class:`BenchFailed` when it cannot begin. Ctrl-C ends it early, with what was measured.
    """
    plans = share(plan, max(1, min(processes, min(load.connections for load in plan.loads))))
    workers = [_Worker(each) for each in plans]
    try:
        for worker in workers:
            worker.await_ready()
        if before_start is not None:
            before_start()
        return _watch(plan.loads, workers, progress)
    finally:
        for worker in workers:
            worker.stop()


def run_together(plans: Sequence[Plan]) -> list[Result]:
    """Run several plans at the same time, each in a process of its own: none starts before all are ready.

    Raises :class:`BenchFailed` when one of them cannot begin; then none does.
    """
    gate = threading.Barrier(len(plans))

    def run_one(plan: Plan) -> Result:
        try:
            return run(plan, before_start=gate.wait)
        except BaseException:
            gate.abort()
            raise

    with ThreadPoolExecutor(len(plans)) as pool:
        futures = [pool.submit(run_one, plan) for plan in plans]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:  # one of them is the cause; the others only waited for it
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return [future.result() for future in futures]


class _Worker:
    """A child process, in a process group of its own, so that Ctrl-C reaches only the parent; it ends with its pipe."""

    def __init__(self, plan: Plan) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gantrymq.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        self.done: Done | None = None
        self.count = 0
        self.write(msgspec.json.encode(plan))

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None  # Popen got PIPE
        return self.process.stdout

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None  # Popen got PIPE
        try:
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed("a process of the load generator ended before it began") from None

    def await_ready(self) -> None:
        said = self.read()
        if not said.get("ready"):
            raise BenchFailed(str(said.get("failed", "a process of the load generator did not start")))

    def read(self) -> dict[str, Any]:
        """Return the next line; empty at the end of the output."""
        line = self.output.readline()
        found: dict[str, Any] = msgspec.json.decode(line) if line.endswith(b"\n") else {}
        if "tallies" in found:
            self.done = msgspec.convert(found, Done, strict=False)
        self.count = found.get("done", self.count)
        return found

    def ask_to_end(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                return

    def stop(self) -> None:
        self.ask_to_end()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()


def _watch(loads: Sequence[Load], workers: Sequence[_Worker], progress: Callable[[int], None] | None) -> Result:
    for worker in workers:
        worker.write(b"go")
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        _end_all(workers)

    with _at_interrupt(interrupt), selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.output, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                if not worker.read():
                    selector.unregister(worker.output)
                elif progress is not None:
                    progress(sum(each.count for each in workers))
                if worker.done is not None and worker.done.ended:
                    _end_all(workers)
    found = [worker.done for worker in workers if worker.done is not None]
    if not found:
        raise BenchFailed("the load generator's processes ended without a word")
    reasons = [done.ended for done in found if done.ended not in ("", "stopped")]
    if len(found) < len(workers):
        reasons.append("a process of the load generator ended without a word")
    outcomes = [_add_up(load.kind, found) for load in loads]
    return Result(outcomes, "; ".join(dict.fromkeys(reasons)), interrupted)


@contextmanager
def _at_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls ``call``, the second one is Python's ``KeyboardInterrupt``.

    That could be raised anywhere, and was lost now and then while a bar was drawn for the first time. Outside of the
    main thread, or where another handler of Ctrl-C is installed, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def handle(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        call()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_all(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.ask_to_end()


def _add_up(kind: str, found: Sequence[Done]) -> Outcome:
    latencies = Latencies()
    failures: dict[str, Failure] = {}
    tallies = [tally for done in found for tally in done.tallies if tally.kind == kind]
    for tally in tallies:
        latencies.merge(tally.latencies)
        for what, failure in tally.failures.items():
            failures.setdefault(what, Failure(0, failure.remark)).count += failure.count
    shares = [done.cpu_seconds / done.seconds for done in found if done.seconds > 0]
    return Outcome(
        kind=kind,
        messages=sum(tally.messages for tally in tallies),
        requests=sum(tally.requests for tally in tallies),
        bytes=sum(tally.bytes for tally in tallies),
        seconds=max(done.seconds for done in found),
        latencies=latencies.summary(),
        failures=failures,
        cpu=sum(shares),
        cpu_most=max(shares, default=0.0),
        processes=len(found),
    )


def default_processes() -> int:
    """Return half of the cores: a broker on the same machine needs the other half."""
    return max(1, (os.cpu_count() or 1) // 2)


def new_mark() -> str:
    """Return a mark of eight letters for the stamped bodies of one run."""
    return f"{time.time_ns() & 0xFFFFFFFF:08x}"
