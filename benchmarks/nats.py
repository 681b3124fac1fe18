"""NATS JetStream beside the brokers where it was asked for: a file stream, driven by raw connections of this module.

The server is built from its Go module. The generator sends publications that request an acknowledgment (NATS client
protocol, https://docs.nats.io/reference/reference-protocols/nats-protocol) and keeps as many unacknowledged on each
connection as the scenario has in flight.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
from scenarios import Scenario
from systems import INTEROP, is_listening, processor_seconds

from support.foreign import ToolMissing, cache_folder
from support.processes import free_ports, wait_for

VERSION = "2.10.22"
MODULE = f"github.com/nats-io/nats-server/v2@v{VERSION}"
VERSION_LINE = (
    f"NATS JetStream {VERSION}, one server, one file stream of 8 subjects, publications with acknowledgments, in one "
    "round; sync_interval: always for sync flush; its generator is one Python process"
)
SUBJECTS = 8
BODY_MAX_BYTES = 512 * 1024
BUILD_SECONDS_MAX = 600.0
ANSWER_SECONDS = 30.0
SETTLE_SECONDS = 0.3
ACKNOWLEDGED = b'"seq":'
_RECEIVE_BYTES = 256 * 1024


def expresses(scenario: Scenario) -> bool:
    """Whether the generator can do it: it has one process, too few for very many connections."""
    return scenario.is_plain_send and scenario.connections <= 64 and scenario.size <= BODY_MAX_BYTES


def find() -> Path:
    """The server's program, which Go builds unless it is cached; ToolMissing without Go, RuntimeError with Go's
    output."""
    folder = (cache_folder(INTEROP / ".cache") / f"nats-{VERSION}").absolute()
    program = folder / "nats-server"
    if not program.exists():
        go = shutil.which("go")
        if go is None:
            raise ToolMissing("go is needed to build nats-server")
        command = [go, "install", MODULE]
        done = subprocess.run(
            command, env={**os.environ, "GOBIN": str(folder)}, capture_output=True, text=True, check=False,
            timeout=BUILD_SECONDS_MAX,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"Go could not build nats-server: {done.stderr[-1000:]}")
    return program


@attrs.frozen
class Nats:
    """A running server with JetStream."""

    port: int
    pid: int

    def rate(self, scenario: Scenario, seconds: float) -> tuple[float, float]:
        """Acknowledged messages a second, and microseconds of the server's processor time for each."""
        with ExitStack() as stack:
            stream = f"bench-{scenario.size}-{scenario.connections}x{scenario.in_flight}"
            first = stack.enter_context(_Publisher(self.port, f"{stream}.0", scenario, 0))
            first.create_stream(stream, [f"{stream}.{number}" for number in range(SUBJECTS)])
            publishers = [
                stack.enter_context(_Publisher(self.port, f"{stream}.{number % SUBJECTS}", scenario, number))
                for number in range(scenario.connections)
            ]
            _drive(publishers, SETTLE_SECONDS)
            used = -processor_seconds(self.pid)
            count, took = _drive(publishers, seconds)
            return count / took, (used + processor_seconds(self.pid)) / count * 1e6


@contextmanager
def nats(flush: str) -> Iterator[Nats]:
    """A server with an empty folder."""
    program = find()
    (port,) = free_ports()
    with tempfile.TemporaryDirectory(prefix="gantrymq-bench-nats-") as folder:
        sync = "sync_interval: always" if flush == "sync" else ""
        conf = Path(folder, "nats.conf")
        conf.write_text(
            f'listen: "127.0.0.1:{port}"\nserver_name: bench\njetstream {{ store_dir: "{folder}/js"\n{sync} }}\n'
        )
        with (
            Path(folder, "log").open("w") as log,
            subprocess.Popen([str(program), "-c", str(conf)], stdout=log, stderr=log) as process,
        ):
            try:
                wait_for(lambda: process.poll() is not None or is_listening(port), 60.0)
                if process.poll() is not None:
                    raise RuntimeError(f"nats-server ended: {Path(folder, 'log').read_text()[-1000:]}")
                yield Nats(port, process.pid)
            finally:
                process.terminate()


class _Publisher:
    """One connection."""

    def __init__(self, port: int, subject: str, scenario: Scenario, number: int) -> None:
        inbox = f"_INBOX.bench.{os.getpid()}.{number}"
        body = b"x" * scenario.size
        self.publication = f"PUB {subject} {inbox} {len(body)}\r\n".encode() + body + b"\r\n"
        self.in_flight = scenario.in_flight
        self._inbox = inbox
        self._rest = b""
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(f'CONNECT {{"verbose":false}}\r\nSUB {inbox} 1\r\nPING\r\n'.encode())
        while b"PONG\r\n" not in self._rest:
            self._rest += self.socket.recv(_RECEIVE_BYTES)
        self._rest = b""

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.socket.close()

    def create_stream(self, name: str, subjects: list[str]) -> None:
        """RuntimeError with the server's message if it refuses."""
        body = json.dumps({"name": name, "subjects": subjects, "storage": "file", "num_replicas": 1}).encode()
        self.socket.sendall(f"PUB $JS.API.STREAM.CREATE.{name} {self._inbox} {len(body)}\r\n".encode() + body + b"\r\n")
        answer = b""
        while b'"type":' not in answer or not answer.endswith(b"\r\n"):
            piece = self.socket.recv(_RECEIVE_BYTES)
            if not piece:
                break
            answer += piece
        if b'"error"' in answer or not answer:
            raise RuntimeError(f"no stream: {answer[-500:]!r}")

    def receive(self) -> int:
        """How many acknowledgments have arrived; RuntimeError for a refusal and for the end of the connection."""
        piece = self.socket.recv(_RECEIVE_BYTES)
        if not piece:
            raise RuntimeError("the server closed the connection")
        data = self._rest + piece
        if b"-ERR" in data or b'"error"' in data:
            raise RuntimeError(f"a publication failed: {data[-500:]!r}")
        if b"PING\r\n" in data:
            self.socket.sendall(b"PONG\r\n")
        self._rest = data[1 - len(ACKNOWLEDGED) :]  # may have the begin of the next mark, but no whole one
        return data.count(ACKNOWLEDGED)


def _drive(publishers: list[_Publisher], seconds: float) -> tuple[int, float]:
    """Acknowledged messages, and the seconds they took; waits for the last acknowledgments."""
    count, open_ = 0, 0
    with selectors.DefaultSelector() as selector:
        for each in publishers:
            selector.register(each.socket, selectors.EVENT_READ, each)
        began = time.perf_counter()
        for each in publishers:
            each.socket.sendall(each.publication * each.in_flight)
            open_ += each.in_flight
        while open_:
            events = selector.select(ANSWER_SECONDS)
            if not events:
                raise RuntimeError(f"no acknowledgment in {ANSWER_SECONDS:g} s")
            more = time.perf_counter() - began < seconds
            for key, _ in events:
                each = key.data
                got = each.receive()
                count += got
                open_ -= got
                if more and got:
                    each.socket.sendall(each.publication * got)
                    open_ += got
    return count, time.perf_counter() - began
