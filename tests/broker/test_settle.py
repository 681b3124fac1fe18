"""Senders of settled messages get the response of the earlier message once that message is durable."""

from __future__ import annotations

import struct
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
import trio.testing

import gantrymq
from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import PluginError
from gantrymq.kernel.fast.plain_flusher import Flusher
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker, run_cluster
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio


class Settling:
    """Settles a message whose key it has seen, however little the earlier one has come along."""

    name = "settling"
    sources = (Source.CLIENT, Source.RESEND)
    seen: ClassVar[dict[bytes, tuple[AppendBatch, int, int]]]

    def __init__(self) -> None:
        type(self).seen = {}

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            key = batch.property_of(row, b"KEYS")
            if key is None:
                continue
            if key == b"ahead":
                batch.settle(row, offset=batch.start, queue_id=0, queue_offset=0)
            earlier, place, queue_id = self.seen.setdefault(key, (batch, row, batch.queue_ids[row]))
            if earlier is not batch:
                offset, queue_offset = earlier.place_of(place)
                batch.settle(row, offset=offset, queue_id=queue_id, queue_offset=queue_offset)
            elif place != row:
                batch.settle_as(row, place)


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("gantrymq_settling_plugin")
    module.Plugin = Settling  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return "gantrymq_settling_plugin:Plugin"


def broker(folder: Path, plugin: str, **more: Any) -> Broker:
    return make_broker(folder / "store", enable=[plugin], **more)


def place_in(answer: Command) -> tuple[str, str, str]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert answer.ext is not None
    return answer.ext["msgId"], answer.ext["queueId"], answer.ext["queueOffset"]


async def bodies(channel: Channel, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in decode_records((await channel.call(pull(topic, queue_id))).body)]


def batch_send(*messages: tuple[bytes, str]) -> Command:
    """SEND_BATCH_MESSAGE of bodies with their keys; the key ``-`` is none."""
    body = b""
    for content, key in messages:
        raw = b"" if key == "-" else b"KEYS\x01" + key.encode()
        size = 22 + len(content) + len(raw)
        body += struct.pack(">iiiii", size, 0, 0, 0, len(content)) + content + struct.pack(">h", len(raw)) + raw
    command = send("T", body)
    return Command(RequestCode.SEND_BATCH_MESSAGE, {**(command.ext or {}), "m": "true"}, body)


async def test_a_settled_send_gets_the_response_of_the_earlier_message(tmp_path: Path, plugin: str) -> None:
    async with run_broker(broker(tmp_path, plugin)) as running, open_channel(running.address) as channel:
        await channel.call(send("T", b"before", queues=2))
        first = place_in(await channel.call(send("T", b"x", properties="KEYS\x01k", queue_id=1)))
        again = place_in(await channel.call(send("T", b"x", properties="KEYS\x01k", queue_id=0)))
        assert (again, first[1:]) == (first, ("1", "0"))
        assert (await bodies(channel), await bodies(channel, queue_id=1)) == ([b"before"], [b"x"])
        [stats] = [info for info in running.manager.hook.runtime_info(broker=running) if "putLatency99" in info]
        assert stats["putMessageFailedTimes"] == "0"


async def test_a_message_and_its_duplicate_in_one_turn_get_the_same_response(tmp_path: Path, plugin: str) -> None:
    async with run_broker(broker(tmp_path, plugin)) as running, open_channel(running.address) as channel:
        answers: list[Command] = []

        async def ask(command: Command) -> None:
            answers.append(await channel.call(command))

        async with trio.open_nursery() as nursery:
            for properties in ("KEYS\x01k", "KEYS\x01k\x02TRAN_MSG\x01false", "KEYS\x01k\x02WAIT\x01false"):
                nursery.start_soon(ask, send("T", b"x", properties=properties))
        assert len({place_in(answer) for answer in answers}) == 1
        assert await bodies(channel) == [b"x"]


async def test_a_oneway_duplicate_is_not_stored(tmp_path: Path, plugin: str) -> None:
    async with run_broker(broker(tmp_path, plugin)) as running, open_channel(running.address) as channel:
        for _ in range(2):
            await channel.send_oneway(send("T", b"x", properties="KEYS\x01k"))
        await channel.call(send("T", b"last"))
        assert await bodies(channel) == [b"x", b"last"]


async def test_a_batch_response_has_the_earlier_id_for_a_settled_message(tmp_path: Path, plugin: str) -> None:
    async with run_broker(broker(tmp_path, plugin)) as running, open_channel(running.address) as channel:
        first = place_in(await channel.call(send("T", b"a", properties="KEYS\x01a")))
        ids, queue_id, queue_offset = place_in(
            await channel.call(batch_send((b"new", "-"), (b"a", "a"), (b"b", "b"), (b"b", "b")))
        )
        new, a, b, b_again = ids.split(",")
        assert (a, b_again) == (first[0], b)
        assert len({new, a, b}) == 3
        assert (queue_id, queue_offset) == ("0", "1"), "of the batch's first message"
        assert await bodies(channel) == [b"a", b"new", b"b"]
        ids, queue_id, queue_offset = place_in(await channel.call(batch_send((b"a", "a"), (b"b", "b"))))
        assert (ids, queue_id, queue_offset) == (f"{a},{b}", "0", "0")
        assert await bodies(channel) == [b"a", b"new", b"b"]


@pytest.mark.parametrize("strategy", ["half", "state_table"])
async def test_a_half_message_sent_again_has_the_first_transaction(tmp_path: Path, plugin: str, strategy: str) -> None:
    half = "KEYS\x01k\x02TRAN_MSG\x01true\x02PGROUP\x01orders\x02UNIQ_KEY\x01u"
    running = broker(tmp_path, plugin, settings={"plugin.transaction.strategy": strategy})
    async with run_broker(running), open_channel(running.address) as channel:
        other = half.replace("KEYS\x01k", "KEYS\x01other")
        await channel.call(send("T", b"y", properties=other))
        first = place_in(await channel.call(send("T", b"x", properties=half)))
        again = place_in(await channel.call(send("T", b"x", properties=half)))
        assert again == first
        header = EndTransactionHeader(
            producer_group="orders",
            tran_state_table_offset=int(again[2]),
            commit_log_offset=int(again[0][16:], 16),
            commit_or_rollback=TransactionState.COMMIT,
            msg_id="u",
        )
        ended = await channel.call(Command(RequestCode.END_TRANSACTION, header.to_ext()))
        assert ended.code == ResponseCode.SUCCESS, ended.remark
        assert await bodies(channel) == [b"x"]


async def test_a_delayed_message_sent_again_gets_its_requested_queue(tmp_path: Path, plugin: str) -> None:
    async with run_broker(broker(tmp_path, plugin)) as running, open_channel(running.address) as channel:
        await channel.call(send("T", b"before", queues=2))
        delayed = "KEYS\x01k\x02DELAY\x0118"
        first = place_in(await channel.call(send("T", b"x", properties=delayed, queue_id=1)))
        assert place_in(await channel.call(send("T", b"x", properties=delayed))) == first
        queue = running.queues.get("SCHEDULE_TOPIC_XXXX", 17)
        assert (first[1], None if queue is None else queue.max_offset) == ("1", 1)


async def test_a_reply_that_is_stored_can_be_settled(tmp_path: Path, plugin: str) -> None:
    running = broker(tmp_path, plugin, settings={"plugin.reply.store": "true"})
    async with run_broker(running), open_channel(running.address) as channel:
        places = []
        for _ in range(2):
            made = send("T", b"x", properties="KEYS\x01k\x02REPLY_TO_CLIENT\x01nobody")
            answer = await channel.call(Command(RequestCode.SEND_REPLY_MESSAGE_V2, made.ext, made.body))
            assert answer.code == ResponseCode.SYSTEM_ERROR, "nobody waits for it"
            places.append(answer.ext["msgId"] if answer.ext else None)
        assert places[0] is not None
        assert places == places[:1] * 2
        assert await bodies(channel) == [b"x"]


class HangingFile:
    """A file of the commit log whose datasync waits."""

    def __init__(self, file: File, hang: Callable[[], object]) -> None:
        self._file = file
        self._hang = hang

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def share(self) -> File:
        return self  # type: ignore[return-value]

    def datasync(self) -> None:
        self._hang()
        self._file.datasync()


class HangingEnv(SystemEnv):
    """The real system, but the commit log's flush waits while ``open_gate`` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.open_gate = threading.Event()
        self.open_gate.set()

    def open(self, path: str, create: bool = False) -> File:
        file = super().open(path, create)
        if "/commitlog/" in path or "/staging/" in path:
            return HangingFile(file, lambda: self.open_gate.wait(30))  # type: ignore[return-value]
        return file

    def flusher(self) -> Flusher:
        return Flusher()


@pytest.fixture
def env() -> Iterator[HangingEnv]:
    made = HangingEnv()
    yield made
    made.open_gate.set()


@pytest.mark.parametrize("key", ["k", "flushed"])
async def test_a_duplicate_is_acknowledged_after_its_original_is_durable(
    tmp_path: Path, plugin: str, env: HangingEnv, key: str
) -> None:
    running = broker(tmp_path, plugin, env=env, settings={"plugin.flush.timeout": "60s"})
    async with (
        run_broker(running), open_channel(running.address) as channel, open_channel(running.address) as other,
    ):  # fmt: skip
        await channel.call(send("T", b"flushed", properties="KEYS\x01flushed"))
        env.open_gate.clear()
        answers: list[Command] = []

        async def ask(to: Channel, command: Command) -> None:
            answers.append(await to.call(command, 50.0))

        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:
                for number, to, name in ((1, channel, "k"), (2, other, key)):
                    nursery.start_soon(ask, to, send("T", b"x", properties=f"KEYS\x01{name}"))
                    while running.unacknowledged < number:  # noqa: ASYNC110 - there is no event for it
                        await trio.sleep(0.001)
                await trio.testing.wait_all_tasks_blocked()
                assert answers == []
                env.open_gate.set()
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2


async def test_a_duplicate_gets_a_flush_timeout_if_the_disk_is_late(
    tmp_path: Path, plugin: str, env: HangingEnv
) -> None:
    running = broker(tmp_path, plugin, env=env, settings={"plugin.flush.timeout": "100ms"})
    async with run_broker(running), open_channel(running.address) as channel:
        await channel.call(send("T", b"flushed"))
        env.open_gate.clear()
        answers = [await channel.call(send("T", b"x", properties="KEYS\x01k"), 20.0) for _ in range(2)]
        assert [answer.code for answer in answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
        assert answers[0].ext == answers[1].ext, "it is stored, and the answer says where"
        env.open_gate.set()


async def test_settling_with_a_message_that_is_not_stored_is_an_error_of_the_plugin(
    tmp_path: Path, plugin: str
) -> None:
    async def life() -> None:
        async with run_broker(broker(tmp_path, plugin)) as running, open_channel(running.address) as channel:
            await channel.call(send("T", b"x", properties="KEYS\x01ahead"))

    with pytest.RaisesGroup(
        pytest.RaisesExc(PluginError, match="plugin 'settling': before_append failed: .* the log ends at 0"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        await life()


async def test_the_python_client_treats_a_settled_send_as_sent(tmp_path: Path, plugin: str) -> None:
    async with (
        run_cluster(tmp_path / "store", enable=[plugin]) as cluster,
        gantrymq.connect(cluster.nameserver) as client,
        client.producer() as producer,
    ):
        message = gantrymq.Message("T", b"x", keys=["k"])
        first, again = [await producer.send(message) for _ in range(2)]
        assert (again.queue, again.queue_offset) == (first.queue, first.queue_offset)
        await producer.send_batch([gantrymq.Message("T", b"x", keys=["k"]), gantrymq.Message("T", b"y", keys=["l"])])
        assert sum(queue.max_offset for queue in cluster.broker.queues if queue.topic == "T") == 2
