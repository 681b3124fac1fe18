"""The plugin in a broker: what the producer is told, what a consumer gets, what the store's folder holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from gantrymq.remoting.bodies import HeartbeatData, ProducerData
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.remoting.records import decode_records
from gantrymq.remoting.transaction_headers import EndTransactionHeader, TransactionState
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.requests import pull, send

HALF = "TRAN_MSG\x01true\x02PGROUP\x01orders\x02UNIQ_KEY\x01K\x02TAGS\x01a"


def end(answer: Command, state: TransactionState, *, group: str = "orders", **others: int) -> Command:
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
        assert message.properties["TRAN_MSG"] == "true"
        [note] = decode_records((await channel.call(pull(TRANS_OP_HALF_TOPIC))).body)
        assert (note.body, note.properties) == (b"0", {"TAGS": "d"})
