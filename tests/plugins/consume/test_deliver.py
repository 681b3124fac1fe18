"""Plugins that change messages on delivery: the next offset of consumers, and both twins."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.kernel import hookimpl
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.delivery import DeliverBatch, Deliveries
from gantrymq.plugins.interfaces import Statistics
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Broker]:
    """Makes a broker with a plugin whose ``before_deliver`` calls ``change``."""

    def make(change: Callable[[DeliverBatch], Any], **settings: str) -> Broker:
        class Changer:
            name = "changer"

            @hookimpl
            def before_deliver(self, batch: DeliverBatch) -> None:
                change(batch)

        module = types.ModuleType("gantrymq_changer")
        module.Changer = Changer  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return make_broker(tmp_path, settings=settings, enable=["gantrymq_changer:Changer"])

    return make


async def fill(channel: Channel, *bodies: bytes) -> None:
    for body in bodies:
        assert (await channel.call(send("T", body, properties="TAGS\x01a"))).code == 0


async def pulled(channel: Channel, offset: int = 0, **options: Any) -> tuple[int, list[bytes], int]:
    """Code, bodies, and where to go on."""
    answer = await channel.call(pull("T", offset=offset, **options))
    assert answer.ext is not None
    found = [record.body for record in decode_records(answer.body)]
    return answer.code, found, int(answer.ext["nextBeginOffset"])


async def test_no_delivery_hook_is_called_without_a_plugin_that_has_it(tmp_path: Path) -> None:
    assert make_broker(tmp_path).registry.find(Deliveries) is None


@pytest.mark.parametrize("expression", ["*", "a"])
async def test_a_withheld_message_is_gone_past_and_changes_are_seen(
    brokers: Callable[..., Broker], expression: str
) -> None:
    groups: list[str | None] = []

    def change(batch: DeliverBatch) -> None:
        groups.append(batch.group)
        for row in batch.live:
            if batch.bodies[row].startswith(b"hidden"):
                batch.withhold(row)
            else:
                batch.bodies[row] = batch.bodies[row].upper()

    async with run_broker(brokers(change)) as running, open_channel(running.address) as channel:
        await fill(channel, b"a", b"hidden", b"b", b"hidden", b"hidden")
        assert await pulled(channel, expression=expression) == (0, [b"A", b"B"], 5)
        assert await pulled(channel, 1, limit=2, expression=expression) == (0, [b"B"], 3)
        retry = ResponseCode.PULL_RETRY_IMMEDIATELY
        assert await pulled(channel, 3, expression=expression) == (retry, [], 5), "all withheld: ask again behind them"
        assert set(groups) == {"consumers"}
        statistics: Any = running.registry.get(Statistics)
        assert statistics.consume_tps("consumers", "T") >= 0


async def test_a_failing_plugin_stops_consumers_before_the_message_and_not_others(
    brokers: Callable[..., Broker],
) -> None:
    def change(batch: DeliverBatch) -> None:
        for row in batch.live:
            if batch.bodies[row] == b"bad":
                raise ValueError("a bad body")

    async with run_broker(brokers(change)) as running, open_channel(running.address) as channel:
        await fill(channel, b"a", b"b", b"bad", b"c")
        assert await pulled(channel) == (0, [b"a", b"b"], 2)
        answer = await channel.call(pull("T", offset=2))
        assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
        assert answer.remark == "the plugin 'changer' failed to deliver the message; the broker's log has the reason"
        assert await pulled(channel, 3) == (0, [b"c"], 4)


async def test_messages_that_grow_are_spread_over_answers(
    brokers: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.kernel.delivery.RESPONSE_MAX_BYTES", 2500)

    def change(batch: DeliverBatch) -> None:
        batch.bodies[:] = [body * 1000 for body in batch.bodies]

    async with run_broker(brokers(change)) as running, open_channel(running.address) as channel:
        await fill(channel, b"a", b"b", b"c")
        assert await pulled(channel) == (0, [b"a" * 1000, b"b" * 1000], 2)
        assert await pulled(channel, 2) == (0, [b"c" * 1000], 3)
