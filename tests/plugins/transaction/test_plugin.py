"""The plugin in a broker: responses to producers, delivered messages, and the files in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.errors import StartError
from gantrymq.plugins.interfaces import ConsumerOffsets
from gantrymq.remoting.bodies.clients import HeartbeatData, ProducerData
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.transactions import CheckTransactionHeader, EndTransactionHeader, TransactionState
from gantrymq.remoting.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker
from gantrymq.testing.requests import pull, send

HALF = "WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01orders\x02UNIQ_KEY\x01K\x02TAGS\x01a"


def end(answer: Command, state: TransactionState, *, group: str = "orders", **others: Any) -> Command:
    assert answer.ext is not None
    header = EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=others.get("half", int(answer.ext["queueOffset"])),
        commit_log_offset=others.get("place", int(answer.ext["msgId"][16:], 16)),
        commit_or_rollback=state,
        msg_id="K",
    )
    return Command(RequestCode.END_TRANSACTION, header.to_ext())


@pytest.mark.trio
@pytest.mark.parametrize("strategy", ["half", "state_table"])
async def test_a_half_message_with_a_delay_level_or_a_later_time_is_refused(tmp_path: Path, strategy: str) -> None:
    async with broker_and_channel(tmp_path, plugin__transaction__strategy=strategy) as (broker, channel):
        for delay in (
            "DELAY\x013",
            "TIMER_DELAY_MS\x015000",
            "TIMER_DELAY_SEC\x015",
            "TIMER_DELIVER_MS\x019999999999999",
        ):
            answer = await channel.call(send("T", b"x", properties=f"{HALF}\x02{delay}"))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, delay
        assert broker.log.end == 0


@pytest.mark.trio
async def test_a_half_message_is_seen_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        answer = await channel.call(send("T", b"paid", queue_id=3, queues=4, properties=HALF))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext is not None
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("3", "0")
        assert (await channel.call(pull("T", 3))).code != ResponseCode.SUCCESS
        ended = await channel.call(end(answer, TransactionState.COMMIT))
        assert ended.code == ResponseCode.SUCCESS, ended.remark
        found = await channel.call(pull("T", 3, expression="a"))
        [message] = decode_records(found.body)
        assert message.body == b"paid"
        half = broker.log.read_record(int(answer.ext["msgId"][16:], 16))
        assert (half.topic, half.queue_id, half.sys_flag & 12) == (TRANS_HALF_TOPIC, 0, 0)
        assert message.prepared_offset == half.offset
        assert message.sys_flag & 12 == TransactionState.COMMIT
        assert message.raw_born_host == half.born_host
        assert message.born_timestamp == half.born_timestamp
        assert message.properties["REAL_TOPIC"] == "T"
        assert message.properties["TRAN_MSG"] == message.properties["WAIT"] == "true"
        [note] = decode_records((await channel.call(pull(TRANS_OP_HALF_TOPIC))).body)
        assert (note.body, note.properties) == (b"0", {"WAIT": "true", "TAGS": "d"})


@pytest.mark.trio
async def test_a_producer_is_asked_over_its_connection_and_answers_with_the_same_request(tmp_path: Path) -> None:
    settings = {"plugin.transaction.check_interval": "20ms", "plugin.transaction.timeout": "10ms"}
    settings["plugin.transaction.check_max"] = "1000000"
    asked, check_backs = trio.open_memory_channel[Command](100)

    def answer_broker(command: Command) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            asked.send_nowait(command)

    async with (
        run_broker(make_broker(tmp_path, settings=settings)) as broker,
        open_channel(broker.address, answer_broker) as channel,
    ):
        half = await channel.call(send("T", b"paid", properties=HALF))
        body = HeartbeatData("client", [ProducerData("orders")]).to_bytes()
        assert (await channel.call(Command(RequestCode.HEART_BEAT, {}, body))).code == ResponseCode.SUCCESS
        with trio.fail_after(10):
            check_back = await check_backs.receive()
        assert check_back.is_oneway
        header = read_header(CheckTransactionHeader, check_back.ext)
        [record] = decode_records(check_back.body)
        assert (record.topic, record.queue_id, record.body) == ("T", 0, b"paid")
        assert (record.queue_offset, record.commit_log_offset) == (
            header.tran_state_table_offset,
            header.commit_log_offset,
        )
        assert (header.msg_id, header.transaction_id) == ("K", "K")
        assert header.offset_msg_id == record.offset_message_id
        place = {"half": header.tran_state_table_offset, "place": header.commit_log_offset}
        ended = await channel.call(end(half, TransactionState.COMMIT, **place))
        assert ended.code == ResponseCode.SUCCESS, ended.remark
        found = await channel.call(pull("T"))
        assert [message.body for message in decode_records(found.body)] == [b"paid"]


@pytest.mark.trio
async def test_an_unknown_outcome_gets_no_response_and_refusals_are_rocketmqs(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        half = await channel.call(send("T", b"x", properties=HALF))
        with trio.move_on_after(0.05) as silence:
            await channel.call(end(half, TransactionState.UNKNOWN))
        assert silence.cancelled_caught
        for wrong, remark in (
            ({"group": "others"}, "The producer group wrong"),
            ({"half": 1}, "The transaction state table offset wrong"),
            ({"place": 1}, "Find prepared transaction message failed"),
        ):
            answer = await channel.call(end(half, TransactionState.COMMIT, **wrong))
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)


@pytest.mark.trio
async def test_refused_ends_of_one_host_are_one_line(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        half = await channel.call(send("T", b"x", properties=HALF))
        with capture_logs() as logs:
            for _ in range(5):
                await channel.call(end(half, TransactionState.COMMIT, group="others"))
    [line] = [line for line in logs if line["event"] == "transaction_not_ended"]
    assert (line["reason"], line["log_level"], line["repeated"]) == ("The producer group wrong", "warning", 0)


@pytest.mark.trio
async def test_administrators_see_what_is_open_and_the_topics_exist(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await channel.call(send("T", b"x", properties=HALF))
        answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
        table = json.loads(answer.body)["table"]
        assert (table["openTransactions"], table["transactionStrategy"]) == ("1", "half")
    topics = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
        assert (topics[topic]["readQueueNums"], topics[topic]["writeQueueNums"]) == (1, 1)


@pytest.mark.trio
async def test_clients_may_not_write_to_the_topics_of_transactions(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
            assert (await channel.call(send(topic, b"x"))).code == ResponseCode.NO_PERMISSION


@pytest.mark.trio
async def test_a_delayed_return_of_a_committed_message_is_no_half_message(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        half = await channel.call(send("T", b"x", properties=HALF))
        await channel.call(end(half, TransactionState.COMMIT))
        [message] = decode_records((await channel.call(pull("T"))).body)
        header = {"offset": message.commit_log_offset, "group": "consumers", "delayLevel": 1}
        fields = {name: str(value) for name, value in header.items()}
        answer = await channel.call(Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert broker.queues.next_offset(SCHEDULE_TOPIC, 0) == 1
        assert broker.queues.next_offset(TRANS_HALF_TOPIC, 0) == 1, "it has TRAN_MSG still"


@pytest.mark.trio
async def test_a_restart_keeps_what_is_open(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        half = await channel.call(send("T", b"x", properties=HALF))
        done = await channel.call(send("T", b"y", properties=HALF))
        await channel.call(end(done, TransactionState.COMMIT))
    async with broker_and_channel(tmp_path) as (broker, channel):
        assert broker.registry.get(ConsumerOffsets).query("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0) in (None, 0)
        assert (await channel.call(end(half, TransactionState.COMMIT))).code == ResponseCode.SUCCESS
        assert (await channel.call(end(done, TransactionState.COMMIT))).code == ResponseCode.SUCCESS
        found = await channel.call(pull("T"))
        assert [message.body for message in decode_records(found.body)] == [b"y", b"x"]


@pytest.mark.trio
async def test_another_strategy_is_refused_and_leaves_the_store_unchanged(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        half = await channel.call(send("T", b"x", properties=HALF))
    with pytest.raises(ExceptionGroup) as caught, capture_logs() as logs:
        async with run_broker(make_broker(tmp_path, settings={"plugin.transaction.strategy": "state_table"})):
            raise AssertionError("it started")
    assert caught.group_contains(StartError, match=r"1 transactions of the strategy 'half' are open")
    assert [entry for entry in logs if entry["log_level"] == "error"] == []
    async with broker_and_channel(tmp_path) as (_, channel):
        assert (await channel.call(end(half, TransactionState.COMMIT))).code == ResponseCode.SUCCESS
