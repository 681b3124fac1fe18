"""DESCRIBE_PLUGINS (47002): the plugins of a running broker, errors that they survived, and times of hooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send

pytestmark = pytest.mark.trio


class Busy:
    """Does a little of everything, and some of it wrong."""

    name = "busy"
    version = "3"
    on_error = "skip"

    @hookimpl
    def register_tasks(self) -> list[BackgroundTask]:
        async def fail() -> None:
            raise RuntimeError("no task today")

        return [BackgroundTask("waits", trio.sleep_forever), BackgroundTask("fails", fail)]

    @hookimpl
    def register_processors(self) -> dict[int, Any]:
        return {9002: lambda request: request.command.answer(0), 9001: lambda request: request.command.answer(0)}

    @hookimpl
    def dispatch(self, batch: Any) -> None:
        raise ValueError("no message today")

    @hookimpl
    def persist(self, broker: Any) -> dict[str, bytes]:
        return {f"{broker.root}/config/busy.json": b"{}"}

    @hookimpl
    def collect_metrics(self, metrics: Metrics) -> None:
        metrics.counter("busy_calls_total", "Calls", 7)
        metrics.gauge("busy_topics", "Topics", 1, topic="a")
        metrics.gauge("busy_topics", "Topics", 2, topic="b")


async def describe(channel: Channel, **fields: object) -> Command:
    ext = {name: str(value) for name, value in fields.items()}
    return await channel.call(Command(RequestCode.DESCRIBE_PLUGINS, ext), 10.0)


async def test_a_running_broker_returns_a_plugins_activity_and_errors(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, enable=[Busy], settings={"broker.persist_interval": "10ms"})
    async with run_broker(broker), open_channel(broker.address) as channel:
        for number in range(2):
            assert (await channel.call(send("T", b"%d" % number), 10.0)).code == 0
        with trio.fail_after(10):
            while "busy" not in broker.manager.activity.files:  # noqa: ASYNC110 - the broker's own interval
                await trio.sleep(0.01)
        (found,) = json.loads((await describe(channel, pluginName="busy")).body)["plugins"]
    assert (found["name"], found["version"], found["on_error"]) == ("busy", "3", "skip")
    assert found["tasks"] == {"waits": "running", "fails": "failed"}
    assert found["request_codes"] == [9001, 9002]
    assert found["files"] == [f"{tmp_path}/config/busy.json"]
    assert found["errors"] == {
        "dispatch": {"count": 2, "last": "ValueError: no message today"},
        "task fails": {"count": 1, "last": "RuntimeError: no task today"},
    }
    assert found["metrics"] == {
        "busy_calls_total": {"kind": "counter", "series": 1, "value": 7},
        "busy_topics": {"kind": "gauge", "series": 2, "value": None},
    }
    assert found["hooks"]["dispatch"]["of"] == found["hooks"]["dispatch"]["place"]
    assert (found["hooks"]["dispatch"]["calls"], found["kept_messages_refused"]) == (0, 0)


async def test_hooks_are_timed_on_request(tmp_path: Path) -> None:
    broker = make_broker(tmp_path)
    async with run_broker(broker), open_channel(broker.address) as channel:
        before = json.loads((await describe(channel)).body)
        await channel.call(send("T", b"before"), 10.0)
        assert not before["is_timed"]
        assert json.loads((await describe(channel, measureSeconds=60)).body)["is_timed"]
        for _ in range(3):
            await channel.call(send("T", b"x"), 10.0)
        after = json.loads((await describe(channel)).body)
    assert after["seconds"] > before["seconds"]
    assert {plugin["name"] for plugin in after["plugins"]} >= {"topics", "produce", "admin"}
    assert all("metrics" not in plugin for plugin in after["plugins"])
    hooks = {plugin["name"]: plugin["hooks"] for plugin in after["plugins"]}
    topics = hooks["topics"]["before_append"]
    assert (topics["calls"], topics["rows"]) == (3, 3)
    assert topics["seconds"] > 0
    assert hooks["index"]["dispatch"]["rows"] == 3


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"pluginName": "flsh"}, "no plugin 'flsh' is loaded here; did you mean 'flush'?"),
        ({"measureSeconds": "601"}, "measureSeconds 601: allowed is 1 to 600"),
        ({"measureSeconds": "-1"}, "measureSeconds -1: allowed is 1 to 600"),
    ],
)
async def test_a_wrong_request_is_refused_with_a_reason(tmp_path: Path, fields: dict[str, str], says: str) -> None:
    broker = make_broker(tmp_path)
    async with run_broker(broker), open_channel(broker.address) as channel:
        answer = await describe(channel, **fields)
        assert (answer.code, answer.remark) == (1, says)
