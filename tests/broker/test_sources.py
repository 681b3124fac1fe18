"""Plugins get rows of clients unless they request other sources, and refuse none of the broker's own messages.

Each test is one broker and the Python client, as a user has them.
"""

from __future__ import annotations

import sys
import types
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import structlog
import trio

import gantrymq
from gantrymq import Message, Outcome
from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Metrics
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.harness import make_broker, run_cluster
from gantrymq.testing.requests import send

pytestmark = pytest.mark.trio
Install = Callable[[type], str]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a plugin loadable; returns the name under which it is enabled."""

    def install(kind: type) -> str:
        module = types.ModuleType("gantrymq_sources_plugin")
        module.Plugin = kind  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return "gantrymq_sources_plugin:Plugin"

    return install


@attrs.frozen
class User:
    """A client of a broker with the plugin under test."""

    broker: Broker
    client: gantrymq.Client

    async def send(self, message: Message) -> gantrymq.SendResult:
        async with self.client.producer() as producer:
            return await producer.send(message)

    async def transaction(self, message: Message) -> None:
        """A transaction that its producer commits, when it is asked again too."""

        async def commit(*_: object) -> Outcome:
            return Outcome.COMMIT

        async with self.client.transactional_producer("payers", local=commit, check=commit) as producer:
            await producer.send(message)
            await self.until(lambda: any(queue.topic == message.topic for queue in self.broker.queues))

    async def receive(self, topic: str, retry: int | None = None) -> gantrymq.ReceivedMessage:
        """The next message of the topic, also of its group's retry topic; ``retry`` gives it back with that level."""
        async with self.client.consumer(topic, group=f"{topic}-readers", start="first") as messages:
            async for message in messages:
                if retry is not None and message.reconsume_times == 0:
                    await message.retry(retry)
                    continue
                await message.ack()
                return message
        raise AssertionError("the consumer ended")

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.02)

    def metric(self, name: str) -> dict[tuple[str, ...], object]:
        metrics = Metrics(1000)
        self.broker.manager.hook.collect_metrics(broker=self.broker, metrics=metrics)
        return dict(metrics.families[name].series) if name in metrics.families else {}


@asynccontextmanager
async def using(folder: Path, plugin: str) -> AsyncIterator[User]:
    settings = {
        "plugin.delay.levels": "1s", "plugin.transaction.check_interval": "1s", "plugin.transaction.timeout": "1s",
    }  # fmt: skip
    with trio.fail_after(60):
        async with (
            run_cluster(folder, settings=settings, enable=[plugin]) as cluster,
            gantrymq.connect(cluster.nameserver) as client,
        ):
            yield User(cluster.broker, client)


DELAYED = {"delay_level": 1}
TIMED = {"properties": {"TIMER_DELAY_MS": "200"}}


class Dedup:
    """Refuses a message whose key it has seen: the plugin that lost acknowledged messages when it saw all rows."""

    name = "dedup"
    seen: ClassVar[set[bytes]]

    def __init__(self) -> None:
        type(self).seen = set()

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            key = batch.property_of(row, b"KEYS")
            if key in self.seen:
                batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "a duplicate")
            elif key is not None:
                self.seen.add(key)


@pytest.mark.parametrize("waits", [DELAYED, TIMED], ids=["level", "timer"])
async def test_deduplication_does_not_affect_delayed_messages(
    tmp_path: Path, install: Install, waits: dict[str, Any]
) -> None:
    async with using(tmp_path, install(Dedup)) as user:
        await user.send(Message("T", b"later", keys=["k"], **waits))
        assert (await user.receive("T")).body == b"later"
        with pytest.raises(gantrymq.GantryError, match="a duplicate"):
            await user.send(Message("T", b"again", keys=["k"]))


async def test_deduplication_does_not_block_commits(tmp_path: Path, install: Install) -> None:
    async with using(tmp_path, install(Dedup)) as user:
        await user.transaction(Message("T", b"paid", keys=["k"]))
        assert (await user.receive("T")).body == b"paid"


async def test_deduplication_does_not_block_retries_and_dead_letters(tmp_path: Path, install: Install) -> None:
    async with using(tmp_path, install(Dedup)) as user:
        await user.send(Message("T", b"hard", keys=["k"]))
        again = await user.receive("T", retry=1)
        assert (again.body, again.reconsume_times) == (b"hard", 1)
        await user.send(Message("U", b"dead", keys=["u"]))
        async with user.client.consumer("U", group="U-readers", start="first") as messages:
            async for message in messages:
                await message.retry(-1)
                break
        assert (await user.receive("%DLQ%U-readers")).body == b"dead"


async def test_a_message_that_a_client_resends_to_the_retry_topic_is_not_a_duplicate(
    tmp_path: Path, install: Install
) -> None:
    """Clients do this when they cannot send a message back by its offset."""
    async with using(tmp_path, install(Dedup)) as user:
        await user.send(Message("T", b"hard", keys=["k"]))
        await user.receive("T")
        async with open_channel(user.broker.address) as channel:
            answer = await channel.call(send("%RETRY%T-readers", b"hard", properties="KEYS\x01k\x02DELAY\x011"))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert (await user.receive("T")).body == b"hard"


class Mark:
    """Changes each body."""

    name = "mark"

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            batch.bodies[row] += b"!"


async def test_a_body_is_transformed_once_although_the_broker_stores_it_repeatedly(
    tmp_path: Path, install: Install
) -> None:
    async with using(tmp_path, install(Mark)) as user:
        await user.send(Message("D", b"level", **DELAYED))
        await user.send(Message("E", b"timed", **TIMED))
        await user.transaction(Message("X", b"paid"))
        await user.send(Message("R", b"hard"))
        assert (await user.receive("R", retry=1)).body == b"hard!"
        for topic, body in (("D", b"level!"), ("E", b"timed!"), ("X", b"paid!")):
            assert (await user.receive(topic)).body == body


class Watch:
    """Notes of which source the rows of each topic are."""

    name = "watch"
    sources = Source.ALL
    seen: ClassVar[list[tuple[str, str]]]

    def __init__(self) -> None:
        type(self).seen = []

    @hookimpl
    def configure(self, broker: Broker) -> None:
        self.broker = broker

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        self.seen.extend((batch.source, batch.queue_of(row)[0]) for row in batch.live)

    def append(self) -> None:
        batch = AppendBatch()
        batch.add("P", 0, b"of a plugin", b"")
        self.broker.append(batch)
        self.broker.wake()


async def test_each_row_has_its_source(tmp_path: Path, install: Install) -> None:
    async with using(tmp_path, install(Watch)) as user:
        await user.send(Message("D", b"level", **DELAYED))
        await user.send(Message("E", b"timed", **TIMED))
        await user.transaction(Message("X", b"paid"))
        await user.send(Message("R", b"hard"))
        await user.receive("R", retry=1)
        async with open_channel(user.broker.address) as channel:
            assert (await channel.call(send("%RETRY%R-readers", b"x"))).code == 0
        next(info for info in user.broker.manager.plugins if info.name == "watch").plugin.append()
        for topic in "DEX":
            await user.receive(topic)
        seen = set(Watch.seen)
        assert {topic for source, topic in seen if source == Source.CLIENT} == set("DEXR")
        assert seen >= {
            (Source.DELAY, "D"), (Source.TIMER, "E"), (Source.TRANSACTION, "X"), (Source.PLUGIN, "P"),
            (Source.RETRY, "%RETRY%R-readers"), (Source.DELAY, "%RETRY%R-readers"),
            (Source.RESEND, "%RETRY%R-readers"),
        }  # fmt: skip
        assert not {topic for source, topic in seen if source == Source.RESEND} - {"%RETRY%R-readers"}


class RefuseTwice:
    """Refuses what the broker itself appends, twice; then it lets it pass."""

    name = "picky"
    sources = (Source.DELAY, Source.TIMER, Source.TRANSACTION)
    left: ClassVar[int]

    def __init__(self) -> None:
        type(self).left = 2

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            if self.left:
                type(self).left -= 1
                batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "I do not like it")


class SpoilTwice(RefuseTwice):
    """Makes it too large to be stored."""

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            if self.left:
                type(self).left -= 1
                batch.properties[row] = b"x" * 40_000


@pytest.mark.parametrize("kind", [RefuseTwice, SpoilTwice])
@pytest.mark.parametrize(("waits", "source"), [(DELAYED, Source.DELAY), (TIMED, Source.TIMER)], ids=["level", "timer"])
@pytest.mark.slow
async def test_internal_messages_refused_by_a_plugin_are_delivered_later(
    tmp_path: Path, install: Install, waits: dict[str, Any], source: str, kind: type
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with using(tmp_path, install(kind)) as user:
            await user.send(Message("T", b"later", **waits))
            assert (await user.receive("T")).body == b"later"
            assert user.metric("gantrymq_plugin_refused_kept_messages_total") == {("picky", source): 2}
    logged = [line for line in lines if line["event"] == "own_message_refused"]
    named = [(line["plugin"], line["source"], line["topic"]) for line in logged]
    assert named == [("picky", source, "T")], "once an hour"
    assert not [line for line in lines if line["event"] == "delayed_message_lost"]


async def test_a_refused_commit_is_reported_and_checked_back_again(tmp_path: Path, install: Install) -> None:
    with structlog.testing.capture_logs() as lines:
        async with using(tmp_path, install(RefuseTwice)) as user:
            await user.transaction(Message("T", b"paid"))
            assert (await user.receive("T")).body == b"paid"
    logged = {(line["plugin"], line["source"]) for line in lines if line["event"] == "own_message_refused"}
    assert logged == {("picky", Source.TRANSACTION)}


@pytest.mark.parametrize(
    ("sources", "reported"),
    [
        (("clients",), "no source 'clients'; did you mean 'client'"),
        ("client", "sources = 'client' must be a tuple"),
        (7, "sources = 7 must be a tuple"),
    ],
)
async def test_an_unknown_source_stops_the_start(
    tmp_path: Path, install: Install, sources: object, reported: str
) -> None:
    enable = install(type("Wrong", (Dedup,), {"sources": sources}))
    with pytest.raises(StartError, match=f"plugin 'dedup': {reported}"):
        make_broker(tmp_path, enable=[enable])
