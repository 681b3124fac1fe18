"""The histogram of requests counts all and times some, and peers cannot add series."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.kernel.metrics import Distribution, Metrics
from gantrymq.plugins.metrics import requests
from gantrymq.plugins.metrics.requests import NAME, RequestTimes
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio

PLUGIN = "gantrymq.plugins.metrics:MetricsPlugin"


def metered(folder: Path, **settings: str) -> Any:
    given = {f"plugin.metrics.{name}": text for name, text in settings.items()}
    return make_broker(folder, settings={"plugin.metrics.listen": "127.0.0.1:0"} | given, enable=[PLUGIN])


def totals(times: RequestTimes) -> dict[tuple[str, ...], int]:
    """The number of requests by request code, response code, whether held, and result."""
    metrics = Metrics(1000)
    times.report(metrics)
    found = {}
    for (protocol, *labels), series in metrics.families[NAME].series.items():
        assert protocol == "remoting"
        assert isinstance(series, Distribution)
        found[tuple(labels)] = series.buckets[-1][1]
    return found


async def test_requests_are_counted_by_codes_and_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "TIMED_A_SECOND", 1e9)
    async with run_broker(metered(tmp_path)) as broker, open_channel(broker.address) as channel:
        for _ in range(3):
            assert (await channel.call(send("T", b"x"), 10)).code == 0
        assert (await channel.call(pull("T", 0, 0), 10)).code == 0
        lite = pull("T", 0, 3, suspend_ms=20_000)
        lite.code = RequestCode.LITE_PULL_MESSAGE
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.call, pull("T", 0, 3, suspend_ms=20_000), 20)
            nursery.start_soon(channel.call, lite, 20)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert (await channel.call(send("T", b"x"), 10)).code == 0
        for code in (7001, 7002):
            assert (await channel.call(Command(code), 10)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await channel.call(Command(RequestCode.GET_ALL_TOPIC_CONFIG), 10)
        (plugin,) = (info.plugin for info in broker.manager.plugins if info.name == "metrics")
        assert totals(plugin._requests) == {
            ("send_message_v2", "success", "false", "success"): 4,
            ("pull_message", "success", "false", "success"): 1,
            ("pull_message", "success", "true", "success"): 1,
            ("lite_pull_message", "success", "true", "success"): 1,
            ("others", "request_code_not_supported", "false", "success"): 2,
            ("get_all_topic_config", "success", "false", "success"): 1,
        }
        assert not plugin._requests._pulls


async def test_a_timed_request_stands_for_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "TIMED_A_SECOND", 0.001)
    async with run_broker(metered(tmp_path)) as broker, open_channel(broker.address) as channel:
        (plugin,) = (info.plugin for info in broker.manager.plugins if info.name == "metrics")
        for _ in range(10):
            await channel.call(send("T", b"x"), 10)
        assert list(totals(plugin._requests).values()) == [1]
        plugin._requests._next.clear()
        await channel.call(send("T", b"x"), 10)
        assert list(totals(plugin._requests).values()) == [11]


async def test_refused_requests_are_neither_counted_nor_kept() -> None:
    now = 0.0
    times = RequestTimes(lambda: now)
    times.serve([RequestCode.HEART_BEAT])
    batch: Any = SimpleNamespace(
        requests=[SimpleNamespace(code=code) for code in (RequestCode.HEART_BEAT, *range(7000, 7100))],
        refusals=dict.fromkeys(range(101), (1, "no permission")),
        live=[],
    )
    for _ in range(3):
        times.observe(batch)
    assert not times._passed
    answers: list[Any] = []
    request = SimpleNamespace(
        code=RequestCode.HEART_BEAT,
        connection=SimpleNamespace(id=1),
        command=SimpleNamespace(opaque=1),
        is_oneway=False,
    )
    batch = SimpleNamespace(
        requests=[request], refusals={}, live=[0], observe=lambda row, answered: answers.append(answered)
    )
    times.observe(batch)
    answers[0](ResponseCode.SUCCESS, None)
    assert totals(times) == {("heart_beat", "success", "false", "success"): 1}


async def test_without_the_setting_no_request_is_timed(tmp_path: Path) -> None:
    async with run_broker(metered(tmp_path, request_times="false")) as broker, open_channel(broker.address) as channel:
        await channel.call(send("T", b"x"), 10)
        (plugin,) = (info.plugin for info in broker.manager.plugins if info.name == "metrics")
        assert plugin._requests is None
        assert NAME not in (await plugin.render("text/plain")).body.decode()
