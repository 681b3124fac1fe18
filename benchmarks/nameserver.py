"""The group ``nameserver``: routes out of a nameserver that knows many topics and brokers, ours beside the Java one.

The brokers are connections that register as RocketMQ's do and then stay. Clients ask for topics by chance over many
connections, and one of them alone; then once more while topics come and brokers register again.
"""

from __future__ import annotations

import random
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from figures import Figures
from systems import INTEROP, JAVA_VERSION, home_of, processor_seconds, resident_bytes

from gantrymq.bench.connection import count_frames
from gantrymq.remoting.bodies.registration import body_crc32
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.nameserver import RegisterBrokerHeader
from support.foreign import cache_folder, find_java, start_nameserver
from support.processes import gantrymq_child

if TYPE_CHECKING:
    from measuring import Timing
    from special_groups import Sizes

Progress = Callable[[str], None]
BROKERS = 100
SPREAD = 4
"""How many brokers have a topic."""
CONNECTIONS, IN_FLIGHT = 32, 8
BATCHES = 500
"""How many different sequences of topics the clients ask for."""
JAVA_MEMORY = ("-server", "-Xms1g", "-Xmx1g", "-Xmn512m", "-XX:+UseG1GC")
"""A quarter of the heap that RocketMQ's ``runserver.sh`` sets."""
CHANGES_EACH_S = 0.05
JAVA_CLIENT = 401
"""The first version (4.9.4) whose clients get strict JSON."""
MIB = 2**20


@attrs.define
class Broker:
    """A connection that registers a broker. It keeps the JSON text of each topic, so that repeating a registration
    costs the generator little."""

    number: int
    link: socket.socket
    topics: list[bytes]
    version: int = 1

    def register(self, added: str | None = None) -> None:
        """Register the broker with all its topics, and read the response."""
        if added is not None:
            self.topics.append(_topic(added))
            self.version += 1
        body = b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":%s,"topicConfigTable":{%s}}}' % (
            DataVersion(self.version, 7).to_bytes(),
            b",".join(self.topics),
        )
        header = RegisterBrokerHeader(
            broker_name=f"broker-{self.number:03}",
            broker_addr=f"10.0.0.{self.number}:10911",
            cluster_name="DefaultCluster",
            ha_server_addr=f"10.0.0.{self.number}:10912",
            broker_id=0,
            body_crc32=body_crc32(body),
        )
        code = _ask(self.link, Command(RequestCode.REGISTER_BROKER, header.to_ext(), body))
        if code:
            raise RuntimeError(f"broker {self.number} was not registered: code {code}")


def measure_lookups(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """Register all brokers, then request routes."""
    add = figures.add
    with home_of(f"nameserver-{system}") as home, _nameserver(system, home) as (address, pid):
        empty = resident_bytes(pid)[1]
        with _connected(address, BROKERS) as links:
            brokers = [Broker(number, link, _topics_of(number, sizes.topics)) for number, link in enumerate(links)]
            began = time.perf_counter()
            for broker in brokers:
                broker.register()
            took = time.perf_counter() - began
            batches = _batches(sizes.topics)
            with _connected(address, CONNECTIONS) as clients:
                ask_all(clients, batches, timing.warm)
                before = processor_seconds(pid)
                rate, asked = ask_all(clients, batches, timing.seconds)
                each = (processor_seconds(pid) - before) / asked
                alone = _one_by_one(clients[0], batches, timing.seconds)
                changing = _while_it_changes(clients, batches, brokers, timing.seconds)
            known = resident_bytes(pid)[1]
    of = f"of {sizes.topics:,} topics on {SPREAD} of {BROKERS} brokers each"
    progress(f"{system:9} {rate:,.0f} routes/s, {known / MIB:,.0f} MiB")
    add("nameserver", f"routes {of}, {CONNECTIONS}x{IN_FLIGHT}", "/s", system, rate, more_is_better=True)
    add("nameserver", "processor time for a route", "us", system, each * 1e6)
    add("nameserver", "routes while topics come and brokers register", "/s", system, changing, more_is_better=True)
    add("nameserver", "median of a route, one after the other", "us", system, alone[len(alone) // 2] * 1e6)
    add("nameserver", "p99 of a route, one after the other", "us", system, alone[len(alone) * 99 // 100] * 1e6)
    add("nameserver", "a broker's registration", "ms", system, took / BROKERS * 1000)
    add("nameserver", "memory with all that", "MiB", system, known / MIB)
    add("nameserver", "memory while it is empty", "MiB", system, empty / MIB)


def ask_all(
    clients: Sequence[socket.socket],
    batches: Sequence[bytes],
    seconds: float,
    changed: Callable[[], None] | None = None,
) -> tuple[float, int]:
    """Routes a second, and how many in all, with one batch in flight on each connection; ``changed`` is called beside
    it each :data:`CHANGES_EACH_S` seconds."""
    chance = random.Random(1)
    answers = 0
    with selectors.DefaultSelector() as selector:
        open_ones = {client.fileno(): [client, IN_FLIGHT, b""] for client in clients}
        for client in clients:
            client.sendall(chance.choice(batches))
            selector.register(client, selectors.EVENT_READ)
        began = last = time.perf_counter()
        waiting = len(clients)
        while waiting:
            for key, _ in selector.select(10.0):
                state = open_ones[key.fd]
                client = state[0]
                received = client.recv(2**20)
                if not received:
                    raise RuntimeError("the nameserver closed a connection")
                data = state[2] + received
                count, end = count_frames(data)
                answers += count
                state[1] -= count
                state[2] = data[end:]
                if state[1] == 0:
                    if time.perf_counter() - began < seconds:
                        state[1] = IN_FLIGHT
                        client.sendall(chance.choice(batches))
                    else:
                        waiting -= 1
            if changed is not None and time.perf_counter() - last > CHANGES_EACH_S:
                changed()
                last = time.perf_counter()
        return answers / (time.perf_counter() - began), answers


def _one_by_one(client: socket.socket, batches: Sequence[bytes], seconds: float) -> list[float]:
    """The seconds of each look-up, sorted."""
    frames = [frame for batch in batches for frame in _split(batch)]
    chance = random.Random(2)
    times = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        client.sendall(chance.choice(frames))
        data = b""
        while count_frames(data)[0] == 0:
            data += client.recv(2**20)
        times.append(time.perf_counter() - began)
    return sorted(times)


def _while_it_changes(
    clients: Sequence[socket.socket], batches: Sequence[bytes], brokers: Sequence[Broker], seconds: float
) -> float:
    """Routes a second while one broker gets new topics and another repeats its registration, each twenty times a
    second."""
    numbers = iter(range(10**9))

    def change() -> None:
        number = next(numbers)
        brokers[number % len(brokers)].register(f"Added{number}")
        brokers[(number + 1) % len(brokers)].register()

    return ask_all(clients, batches, seconds, change)[0]


@contextmanager
def _nameserver(system: str, home: Path) -> Iterator[tuple[str, int]]:
    """The address and process id of a running nameserver."""
    if system == "gantrymq":
        arguments = ("nameserver", "--listen", "127.0.0.1:0", "--log-level", "warning")
        with gantrymq_child(arguments, home / "log", warm=False) as child:
            line = child.wait_line(lambda text: text.startswith("ready"))
            yield line.partition("nameserver=")[2].strip(), child.pid
        return
    found = attrs.evolve(find_java(JAVA_VERSION, INTEROP / "java", cache_folder(INTEROP / ".cache")), common=())
    server = start_nameserver(found, home, memory=JAVA_MEMORY)
    try:
        yield server.address, server.child.pid
    finally:
        server.discard()


@contextmanager
def _connected(address: str, count: int) -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    links: list[socket.socket] = []
    try:
        for _ in range(count):
            links.append(socket.create_connection((host, int(port)), 30.0))
            links[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield links
    finally:
        for link in links:
            with suppress(OSError):
                link.close()


def _topics_of(broker: int, topics: int) -> list[bytes]:
    """Return the topics of a broker: each topic is on :data:`SPREAD` consecutive brokers."""
    return [_topic(f"Topic{number}") for number in range(topics) if (broker - number) % BROKERS < SPREAD]


def _topic(name: str) -> bytes:
    return b'"%s":%s' % (name.encode(), TopicConfig(name, 8, 8).to_bytes())


def _batches(topics: int) -> list[bytes]:
    """Requests for random topics, encoded as by a current Java client."""
    chance = random.Random(3)
    opaques = iter(range(10**9))

    def one() -> bytes:
        ext = {"topic": f"Topic{chance.randrange(topics)}"}
        return encode(
            Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, opaque=next(opaques), language="JAVA", version=JAVA_CLIENT)
        )

    return [b"".join(one() for _ in range(IN_FLIGHT)) for _ in range(BATCHES)]


def _split(batch: bytes) -> list[bytes]:
    return [encode(decode(frame)) for frame in cut_frames(batch)[0]]


def _ask(link: socket.socket, command: Command) -> int:
    link.sendall(encode(command))
    data = b""
    while True:
        frames, _ = cut_frames(data)
        if frames:
            return decode(frames[0]).code
        data += link.recv(2**16)
