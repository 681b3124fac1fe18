"""RocketMQ's own integration tests of TLS, as Maven Central has them compiled, with the clients of each release.

``TLS_IT`` sends and receives over TLS; in ``TLS_Mix_IT`` only the consumer, in ``TLS_Mix2_IT`` only the producer does.
The classes in ``tests/interop/apache`` point them at our nameserver and broker, which have RocketMQ's test mode.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

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
"""What the tests call their topics."""


def run_tests(java: Java, home: Path, nameserver: str, broker: str) -> str:
    """What JUnit prints about the tests."""
    properties = {
        "gantrymq.nameserver.port": nameserver.rpartition(":")[2],
        "gantrymq.broker": broker,
        "gantrymq.cluster": "DefaultCluster",
    }
    options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", *(f"-D{name}={value}" for name, value in properties.items()))
    tests = (f"org.apache.rocketmq.test.tls.{name}" for name in TESTS)
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
    properties = tmp_path / "tls.properties"
    properties.write_text("tls.test.mode.enable=true\ntls.server.mode=permissive\n")  # as with RocketMQ's own servers
    settings = {
        "broker.name": "broker-tls",
        "plugin.metrics.listen": metrics,
        "plugin.tls.properties": properties,
        "plugin.tls.pages": "plain",
    }
    arguments = ["serve", "--data", str(tmp_path / "data"), "--listen", broker, "--nameserver-listen", nameserver,
                 "--enable", "tls", "--enable", "metrics"]  # fmt: skip
    arguments += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with gantrymq_child(arguments, homes("serve")) as child:
        child.wait_line(lambda line: line.startswith("ready"))
        report = run_tests(java, homes("tests"), nameserver, "broker-tls")
        assert "OK (3 tests)" in report, report
        # the tests also pass if nothing is sent, or nothing over TLS
        with gantrymq.sync.connect(nameserver) as client:
            topics = [topic for topic in client.admin.topics() if UUID.fullmatch(topic)]
            counts = [sum(map(client.admin.max_offset, client.admin.queues(topic))) for topic in topics]
        assert counts == [SENT] * len(TESTS)
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as page:
            text = page.read().decode()
        handshakes = re.search(r'^gantrymq_tls_handshakes_total{.*result="ok".*} (\d+)', text, re.MULTILINE)
        assert handshakes, text
        assert int(handshakes[1]) >= 4, "two clients of TLS_IT, and one of each other test"
