"""The hook ``dispatch`` during recovery can read the log and cannot append."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.errors import PluginError, StartError
from gantrymq.kernel.store.reading import read_many
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.interfaces import TopicConfig, TopicTable
from gantrymq.testing.fixtures import StartPluginBroker
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.plugin_broker import PluginBroker
from gantrymq.testing.tinystore import batch_of, open_store, read_queue

ASYNC = {"plugin.flush.mode": "async"}


def send(running: PluginBroker, *bodies: bytes) -> None:
    with running.client.producer() as producer:
        for body in bodies:
            producer.send("orders", body)


def read_all(running: PluginBroker, count: int) -> list[bytes]:
    with running.client.consumer("orders", "readers", start="first") as consumer:
        return sorted(next(consumer).body for _ in range(count))


class Bodies:
    """Reads the bodies of dispatched messages as they come."""

    name = "bodies"

    def __init__(self) -> None:
        self.seen: dict[bool, list[bytes]] = {False: [], True: []}
        self.scanned: list[bytes] = []

    @hookimpl
    def configure(self, broker: Any) -> None:
        self._broker = broker

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        log = self._broker.log
        for offset, topic in zip(batch.offsets, batch.topics, strict=True):
            if topic == "orders":
                self.seen[batch.replay].append(log.read_record(offset).body)
        if batch.replay:
            together = read_many(log, batch.offsets)
            assert all(record is not None for record in together)
            scanned = [at for part in log.scan(log.min_offset, log.end) for at in part.offsets]
            assert scanned[-len(batch) :] == batch.offsets


def test_a_plugin_reads_the_bodies_of_replayed_messages(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(Bodies, settings=ASYNC)
    send(running, b"0", b"1" * 3000, b"2")
    running.restart(killed=True)
    assert running.plugin.seen[False] == []
    assert sorted(running.plugin.seen[True]) == [b"0", b"1" * 3000, b"2"]


class Alerts:
    """Appends messages in the hook ``at``: in ``dispatch`` one for each of the topic ``orders``, also in a replay."""

    name = "alerts"
    at = "dispatch"

    @hookimpl
    def configure(self, broker: Any) -> None:
        self._broker = broker
        if self.at == "configure":
            self.alert()

    @hookimpl
    def recovered(self) -> None:
        if self.at == "recovered":
            self.alert()

    @hookimpl
    def register_processors(self, broker: Any) -> dict[int, Any]:
        broker.registry.get(TopicTable).ensure(TopicConfig("alerts", 1, 1))
        return {}

    @hookimpl
    def register_ack_gates(self) -> list[Any]:
        if self.at == "register_ack_gates":
            self.alert()
        return []

    @hookimpl
    def started(self) -> None:
        if self.at == "started":
            self.alert()

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        if self.at == "dispatch":
            for _ in range(batch.topics.count("orders")):
                self.alert()

    def alert(self) -> None:
        batch = AppendBatch()
        batch.add("alerts", 0, b"alert", b"")
        self._broker.append(batch)


class Silent(Alerts):
    """Appends nothing."""

    at = ""


class StatefulAlerts(Alerts):
    """The kernel replays the log to it after the recovery."""

    @hookimpl
    def load_state(self) -> bool:
        return True

    @hookimpl
    def save_state(self) -> bytes:
        return b""


@pytest.mark.parametrize("disable", [[], ["flowcontrol"]], ids=["all plugins", "without flowcontrol"])
@pytest.mark.parametrize("plugin", [Alerts, StatefulAlerts])
def test_an_append_in_a_replay_is_refused_and_changes_nothing(
    plugin_broker: StartPluginBroker, plugin: type[Alerts], disable: list[str]
) -> None:
    running = plugin_broker(Silent, settings=ASYNC, disable=disable)
    send(running, b"0", b"1")
    reason = r"plugin 'alerts': dispatch failed: RuntimeError\(.* not while batch.replay is set"
    with pytest.RaisesGroup(pytest.RaisesExc(PluginError, match=reason), flatten_subgroups=True):
        running.restart(killed=True, plugins=[plugin])
    running.restart(plugins=[])
    assert read_all(running, 2) == [b"0", b"1"]
    assert running.cluster.broker.store.recovered.end == running.cluster.broker.log.end


@pytest.mark.parametrize("hook", ["configure", "recovered", "register_ack_gates"])
def test_an_append_before_the_broker_has_started_is_refused_and_changes_nothing(
    plugin_broker: StartPluginBroker, hook: str
) -> None:
    running = plugin_broker(Silent, settings=ASYNC)
    send(running, b"0", b"1")
    end = running.cluster.broker.log.end
    with pytest.raises(StartError, match=f"plugin 'alerts': {hook} failed: RuntimeError.* from the hook 'started' on"):
        running.restart(killed=True, plugins=[type("Early", (Alerts,), {"at": hook})])
    running.restart(plugins=[])
    assert read_all(running, 2) == [b"0", b"1"]
    assert running.cluster.broker.log.end == end


def test_a_plugin_appends_from_started_on(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(type("AtStart", (Alerts,), {"at": "started"}), settings=ASYNC)
    with running.client.consumer("alerts", "readers", start="first") as consumer:
        assert next(consumer).body == b"alert"


def test_the_log_refuses_appends_until_its_end_is_known() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    store.append(batch_of([b"a", b"b"]))
    store.flush()
    found = env.kill()
    log = Store(found, store.root, store.config).log
    log.open()
    with pytest.raises(RuntimeError, match="recover the store first"):
        log.append(batch_of([b"c"]))
    with pytest.raises(RuntimeError, match="recover the store first"):
        log.append_encoded(0, b"")
    log.close()
    again, _, _ = open_store(found)
    assert list(read_queue(again).values()) == [b"a", b"b"]
    again.append(batch_of([b"c"]))
