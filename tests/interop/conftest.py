"""Fixtures with foreign software: RocketMQ's own servers and clients beside ours.

Built software is in ``tests/interop/.cache`` (or ``GANTRYMQ_INTEROP_CACHE``) and is reused. The system under test is
ours; ``GANTRYMQ_INTEROP_ORACLE=only`` (or ``also``) runs the same tests against RocketMQ's own broker and nameserver,
which shows that a test is right.
"""

from __future__ import annotations

import itertools
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from support.clients import ForeignClient
from support.foreign import (
    Java,
    JavaHost,
    JavaServer,
    ToolMissing,
    cache_folder,
    find_go,
    find_java,
    find_node,
    start_broker,
    start_nameserver,
)
from support.mqadmin import KeyedMqAdmin, run_keyed_mqadmin
from support.processes import LATE_DISK, Child, free_ports, gantrymq_child
from support.spark_session import run_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Homes = Callable[[str], Path]
HERE = Path(__file__).parent
CACHE = cache_folder(HERE / ".cache")
ORACLE = os.environ.get("GANTRYMQ_INTEROP_ORACLE", "")
SYSTEMS = {"only": ["java"], "also": ["gantrymq", "java"]}.get(ORACLE, ["gantrymq"])


@attrs.frozen
class System:
    """A running nameserver with one broker: what foreign clients are pointed at."""

    kind: str
    nameserver: str
    broker: str


def _java(version: str) -> Java:
    try:
        return find_java(version, HERE / "java", CACHE)
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def java() -> Java:
    """RocketMQ 4.9.7, the oracle."""
    return _java("4.9.7")


@pytest.fixture(scope="session")
def java5() -> Java:
    """RocketMQ 5.3.3."""
    return _java("5.3.3")


def _homes(factory: pytest.TempPathFactory, name: str) -> Homes:
    numbers = itertools.count()
    root = factory.mktemp(name)
    return lambda name: root / f"{name}-{next(numbers)}"


@pytest.fixture(scope="session")
def lasting_homes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    """A fresh folder for each call, for what runs until the session ends. They go if no test failed."""
    yield from _removed(request, _homes(tmp_path_factory, "interop"))


@pytest.fixture(scope="module")
def homes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homes]:
    """A fresh folder for each call. They go if no test of the module failed: a store of ours takes a GiB."""
    yield from _removed(request, _homes(tmp_path_factory, "module"))


def _removed(request: pytest.FixtureRequest, homes: Homes) -> Iterator[Homes]:
    failed = request.session.testsfailed
    yield homes
    if request.session.testsfailed == failed:
        shutil.rmtree(homes("").parent, ignore_errors=True)


@pytest.fixture(scope="session")
def java4_client(java: Java, lasting_homes: Homes, servers: ExitStack) -> ForeignClient:
    """The Java client library 4.9.7. All that it runs is in one process, but for ``alone``."""
    return _client(java, lasting_homes, servers)


@pytest.fixture(scope="session")
def java5_client(java5: Java, lasting_homes: Homes, servers: ExitStack) -> ForeignClient:
    """The Java client library 5.3.3, in one process as well."""
    return _client(java5, lasting_homes, servers)


def _client(java: Java, homes: Homes, servers: ExitStack) -> ForeignClient:
    host = servers.enter_context(JavaHost(java, homes(f"host-{java.version}")))
    return ForeignClient(f"java-{java.version}", host.start, homes(f"client-{java.version}"), java.program)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("java4_client", id="4.9.7"),
        pytest.param("java5_client", id="5.3.3", marks=pytest.mark.once),  # for the twins one is enough
    ],
)
def java_client(request: pytest.FixtureRequest) -> ForeignClient:
    """The Java client library, in each version."""
    chosen: ForeignClient = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(scope="session")
def mqadmin4(java: Java, lasting_homes: Homes, servers: ExitStack) -> KeyedMqAdmin:
    """mqadmin 4.9.7; all commands are in one process, since a start takes half a second of processor time."""
    return servers.enter_context(run_keyed_mqadmin(java, lasting_homes("mqadmin4")))


@pytest.fixture(scope="session")
def mqadmin5(java5: Java, lasting_homes: Homes, servers: ExitStack) -> KeyedMqAdmin:
    """mqadmin 5.3.3, in one process as well."""
    return servers.enter_context(run_keyed_mqadmin(java5, lasting_homes("mqadmin5")))


@pytest.fixture(scope="session")
def go_client(lasting_homes: Homes) -> ForeignClient:
    """rocketmq-client-go."""
    try:
        program = find_go(HERE / "go", CACHE)
    except ToolMissing as missing:
        pytest.skip(str(missing))

    def start(home: Path, *arguments: str) -> Child:
        return Child([str(program), *arguments], home / f"{arguments[0]}.err", env={"HOME": str(home)})

    return ForeignClient("go-2.1.2", start, lasting_homes("go"))


@pytest.fixture(scope="session")
def node_client(lasting_homes: Homes) -> ForeignClient:
    """ali-ons, for Node."""
    try:
        command = find_node(HERE / "node", CACHE)
    except ToolMissing as missing:
        pytest.skip(str(missing))

    def start(home: Path, *arguments: str) -> Child:
        return Child([*command, *arguments], home / f"{arguments[0]}.err", env={"HOME": str(home)})

    return ForeignClient("node-3.12.0", start, lasting_homes("node"))


@pytest.fixture(scope="session")
def servers(lasting_homes: Homes) -> Iterator[ExitStack]:
    """Contexts entered here end with the session, before its folders are deleted."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def java_nameserver(java: Java, homes: Homes) -> Iterator[JavaServer]:
    """RocketMQ's nameserver."""
    server = start_nameserver(java, homes("java-nameserver"))
    yield server
    server.discard()


@pytest.fixture(scope="module")
def own_nameserver(java: Java, homes: Homes) -> Iterator[str]:
    """The address of a RocketMQ nameserver that knows no brokers but those of one test module."""
    server = start_nameserver(java, homes("own-nameserver"))
    yield server.address
    server.discard()


# RocketMQ's brokers live for one module: an idle one looks for new records each millisecond, which costs in a minute
# more processor time than a start.


@pytest.fixture(scope="module")
def java_system(java: Java, java_nameserver: JavaServer, homes: Homes) -> Iterator[System]:
    """RocketMQ's broker at RocketMQ's nameserver."""
    broker = start_broker(java, homes("java-broker"), java_nameserver.address, enablePropertyFilter="true")
    yield System("java", java_nameserver.address, broker.address)
    broker.discard()


@pytest.fixture(scope="module")
def java5_system(java5: Java, homes: Homes) -> Iterator[System]:
    """RocketMQ's 5.3.3 broker and nameserver."""
    nameserver = start_nameserver(java5, homes("java5-nameserver"))
    try:
        broker = start_broker(java5, homes("java5-broker"), nameserver.address, enablePropertyFilter="true")
        yield System("java", nameserver.address, broker.address)
        broker.discard()
    finally:
        nameserver.discard()


@pytest.fixture(scope="session")
def gantry(lasting_homes: Homes, servers: ExitStack) -> System:
    """Our nameserver and broker as one process, with default settings except for how late the disk may be."""
    home = lasting_homes("gantry")
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ("serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver)
    child = servers.enter_context(gantrymq_child((*serve, *LATE_DISK), home / "gantry.err"))
    child.wait_line(lambda line: line.startswith("ready"))
    return System("gantrymq", nameserver, broker)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session for all brokers."""
    with run_spark() as running:
        yield running


@pytest.fixture(scope="module", params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> System:
    """The system under test: ours, unless the oracle is requested."""
    chosen: System = request.getfixturevalue("java_system" if request.param == "java" else "gantry")
    return chosen


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Topic and group names of this test alone, on servers that many tests share; a second attempt has others."""
    attempt = getattr(request.node, "execution_count", 1)  # of pytest-rerunfailures
    again = f"again{attempt}-" if attempt > 1 else ""
    allowed = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    # tests of two clients may have the same name, and a long name is cut
    unique = zlib.crc32(request.node.nodeid.encode())
    return lambda kind: f"{kind}-{again}{unique:08x}-{allowed}"[:120]
