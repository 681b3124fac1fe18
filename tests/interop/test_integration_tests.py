"""RocketMQ's own integration tests of TLS, as Maven Central has them compiled, with the clients of each release.

``TLS_IT`` sends and receives over TLS; in ``TLS_Mix_IT`` only the consumer, in ``TLS_Mix2_IT`` only the producer does.
The classes in ``tests/interop/apache`` point them at our nameserver and broker, which have RocketMQ's test mode.

RocketMQ 5.3.3 does not publish its tests: they are compiled from its sources, in the folder that
``GANTRYMQ_ROCKETMQ_SOURCE`` names (``git clone --branch rocketmq-all-5.3.3 https://github.com/apache/rocketmq``). They
need three brokers.
"""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest

import gantrymq.sync
from support.foreign import Java, ToolMissing, find_integration_tests
from support.processes import free_ports, gantrymq_child

pytestmark = [pytest.mark.interop, pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(240)]

Homes = Callable[[str], Path]
TESTS = ("TLS_IT", "TLS_Mix_IT", "TLS_Mix2_IT")
SENT = 16
"""Messages of each test."""
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Names of the tests' topics."""


TESTS_OF_5: Final = ("TlsIT", "TlsMixIT", "TlsMix2IT")
BASE_OF_5: Final = Path(__file__).parent / "apache5"
VARIABLE_OF_5: Final = "GANTRYMQ_ROCKETMQ_SOURCE"


def run_tests(java: Java, home: Path, nameserver: str, broker: str, names: Sequence[str] = TESTS) -> str:
    """JUnit's output about the tests."""
    properties = {
        "gantrymq.nameserver.port": nameserver.rpartition(":")[2],
        "gantrymq.broker": broker,
        "gantrymq.cluster": "DefaultCluster",
    }
    options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", *(f"-D{name}={value}" for name, value in properties.items()))
    tests = (f"org.apache.rocketmq.test.tls.{name}" for name in names)
    command = java.command(home, "org.junit.runner.JUnitCore", *tests, options=options)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    return done.stdout + done.stderr


@pytest.mark.parametrize("release", ["java", "java5"])
def test_rocketmqs_integration_tests_of_tls_pass(
    request: pytest.FixtureRequest, homes: Homes, tmp_path: Path, release: str
) -> None:
    try:
        java = find_integration_tests(request.getfixturevalue(release), Path(__file__).parent / "apache")
    except ToolMissing as missing:
        pytest.skip(str(missing))
    broker, nameserver, metrics = (f"127.0.0.1:{port}" for port in free_ports(3))
    arguments = ["serve", "--data", str(tmp_path / "data"), "--listen", broker, "--nameserver-listen", nameserver]
    with served(arguments, tmp_path, homes("serve"), {"plugin.metrics.listen": metrics}):
        report = run_tests(java, homes("tests"), nameserver, "broker-tls")
        assert "OK (3 tests)" in report, report
        check_what_was_sent(nameserver, metrics)


@pytest.mark.needs_variable(VARIABLE_OF_5)
def test_rocketmq_5s_integration_tests_of_tls_pass(java5: Java, homes: Homes, tmp_path: Path) -> None:
    try:
        libraries = find_integration_tests(java5, Path(__file__).parent / "apache").cache / "lib"
    except ToolMissing as missing:
        pytest.skip(str(missing))
    java = compiled(java5, libraries, tmp_path / "classes")
    (nameserver,) = (f"127.0.0.1:{port}" for port in free_ports())
    (base,) = free_ports(around=(-2, 0, 1, 3, 8, 10, 11, 13, 18, 20, 21, 23))
    arguments = ["serve", "--processes", "3", "--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{base}",
                 "--nameserver-listen", nameserver]  # fmt: skip
    settings = {"plugin.http.listen": f"127.0.0.1:{base + 3}", "plugin.metrics.listen": f"127.0.0.1:{base + 1}"}
    with served(arguments, tmp_path, homes("serve"), settings):
        report = run_tests(java, homes("tests"), nameserver, "broker-tls", TESTS_OF_5)
        assert "OK (3 tests)" in report, report
        check_what_was_sent(nameserver, settings["plugin.metrics.listen"])


@contextmanager
def served(arguments: Sequence[str], folder: Path, log: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Our servers in RocketMQ's test mode of TLS, permissive as RocketMQ's own servers are."""
    properties = folder / "tls.properties"
    properties.write_text("tls.test.mode.enable=true\ntls.server.mode=permissive\n")
    given = {
        "broker.name": "broker-tls", "plugin.tls.properties": properties, "plugin.tls.pages": "plain", **settings,
    }  # fmt: skip
    options = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    with gantrymq_child([*arguments, "--enable", "tls", "--enable", "metrics", *options], log) as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield


def check_what_was_sent(nameserver: str, metrics: str) -> None:
    """The tests also pass if nothing is sent, or nothing over TLS."""
    with gantrymq.sync.connect(nameserver) as client:
        topics = [topic for topic in client.admin.topics() if UUID.fullmatch(topic)]
        counts = [sum(map(client.admin.max_offset, client.admin.queues(topic))) for topic in topics]
    assert counts == [SENT] * len(TESTS)
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as page:
        text = page.read().decode()
    handshakes = re.findall(r'^gantrymq_tls_handshakes_total{.*result="ok".*} (\d+)', text, re.MULTILINE)
    assert handshakes, text
    assert sum(map(int, handshakes)) >= 4, "two clients of the first test, and one of each other"


def compiled(java: Java, libraries: Path, target: Path) -> Java:
    """``java`` with RocketMQ's tests, of the folder that ``VARIABLE_OF_5`` names, before the jars of its release."""
    folders = [
        BASE_OF_5,
        *(Path(os.environ[VARIABLE_OF_5]) / "test" / "src" / kind / "java" for kind in ("main", "test")),
    ]
    others = [jar for jar in libraries.glob("*.jar") if not jar.name.startswith("rocketmq-")]
    path = os.pathsep.join(map(str, (target, *sorted((java.cache / "lib").glob("*.jar")), *sorted(others))))
    package = Path("org/apache/rocketmq/test")
    sources = [folders[0] / package / "base" / "IntegrationTestBase.java",
               *(folders[2] / package / "tls" / f"{name}.java" for name in TESTS_OF_5)]  # fmt: skip
    target.mkdir()
    command = ["javac", "-nowarn", "-proc:none", "-d", target, "-cp", path, "-sourcepath",
               os.pathsep.join(map(str, folders)), *sources]  # fmt: skip
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=120)
    found = attrs.evolve(java, cache=target, common=("-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"))
    found.class_path.write_text(f'-cp "{path}"\n')
    return found
