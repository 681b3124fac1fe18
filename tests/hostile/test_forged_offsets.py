"""Log offsets chosen by a client: the body of its own message holds a forged record at a known offset.

A client with the right to one topic cannot use a forged log offset to end, read, send back or resume a message that no
queue entry names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.store.log.record import Record, encode
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.message_ids import offset_message_id
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from gantrymq.remoting.records import HEADS, decode_records
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import pull, send

pytestmark = pytest.mark.trio
STRATEGIES = pytest.mark.parametrize("strategy", ["half", "state_table"])
HALF = "TRAN_MSG\x01true\x02PGROUP\x01{}\x02UNIQ_KEY\x01K"


@attrs.frozen
class Attack:
    """A broker, and a connection of somebody who may send to the topic "mine"."""

    broker: Broker
    channel: Channel

    async def forge(self, record: Record) -> int:
        """Send a message whose body is ``record``; returns the log offset that this one names and lies at."""
        offset = self.broker.log.end + HEADS[0].size
        answer = await self.channel.call(send("mine", encode(attrs.evolve(record, offset=offset))))
        assert answer.code == ResponseCode.SUCCESS
        assert self.broker.log.read_record(offset).body == record.body, "the log alone cannot tell it from a real one"
        return offset

    async def half(self, body: bytes, group: str = "victims", topic: str = "T") -> tuple[int, int]:
        """A half message; returns its log offset and what END_TRANSACTION calls its table offset."""
        answer = await self.channel.call(send(topic, body, properties=HALF.format(group)))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        offset = int((answer.ext or {})["msgId"][16:], 16)
        return offset, self.broker.log.read_record(offset).queue_offset

    async def end(self, offset: int, table_offset: int, state: TransactionState, group: str = "victims") -> int:
        header = EndTransactionHeader(
            producer_group=group, tran_state_table_offset=table_offset, commit_log_offset=offset,
            commit_or_rollback=state, msg_id="K",
        )  # fmt: skip
        return (await self.channel.call(Command(RequestCode.END_TRANSACTION, header.to_ext()))).code

    async def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        answer = await self.channel.call(pull(topic, queue_id))
        return [message.body for message in decode_records(answer.body)] if answer.code == 0 else []


@asynccontextmanager
async def attacked(folder: Path, strategy: str = "half", **settings: str) -> AsyncIterator[Attack]:
    settings = {"plugin__transaction__strategy": strategy, **settings}
    async with broker_and_channel(folder, **settings) as (broker, channel):
        yield Attack(broker, channel)


def forged_half(strategy: str, table_offset: int, topic: str = "T", queue_id: int = 0) -> Record:
    properties = HALF.format("thieves")
    if strategy == "half":
        properties += f"\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}"
        return Record(TRANS_HALF_TOPIC, 0, b"forged", properties.encode(), queue_offset=table_offset)
    prepared = TransactionState.PREPARED
    return Record(topic, queue_id, b"forged", properties.encode(), sys_flag=prepared, queue_offset=table_offset)


@STRATEGIES
@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_forged_half_message_ends_no_other_transaction(tmp_path: Path, strategy: str, ahead: int) -> None:
    async with attacked(tmp_path, strategy) as attack:
        offset, table_offset = await attack.half(b"paid")
        forged = await attack.forge(forged_half(strategy, table_offset + ahead))
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            assert await attack.end(forged, table_offset + ahead, state, "thieves") == ResponseCode.SYSTEM_ERROR
        assert await attack.bodies("T") == []
        assert await attack.end(offset, table_offset, TransactionState.COMMIT) == ResponseCode.SUCCESS
        assert await attack.bodies("T") == [b"paid"]


@STRATEGIES
@pytest.mark.parametrize(("topic", "queue_id"), [("SCHEDULE_TOPIC_XXXX", 3), ("never-created", 0), ("mine", 4711)])
async def test_a_forged_half_message_writes_nowhere(tmp_path: Path, strategy: str, topic: str, queue_id: int) -> None:
    """Targets are refused: a system topic, a topic that was never created, a queue that the topic lacks."""
    async with attacked(tmp_path, strategy) as attack:
        for table_offset in range(3):
            forged = await attack.forge(forged_half(strategy, table_offset, topic, queue_id))
            code = await attack.end(forged, table_offset, TransactionState.COMMIT, "thieves")
            assert code == ResponseCode.SYSTEM_ERROR
        assert attack.broker.queues.next_offset(topic, queue_id) == 0


@STRATEGIES
async def test_a_half_message_cannot_be_read_by_id_or_sent_back(tmp_path: Path, strategy: str) -> None:
    async with attacked(tmp_path, strategy) as attack:
        offset, table_offset = await attack.half(b"secret")
        other, other_table_offset = await attack.half(b"never to be seen")
        for ended in (False, True):
            if ended:
                assert await attack.end(offset, table_offset, TransactionState.COMMIT) == ResponseCode.SUCCESS
                assert await attack.end(other, other_table_offset, TransactionState.ROLLBACK) == ResponseCode.SUCCESS
            for place in (offset, other):
                await nothing_at(attack, place)
        [message] = decode_records((await attack.channel.call(pull("T"))).body)
        fields = {"offset": str(message.commit_log_offset)}
        found = await attack.channel.call(Command(RequestCode.VIEW_MESSAGE_BY_ID, fields))
        assert [one.body for one in decode_records(found.body)] == [b"secret"], "what was committed is read by its id"


async def test_a_forged_record_cannot_be_read_by_id_or_sent_back(tmp_path: Path) -> None:
    async with attacked(tmp_path) as attack:
        assert (await attack.channel.call(send("T", b"genuine"))).code == ResponseCode.SUCCESS
        for record in (
            Record("T", 0, b"forged", queue_offset=0),
            Record("T", 0, b"forged", queue_offset=1),
            Record("T", 0, b"forged", queue_offset=-1),
            Record("T", -1, b"forged"),
            Record("T", 0, b"forged", queue_offset=2**63 - 1),
            Record("never-created", 0, b"forged"),
            Record("mine", 0, b"forged", queue_offset=0),
        ):
            await nothing_at(attack, await attack.forge(record))
        assert await attack.bodies("%RETRY%thieves") == []


@pytest.mark.parametrize("size", [2**31 - 1, 1 << 20, 100, 1, 0, -1, -(2**31)])
async def test_forged_record_sizes_are_not_read(tmp_path: Path, size: int) -> None:
    async with attacked(tmp_path, store__commit_log_file_bytes=str(64 * 1024 * 1024)) as attack:
        for record_size, body_size in ((size, 10), (1 << 20, size), (size, size)):
            data = bytearray(encode(Record("T", 0, b"forged body")))
            offset = attack.broker.log.end + HEADS[0].size
            data[:4] = (record_size & 0xFFFFFFFF).to_bytes(4, "big")
            data[28:36] = offset.to_bytes(8, "big")
            data[HEADS[0].size - 4 : HEADS[0].size] = (body_size & 0xFFFFFFFF).to_bytes(4, "big")
            assert (await attack.channel.call(send("mine", bytes(data)))).code == ResponseCode.SUCCESS
            await nothing_at(attack, offset)


@STRATEGIES
async def test_a_forged_discarded_message_is_not_resumed(tmp_path: Path, strategy: str) -> None:
    async with attacked(tmp_path, strategy) as attack:
        properties = (HALF.format("thieves") + "\x02REAL_TOPIC\x01T\x02REAL_QID\x010").encode()
        forged = await attack.forge(Record(TRANS_CHECK_MAX_TIME_TOPIC, 0, b"forged", properties))
        message_id = offset_message_id(attack.broker.store.config.store_host, forged)
        answer = await attack.channel.call(Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        info = await attack.channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert b'"openTransactions":"0"' in info.body


async def nothing_at(attack: Attack, offset: int) -> None:
    """Requests for ``offset`` are refused: view (33), send back (36) and consume directly (309)."""
    seen: list[Command] = []

    async def consume(command: Command) -> Command | None:
        seen.append(command)
        return command.answer(ResponseCode.SUCCESS, None, {}, b'{"consumeResult":"CR_SUCCESS"}')

    answer = await attack.channel.call(Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}))
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
    back = {"offset": str(offset), "group": "thieves", "delayLevel": "-1", "originTopic": "T", "unitMode": "false"}
    end = attack.broker.log.end
    answer = await attack.channel.call(Command(RequestCode.CONSUMER_SEND_MSG_BACK, back))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert attack.broker.log.end == end, "it was stored anew"
    message_id = offset_message_id(attack.broker.store.config.store_host, offset)
    data = HeartbeatData(
        "c1", consumer_data_set=[ConsumerData("thieves", subscription_data_set=[SubscriptionData.for_tags("mine")])]
    )
    async with open_channel(attack.broker.address, consume) as channel:
        assert (await channel.call(Command(RequestCode.HEART_BEAT, body=data.to_bytes()))).code == ResponseCode.SUCCESS
        fields = {"consumerGroup": "thieves", "clientId": "c1", "msgId": message_id}
        answer = await attack.channel.call(Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert all(command.code != RequestCode.CONSUME_MESSAGE_DIRECTLY for command in seen)
