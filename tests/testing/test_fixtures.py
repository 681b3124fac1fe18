"""The pytest fixtures for users, run as a project of its own in a separate process."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gantrymq.kernel.errors import StartError
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing import harness
from gantrymq.testing.harness import cluster_in_thread
from support.foreign import ask

ROUND_TRIP = """
import pytest

seen = []

@pytest.mark.parametrize("number", [1, 2])
def test_round_trip(gantry_broker, gantry_client, gantry_topic, number):
    with gantry_client.producer() as producer:
        producer.send(gantry_topic, b"%d" % number)
    with gantry_client.consumer(gantry_topic, "readers", start="first") as consumer:
        message = next(iter(consumer))
        message.ack()
    assert message.body == b"%d" % number
    seen.append((gantry_topic, gantry_broker))

def test_each_test_has_its_topic_on_the_shared_broker():
    (first, broker), (second, same) = seen
    assert first != second and first.startswith("test_round_trip-1") and broker is same
"""
ADDRESS = """
def test_address(gantry_broker):
    print("at", gantry_broker.address)
"""

RESTARTS = """
import pytest
import gantrymq

def test_restarts(gantry_broker, gantry_client, gantry_topic, gantry_group):
    with gantry_client.producer(timeout=0.5) as producer:
        producer.send(gantry_topic, b"1")
        with pytest.raises(gantrymq.GantryError), gantry_broker.stopped():
            producer.send(gantry_topic, b"2")
        gantry_broker.restart()
        gantry_broker.restart(killed=True)
        producer.send(gantry_topic, b"3")
    with gantry_client.consumer(gantry_topic, gantry_group, start="first") as consumer:
        assert sorted(next(consumer).body for _ in range(2)) == [b"1", b"3"]
"""

OTHER_SYSTEM = """
from types import SimpleNamespace
from gantrymq.testing import fixtures

fixtures.sys = SimpleNamespace(platform="darwin")

def test_client(gantry_client):
    pass

def test_plugin(plugin_broker):
    pass
"""

RETRIES = """
import time

def test_one_retries(gantry_client, gantry_topic, gantry_group):
    with gantry_client.producer() as producer:
        producer.send(gantry_topic, b"of the first test")
    with gantry_client.consumer(gantry_topic, gantry_group, start="first") as consumer:
        next(consumer).retry()

def test_another_gets_only_its_own(gantry_client, gantry_topic, gantry_group):
    time.sleep(3)
    with gantry_client.consumer(gantry_topic, gantry_group, start="first") as consumer:
        with gantry_client.producer() as producer:
            producer.send(gantry_topic, b"of the second test")
        bodies = [next(consumer).body]
        bodies += [message.body for message in consumer.next_batch(timeout=1)]
    assert bodies == [b"of the second test"]
"""

OUTPUT = """
import time
import structlog

def test_output(gantry_client, gantry_topic, gantry_group, capsys):
    with gantry_client.producer() as producer:
        producer.send(gantry_topic, b"1")
    with gantry_client.consumer(gantry_topic, gantry_group, start="first") as consumer:
        next(consumer).ack()
    time.sleep(0.3)
    assert capsys.readouterr() == ("", "")

def test_the_programs_own_lines(gantry_broker, capsys):
    structlog.get_logger("program").info("its line")
    assert "its line" in capsys.readouterr().out

def test_captured_log(gantry_client, gantry_topic, caplog):
    with caplog.at_level("INFO", "gantrymq"):
        gantry_client.admin.create_topic(f"{gantry_topic}-2", queues=1)
    lines = {(record.name, record.levelname) for record in caplog.records if "event='topic_set'" in record.message}
    assert lines == {("gantrymq.topics", "INFO")}
"""

CONFIGURED = """
import pytest
import structlog
from gantrymq.testing.harness import cluster_in_thread

@pytest.mark.parametrize("processor", [None, structlog.dev.ConsoleRenderer()])
def test_configuration(tmp_path, processor):
    with cluster_in_thread(tmp_path / "outer"):
        with cluster_in_thread(tmp_path / "inner"):
            pass
        assert structlog.is_configured()
        if processor is not None:
            structlog.configure(processors=[processor])
    assert structlog.is_configured() == (processor is not None)
    if processor is not None:
        assert structlog.get_config()["processors"] == [processor]
"""


def run(folder: Path, text: str, *arguments: str, ini: str = "") -> subprocess.CompletedProcess[str]:
    """pytest in ``folder`` on a file with this text."""
    (folder / "pytest.ini").write_text("[pytest]\n" + ini)
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_suite_sends_and_receives_with_the_fixtures_only(tmp_path: Path) -> None:
    done = run(tmp_path, ROUND_TRIP, "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_the_same_suite_runs_on_an_existing_cluster(tmp_path: Path) -> None:
    with cluster_in_thread(tmp_path / "data") as cluster:
        done = run(tmp_path, ROUND_TRIP + ADDRESS, "--gantry-nameserver", cluster.nameserver)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"at {cluster.address}\n" in done.stdout
        topics = ask(cluster.address, Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body
    assert topics is not None
    assert topics.count(b'"test_round_trip-') >= 2


@pytest.mark.slow
def test_a_suite_restarts_its_own_broker_only(tmp_path: Path) -> None:
    done = run(tmp_path, RESTARTS, "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    with cluster_in_thread(tmp_path / "data") as cluster:
        done = run(tmp_path, RESTARTS, "-rs", "--gantry-nameserver", cluster.nameserver)
    assert "1 skipped" in done.stdout
    assert "a test cannot stop a broker of --gantry-nameserver" in done.stdout


@pytest.mark.slow
def test_the_fixtures_name_the_system_that_they_need(tmp_path: Path) -> None:
    done = run(tmp_path, OTHER_SYSTEM)
    assert "2 errors" in done.stdout
    advice = "run a broker in a container and pass --gantry-nameserver HOST:PORT"
    assert f"the broker needs Linux: {advice}" in done.stdout
    assert "the broker needs Linux: run these tests in a container" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    with cluster_in_thread(tmp_path / "data") as cluster:
        done = run(tmp_path, OTHER_SYSTEM, "-k", "client", "--gantry-nameserver", cluster.nameserver)
    assert "1 passed" in done.stdout


def test_the_harness_names_the_system_that_it_needs() -> None:
    program = "import sys, attrs, trio; sys.platform = 'darwin'; import gantrymq.testing.harness"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].startswith("ImportError: gantrymq.testing.harness runs a broker, which needs")


@pytest.mark.slow
def test_a_retried_message_comes_to_the_group_of_its_test_only(tmp_path: Path) -> None:
    done = run(tmp_path, RETRIES, ini="gantry_settings = plugin.delay.levels = 1s 1s 1s 1s\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_the_lines_of_the_broker_are_in_the_captured_log(tmp_path: Path) -> None:
    done = run(tmp_path, OUTPUT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_a_configuration_of_structlog_stays(tmp_path: Path) -> None:
    """Alone in its process: any other cluster in it keeps the lines of servers in ``logging``."""
    done = run(tmp_path, CONFIGURED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_the_ini_file_configures_the_broker(tmp_path: Path) -> None:
    text = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.foreign import ask

def test_config(gantry_broker):
    received = ask(gantry_broker.address, Command(RequestCode.GET_BROKER_CONFIG)).body
    assert b"flushDiskType=ASYNC_FLUSH" in received and b"brokerName=tested" in received
    assert b"metricsAddress" in ask(gantry_broker.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO)).body
"""
    settings = ["plugin.flush.mode = async", "broker.name=tested", "plugin.metrics.listen=127.0.0.1:0"]
    ini = "gantry_settings =\n" + "".join(f"  {setting}\n" for setting in settings) + "gantry_enable = metrics\n"
    done = run(tmp_path, text, ini=ini)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ini", "arguments", "says"),
    [
        ("gantry_settings = plugin.flush.mod=async", [], "plugin.flush.mod"),
        ("gantry_settings = nonsense", [], "'nonsense' is not of the form section.key=value"),
        ("", ["--gantry-nameserver", "127.0.0.1:1"], "--gantry-nameserver 127.0.0.1:1: "),
    ],
    ids=["unknown key", "no setting", "nobody there"],
)
def test_wrong_settings_are_one_line_without_our_code(
    tmp_path: Path, ini: str, arguments: list[str], says: str
) -> None:
    done = run(tmp_path, ADDRESS, *arguments, ini=ini)
    assert done.returncode == 1
    assert says in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "harness.py" not in done.stdout


def test_an_interrupt_while_the_cluster_starts_stops_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts = [KeyboardInterrupt()]
    before = set(threading.enumerate())  # other tests have clusters too

    class InterruptedEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if interrupts:
                raise interrupts.pop()
            return super().wait(timeout)

    monkeypatch.setattr(harness, "threading", SimpleNamespace(Event=InterruptedEvent, Thread=threading.Thread))
    with pytest.raises(KeyboardInterrupt), cluster_in_thread(tmp_path / "data"):
        pytest.fail("the interrupt ends the start")
    assert interrupts == []
    assert "gantrymq-cluster" not in [thread.name for thread in threading.enumerate() if thread not in before]


def test_a_cluster_whose_broker_is_not_registered_does_not_start(tmp_path: Path) -> None:
    settings = {"plugin.tls.mode": "enforcing", "plugin.tls.test_mode": "true"}
    with pytest.raises(ExceptionGroup) as caught, cluster_in_thread(tmp_path, enable=["tls"], settings=settings):
        pass
    assert caught.group_contains(StartError, match="is not registered with its nameserver")
    with cluster_in_thread(tmp_path, enable=["tls"], settings={**settings, "plugin.tls.outgoing": "plain"}):
        pass


def test_unused_fixtures_import_nothing_heavy() -> None:
    """pytest imports the module in every run of everybody."""
    heavy = "{'trio', 'structlog', 'gantrymq.kernel', 'gantrymq.client', 'gantrymq.sync'} & set(sys.modules)"
    program = f"import sys, gantrymq.testing.fixtures; print({heavy})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
