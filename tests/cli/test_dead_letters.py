"""Dead letters are replayed to the brokers that have a master."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.client.errors import BrokerError, NoRoute
from gantrymq.operations.dead_letters import _sender_to_group
from gantrymq.plugins.interfaces import GroupTable
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import BrokerData, TopicRouteData
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import broker_and_channel

pytestmark = pytest.mark.trio

LETTER: Any = SimpleNamespace(properties={}, flag=0, body=b"x")


class FakeAdmin:
    """Two brokers with two queues each of the retry topic; ``addresses``: the brokers' addresses by id."""

    def __init__(self, **addresses: dict[int, str]) -> None:
        self._addresses = addresses
        self.asked: list[str] = []

    async def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, name, queue_id) for name in self._addresses for queue_id in range(2)]

    async def route(self, topic: str) -> TopicRouteData:
        return TopicRouteData(broker_datas=[BrokerData("c", name, each) for name, each in self._addresses.items()])

    async def request(self, address: str, command: Command) -> Command:
        self.asked.append(address)
        return Command(ResponseCode.SUCCESS)


async def test_a_broker_without_a_master_gets_no_replayed_dead_letters() -> None:
    admin = FakeAdmin(a={1: "slave:1"}, b={0: "master:1", 1: "slave:2"})
    client: Any = SimpleNamespace(admin=admin)
    send = await _sender_to_group(client, "g")
    for _ in range(3):
        await send(LETTER)
    assert admin.asked == ["master:1"] * 3


@pytest.mark.parametrize(
    ("code", "stored"),
    [
        (ResponseCode.SLAVE_NOT_AVAILABLE, True),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, True),
        (ResponseCode.FLUSH_DISK_TIMEOUT, True),
        (ResponseCode.SYSTEM_BUSY, False),
    ],
)
async def test_a_dead_letter_that_is_stored_but_not_yet_safe_counts_as_replayed(
    monkeypatch: pytest.MonkeyPatch, code: ResponseCode, stored: bool
) -> None:
    admin = FakeAdmin(a={0: "master:1"})
    client: Any = SimpleNamespace(admin=admin)

    async def request(address: str, command: Command) -> Command:
        raise BrokerError(code, None, address)

    monkeypatch.setattr(admin, "request", request)
    send = await _sender_to_group(client, "g")
    with nullcontext() if stored else pytest.raises(BrokerError):
        await send(LETTER)


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_replayed_dead_letter_of_a_group_without_retries_is_redelivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A group from a store of RocketMQ may have the limit -1."""
    admin = FakeAdmin(a={0: "master:1"})
    client: Any = SimpleNamespace(admin=admin)
    async with broker_and_channel(tmp_path) as (broker, channel):
        group = broker.registry.get(GroupTable).find("g")
        assert group is not None
        group.retry_max_times = limit

        async def request(address: str, command: Command) -> Command:
            return await channel.call(command)

        monkeypatch.setattr(admin, "request", request)
        end = broker.log.end
        await (await _sender_to_group(client, "g"))(LETTER)
        record = broker.log.read_record(end)
        assert (record.topic, record.reconsume_times) == ("%RETRY%g", 0)


async def test_a_replay_without_any_master_is_refused() -> None:
    client: Any = SimpleNamespace(admin=FakeAdmin(a={1: "slave:1"}))
    with pytest.raises(NoRoute, match="no broker of topic %RETRY%g has a master"):
        await _sender_to_group(client, "g")
