"""A load generator: connections with a number of sends in flight each, every frame encoded before the clock starts.

One process, one epoll; it counts answers by their lengths and looks at their codes, and parses nothing else, so that
the broker and not the generator is measured.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode

SUCCESS = b'"code":0'


class Connection:
    """One socket with its frames: what an answer frees is sent again."""

    def __init__(self, address: tuple[str, int], frames: list[bytes]) -> None:
        self.socket = socket.create_connection(address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames = frames
        self.next = 0
        self.buffer = b""
        self.sent_at = 0.0

    def send(self, count: int) -> None:
        """The next ``count`` frames in one call."""
        first, size = self.next, len(self.frames)
        data = b"".join(self.frames[(first + place) % size] for place in range(count))
        self.next = (first + count) % size
        self.sent_at = time.perf_counter()
        self.socket.sendall(data)

    def answers(self) -> int:
        """How many answers have come; RuntimeError when one is not a success."""
        data = self.buffer + self.socket.recv(262_144)
        if len(data) == len(self.buffer):
            raise RuntimeError("the broker closed the connection")
        count = start = 0
        while start + 4 <= len(data):
            end = start + 4 + int.from_bytes(data[start : start + 4], "big")
            if end > len(data):
                break
            start = end
            count += 1
        if data.count(SUCCESS, 0, start) != count:
            raise RuntimeError(f"an answer is no success: {data[:400]!r}")
        self.buffer = data[start:]
        return count


def frames_of(connection: int, in_flight: int, body_bytes: int, topic: str, queues: int) -> list[bytes]:
    """Sends of one connection, as many as are in flight, to the queues in turn."""
    frames = []
    for opaque in range(max(in_flight, queues)):
        ext = {"a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str((connection + opaque) % queues), "f": "0"}
        ext |= {"g": str(int(time.time() * 1000)), "h": "0", "i": "", "j": "0", "k": "false", "m": "false"}
        body = (b"%08d" % opaque).ljust(body_bytes, b"x")
        frames.append(encode(Command(RequestCode.SEND_MESSAGE_V2, ext, body, opaque, language="JAVA")))
    return frames


def run(
    address: tuple[str, int], connections: int, in_flight: int, body_bytes: int, warm: float, seconds: float
) -> dict[str, float]:
    """Messages acknowledged a second; with one send in flight on one connection, the quantiles of its time too."""
    selector = selectors.EpollSelector()
    open_ones = [
        Connection(address, frames_of(number, in_flight, body_bytes, "bench", 4)) for number in range(connections)
    ]
    for connection in open_ones:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    for connection in open_ones:
        connection.send(in_flight)
    began = time.perf_counter()
    start, stop = began + warm, began + warm + seconds
    count = 0
    times: list[float] = []
    single = connections * in_flight == 1
    now = began
    while now < stop:
        for key, _ in selector.select(10):
            connection = key.data
            done = connection.answers()
            now = time.perf_counter()
            if now >= start:
                count += done
                if single:
                    times.append(now - connection.sent_at)
            if done:
                connection.send(done)
        now = time.perf_counter()
    for connection in open_ones:
        connection.socket.close()
    result = {"rate": count / (now - start)}
    if times:
        times.sort()
        result |= {"p50_us": times[len(times) // 2] * 1e6, "p99_us": times[len(times) * 99 // 100] * 1e6}
    return result


def main() -> None:
    """One measurement; prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="host:port of the broker")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    host, _, port = given.address.rpartition(":")
    result = run((host, int(port)), given.connections, given.in_flight, given.body_bytes, given.warm, given.seconds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
