"""Kafka beside the brokers where it was asked for: one node, driven by Kafka's own performance tools.

Its producer decides by itself what it puts together and how many requests are in flight, so that its rows are what
Kafka's users get for messages of that size, not the same requests.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scenarios import QUEUES, Scenario
from systems import INTEROP, is_listening, processor_seconds

from support.foreign import ToolMissing, cache_folder
from support.processes import free_ports, wait_for

VERSION = "3.9.1"
VERSION_LINE = (
    f"Kafka {VERSION}, one node, its own ProducerPerformance (acks=1, its own batching) and ConsumerPerformance, in "
    "one round; flush.messages=1 for sync flush; one message at a time where the scenario has one"
)
POM = Path(__file__).with_name("kafka")
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""Of Kafka's ``bin/kafka-server-start.sh`` and ``bin/kafka-run-class.sh``."""
TOOL_HEAP = ("-Xmx512m",)
TRIAL_MESSAGES = 20_000
TRIAL_BYTES = 100 * 2**20
GROWTH = 2.0
"""A longer run reaches a higher rate, so it gets more messages than the rate of the shorter one suggests."""
RUN_SECONDS_MAX = 300.0
PULL_MESSAGES = 1_000_000
ROWS = ("send 8x16 async", "send 1x1 async", "batch 32, 4x4 async", "send 8x16 sync", "send 1x1 sync")
_average = re.compile(r"([\d.]+) records/sec").findall


def expresses(scenario: Scenario) -> bool:
    """Whether Kafka's own tools can run a comparable scenario: not with many connections or queues, nor with
    consumers."""
    sized = scenario.groups == ("payloads",) and scenario.batch == 1
    return scenario.name in ROWS or sized or scenario.kind == "pull"


def find() -> tuple[str, Path]:
    """Return the Java program and the folder of Kafka's jars, fetched from Maven Central unless they are there.

    Raises ToolMissing without a JDK or Maven, RuntimeError with Maven's words when it cannot be fetched.
    """
    java = shutil.which("java")
    if java is None or shutil.which("mvn") is None:
        raise ToolMissing("java and mvn are needed to fetch and run Kafka")
    return java, fetch_jars(POM, "Kafka", "kafka", VERSION)


def fetch_jars(pom: Path, what: str, name: str, version: str) -> Path:
    """Return the folder of the jars that ``pom`` names, fetched from Maven Central unless they are there.

    Maven gets the version as ``NAME.version``. Raises ToolMissing without Maven, RuntimeError with its words.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise ToolMissing(f"mvn is needed to fetch {what}")
    folder = cache_folder(INTEROP / ".cache") / f"{name}-{version}"
    if not (folder / "complete").exists():
        command = [maven, "-q", "-B", f"-D{name}.version={version}", f"-Dcache={folder.absolute()}"]
        done = subprocess.run(
            [*command, "dependency:copy-dependencies"], cwd=pom, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"Maven could not fetch {what}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        (folder / "complete").touch()
    return folder / "lib"


class Kafka:
    """A running node. With ``flush`` sync, each message is flushed before it is acknowledged."""

    def __init__(self, java: str, jars: Path, port: int, flush: str, pid: int) -> None:
        self._pid = pid
        self._java = java
        self._jars = jars
        self._address = f"127.0.0.1:{port}"
        self._flush = flush

    @property
    def address(self) -> str:
        """The address for clients."""
        return self._address

    @property
    def pid(self) -> int:
        """The node's process."""
        return self._pid

    def rate(self, scenario: Scenario, seconds: float) -> tuple[float, float]:
        """Messages a second of the first run that takes ``seconds``: its tools start cold and count that too; and
        microseconds of the node's processor time for each message of that run."""
        topic = f"{scenario.topic}-{scenario.connections}x{scenario.in_flight}"
        self.create(topic)
        if scenario.kind == "pull":
            self._produce(topic, scenario, PULL_MESSAGES)
            used = -processor_seconds(self._pid)
            rate = self._consume(topic, PULL_MESSAGES)
            return rate, (used + processor_seconds(self._pid)) / PULL_MESSAGES * 1e6
        messages = min(TRIAL_MESSAGES // (20 if scenario.is_alone else 1), TRIAL_BYTES // scenario.size)
        while True:
            used = -processor_seconds(self._pid)
            rate = self._produce(topic, scenario, messages)
            used += processor_seconds(self._pid)
            if rate * seconds <= messages:
                return rate, used / messages * 1e6
            messages = int(rate * seconds * GROWTH)

    def create(self, topic: str) -> None:
        """Make a topic with :data:`QUEUES` partitions."""
        options = ["--bootstrap-server", self._address, "--create", "--topic", topic, "--partitions", str(QUEUES)]
        options += ["--replication-factor", "1"]
        if self._flush == "sync":
            options += ["--config", "flush.messages=1"]
        self._run("org.apache.kafka.tools.TopicCommand", options)

    def _produce(self, topic: str, scenario: Scenario, messages: int) -> float:
        settings = [f"bootstrap.servers={self._address}", "acks=1", "enable.idempotence=false"]
        if scenario.is_alone:
            settings += ["batch.size=0", "max.in.flight.requests.per.connection=1"]
        options = ["--topic", topic, "--num-records", str(messages), "--record-size", str(scenario.size)]
        options += ["--throughput", "-1", "--producer-props", *settings]
        return parse_producer(self._run("org.apache.kafka.tools.ProducerPerformance", options))

    def _consume(self, topic: str, messages: int) -> float:
        options = ["--bootstrap-server", self._address, "--topic", topic, "--messages", str(messages)]
        options += ["--group", "bench", "--timeout", "60000"]
        return parse_consumer(self._run("org.apache.kafka.tools.ConsumerPerformance", options))

    def _run(self, main: str, options: Sequence[str]) -> str:
        command = _command(self._java, self._jars, TOOL_HEAP, main, options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
        if done.returncode:
            raise RuntimeError(f"Kafka's {main} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.stdout


@contextmanager
def kafka(flush: str) -> Iterator[Kafka]:
    """A node that is broker and controller, with an empty folder."""
    java, jars = find()
    port, controller = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="gantrymq-bench-kafka-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        conf = home / "server.properties"
        conf.write_text(_properties(home, port, controller))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        options = ["format", "-t", cluster, "-c", str(conf)]
        made = _command(java, jars, TOOL_HEAP, "kafka.tools.StorageTool", options)
        subprocess.run(made, capture_output=True, text=True, check=True, timeout=RUN_SECONDS_MAX)
        said = home / "said"
        command = _command(java, jars, HEAP, "kafka.Kafka", [str(conf)])
        with said.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                wait_for(lambda: process.poll() is not None or is_listening(port), 60.0)
                if process.poll() is not None:
                    raise RuntimeError(f"Kafka ended with {process.returncode}: {said.read_text()[-1000:]}")
                yield Kafka(java, jars, port, flush, process.pid)
            finally:
                process.kill()


def parse_producer(text: str) -> float:
    """Return the records a second of the whole run, from the last line of ProducerPerformance."""
    return float(_average(text)[-1])


def parse_consumer(text: str) -> float:
    """Return records a second while it fetched, of ConsumerPerformance's table: the column ``fetch.nMsg.sec``."""
    lines = [line.split(", ") for line in text.splitlines() if ", " in line]
    head, last = lines[0], lines[-1]
    return float(last[head.index("fetch.nMsg.sec")])


def _command(java: str, jars: Path, heap: Sequence[str], main: str, options: Sequence[str]) -> list[str]:
    return [java, *heap, "-cp", f"{jars}/*", main, *options]


def _properties(home: Path, port: int, controller: int) -> str:
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(home / "logs"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())
