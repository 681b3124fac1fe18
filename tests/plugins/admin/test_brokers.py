"""Administrators read the broker's state and settings, and change a short list of settings at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli.loading import ConfigFlags, load
from gantrymq.cli.servers import overridden
from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.config.declarations import BrokerConfig
from gantrymq.kernel.config.sections import Config, build_config
from gantrymq.kernel.config.sources import OVERRIDES_PATH, ConfigError, read_settings
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.plugins.admin.overrides import Overrides
from gantrymq.plugins.admin.settings import ChangeableSettings
from gantrymq.plugins.consume.config import ConsumeConfig
from gantrymq.plugins.interfaces import LiveSettings, Retention, TopicTable
from gantrymq.plugins.retention import RetentionConfig
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.javaproperties import read_properties, write_properties
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.memory_env import MemoryEnv

pytestmark = pytest.mark.trio


async def settings(bench: Any) -> dict[str, str]:
    return read_properties((await bench.ask(26)).body)


async def test_runtime_info_has_the_state_of_the_broker(bench: Any) -> None:
    table = KVTable.from_bytes((await bench.ask(28)).body).table
    log = bench.broker.log
    assert table["commitLogMaxOffset"] == str(log.end)
    assert table["earliestMessageTimeStamp"] == str(log.read_record(0).store_timestamp)
    assert (table["brokerVersion"], table["brokerVersionDesc"]) == ("407", "V4_9_7")
    assert table["brokerActive"] == "true"
    assert 0 < float(table["commitLogDiskRatio"]) <= 1
    assert table["msgPutTotalTodayNow"] == "4"
    assert table["dispatchBehindBytes"] == "0"


class Telling:
    """A plugin that says something."""

    name = "telling"

    @hookimpl
    def runtime_info(self) -> dict[str, str]:
        return {"reported": "yes"}


class Failing:
    """A plugin that fails to."""

    name = "failing"

    @hookimpl
    def runtime_info(self) -> dict[str, str]:
        raise RuntimeError("no")


async def test_a_failing_plugin_omits_only_its_part_of_the_runtime_info(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = PluginManager([("a", Failing()), ("b", Telling())], hookspecs)
    monkeypatch.setattr(bench.broker, "manager", manager)
    table = KVTable.from_bytes((await bench.ask(28)).body).table
    assert (table["reported"], table["brokerVersion"]) == ("yes", "407")


async def test_settings_are_shown_by_rocketmqs_names_and_ours(bench: Any) -> None:
    found = await settings(bench)
    assert (found["brokerName"], found["broker.name"]) == ("broker-a", "broker-a")
    assert (found["maxMessageSize"], found["store.max_message_bytes"]) == ("4194304", "4 MiB")
    assert (found["flushDiskType"], found["brokerRole"]) == ("SYNC_FLUSH", "ASYNC_MASTER")
    assert found["fileReservedTime"] == "72"
    assert found["messageDelayLevel"].startswith("1s 5s 10s")
    names = ("traceTopicEnable", "msgTraceTopicName", "traceOn")
    assert [found[name] for name in names] == ["true", "RMQ_SYS_TRACE_TOPIC", "true"]


@pytest.mark.parametrize("name", ["autoCreateTopicEnable", "plugin.topics.auto_create"])
async def test_a_changeable_setting_takes_effect_at_once(bench: Any, name: str) -> None:
    topics = bench.broker.registry.get(TopicTable)
    before = (await bench.ask(26)).ext["version"]
    assert (await bench.ask(25, body=f"{name}=false\n".encode())).code == 0
    assert topics.get("TBW102") is None
    found = await settings(bench)
    assert (found["autoCreateTopicEnable"], found["plugin.topics.auto_create"]) == ("false", "false")
    assert (await bench.ask(26)).ext["version"] != before
    assert (await bench.ask(25, body=f"{name}=true\ndefaultTopicQueueNums=3".encode())).code == 0
    assert topics.get("TBW102").write_queue_nums == 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"brokerName=evil", "these can: accessMessageInMemoryMaxRatio, autoCreateSubscriptionGroup, "),
        (b"storePathRootDir=/etc", "cannot be changed"), (b"rmqHome=/tmp", "cannot be changed"),
        (b"limits.connections=1", "cannot be changed"), (b"=x", "cannot be changed"),
        (b"defaultTopicQueueNums=0", "allowed: 1 to 1024"), (b"defaultTopicQueueNums=many", "whole number"),
        (b"autoCreateTopicEnable=perhaps", "true or false"), (b"a=\\u12", "string2Properties error"),
        (b"defaultTopicQueueNums=5\nbrokerName=evil", "cannot be changed"), (b"x" * 70_000, "65536 are taken"),
    ],
)  # fmt: skip
async def test_other_settings_are_refused_without_effect(bench: Any, body: bytes, said: str) -> None:
    before = await settings(bench)
    answer = await bench.ask(25, body=body)
    assert (answer.code, said in answer.remark) == (1, True)
    assert len(answer.remark) < 1000
    assert await settings(bench) == before


def typed(config: Config, manager: PluginManager) -> dict[str, Any]:
    """The values of all sections by name."""
    own = {"broker": config.broker, "store": config.store}
    plugins = manager.call_each("config_section", tuple)
    return own | {f"plugin.{name}": config.section(kind) for _, (name, kind) in plugins}


async def test_each_key_of_a_broker_conf_is_shown_by_its_name_as_it_would_be_written(bench: Any) -> None:
    shown, broker = await settings(bench), bench.broker
    names = {place: key.name for place, key in broker.config.rocketmq_keys.items()}
    assert set(names.values()) <= shown.keys()
    written = write_properties({name: shown[name] for name in names.values()})
    again = build_config(read_settings("broker.conf", written), broker.manager)
    assert again.notes == ()
    now, then = typed(broker.config, broker.manager), typed(again, broker.manager)
    different = {(section, key) for section, key in names if getattr(now[section], key) != getattr(then[section], key)}
    assert different == set()


async def test_combined_keys_are_shown(tmp_path: Path) -> None:
    given = {"plugin.flush.mode": "buffered", "broker.advertise": "10.0.0.7:10911", "plugin.ha.listen": "127.0.0.1:0"}
    broker = make_broker(tmp_path, settings=given, enable=["ha"])
    async with run_broker(broker), open_channel(broker.listening) as channel:
        shown = read_properties((await channel.call(Command(RequestCode.GET_BROKER_CONFIG))).body)
    assert (shown["bindAddress"], shown["listenPort"], shown["brokerIP1"]) == ("127.0.0.1", "0", "10.0.0.7")
    assert (shown["flushDiskType"], shown["transientStorePoolEnable"]) == ("ASYNC_FLUSH", "true")
    assert (shown["brokerRole"], shown["haListenPort"]) == ("ASYNC_MASTER", "0")


async def test_an_empty_change_has_no_effect(bench: Any) -> None:
    version = (await bench.ask(26)).ext["version"]
    assert (await bench.ask(25)).code == 0
    assert (await bench.ask(26)).ext["version"] == version


async def test_a_deletion_request_wakes_the_retention_plugin(bench: Any) -> None:
    assert bench.broker.registry.find(Retention) is not None
    assert (await bench.ask(329)).code == 0


TOPIC = {
    "topic": "wide", "defaultTopic": "TBW102", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip
CHANGES = {
    b"fileReservedTime=48": ("plugin.retention", "keep", "48h"),
    b"deleteWhen=02;14": ("plugin.retention", "at", "02;14"),
    b"diskMaxUsedSpaceRatio=60": ("plugin.retention", "disk_reclaim", 60),
    b"osPageCacheBusyTimeOutMills=250": ("plugin.flowcontrol", "busy_after", "250ms"),
    b"notifyConsumerIdsChangedEnable=false": ("plugin.clients", "notify", False),
    b"brokerPermission=4": ("plugin.topics", "broker_permission", "read-only"),
    b"plugin.topics.max_queues=7": ("plugin.topics", "max_queues", 7),
}


async def test_changed_settings_are_stored_for_the_next_start(bench: Any) -> None:
    for body in CHANGES:
        answer = await bench.ask(25, body=body)
        assert answer.code == 0, answer.remark
    assert (await bench.ask(17, fields=TOPIC)).code == 1, "max_queues is in force"
    found = await settings(bench)
    assert (found["osPageCacheBusyTimeOutMills"], found["fileReservedTime"]) == ("250", "48")
    path = f"{bench.broker.root}/{OVERRIDES_PATH}"
    loaded = load(ConfigFlags(data=bench.broker.root))
    rows = {(row.section, row.key): row for row in loaded.config.explain() if row.origin == "override"}
    assert {place: row.value for place, row in rows.items()} == {place[:2]: place[2] for place in CHANGES.values()}
    assert {row.source for row in rows.values()} == {path}
    (line,) = overridden(Broker(loaded.config, loaded.manager, SystemEnv()))
    assert "plugin.flowcontrol.busy_after" in line
    assert path in line


async def test_flags_take_precedence_over_changed_settings_with_a_note(bench: Any) -> None:
    assert (await bench.ask(25, body=b"diskMaxUsedSpaceRatio=60\nfileReservedTime=48")).code == 0
    config = load(ConfigFlags(data=bench.broker.root, sets=["plugin.retention.disk_reclaim=50"])).config
    rows = {row.key: (row.value, row.origin) for row in config.explain() if row.section == "plugin.retention"}
    assert (rows["disk_reclaim"], rows["keep"]) == ((50, "flag"), ("48h", "override"))
    assert [note for note in config.notes if "plugin.retention.disk_reclaim = 60 has no effect: flag" in note]


async def test_earlier_changes_remain_when_one_is_added(bench: Any) -> None:
    assert (await bench.ask(25, body=b"diskMaxUsedSpaceRatio=60")).code == 0
    again = ChangeableSettings(bench.broker)
    again.allow("plugin.retention", bench.broker.config.section(RetentionConfig), ("keep",), lambda config: None)
    again.update(b"fileReservedTime=1")
    assert overridden_keys(bench.broker) == {"disk_reclaim", "keep"}


async def test_a_change_that_cannot_be_stored_is_reported(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench.broker.env, "replace", fails)
    answer = await bench.ask(25, body=b"diskMaxUsedSpaceRatio=60")
    assert answer.code == 1
    assert "lost at the stop" in answer.remark
    assert (await settings(bench))["diskMaxUsedSpaceRatio"] == "60"


def overridden_keys(broker: Broker) -> set[str]:
    return {row.key for row in load(ConfigFlags(data=broker.root)).config.explain() if row.origin == "override"}


async def test_a_line_taken_out_of_the_stored_changes_does_not_come_back(bench: Any) -> None:
    live = bench.broker.registry.get(LiveSettings)
    assert (await bench.ask(25, body=b"fileReservedTime=48")).code == 0
    bench.broker.env.replace(f"{bench.broker.root}/{OVERRIDES_PATH}", b"")
    assert live.reload(load(ConfigFlags(data=bench.broker.root)).config)[0] == ["plugin.retention.keep"]
    assert (await bench.ask(25, body=b"diskMaxUsedSpaceRatio=60")).code == 0
    assert overridden_keys(bench.broker) == {"disk_reclaim"}


@pytest.mark.parametrize(("reloads", "stored"), [(False, {"keep", "disk_reclaim"}), (True, {"disk_reclaim"})])
async def test_a_change_that_could_not_be_stored_is_stored_with_the_next_one_if_in_force(
    reloads: bool, stored: set[str], bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bench.broker.env, "replace", fails)
        assert (await bench.ask(25, body=b"fileReservedTime=48")).code == 1
    if reloads:
        bench.broker.registry.get(LiveSettings).reload(load(ConfigFlags(data=bench.broker.root)).config)
    assert (await bench.ask(25, body=b"diskMaxUsedSpaceRatio=60")).code == 0
    assert overridden_keys(bench.broker) == stored


@pytest.mark.parametrize("text", [b"keep =", b"keep = 1", b"plugin = 1"])
async def test_nothing_changes_while_the_stored_changes_are_unreadable(bench: Any, text: bytes) -> None:
    before = (await settings(bench))["diskMaxUsedSpaceRatio"]
    path = f"{bench.broker.root}/{OVERRIDES_PATH}"
    bench.broker.env.replace(path, text)
    answer = await bench.ask(25, body=b"diskMaxUsedSpaceRatio=60")
    assert (answer.code, f"nothing has changed: {path}: " in answer.remark) == (1, True)
    assert (await settings(bench))["diskMaxUsedSpaceRatio"] == before
    assert bench.broker.env.read_bytes(path) == text


@pytest.mark.parametrize("text", ["keep =", "\udcff"])
async def test_an_unreadable_file_of_changes_stops_the_start(bench: Any, text: str) -> None:
    bench.broker.env.replace(f"{bench.broker.root}/{OVERRIDES_PATH}", text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StartError, match=r"overrides\.toml"):
        ChangeableSettings(bench.broker)
    with pytest.raises(ConfigError, match=r"overrides\.toml"):
        load(ConfigFlags(data=bench.broker.root))


async def test_a_change_that_a_plugin_refuses_changes_nothing(bench: Any) -> None:
    def refuse(_changed: object) -> None:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "not now")

    live, in_force = bench.broker.registry.get(LiveSettings), list[ConsumeConfig]()
    live.allow("plugin.consume", ConsumeConfig(), {"memory_percent"}, in_force.append)
    live.allow("plugin.retention", RetentionConfig(), {"keep"}, refuse)
    before = await bench.ask(26)
    answer = await bench.ask(25, body=b"plugin.consume.memory_percent=20\nfileReservedTime=48")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "not now")
    assert [config.memory_percent for config in in_force] == [20, 40]
    after = await bench.ask(26)
    assert (after.body, after.ext) == (before.body, before.ext)
    assert overridden_keys(bench.broker) == set()


async def test_a_role_does_not_change_if_a_plugin_refuses_another_key_of_the_request(bench: Any) -> None:
    def refuse(_changed: object) -> None:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "not now")

    live, roles = bench.broker.registry.get(LiveSettings), list[BrokerConfig]()
    live.allow("broker", bench.broker.config.broker, {"id"}, roles.append)
    live.allow("plugin.retention", RetentionConfig(), {"keep"}, refuse)
    answer = await bench.ask(25, body=b"brokerId=5\nfileReservedTime=48")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "not now")
    assert roles == []


async def test_a_reload_names_a_changed_secret_and_shows_none(tmp_path: Path) -> None:
    def given(secret: str) -> Broker:
        return make_broker(tmp_path, enable=["exporter"], settings={"plugin.exporter.secret_key": secret})

    settings = ChangeableSettings(given("first secret"))
    assert settings.reload(given("first secret").config) == ([], [])
    changed = given("second secret").config
    assert settings.reload(changed) == ([], ["plugin.exporter.secret_key"])
    assert "second secret" not in repr(changed.explain())


async def test_overrides_with_keys_that_toml_must_quote_are_read_back() -> None:
    overrides = Overrides(MemoryEnv(), "/data")
    changes = {"plugin.my.plugin": {"a key": {"50%": "x", "a.b": "y"}}, "broker": {"insecure": True}}
    overrides.keep({}, changes)
    assert overrides.read() == changes
