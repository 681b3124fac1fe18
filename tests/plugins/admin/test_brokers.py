"""The broker tells how it does and how it is set; what may change while it runs is a short list."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.kernel import hookimpl
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.services import Retention, TopicTable
from gantrymq.remoting.bodies import KVTable
from gantrymq.remoting.javaproperties import read_properties

pytestmark = pytest.mark.trio


async def settings(bench: Any) -> dict[str, str]:
    return read_properties((await bench.ask(26)).body)


async def test_how_the_broker_does(bench: Any) -> None:
    table = KVTable.from_bytes((await bench.ask(28)).body).table
    log = bench.broker.log
    assert table["commitLogMaxOffset"] == str(log.end)
    assert table["earliestMessageTimeStamp"] == str(log.read_record(0).store_timestamp)
    assert (table["brokerVersion"], table["brokerVersionDesc"]) == ("407", "V4_9_7")
    assert 0 < float(table["commitLogDiskRatio"]) <= 1
    assert table["msgPutTotalTodayNow"] == "4"
    assert table["dispatchBehindBytes"] == "0"


class Telling:
    """A plugin that says something."""

    name = "telling"

    @hookimpl
    def runtime_info(self) -> dict[str, str]:
        return {"told": "yes"}


class Failing:
    """A plugin that fails to."""

    name = "failing"

    @hookimpl
    def runtime_info(self) -> dict[str, str]:
        raise RuntimeError("no")


async def test_a_plugin_that_fails_costs_its_part_of_the_answer(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = PluginManager([("a", Failing()), ("b", Telling())])
    monkeypatch.setattr(bench.broker, "manager", manager)
    table = KVTable.from_bytes((await bench.ask(28)).body).table
    assert (table["told"], table["brokerVersion"]) == ("yes", "407")


async def test_settings_have_rocketmqs_names_and_our_own(bench: Any) -> None:
    found = await settings(bench)
    assert (found["brokerName"], found["broker.name"]) == ("broker-a", "broker-a")
    assert (found["maxMessageSize"], found["store.max_message_bytes"]) == ("4194304", "4 MiB")
    assert (found["flushDiskType"], found["brokerRole"]) == ("SYNC_FLUSH", "ASYNC_MASTER")
    assert found["fileReservedTime"] == "72"
    assert found["messageDelayLevel"].startswith("1s 5s 10s")


@pytest.mark.parametrize("name", ["autoCreateTopicEnable", "plugin.topics.auto_create"])
async def test_a_setting_on_the_list_is_in_force_at_once(bench: Any, name: str) -> None:
    topics = bench.broker.services.get(TopicTable)
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
        (b"plugin.topics.max_topics=1", "cannot be changed"), (b"=x", "cannot be changed"),
        (b"defaultTopicQueueNums=0", "allowed: 1 to 1024"), (b"defaultTopicQueueNums=many", "whole number"),
        (b"autoCreateTopicEnable=perhaps", "true or false"), (b"a=\\u12", "string2Properties error"),
        (b"defaultTopicQueueNums=5\nbrokerName=evil", "cannot be changed"), (b"x" * 70_000, "65536 are taken"),
    ],
)  # fmt: skip
async def test_everything_else_is_refused_and_nothing_changes(bench: Any, body: bytes, said: str) -> None:
    before = await settings(bench)
    answer = await bench.ask(25, body=body)
    assert (answer.code, said in answer.remark) == (1, True)
    assert len(answer.remark) < 500
    assert await settings(bench) == before


async def test_nothing_to_change_is_no_change(bench: Any) -> None:
    version = (await bench.ask(26)).ext["version"]
    assert (await bench.ask(25)).code == 0
    assert (await bench.ask(26)).ext["version"] == version


async def test_deletion_is_asked_of_who_deletes(bench: Any) -> None:
    assert bench.broker.services.find(Retention) is not None
    assert (await bench.ask(329)).code == 0
