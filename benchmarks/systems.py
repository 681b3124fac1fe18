"""The measured systems: GantryMQ, the Java broker, and an echo server, each started on an empty store."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import attrs

from gantrymq.remoting.address import parse_address
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.foreign import ask, cache_folder, find_java, start_broker, start_nameserver
from support.processes import Child, gantrymq_child

INTEROP = Path(__file__).resolve().parents[1] / "tests" / "interop"
JAVA_VERSION = "4.9.7"
STOP_SECONDS = 60.0
END_SECONDS = 20.0
"""How long the process of a broker may take to its end after it has closed its listener."""
LOG_TAIL = 20_000
"""The characters at the end of a broker's log that an error quotes."""

PRE_TOUCH = "-XX:+AlwaysPreTouch"
RECOMMENDED_HEAP_GIB = 8
RECOMMENDED_DIRECT_GIB = 15
"""Of RocketMQ's ``distribution/bin/runbroker.sh``, as is what :func:`java_memory` adds. Its switch for biased locking
is left out: that is off by default since Java 15, and an unknown word to later ones."""


@attrs.frozen
class Setup:
    """How a system is started, its defaults apart. ``log_file_bytes``: of a file of the commit log; 0: the default.
    ``pre_touch``: whether Java takes all of its heap at once, which its start then waits for. ``log_level``: ours.
    ``java_settings``: more of the broker's configuration. ``plugins``: more of ours, as ``--enable`` has them.
    ``processes``: brokers of ours in one unit; 0: one broker and no unit. ``arguments``: more of ours."""

    flush: str = "async"
    log_file_bytes: int = 0
    pre_touch: bool = True
    log_level: str = "warning"
    java_version: str = JAVA_VERSION
    java_settings: dict[str, str] = attrs.field(factory=dict)
    plugins: tuple[str, ...] = ()
    processes: int = 0
    arguments: tuple[str, ...] = ()


@attrs.frozen
class Running:
    """A started system: where it is, its broker's process, and the seconds from its start to the first message.

    ``store`` is the folder with ``commitlog``; ``log`` what the broker said. ``kill`` is a ``kill -9``, ``stop`` asks
    politely; both return when the broker has gone, and the store stays until the home given to :func:`start` does.
    """

    nameserver: str
    address: str
    pid: int
    first_message: float
    store: Path
    log: Path
    kill: Callable[[], None]
    stop: Callable[[], None]
    pids: tuple[int, ...] = ()
    """The processes of all brokers of a unit; empty if there is one broker."""

    @property
    def processor_seconds(self) -> float:
        """The processor time that the brokers have used: user and system time of all threads."""
        return sum(map(processor_seconds, self.pids or (self.pid,)))


@contextmanager
def start(system: str, setup: Setup = Setup(), home: Path | None = None) -> Iterator[Running]:
    """``gantrymq`` or ``java``, on an empty store, or on the store of an earlier start in ``home``."""
    begin = _gantrymq if system == "gantrymq" else _java
    with home_of(system) if home is None else nullcontext(home) as place, begin(setup, place) as running:
        yield running


@contextmanager
def _gantrymq(setup: Setup, home: Path) -> Iterator[Running]:
    """Our broker with its default plugins and settings."""
    arguments = ["serve", "--data", str(home / "store"), "--listen", "127.0.0.1:0"]
    arguments += ["--nameserver-listen", "127.0.0.1:0", *own_settings(home)]
    arguments += ["--set", f"plugin.flush.mode={setup.flush}"]
    arguments += setup.arguments
    if setup.log_file_bytes:
        arguments += ["--set", f"store.commit_log_file_bytes={setup.log_file_bytes}"]
    arguments += [word for plugin in setup.plugins for word in ("--enable", plugin)]
    if setup.processes:
        arguments += ["--processes", str(setup.processes)]
    log = home / "log"
    began = time.perf_counter()
    with gantrymq_child([*arguments, "--log-level", setup.log_level], log, warm=False) as child:
        line = child.wait_line(lambda text: text.startswith("ready"), STOP_SECONDS * 10)
        found = dict(word.partition("=")[::2] for word in line.split()[1:])
        address = found["broker"].partition(";")[0]
        pids = _children(child.pid) if setup.processes else ()
        try:
            first = _first_message(address, began)
            stop = lambda: (child.terminate(STOP_SECONDS), None)[1]  # noqa: E731
            yield Running(found["nameserver"], address, child.pid, first, home / "store", log, child.kill, stop, pids)
        except Exception as error:
            code = _exit_code(child, address)
            last = log.read_text(errors="replace")[-LOG_TAIL:]
            if code is None:
                error.add_note(f"GantryMQ at {address} still runs; the end of its log: {last}")
                raise
            raise RuntimeError(f"GantryMQ ended with exit code {code}: {last}") from error


def own_settings(home: Path) -> list[str]:
    """The arguments that keep a broker of ours with its files in ``home`` apart from others on this machine.

    Its name is its own: of two brokers with one name at one nameserver the later one ends. It has the same name at each
    start on the same store. It has no pages, which all brokers would have at one address.
    """
    name = f"bench-{zlib.crc32(os.fsencode(home)):08x}"
    return ["--set", f"broker.name={name}", "--set", "plugin.http.listen="]


def _exit_code(child: Child, address: str) -> int | None:
    """The exit code of a broker; None if it still runs.

    Its clients lose their connections before the process has ended: a broker that ends closes its listener, then the
    connections, then the store. So a broker without a listener gets :data:`END_SECONDS` to end.
    """
    if not is_listening(parse_address(address)[1]):
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(END_SECONDS)
    return child.process.poll()


@contextmanager
def _java(setup: Setup, home: Path) -> Iterator[Running]:
    """RocketMQ's broker with its defaults and :func:`java_memory`."""
    found = attrs.evolve(find_java(setup.java_version, INTEROP / "java", cache_folder(INTEROP / ".cache")), common=())
    memory = [option for option in java_memory() if setup.pre_touch or option != PRE_TOUCH]
    settings = {"flushDiskType": f"{setup.flush.upper()}_FLUSH", **setup.java_settings}
    if setup.log_file_bytes:
        settings["mappedFileSizeCommitLog"] = str(setup.log_file_bytes)
    nameserver = start_nameserver(found, home / "nameserver")
    try:
        began = time.perf_counter()
        broker = start_broker(found, home / "broker", nameserver.address, memory=memory, **settings)
        child, address = broker.child, broker.address
        try:
            first = _first_message(address, began)
            stop = lambda: (child.terminate(STOP_SECONDS), None)[1]  # noqa: E731
            store = home / "broker" / "store"
            yield Running(nameserver.address, address, child.pid, first, store, child.log, child.kill, stop)
        finally:
            broker.discard()
    finally:
        nameserver.discard()


def java_memory() -> tuple[str, ...]:
    """Return the JVM options that RocketMQ recommends, with a heap of a quarter of this machine's memory, at most
    RocketMQ's 8 GiB."""
    heap = max(1, min(RECOMMENDED_HEAP_GIB, memory_bytes() // 2**30 // 4))
    direct = max(1, heap * RECOMMENDED_DIRECT_GIB // RECOMMENDED_HEAP_GIB)
    return (
        "-server", f"-Xms{heap}g", f"-Xmx{heap}g", f"-XX:MaxDirectMemorySize={direct}g", PRE_TOUCH,
        "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25",
        "-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0", "-XX:-OmitStackTraceInFastThrow",
        "-XX:-UseLargePages",
    )  # fmt: skip


def start_seconds(system: str) -> float:
    """Seconds from the start on an empty store to the first acknowledged message. Java does not pre-touch its heap
    here, which would take longer for a larger heap."""
    with start(system, Setup(pre_touch=False)) as running:
        return running.first_message


@contextmanager
def echo() -> Iterator[tuple[str, int]]:
    """The address of a server that sends back what it receives, in a process of its own."""
    program = Path(__file__).with_name("echo.py")
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield "127.0.0.1", int(process.stdout.readline())
        finally:
            process.kill()


def memory_bytes(field: str = "MemTotal") -> int:
    """This machine's memory in bytes, or another field of ``/proc/meminfo``."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/meminfo has no {field}")


def resident_bytes(pid: int) -> tuple[int, int]:
    """Return a process's resident memory, and the part of it that is no file."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["RssAnon"].split()[0]) * 1024


def _children(pid: int) -> tuple[int, ...]:
    return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used, to the nanosecond: /proc counts in ticks of 10 ms.

    The id of a process's clock is that of ``clock_getcpuclockid`` (Linux, ``MAKE_PROCESS_CPUCLOCK``).
    """
    return time.clock_gettime(~pid << 3 | 2)


def family_seconds(pid: int) -> float:
    """Return the processor time that a process and its descendants have used, ended ones included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):  # it ended, or is no process
            number = int(name)
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            parents[number], used[number] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {pid}
    while found := {number for number, parent in parents.items() if parent in family} - family:
        family |= found
    return sum(used.get(number, 0.0) for number in family) / os.sysconf("SC_CLK_TCK")


def send_first(address: str) -> Command:
    """Return a broker's response to a request that needs no permission."""
    ext = {"a": "bench", "b": "bench-first", "c": "TBW102", "d": "4", "e": "0", "f": "0"}
    ext |= {"g": "0", "h": "0", "i": "", "j": "0", "k": "false", "m": "false"}
    return ask(address, Command(RequestCode.SEND_MESSAGE_V2, ext, b"first", language="JAVA"))


def _first_message(address: str, began: float) -> float:
    answer = send_first(address)
    if answer.code:
        raise RuntimeError(f"the first message was not taken: {answer.code} {answer.remark}")
    return time.perf_counter() - began


@contextmanager
def home_of(name: str) -> Iterator[Path]:
    """An empty folder, removed at the end of the block."""
    home = Path(tempfile.mkdtemp(prefix=f"gantrymq-bench-{name}-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def is_listening(port: int) -> bool:
    """Whether a server accepts connections at this port of the loopback address."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
