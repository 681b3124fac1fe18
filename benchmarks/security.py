"""The group ``security``: what signatures and TLS cost, of GantryMQ and of the Java broker, and handshakes.

The generator takes part of the processors: signed frames are encoded once, but it decrypts and encrypts as much as the
broker does. So the targets are compared with the rate that the broker's processor time for a message allows: that of
a plain send, divided by that of a send with signatures or TLS. The measured rates are beside it.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio
from figures import Figures
from measuring import checked
from msgspec.structs import replace
from systems import INTEROP, JAVA_VERSION, STOP_SECONDS, home_of, own_settings, processor_seconds

from gantrymq.bench.cluster import prepare_topic, targets_of
from gantrymq.bench.plan import Load, Plan
from gantrymq.bench.running import run
from gantrymq.client import connect
from support.authority import Authority
from support.foreign import cache_folder, find_java, start_broker, start_nameserver
from support.processes import gantrymq_child

if TYPE_CHECKING:
    from measuring import Timing
    from special_groups import Sizes

Progress = Callable[[str], None]
BODIES = (100, 1024)
KEYS = {"access_key": "bench-admin", "secret_key": "bench-secret"}
ACCOUNTS = "accounts:\n- {accessKey: bench-admin, secretKey: bench-secret, admin: true}\n"
KINDS = ("plain", "signed", "TLS", "TLS and signed")
GOALS = {"signed": 85.0, "TLS": 75.0}
"""Percent of the rate of plain sends, by the broker's processor time. ``TLS`` is within a quarter."""
ROUNDS = 2
HANDSHAKE_CLIENTS = 4


@attrs.frozen
class Server:
    """A running broker of one kind, and its nameserver."""

    nameserver: str
    host: str
    port: int
    pid: int
    authority: str = ""
    """The file with the authority's certificate; empty without TLS."""


def secure(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """Sends of 8 connections with 16 requests in flight, of each kind in turns, and TLS handshakes. The Java broker is
    measured without TLS."""
    del sizes
    kinds = KINDS if system == "gantrymq" else KINDS[:2]
    costs: dict[tuple[str, int], list[float]] = {}
    for number in range(ROUNDS):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            with server(system, kind) as running:
                for size in BODIES:
                    load = trio.run(_load, running, kind, size)
                    checked(system, f"{kind}, warm-up", run(Plan(loads=[load], seconds=timing.warm / len(BODIES))))
                    used = -processor_seconds(running.pid)
                    outcome = checked(system, kind, run(Plan(loads=[load], seconds=timing.seconds)))
                    used += processor_seconds(running.pid)
                    cost = used / outcome.messages * 1e6
                    costs.setdefault((kind, size), []).append(cost)
                    name = f"send 8x16 {size} B, {kind}"
                    figures.add("security", name, "/s", system, outcome.rate, more_is_better=True)
                    figures.add("security", f"{name}: processor time for a message", "us", system, cost)
                    progress(f"{system:9} {name}: {outcome.rate:,.0f}/s, {cost:.2f} us of the processor for a message")
                if kind == "TLS":
                    _measure_handshakes(system, running, timing.seconds, figures, progress)
    for size in BODIES:
        plain = statistics.median(costs["plain", size])
        for kind in kinds[1:]:
            percent = 100 * plain / statistics.median(costs[kind, size])
            what = f"send 8x16 {size} B, {kind}: of plain, without the generator"
            figures.add("security", what, "%", system, percent, more_is_better=True, goal=GOALS.get(kind))
            progress(f"{system:9} {what}: {percent:.0f} %")


@contextmanager
def server(system: str, kind: str) -> Iterator[Server]:
    """A broker with the access control and TLS of ``kind``."""
    begin = _gantrymq if system == "gantrymq" else _java
    with home_of(f"security-{system}") as home, begin(kind, home) as running:
        yield running


@contextmanager
def _gantrymq(kind: str, home: Path) -> Iterator[Server]:
    arguments = ["serve", "--data", str(home / "store"), "--listen", "127.0.0.1:0", "--nameserver-listen",
                 "127.0.0.1:0", *own_settings(home), "--set", "plugin.flush.mode=async",
                 "--log-level", "warning"]  # fmt: skip
    if "signed" in kind:
        (home / "plain_acl.yml").write_text(ACCOUNTS)
        arguments += ["--enable", "acl", "--set", f"plugin.acl.file={home / 'plain_acl.yml'}"]
    authority = None
    if "TLS" in kind:
        authority = Authority(home)  # its certificates have keys of elliptic curves
        arguments += ["--enable", "tls", "--set", f"plugin.tls.certificate={authority.issue('broker')}"]
    with gantrymq_child(arguments, home / "log", warm=False) as child:
        line = child.wait_line(lambda text: text.startswith("ready"), STOP_SECONDS)
        found = dict(word.partition("=")[::2] for word in line.split()[1:])
        host, _, port = found["broker"].partition(";")[0].rpartition(":")
        yield Server(found["nameserver"], host, int(port), child.pid, "" if authority is None else str(authority.file))


@contextmanager
def _java(kind: str, home: Path) -> Iterator[Server]:
    java = attrs.evolve(find_java(JAVA_VERSION, INTEROP / "java", cache_folder(INTEROP / ".cache")), common=())
    conf = home / "broker" / "rocketmq" / "conf"
    shutil.copytree(java.conf, conf)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    nameserver = start_nameserver(java, home / "nameserver")
    try:
        settings = {"flushDiskType": "ASYNC_FLUSH", "aclEnable": str("signed" in kind).lower()}
        broker = start_broker(java, home / "broker", nameserver.address, **settings)
        try:
            host, _, port = broker.address.rpartition(":")
            yield Server(nameserver.address, host, int(port), broker.child.pid)
        finally:
            broker.discard()
    finally:
        nameserver.discard()


async def _load(running: Server, kind: str, size: int) -> Load:
    options: dict[str, Any] = {"tls": ssl.create_default_context(cafile=running.authority)} if running.authority else {}
    keys = KEYS if "signed" in kind else {}
    async with connect(running.nameserver, **options, **keys) as client:
        await prepare_topic(client, "bench-security", 8)
        targets = await targets_of(client, "bench-security")
    load = Load(kind="send", topic="bench-security", targets=targets, connections=8, in_flight=16, body_bytes=size)
    return replace(load, **keys, authority=running.authority)


@contextmanager
def _shaking_hands(running: Server) -> Iterator[list[int]]:
    """Connections with a TLS 1.3 handshake, one after the other in several threads of this process; the counts."""
    counts = [0] * HANDSHAKE_CLIENTS
    stop = threading.Event()

    def connect_again(number: int) -> None:
        context = ssl.create_default_context(cafile=running.authority)
        while not stop.is_set():
            plain = socket.create_connection((running.host, running.port))
            with context.wrap_socket(plain, server_hostname=running.host):
                counts[number] += 1

    threads = [threading.Thread(target=connect_again, args=(number,)) for number in range(HANDSHAKE_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if not all(counts):
        raise ssl.SSLError("a client of the handshakes failed")


def _measure_handshakes(system: str, running: Server, seconds: float, figures: Figures, progress: Progress) -> None:
    """Handshakes alone, and beside sends over TLS, one at a time on each of eight connections."""
    used = -processor_seconds(running.pid)
    began = time.perf_counter()
    with _shaking_hands(running) as counts:
        time.sleep(seconds)
    took = time.perf_counter() - began
    used += processor_seconds(running.pid)
    rate, cost = sum(counts) / took, used / sum(counts)
    figures.add("security", "TLS handshakes", "/s", system, rate, more_is_better=True)
    figures.add("security", "processor time for a connection with its handshake", "us", system, cost * 1e6)
    progress(f"{system:9} handshakes: {rate:,.0f}/s, {cost * 1e6:,.0f} us of the processor each")
    load = replace(trio.run(_load, running, "TLS", BODIES[0]), in_flight=1)
    with _shaking_hands(running) as counts:
        begun: list[tuple[int, float]] = []

        def begin() -> None:  # before, the generator opens its connections and sends nothing
            begun.append((sum(counts), time.perf_counter()))

        found = run(Plan(loads=[load], seconds=seconds), before_start=begin)
        count, began = begun[0]
        shaken = (sum(counts) - count) / (time.perf_counter() - began)
    outcome = checked(system, "beside handshakes", found)
    what = "beside send 8x1 over TLS"
    figures.add("security", f"TLS handshakes {what}", "/s", system, shaken, more_is_better=True)
    figures.add("security", "send 8x1 over TLS beside handshakes", "/s", system, outcome.rate, more_is_better=True)
    p99 = outcome.latencies["p99"]
    figures.add("security", "send 8x1 over TLS beside handshakes: p99", "us", system, p99)
    progress(f"{system:9} handshakes {what}: {shaken:,.0f}/s; sends {outcome.rate:,.0f}/s, p99 {p99:,} us")
