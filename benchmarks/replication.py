"""The group ``replication``: how fast a new slave gets its master's log, ours and RocketMQ's, beside a bare copy; and
how fast a synchronous master answers senders, which it does when its slave has the message.

A master starts on a log of messages of 1 KiB, all in the page cache, then an empty slave starts; the clock runs from
the slave's first bytes until it has all. The bare copy sends the same file over a loopback socket to a process that
writes it: nothing is looked at on the way. The senders are many and have many messages in flight, with the master and
its slave on the same machine.
"""

from __future__ import annotations

import multiprocessing
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio
from figures import Figures
from measuring import checked
from scenarios import QUEUES, Scenario
from systems import INTEROP, JAVA_VERSION, PRE_TOUCH, home_of, java_memory, processor_seconds, send_first

from gantrymq.bench.cluster import prepare_topic, targets_of
from gantrymq.bench.plan import Load, Plan
from gantrymq.bench.running import default_processes, run
from gantrymq.client import connect
from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.store.store import Store
from support.foreign import (
    SMALL_HEAP,
    cache_folder,
    find_java,
    runtime_info,
    start_broker,
    start_nameserver,
)
from support.hapair import HaPair
from support.processes import wait_for

if TYPE_CHECKING:
    from measuring import Timing
    from special_groups import Sizes

Progress = Callable[[str], None]
MIB = 2**20
LOG_BYTES = 512 * MIB
FILE_BYTES = 1024 * MIB
BODY = b"x" * 1024
BATCH = 500
POLL_S = 0.05
"""The interval at which a slave is asked for its offset. Each response costs it a millisecond or more."""
PATIENCE_S = 120.0
PIECE_BYTES = 256 * 1024
SENDERS = [Scenario(f"SYNC_MASTER send 64x16 {flush}", flush, 64, 16, goal=2.0) for flush in ("async", "sync")]
ROUNDS = 3
"""How often :func:`answer` is called for each system, in turn, because the speed of a machine drifts."""


def make_store(folder: Path, size: int) -> None:
    """A store whose log has the given number of bytes."""
    store = Store(SystemEnv(), str(folder))
    store.open()
    store.recover(lambda batch: None)
    while store.log.end < size:
        batch = AppendBatch()
        for number in range(BATCH):
            batch.add("Replicated", number % 8, BODY, b"")
        store.append(batch)
        for _ in store.dispatch(store.flush()):
            pass
    store.close()


def replicate(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """Start an empty slave of ``system`` at a master with a full log."""
    with home_of(f"replication-{system}") as home:
        make_store(home / "made", LOG_BYTES)
        (file,) = (home / "made" / "commitlog").iterdir()
        copied = plain_copy(file, home / "copied", LOG_BYTES)
        (home / "copied").unlink()
        with (_ours if system == "gantrymq" else _java)(home) as (master, start_slave):
            slave, pid = start_slave()
            seconds, processor = _follow(master, slave, pid)
    rate = LOG_BYTES / MIB / seconds
    progress(f"{system:9} a slave takes {rate:,.0f} MiB/s, a bare copy {copied:,.0f} MiB/s")
    of = f"of {LOG_BYTES // MIB} MiB with messages of 1 KiB"
    figures.add("replication", f"a new slave's copy {of}", "MiB/s", system, rate, more_is_better=True)
    figures.add("replication", "bare copy over a socket at that time", "MiB/s", system, copied, more_is_better=True)
    figures.add(
        "replication", "the slave's processor time for each MiB", "ms", system, 1000 * processor / LOG_BYTES * MIB
    )


def plain_copy(source: Path, target: Path, size: int) -> float:
    """MiB a second of copying ``size`` bytes from a file over a socket into another file."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = multiprocessing.get_context("spawn").Process(
            target=_receive, args=(listener.getsockname()[1], str(target))
        )
        receiver.start()
        link, _ = listener.accept()
        with link, source.open("rb") as file:
            began = time.perf_counter()
            link.sendfile(file, 0, size)
            link.shutdown(socket.SHUT_WR)
            link.recv(1)
            took = time.perf_counter() - began
        receiver.join()
    return size / MIB / took


def _receive(port: int, target: str) -> None:
    buffer = bytearray(PIECE_BYTES)
    view = memoryview(buffer)
    with socket.create_connection(("127.0.0.1", port)) as link, Path(target).open("wb", buffering=0) as file:
        while count := link.recv_into(buffer):
            file.write(view[:count])
        link.sendall(b"!")


def _follow(master: str, slave: str, pid: int) -> tuple[float, float]:
    """Seconds from the slave's first bytes to its last, and the slave's processor seconds."""
    end = _end(master)
    deadline = time.perf_counter() + PATIENCE_S
    began, used, first = time.perf_counter(), processor_seconds(pid), 0
    while (reached := _end(slave)) < end:
        now = time.perf_counter()
        if not first:
            began, used, first = now, processor_seconds(pid), reached
        if now > deadline:
            raise RuntimeError(f"the slave has {reached} of {end} bytes after {PATIENCE_S:g} s")
        time.sleep(POLL_S)
    share = (end - first) / end
    return (time.perf_counter() - began) / share, (processor_seconds(pid) - used) / share


def _end(address: str) -> int:
    # RocketMQ's broker does not know its offset while it has no file.
    return int(runtime_info(address).get("commitLogMaxOffset", 0))


def answer(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """One round of many senders at a synchronous master and its slave of ``system``, with either flush on both."""
    for scenario in SENDERS:
        with home_of(f"answer-{system}") as home, PAIRS[system](home, scenario.flush) as pair:
            wait_for(lambda pair=pair: send_first(pair.master).code == 0, PATIENCE_S)  # the slave is there
            load = trio.run(_load, pair.nameserver, scenario)
            for seconds in (timing.warm, timing.settle):
                checked(system, "warm-up", run(Plan(loads=[load], seconds=seconds), default_processes()))
            before = [processor_seconds(pid) for pid in pair.pids]
            found = checked(system, scenario.name, run(Plan(loads=[load], seconds=timing.seconds), default_processes()))
            used = [processor_seconds(pid) - then for pid, then in zip(pair.pids, before, strict=True)]
        rate, p99 = found.rate, found.latencies["p99"]
        each = [1e6 * seconds / found.messages for seconds in used]
        text = f"{rate:,.0f}/s, p99 {p99} us, processor {each[0]:.1f} + {each[1]:.1f} us"
        progress(f"{system:9} {scenario.name}: {text}, generator {found.cpu:.2f} of a core")
        add = partial(figures.add, "replication")
        add(scenario.name, "/s", system, rate, more_is_better=True, ratio_goal=scenario.goal or 0.0)
        add(f"{scenario.name}, p99", "us", system, p99)
        for what, value in zip(("master", "slave"), each, strict=True):
            add(f"{scenario.name}, processor time of the {what} for a message", "us", system, value)


@attrs.frozen
class Pair:
    """A running synchronous master with its slave: addresses and processes, the master's first."""

    nameserver: str
    master: str
    pids: tuple[int, int]


async def _load(nameserver: str, scenario: Scenario) -> Load:
    async with connect(nameserver) as client:
        await prepare_topic(client, scenario.topic, QUEUES)
        return Load(
            kind=scenario.kind, topic=scenario.topic, targets=await targets_of(client, scenario.topic),
            connections=scenario.connections, in_flight=scenario.in_flight, body_bytes=scenario.size,
        )  # fmt: skip


@contextmanager
def _our_pair(home: Path, flush: str) -> Iterator[Pair]:
    with HaPair(home, {"plugin.flush.mode": flush}, file_bytes=FILE_BYTES) as pair:
        master, slave = pair.start(0, "SYNC_MASTER"), pair.start(1, "SLAVE")
        yield Pair(pair.nameserver, pair.addresses[0], (master.pid, slave.pid))


@contextmanager
def _java_pair(home: Path, flush: str) -> Iterator[Pair]:
    """With the memory and compilers that RocketMQ recommends; the slave does not pre-touch its heap."""
    java = attrs.evolve(find_java(JAVA_VERSION, INTEROP / "java", cache_folder(INTEROP / ".cache")), common=())
    memory = java_memory()
    less = [option for option in memory if option != PRE_TOUCH]
    roles = {"flushDiskType": f"{flush.upper()}_FLUSH", "brokerRole": "SYNC_MASTER"}
    with ExitStack() as stack:
        names = start_nameserver(java, home / "names")
        stack.callback(names.discard)
        master = start_broker(java, home / "master", names.address, name="pair", memory=memory, **roles)
        stack.callback(master.discard)
        roles |= {"brokerRole": "SLAVE", "brokerId": "1"}
        slave = start_broker(java, home / "slave", names.address, name="pair", memory=less, **roles)
        stack.callback(slave.discard)
        yield Pair(names.address, master.address, (master.child.pid, slave.child.pid))


PAIRS = {"gantrymq": _our_pair, "java": _java_pair}


@contextmanager
def _ours(home: Path) -> Iterator[tuple[str, Callable[[], tuple[str, int]]]]:
    with HaPair(home, file_bytes=FILE_BYTES) as pair:
        shutil.move(home / "made", home / "data-0")
        pair.start(0, "ASYNC_MASTER")
        yield pair.addresses[0], lambda: (pair.addresses[1], pair.start(1, "SLAVE").pid)


@contextmanager
def _java(home: Path) -> Iterator[tuple[str, Callable[[], tuple[str, int]]]]:
    java = find_java(JAVA_VERSION, INTEROP / "java", cache_folder(INTEROP / ".cache"))
    with ExitStack() as stack:
        names = start_nameserver(java, home / "names")
        stack.callback(names.discard)
        master = start_broker(java, home / "master", names.address, name="pair", store=home / "made", memory=SMALL_HEAP)
        stack.callback(master.discard)

        def start_slave() -> tuple[str, int]:
            roles = {"brokerRole": "SLAVE", "brokerId": "1"}
            slave = start_broker(java, home / "slave", names.address, name="pair", memory=SMALL_HEAP, **roles)
            stack.callback(slave.discard)
            return slave.address, slave.child.pid

        yield master.address, start_slave
