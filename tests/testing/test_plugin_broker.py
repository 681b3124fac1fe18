"""The fixture ``plugin_broker``: a broker with a plugin under test, its restarts, and errors of the plugin."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import number
from gantrymq.kernel.config.sources import ConfigError
from gantrymq.kernel.errors import PluginError, StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import LiveSettings, Replication
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import GantryError
from gantrymq.sync import connect
from gantrymq.testing.fixtures import StartPluginBroker
from gantrymq.testing.harness import cluster_in_thread, run_cluster
from gantrymq.testing.plugin_broker import PluginBroker

pytestmark = pytest.mark.once


@attrs.frozen
class CounterConfig:
    topics: tuple[str, ...] = ()


class Counter:
    name = "counter"

    def __init__(self) -> None:
        self.count = 0

    @hookimpl
    def config_section(self) -> tuple[str, type[CounterConfig]]:
        return "counter", CounterConfig

    @hookimpl
    def configure(self, broker, config) -> None:  # type: ignore[no-untyped-def]
        self.topics = config.section(CounterConfig).topics

    @hookimpl
    def dispatch(self, batch) -> None:  # type: ignore[no-untyped-def]
        self.count += sum(topic in self.topics for topic in batch.topics)

    @hookimpl
    def load_state(self, state) -> None:  # type: ignore[no-untyped-def]
        self.count = int(state.data or b"0")

    @hookimpl
    def save_state(self) -> bytes:
        return b"%d" % self.count


@attrs.frozen
class LimitedConfig:
    limit: int = number(5, 1, 10)


class Limited:
    """Has a setting that can be changed at run time, and restarts the broker for a message of the topic "restart"."""

    name = "limited"

    @hookimpl
    def config_section(self) -> tuple[str, type[LimitedConfig]]:
        return "limited", LimitedConfig

    @hookimpl
    def configure(self, broker, config) -> None:  # type: ignore[no-untyped-def]
        self.broker = broker
        self.section = config.section(LimitedConfig)
        broker.before_listening.append(self.allow_changes)

    async def allow_changes(self) -> None:
        live = self.broker.registry.get(LiveSettings)
        live.allow("plugin.limited", self.section, ["limit"], lambda section: None)

    @hookimpl
    def dispatch(self, batch) -> None:  # type: ignore[no-untyped-def]
        if "restart" in batch.topics and not batch.replay:
            self.broker.restart()


class Blocked:
    """Has a task that waits in a worker thread."""

    name = "blocked"

    def __init__(self) -> None:
        self.release = threading.Event()

    @hookimpl
    def register_tasks(self, broker) -> list[BackgroundTask]:  # type: ignore[no-untyped-def]
        return [BackgroundTask("blocked.waiting", self.wait)]

    async def wait(self) -> None:
        await trio.to_thread.run_sync(self.release.wait, 20)


class Picky:
    name = "picky"

    @hookimpl
    def configure(self) -> None:
        raise StartError("not today: try tomorrow")


class Broken:
    name = "broken"

    @hookimpl
    def before_append(self, batch) -> None:  # type: ignore[no-untyped-def]
        raise RuntimeError("a bug")


SETTINGS = {"plugin.counter.topics": "orders"}


def send(running: PluginBroker, topic: str, count: int) -> None:
    with running.client.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.slow
def test_a_restart_creates_a_new_plugin_object_and_keeps_the_store(
    plugin_broker: StartPluginBroker, killed: bool
) -> None:
    running = plugin_broker(Counter, settings=SETTINGS)
    send(running, "orders", 3)
    first = running.plugin
    running.restart(killed=killed)
    assert running.plugin is not first
    assert running.plugin.count == 3
    send(running, "orders", 2)
    running.restart(killed=killed)
    assert running.plugin.count == 5
    running.restart(settings={"plugin.counter.topics": "others"})
    send(running, "orders", 1)
    with running.client.consumer("orders", "readers", start="first") as consumer:
        bodies = [next(consumer).body for _ in range(6)]
    assert sorted(bodies) == [b"0", b"0", b"0", b"1", b"1", b"2"]
    running.stop()
    assert running.plugin.count == 5


def test_a_kill_replays_unsaved_messages(plugin_broker: StartPluginBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    running = plugin_broker(Counter, settings=SETTINGS)
    send(running, "orders", 3)
    lives = []
    monkeypatch.setattr(Counter, "load_state", hookimpl(lambda self, state: lives.append(state.data)))
    running.restart(killed=True)
    assert lives == [b"0"], "saved before the messages came"
    running.restart()
    assert lives == [b"0", b"3"], "a stop saves"


def test_a_kill_while_the_broker_replaces_a_table_keeps_the_store(
    plugin_broker: StartPluginBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary file that was listed may be gone when its turn to be copied comes."""
    running = plugin_broker(Counter, settings=SETTINGS)
    send(running, "orders", 2)
    copied, list_folder = list[str](), os.scandir

    def with_a_temporary_file(folder: Any) -> Any:
        if isinstance(folder, int) or Path(folder).name != "config":
            return list_folder(folder)
        path = Path(folder, "topics.json.tmp")
        path.touch()
        with list_folder(folder) as entries:
            found = list(entries)
        path.unlink()
        copied.append(str(path))
        return nullcontext(found)

    monkeypatch.setattr(os, "scandir", with_a_temporary_file)
    running.restart(killed=True)
    assert copied
    with running.client.consumer("orders", "readers", start="first") as consumer:
        assert sorted(next(consumer).body for _ in range(2)) == [b"0", b"1"]


def test_two_brokers_run_a_plugin_given_as_object_or_by_name(plugin_broker: StartPluginBroker) -> None:
    counter = Counter()
    running = plugin_broker(counter, "metrics", settings=SETTINGS)
    other = plugin_broker("metrics", disable=["filter"])
    send(running, "orders", 2)
    send(other, "orders", 1)
    assert running.plugin is counter
    running.stop()
    assert counter.count == 2
    loaded = [info.name for info in other.cluster.broker.manager.plugins]
    assert (loaded[-1], "filter" in loaded) == ("metrics", False)
    assert other.plugin.name == "metrics"


@pytest.mark.parametrize("name", ["metrics", "dashboard"])
def test_brokers_at_the_same_time_have_ports_of_their_own(plugin_broker: StartPluginBroker, name: str) -> None:
    pages = {plugin_broker(name).plugin.address for _ in range(2)}
    assert len(pages) == 2


def change_limit(running: PluginBroker, limit: int) -> None:
    async def change() -> int:
        async with open_channel(running.address) as channel:
            body = b"plugin.limited.limit=%d\n" % limit
            return (await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=body))).code

    assert trio.run(change) == 0


@pytest.mark.parametrize("killed", [False, True])
def test_a_restart_keeps_settings_that_were_changed_at_run_time(plugin_broker: StartPluginBroker, killed: bool) -> None:
    running = plugin_broker(Limited)
    change_limit(running, 9)
    running.restart(killed=killed)
    assert running.plugin.section.limit == 9


def test_a_broker_that_requests_a_restart_is_started_again(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(Limited)
    first, address = running.plugin, running.address
    change_limit(running, 7)
    send(running, "orders", 1)
    send(running, "restart", 1)
    end = time.monotonic() + 60
    while running.plugin is first and time.monotonic() < end:
        time.sleep(0.01)
    assert running.plugin.section.limit == 7
    send(running, "orders", 1)
    send(running, "new", 1)  # whose route only a nameserver that knows the broker has
    assert running.address == running.cluster.broker.address == address
    with running.client.consumer("orders", "readers", start="first") as consumer:
        assert [next(consumer).body for _ in range(2)] == [b"0", b"0"]
    running.stop()


@pytest.mark.trio
@pytest.mark.parametrize("settings", [{}, {"plugin.ha.listen": "127.0.0.1:0"}], ids=["default", "any port"])
async def test_a_master_that_requests_a_restart_keeps_its_address_for_slaves(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    async with run_cluster(tmp_path, settings=settings, enable=["ha"]) as cluster:
        first = cluster.broker
        address = first.registry.get(Replication).ha_address
        host, port = parse_address(cluster.address)
        with socket.socket() as neighbour:
            with suppress(OSError):  # it is in use already
                neighbour.bind((host, port + 1))
                neighbour.listen()
            first.restart()
            with trio.fail_after(60):
                while cluster.broker is first:  # noqa: ASYNC110 - the restart tells nobody
                    await trio.sleep(0.01)
        assert cluster.broker.registry.get(Replication).ha_address == address


@pytest.mark.parametrize("killed", [False, True])
def test_a_client_continues_after_a_restart_of_the_broker(tmp_path: Path, killed: bool) -> None:
    with cluster_in_thread(tmp_path / "store") as cluster, connect(cluster.nameserver) as client:
        client.admin.create_topic("orders", queues=1)
        addresses = cluster.nameserver, cluster.address
        with client.producer() as producer, client.consumer("orders", "readers", start="first") as consumer:
            for number in range(3):
                assert producer.send("orders", b"%d" % number).queue_offset == number
                message = next(consumer)
                message.ack()
                assert message.body == b"%d" % number
                first = cluster.broker
                cluster.restart_broker(killed=killed)
                assert cluster.broker is not first
        assert (cluster.nameserver, cluster.address) == addresses


def test_a_client_sends_again_when_the_stopped_broker_is_started(tmp_path: Path) -> None:
    with cluster_in_thread(tmp_path) as cluster, connect(cluster.nameserver) as client:
        with client.producer(timeout=0.5) as producer:
            producer.send("orders", b"1")
            cluster.stop_broker()
            host, port = parse_address(cluster.address)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port))
            with pytest.raises(GantryError):
                producer.send("orders", b"2")
            cluster.start_broker()
            producer.send("orders", b"3")
            with pytest.raises(RuntimeError, match="runs already"):
                cluster.start_broker()


def test_a_client_keeps_each_acknowledged_message_while_the_broker_is_killed(tmp_path: Path) -> None:
    with cluster_in_thread(tmp_path / "store") as cluster, connect(cluster.nameserver) as client:
        client.admin.create_topic("orders", queues=1)
        acknowledged, over = list[bytes](), threading.Event()

        def send() -> None:
            with client.producer() as producer:
                while not over.is_set():
                    body = b"%d" % len(acknowledged)
                    with suppress(GantryError):
                        producer.send("orders", body)
                        acknowledged.append(body)

        sending = threading.Thread(target=send)
        sending.start()
        try:
            for _ in range(3):
                count, end = len(acknowledged), time.monotonic() + 60
                while len(acknowledged) < count + 20 and time.monotonic() < end:
                    time.sleep(0.001)
                cluster.restart_broker(killed=True)
        finally:
            over.set()
            sending.join()
        wanted, bodies = set(acknowledged), set[bytes]()
        with client.consumer("orders", "readers", start="first") as consumer:
            while wanted - bodies:
                batch = consumer.next_batch(timeout=20)
                assert batch, f"lost: {sorted(wanted - bodies)}"
                bodies.update(message.body for message in batch)


def test_a_stopped_broker_that_refuses_to_start_can_be_started_with_other_settings(tmp_path: Path) -> None:
    with cluster_in_thread(tmp_path) as cluster:
        cluster.stop_broker()
        with pytest.raises(StartError, match=r"^not today: try tomorrow$"):
            cluster.start_broker(enable=[Picky])
        with pytest.raises(ConfigError, match=r"plugin\.counter\.topic"):
            cluster.start_broker(enable=[Counter], settings={"plugin.counter.topic": "orders"})
        cluster.start_broker(enable=[])
        cluster.restart_broker()


def test_a_broker_that_any_thread_restarts_or_stops_does_so(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(Counter)
    first = running.cluster.broker
    first.restart()
    end = time.monotonic() + 60
    while running.cluster.broker is first and time.monotonic() < end:
        time.sleep(0.01)
    assert running.cluster.broker is not first
    running.cluster.broker.stop()
    running.cluster.restart_broker()
    send(running, "orders", 1)


def test_methods_of_a_cluster_raise_the_error_that_ended_it(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(Broken)
    with suppress(GantryError), running.client.producer(timeout=0.5) as producer:
        producer.send("orders", b"x")
    for _ in range(2):
        with pytest.raises(BaseExceptionGroup) as failed:
            running.cluster.stop_broker()
        assert failed.group_contains(PluginError, match="plugin 'broken': before_append failed")
    with pytest.raises(BaseExceptionGroup):
        running.stop()
    with pytest.raises(BaseExceptionGroup):
        running.restart()


def test_a_refused_start_is_one_error_with_its_text(plugin_broker: StartPluginBroker) -> None:
    with pytest.raises(StartError) as refused:
        plugin_broker(Picky)
    assert str(refused.value) == "not today: try tomorrow"
    with pytest.raises(ConfigError, match="did you mean 'topics'"):
        plugin_broker(Counter, settings={"plugin.counter.topic": "orders"})
    with pytest.raises(TypeError, match="needs the plugin under test"):
        plugin_broker()


def test_a_fatal_error_of_the_broker_is_raised_by_stop(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(Broken)
    with pytest.raises(GantryError), running.client.producer(timeout=30, retries=0) as producer:
        producer.send("orders", b"x")
    with pytest.raises(BaseExceptionGroup) as failed:
        running.stop()
    assert failed.group_contains(PluginError, match="plugin 'broken': before_append failed")


def test_an_error_of_the_test_names_the_error_that_ended_the_broker(tmp_path: Path) -> None:
    with (
        pytest.raises(GantryError) as failed,
        cluster_in_thread(tmp_path, enable=[Broken]) as cluster,
        connect(cluster.nameserver) as client,
        client.producer(timeout=30, retries=0) as producer,
    ):
        producer.send("orders", b"x")
    notes = failed.value.__notes__
    assert [note.partition(" failed")[0] for note in notes] == [
        "the cluster ended with PluginError: plugin 'broken': before_append"
    ]


def test_a_broker_that_does_not_end_fails_its_test_with_the_names_of_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.testing.harness._END_S", 0.2)
    blocked = Blocked()
    with pytest.raises(RuntimeError, match=r"still run: .*plugin 'blocked': blocked\.waiting"):
        with cluster_in_thread(tmp_path / "one", enable=[blocked]):
            pass
    blocked.release.set()
    blocked = Blocked()
    with pytest.raises(ZeroDivisionError) as failed, cluster_in_thread(tmp_path / "other", enable=[blocked]):
        raise ZeroDivisionError
    blocked.release.set()
    assert "plugin 'blocked': blocked.waiting" in failed.value.__notes__[0]


@pytest.mark.slow
def test_the_store_of_a_killed_broker_is_small(tmp_path: Path) -> None:
    """The files of the index are sparse, and a copy is not."""
    running = PluginBroker(tmp_path, [Counter], settings={**SETTINGS, "plugin.index.flush_interval": "10ms"})
    try:
        with running.client.producer() as producer:
            producer.send("orders", b"x", keys="k")
        end = time.monotonic() + 60
        while not list(tmp_path.glob("*/index/*")) and time.monotonic() < end:
            time.sleep(0.01)
        assert [file.stat().st_size < 1_000_000 for file in tmp_path.glob("*/index/*")] == [True]
        running.restart(killed=True)
        assert running.client.admin.find("orders", "k")
    finally:
        running.stop()
