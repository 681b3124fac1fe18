"""The group ``floods``: how long a sender waits while another client sends requests that are much work.

The sender sends one message at a time, with asynchronous flush. The other client is a process of its own that keeps one
request in flight on each of a few connections: subscriptions with long expressions, locks for thousands of queues,
heartbeats with thousands of subscriptions, and headers in an unusual form of JSON.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from figures import Figures
from measuring import warm_up
from systems import Setup, start

from gantrymq.bench.connection import count_frames
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, MessageQueue
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.testing.requests import pull, send

if TYPE_CHECKING:
    from measuring import Timing
    from special_groups import Sizes

Progress = Callable[[str], None]
CONNECTIONS = 4
"""The connections of the client that floods."""
LOCKED_QUEUES = 10_000
GROUPS, SUBSCRIPTIONS = 25, 1000
EXPRESSION = " OR ".join(f"(a{number} BETWEEN {number} AND {number + 7})" for number in range(400))
WAIT_S = 30.0


def measure_floods(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """The sender's median and p99 alone and beside each flood."""
    del sizes
    with start(system, Setup(flush="async")) as running:
        warm_up(running, timing.warm)
        for name, frames in {"alone": (), **floods()}.items():
            with _flooding(running.address, frames) as answered:
                before, began = answered(), time.perf_counter()
                times = send_for(running.address, timing.seconds)
                rate = (answered() - before) / (time.perf_counter() - began)
            median, late = (times[len(times) * share // 100] * 1e3 for share in (50, 99))
            progress(f"{system:9} {name}: p50 {median:.2f} ms, p99 {late:.2f} ms, {rate:,.0f} answers/s to the others")
            figures.add("floods", f"p99 of a sender {'' if name == 'alone' else 'beside '}{name}", "ms", system, late)


def floods() -> Mapping[str, Sequence[bytes]]:
    """By name: the request of each connection, as bytes."""
    return {
        "SQL92 expressions": [encode(_filtered_pull(client)) for client in range(CONNECTIONS)],
        f"locks for {LOCKED_QUEUES:,} queues": [encode(_locks(client)) for client in range(CONNECTIONS)],
        f"heartbeats of {GROUPS * SUBSCRIPTIONS:,} subscriptions": [
            encode(_heartbeat(client)) for client in range(CONNECTIONS)
        ],
        "headers of unusual JSON": [_unusual(client) for client in range(CONNECTIONS)],
    }


def send_for(address: str, seconds: float) -> list[float]:
    """Return how long each message took, in seconds, sorted."""
    frame = encode(send("bench-floods", b"x" * 100))
    times = []
    with socket.create_connection(parse_address(address), timeout=WAIT_S) as sock:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            sock.sendall(frame)
            data = b""
            while count_frames(data)[0] == 0:
                received = sock.recv(65_536)
                if not received:
                    raise RuntimeError("the broker closed the sender's connection")
                data += received
            times.append(time.perf_counter() - began)
    return sorted(times)


@contextmanager
def _flooding(address: str, frames: Sequence[bytes]) -> Iterator[Callable[[], int]]:
    """A process that floods; the yielded function returns how many requests the broker has answered."""
    answers = multiprocessing.Value("q", 0)
    if not frames:
        yield lambda: 0
        return
    process = multiprocessing.Process(target=_flood, args=(address, frames, answers), daemon=True)
    process.start()
    try:
        until = time.monotonic() + WAIT_S
        while answers.value == 0:
            if not process.is_alive() or time.monotonic() > until:
                raise RuntimeError("no request of the flood was answered")
            time.sleep(0.05)
        yield lambda: answers.value
        if not process.is_alive():
            raise RuntimeError("the broker closed a connection of the flood")
    finally:
        process.kill()
        process.join()


def _flood(address: str, frames: Sequence[bytes], answers: multiprocessing.sharedctypes.Synchronized[int]) -> None:
    with selectors.DefaultSelector() as selector:
        for frame in frames:
            sock = socket.create_connection(parse_address(address), timeout=WAIT_S)
            selector.register(sock, selectors.EVENT_READ, [sock, frame, b""])
            sock.sendall(frame)
        while True:
            for key, _ in selector.select():
                sock, frame, data = key.data
                received = sock.recv(65_536)
                if not received:
                    raise SystemExit("closed")
                count, end = count_frames(data + received)
                key.data[2] = (data + received)[end:]
                if count:
                    answers.value += count
                    sock.sendall(frame)


def _filtered_pull(client: int) -> Command:
    command = pull("bench-floods", 0, 0, expression=f"{EXPRESSION} OR b{client} = 1")
    if command.ext is not None:
        command.ext.update(expressionType="SQL92", consumerGroup=f"flood-{client}")
    return command


def _locks(client: int) -> Command:
    queues = {MessageQueue(f"topic-{client}-{number}", "broker-a", number % 8) for number in range(LOCKED_QUEUES)}
    return Command(RequestCode.LOCK_BATCH_MQ, body=LockBatchRequestBody(f"g{client}", f"c{client}", queues).to_bytes())


def _heartbeat(client: int) -> Command:
    groups = [
        ConsumerData(
            f"g{client}-{group}",
            subscription_data_set=[SubscriptionData(f"topic-{n}", "*") for n in range(SUBSCRIPTIONS)],
        )
        for group in range(GROUPS)
    ]
    return Command(RequestCode.HEART_BEAT, body=HeartbeatData(f"c{client}", [], groups).to_bytes())


def _unusual(client: int) -> bytes:
    """Return a request whose header has single quotes and unquoted keys, which RocketMQ reads as well."""
    fields = ",".join(f"field{number}:'value {number}'" for number in range(200))
    header = f"{{code:11,language:'JAVA',version:407,opaque:{client},flag:0,extFields:{{{fields}}}}}".encode()
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
