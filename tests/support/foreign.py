"""RocketMQ's own software as a partner in tests: built once a machine, started, and stopped by process id.

Artifacts come by name from Maven Central and the Go module proxy; what is compiled lies in a cache folder, stamped by
the hash of its sources, and is shared by later runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import attrs
import msgspec

from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.signing import Credentials
from support.clients import ForeignClient
from support.processes import STOP_SECONDS, Child, ChildFailed, Partner, free_ports, wait_for

if TYPE_CHECKING:
    import gantrymq.sync

JAVA_VERSIONS = ("4.9.7", "5.3.3")
"""The releases of RocketMQ that the tests speak with."""
AXE = ("axe-core", "4.10.3", "axe.min.js")
"""The npm package that looks for faults of pages that keep people from using them."""
ARCHIVE = "classes.jsa"
BUILD_SECONDS = 600.0
BROKER_STOP_SECONDS = 40.0
"""The time limit for a clean shutdown of RocketMQ."""
BOOT_SECONDS = 900.0
"""The time limit for a server's start: one that recovers gigabytes takes minutes, and one that fails ends."""

_OPENED = tuple(
    f"--add-{kind}=java.base/{package}=ALL-UNNAMED"
    for kind in ("opens", "exports")
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
)
_SMALL = ("-XX:+UseSerialGC", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true")
SMALL_HEAP = ("-Xms128m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m")
SMALL_BROKER = (*SMALL_HEAP, "-XX:TieredStopAtLevel=1")
"""Options for a broker that has all functions but is slow."""

SMALL_NAMESERVER = ("-Xms64m", "-Xmx128m", "-XX:TieredStopAtLevel=1")
"""Enough for the brokers of a test."""

PLAINTEXT = "-Dtls.server.mode=disabled"
"""A server that accepts TLS as well makes key and certificate for it at its start, which is most of what a start
costs."""


class ToolMissing(Exception):
    """A tool that is not on this machine; the text says which one and what it is needed for."""


def find_tool(name: str, purpose: str) -> str:
    """The path of a program; ToolMissing says what it is needed for."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"{name} is not installed; it is needed to {purpose}")
    return found


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Only one process at a time is in the block; ``path`` is the file that is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _stamp(folder: Path, *extra: str) -> str:
    digest = hashlib.sha256("\0".join(extra).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run_build(arguments: Sequence[str], cwd: Path) -> None:
    """Runs a build tool; RuntimeError with the end of what it printed if it fails."""
    done = subprocess.run(
        list(arguments), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


@attrs.frozen
class Java:
    """One release of RocketMQ with our Java program compiled against it."""

    version: str
    java: str
    cache: Path
    conf: Path
    common: Sequence[str] = _SMALL

    @property
    def class_path(self) -> Path:
        """A file with the option for the class path: our classes and every jar."""
        return self.cache / "class-path"

    def command(self, home: Path, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """The command line of class ``main`` with ``home`` as the user's home, for logs, offsets and temporary keys."""
        home.mkdir(parents=True, exist_ok=True)
        return [
            self.java,
            *self.common,
            *_OPENED,
            f"-Duser.home={home}",
            f"-Djava.io.tmpdir={home}",
            f"-Drocketmq.client.logRoot={home}",
            f"-Drocketmq.home.dir={self._home(home)}",
            f"-Drmq.logback.configurationFile={self.conf / 'rmq.logback.xml'}",
            *options,
            f"@{self.class_path}",
            main,
            *arguments,
        ]

    def program(self, home: Path, *arguments: str) -> Child:
        """Our Java program with one of its sub-commands; it prints JSON lines."""
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
        command = self.command(home, "gantrymq.interop.Main", *arguments, options=options)
        return Child(command, home / f"{arguments[0]}.err")

    def mqadmin(self, home: Path, *arguments: str) -> str:
        """The output of RocketMQ's own admin tool for ``arguments``; RuntimeError when it fails."""
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        command = self.command(home, main, *arguments, options=("-Xmx256m", "-XX:TieredStopAtLevel=1"))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"mqadmin {arguments} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def _home(self, home: Path) -> Path:
        # ROCKETMQ_HOME: the start-up classes of 4.9.7 refuse to run without its conf/logback_*.xml.
        rocketmq = home / "rocketmq"
        conf = rocketmq / "conf"
        if not conf.is_dir():
            shutil.copytree(self.conf, conf)
        return rocketmq


def mqadmin_with_keys(java: Java, home: Path, credentials: Credentials, *arguments: str) -> str:
    """The output of mqadmin that signs with these keys; ``home`` gets a configuration of its own."""
    conf = home / "rocketmq" / "conf"
    shutil.copytree(java.conf, conf)
    text = f"accessKey: {credentials.access_key}\nsecretKey: {credentials.secret_key}\n"
    (conf / "tools.yml").write_text(text)
    return java.mqadmin(home, *arguments)


class HostedCommand(Partner):
    """A sub-command of our Java program in a process that runs many of them."""

    def __init__(self, port: int, arguments: Sequence[str], log: Path) -> None:
        super().__init__(arguments, log)
        self._exit: int | None = None
        self._link = socket.create_connection(("127.0.0.1", port), timeout=STOP_SECONDS)
        self._link.settimeout(None)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.say(msgspec.json.encode(self.arguments).decode())
        self._reader.start()

    def say(self, line: str) -> None:
        """Writes a line to the command."""
        self._link.sendall(line.encode() + b"\n")

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """The exit code, once the command has ended by itself."""
        self._reader.join(timeout)
        if self._exit is None:
            raise ChildFailed(f"still runs after {timeout:g} s; {self._story()}")
        return self._exit

    def kill(self) -> None:
        """ChildFailed: the process is not its own."""
        raise ChildFailed("a command that shares its process cannot be killed; start it with ForeignClient.alone")

    def stop(self) -> None:
        """Lets the command end as at the end of its stdin, and closes the connection."""
        with suppress(OSError):  # it has ended
            self._link.shutdown(socket.SHUT_WR)
        self._reader.join(STOP_SECONDS)
        self._link.close()

    def _code(self) -> int | None:
        return self._exit

    def _read(self) -> None:
        with self._link.makefile("rb") as stream, self.log.open("ab") as log, suppress(OSError):
            for raw in stream:
                if raw.startswith(b"!"):
                    log.write(raw[1:])
                elif raw.startswith(b"="):
                    self._exit = int(raw[1:])
                else:
                    self._heard(raw.decode("utf-8", "replace").rstrip("\r\n"))
        self._lines.put(None)


class JavaHost:
    """One process for many sub-commands of our Java program; use it as a context manager.

    A process of its own costs a command a second of processor time before its first message.
    """

    def __init__(self, java: Java, home: Path) -> None:
        self.child = java.program(home, "host")
        try:
            self._port = int(str(self.child.wait_event("listening")["port"]))
        except BaseException:
            self.child.stop()
            raise

    def __enter__(self) -> JavaHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.stop()

    def start(self, home: Path, *arguments: str) -> HostedCommand:
        """A sub-command, as :meth:`Java.program` starts it in a process of its own."""
        return HostedCommand(self._port, arguments, home / f"{arguments[0]}.err")


def find_java(version: str, source: Path, cache: Path) -> Java:
    """RocketMQ ``version`` and the Maven project ``source``, built into ``cache`` unless it is there already.

    Raises ToolMissing without a JDK or Maven, RuntimeError with Maven's words when the build fails.
    """
    java = find_tool("java", "run RocketMQ")
    target = (cache / version).absolute()
    found = Java(version, java, target, source / "conf")
    stamp = _stamp(source, version, "class archive")
    with hold_lock(cache / f"{version}.lock"):
        mark = target / "stamp"
        if not mark.exists() or mark.read_text() != stamp:
            find_tool("javac", "compile the Java test programs")
            maven = find_tool("mvn", "fetch RocketMQ")
            shutil.rmtree(target, ignore_errors=True)
            goals = ("compile", "dependency:copy-dependencies")
            run_build((maven, "-q", "-B", f"-Drocketmq.version={version}", f"-Dcache={target}", *goals), source)
            _archive_classes(found)
            mark.write_text(stamp)
    archive = target / ARCHIVE
    return attrs.evolve(found, common=(*_SMALL, f"-XX:SharedArchiveFile={archive}")) if archive.exists() else found


def find_integration_tests(java: Java, source: Path) -> Java:
    """``java`` with RocketMQ's own integration tests before everything else on its class path.

    ``source`` is a Maven project that names them and points them at servers that run already. Built as by
    :func:`find_java`.
    """
    target = java.cache.parent / f"integration-{java.version}"
    found = attrs.evolve(java, cache=target)
    stamp = _stamp(source, java.version)
    with hold_lock(Path(f"{target}.lock")):
        mark = target / "stamp"
        if not mark.exists() or mark.read_text() != stamp:
            maven = find_tool("mvn", "fetch RocketMQ's integration tests")
            shutil.rmtree(target, ignore_errors=True)
            goals = ("compile", "dependency:copy-dependencies")
            run_build((maven, "-q", "-B", f"-Drocketmq.version={java.version}", f"-Dcache={target}", *goals), source)
            jars = (*sorted((target / "lib").glob("*.jar")), *sorted((java.cache / "lib").glob("*.jar")))
            found.class_path.write_text(f'-cp "{os.pathsep.join(map(str, (target / "classes", *jars)))}"\n')
            mark.write_text(stamp)
    return attrs.evolve(found, common=_SMALL)  # the class archive has the class path of ``java``


def _archive_classes(java: Java) -> None:
    """Write the class path, and an archive of the classes that servers and clients load at their start.

    The archive takes two fifths off the processor time of a start. A JVM that cannot make one does without it.
    """
    home = java.cache / "training"
    jar = java.cache / "interop.jar"  # an archive cannot have classes from a folder
    shutil.make_archive(str(jar.with_suffix("")), "zip", java.cache / "classes")
    jar.with_suffix(".zip").rename(jar)
    path = os.pathsep.join(map(str, (jar, *sorted((java.cache / "lib").glob("*.jar")))))
    java.class_path.write_text(f'-cp "{path}"\n')
    try:
        _load_classes(attrs.evolve(java, common=(*java.common, f"-XX:DumpLoadedClassList={home}/classes-%p")), home)
        names = {line for file in home.glob("classes-*") for line in file.read_text().splitlines()}
        (home / "classes").write_text("\n".join(sorted(names)))
        files = (f"-XX:SharedClassListFile={home / 'classes'}", f"-XX:SharedArchiveFile={java.cache / ARCHIVE}")
        subprocess.run(
            (java.java, *java.common, "-Xshare:dump", *files, f"@{java.class_path}"),
            stdin=subprocess.DEVNULL, capture_output=True, timeout=BUILD_SECONDS, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _load_classes(java: Java, home: Path) -> None:
    """Let a nameserver, a broker, clients and the administration tool do a little of everything."""
    home.mkdir()
    nameserver = start_nameserver(java, home / "nameserver")
    with nameserver.child, start_broker(java, home / "broker", nameserver.address).child as broker:
        client = ForeignClient(java.version, java.program, home / "client")
        client.produce(nameserver.address, "T", 40, modes="sync,async,batch")
        client.consume_all(nameserver.address, "T", "g", 120)
        java.mqadmin(home / "mqadmin", "clusterList", "-n", nameserver.address)
        broker.terminate(BROKER_STOP_SECONDS)
        nameserver.child.terminate(BROKER_STOP_SECONDS)


def find_go(source: Path, cache: Path) -> Path:
    """The program of the Go module ``source``, built into ``cache`` unless it is there already."""
    program = cache / source.name / "interop"
    stamp = _stamp(source)
    with hold_lock(cache / f"{source.name}.lock"):
        mark = program.parent / "stamp"
        if not mark.exists() or mark.read_text() != stamp:
            go = find_tool("go", f"build the program of {source.name}")
            program.parent.mkdir(parents=True, exist_ok=True)
            run_build((go, "build", "-o", str(program.absolute()), "."), source)
            mark.write_text(stamp)
    return program


def find_node(source: Path, cache: Path) -> list[str]:
    """The command line of ``main.js`` of the npm package ``source``, installed into ``cache`` on first use."""
    node = find_tool("node", "run the Node client")
    target = cache / "node"
    stamp = _stamp(source)
    with hold_lock(cache / "node.lock"):
        mark = target / "stamp"
        if not mark.exists() or mark.read_text() != stamp:
            npm = find_tool("npm", "install the Node client")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
            run_build((npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"), target)
            mark.write_text(stamp)
    return [node, str((target / "main.js").absolute())]


def find_npm_program(name: str, version: str, main: str, cache: Path) -> list[str]:
    """The command line of ``main`` of an npm package, installed into ``cache`` on first use."""
    node = find_tool("node", f"run {name}")
    target = cache / f"{name}-{version}"
    with hold_lock(cache / f"{name}-{version}.lock"):
        program = target / "node_modules" / name / main
        mark = target / "complete"
        if not mark.exists():
            npm = find_tool("npm", f"install {name}")
            target.mkdir(parents=True, exist_ok=True)
            run_build((npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", f"{name}@{version}"), target)
            mark.touch()
    return [node, str(program.absolute())]


@attrs.frozen
class JavaServer:
    """A running Java nameserver or broker."""

    child: Child
    address: str
    home: Path

    def discard(self) -> None:
        """Kills it: RocketMQ takes up to ten seconds to shut down in order, too long where nobody needs its store."""
        self.child.process.kill()
        self.child.stop()


def start_nameserver(java: Java, home: Path, *, memory: Sequence[str] = SMALL_NAMESERVER) -> JavaServer:
    """A Java nameserver on a free port of the loopback, ready for brokers; ``memory`` are the JVM's options.

    It speaks no TLS unless ``memory`` has an option for that.
    """
    (port,) = free_ports()
    conf = _properties(home / "namesrv.conf", {"listenPort": str(port), "bindAddress": "127.0.0.1"})
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    child = Child(java.command(home, main, "-c", str(conf), options=(PLAINTEXT, *memory)), home / "namesrv.err")
    return _ready(JavaServer(child, f"127.0.0.1:{port}", home))


def start_broker(
    java: Java,
    home: Path,
    nameservers: str,
    *,
    name: str = "java-broker",
    store: Path | None = None,
    memory: Sequence[str] = SMALL_BROKER,
    **settings: str,
) -> JavaServer:
    """A Java broker on free ports of the loopback, registered at ``nameservers`` (an empty text is none); ``settings``
    go to its config file.

    Its store is ``store`` (``home/store`` unless given), with files of RocketMQ's default sizes; ``memory`` are the
    JVM's options for its heap. It speaks no TLS unless ``memory`` has an option for that.
    """
    (port,) = free_ports(around=(0, 1, -2))
    root = store or home / "store"
    values = {
        "brokerName": name,
        "brokerClusterName": "DefaultCluster",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": str(port),
        "namesrvAddr": nameservers,
        "storePathRootDir": str(root),
        "storePathCommitLog": str(root / "commitlog"),
        "haListenPort": str(port + 1),
        # a slow machine is no overload, and a disk that the other tests fill is not full
        "osPageCacheBusyTimeOutMills": "30000",
        "waitTimeMillsInSendQueue": "30000",
        "diskMaxUsedSpaceRatio": "99",
        "timerWheelEnable": "false",
        "traceTopicEnable": "true",  # as with us
        **settings,
    }
    conf = _properties(home / "broker.conf", values)
    options = (PLAINTEXT, *memory, "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99")
    main = "org.apache.rocketmq.broker.BrokerStartup"
    child = Child(java.command(home, main, "-c", str(conf), options=options), home / "broker.err")
    server = _ready(JavaServer(child, f"127.0.0.1:{port}", home))
    try:
        for nameserver in filter(None, nameservers.split(";")):
            if java.version.startswith("5."):
                _register_now(server.address)
            wait_registered(nameserver, name)
    except BaseException:
        child.stop()
        raise
    return server


def _register_now(broker: str) -> None:
    """Let a 5.3.3 broker register, which by itself it does ten seconds after its start.

    Its remoting client has not connected to a nameserver when it registers for the first time
    (``BrokerController.start``). A change of the permission registers again (``AdminBrokerProcessor``
    ``updateBrokerConfig``); the value is the default. A broker that refuses the request registers later.
    """
    with suppress(OSError):
        ask(broker, Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=6"))


def wait_registered(nameserver: str, broker: str, timeout: float = 30.0) -> None:
    """Returns once ``nameserver`` knows ``broker``."""

    def registered() -> bool:
        return f'"{broker}"'.encode() in ask(nameserver, Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body

    wait_for(registered, timeout)


def ask(address: str, command: Command, timeout: float = 10.0) -> Command:
    """One request on a connection of its own, and its answer; OSError when there is none."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall(encode(command))
        buffer = bytearray()
        while True:
            frames, _ = cut_frames(buffer)
            if frames:
                return decode(frames[0])
            piece = connection.recv(65536)
            if not piece:
                raise ConnectionError(f"{address} closed the connection")
            buffer += piece


def runtime_info(broker: str, timeout: float = 10.0) -> dict[str, str]:
    """The broker's runtime info (code 28); empty when it refuses, as RocketMQ's does in its first second."""
    answer = ask(broker, Command(RequestCode.GET_BROKER_RUNTIME_INFO), timeout)
    return {} if answer.code else dict(KVTable.from_bytes(answer.body).table)


def create_topic(broker: str, topic: str) -> None:
    """Create the topic, with four queues, as RocketMQ's administration tool does."""
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert ask(broker, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0


def is_routed(nameserver: str, topic: str, brokers: Sequence[str] = ()) -> bool:
    """Whether the nameserver has a route for the topic, to all of these brokers."""
    answer = ask(nameserver, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
    return answer.code == 0 and all(f'"{broker}"'.encode() in answer.body for broker in brokers)


def wait_readable(client: gantrymq.sync.Client, topic: str, count: int) -> None:
    """Wait until the queues of the topic have ``count`` messages.

    RocketMQ acknowledges a message before its queue has it (``ReputMessageService``).
    """
    wait_for(lambda: sum(map(client.admin.max_offset, client.admin.queues(topic))) >= count)


def _ready(server: JavaServer) -> JavaServer:
    try:
        server.child.wait_line(lambda line: "boot success" in line, timeout=BOOT_SECONDS)
    except BaseException:
        server.child.stop()
        raise
    return server


def _properties(path: Path, values: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


def cache_folder(default: Path) -> Path:
    """The folder of built software: ``GANTRYMQ_INTEROP_CACHE``, or ``default``."""
    return Path(os.environ.get("GANTRYMQ_INTEROP_CACHE", default))
