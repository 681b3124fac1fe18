"""Fixtures: a real broker with messages, and scripted clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from gantrymq.kernel.broker import Broker
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import send

MESSAGES = 4
ASK_S = 10.0

OnRequest = Callable[[Command], Awaitable[Command | None]]


@attrs.define
class Bench:
    """A broker with ``MESSAGES`` messages in queue 0 of the topic "orders", which has two queues."""

    broker: Broker
    channel: Channel
    ids: list[str] = attrs.field(factory=list)

    async def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Command:
        ext = None if fields is None else {name: str(value) for name, value in fields.items()}
        return await self.channel.call(Command(code, ext, body), ASK_S)

    async def commit(self, offset: int, group: str = "readers", queue_id: int = 0) -> None:
        fields = {"consumerGroup": group, "topic": "orders", "queueId": queue_id, "commitOffset": offset}
        assert (await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == ResponseCode.SUCCESS

    @asynccontextmanager
    async def client(
        self, on_request: OnRequest, client_id: str = "c1", *, version: int = 407, topic: str = "orders"
    ) -> AsyncIterator[Channel]:
        """A member of the group "readers" that answers the broker by ``on_request``."""
        subscriptions = [SubscriptionData.for_tags(topic)]
        data = HeartbeatData(
            client_id, consumer_data_set=[ConsumerData("readers", subscription_data_set=subscriptions)]
        )
        async with open_channel(self.broker.address, on_request) as channel:
            beat = Command(RequestCode.HEART_BEAT, body=data.to_bytes(), version=version)
            assert (await channel.call(beat, ASK_S)).code == ResponseCode.SUCCESS
            yield channel


@pytest.fixture
def client_timeout() -> str:
    """How long the broker waits for the response of a client; tests may parametrize it."""
    return "10s"


@pytest.fixture
def broker_settings() -> dict[str, str]:
    """The broker's further settings; tests may parametrize them."""
    return {}


@pytest.fixture
async def bench(tmp_path: Path, client_timeout: str, broker_settings: dict[str, str]) -> AsyncIterator[Bench]:
    """See :class:`Bench`."""
    given = {"plugin__admin__client_timeout": client_timeout, **broker_settings}
    async with broker_and_channel(tmp_path, **given) as (broker, channel):
        made = Bench(broker, channel)
        for number in range(MESSAGES):
            answer = await channel.call(send("orders", b"body %d" % number, queues=2), ASK_S)
            made.ids.append((answer.ext or {})["msgId"])
        yield made
