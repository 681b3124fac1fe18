"""Typed headers: wire names, defaults, and refused values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.groups import UnregisterClientHeader
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import RegisterBrokerHeader
from gantrymq.remoting.headers.offsets import QueueHeader
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.headers.send import SEND_LETTERS, SendMessageHeader, read_send_header
from gantrymq.remoting.headers.table import REQUESTS
from gantrymq.remoting.headers.transactions import CheckTransactionHeader, EndTransactionHeader

LONG = {
    "producerGroup": "g", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "-1",
    "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "7", "properties": "TAGS\x01a", "reconsumeTimes": "0",
    "unitMode": "false", "maxReconsumeTimes": "3", "batch": "true",
}  # fmt: skip


def test_the_three_send_requests_carry_the_same_fields() -> None:
    short = {SEND_LETTERS[name]: value for name, value in LONG.items()}
    header = read_send_header(RequestCode.SEND_MESSAGE, LONG)
    assert header == read_send_header(RequestCode.SEND_MESSAGE_V2, short)
    assert header == read_send_header(RequestCode.SEND_BATCH_MESSAGE, short)
    assert (header.queue_id, header.born_timestamp, header.batch, header.unit_mode) == (-1, 1700000000000, True, False)
    assert header.to_ext() == short


@given(
    st.builds(
        PullMessageHeader,
        consumer_group=st.text(),
        topic=st.text(),
        queue_id=st.integers(-(2**31), 2**31 - 1),
        queue_offset=st.integers(-(2**63), 2**63 - 1),
        max_msg_nums=st.integers(0, 1000),
        sys_flag=st.integers(0, 31),
        commit_offset=st.integers(0, 2**63 - 1),
        suspend_timeout_millis=st.integers(0, 2**31),
        subscription=st.none() | st.text(),
        sub_version=st.integers(0, 2**63 - 1),
        expression_type=st.none() | st.sampled_from(["TAG", "SQL92"]),
    )
)
def test_headers_are_decoded_from_their_text_form(header: PullMessageHeader) -> None:
    assert read_header(PullMessageHeader, header.to_ext()) == header


def test_fields_without_a_value_are_omitted() -> None:
    header = UnregisterClientHeader(client_id="c", consumer_group="g")
    assert header.to_ext() == {"clientID": "c", "consumerGroup": "g"}


def test_unknown_fields_are_ignored() -> None:
    assert read_header(QueueHeader, {"topic": "T", "queueId": "3", "new": "x"}) == QueueHeader(topic="T", queue_id=3)


def test_booleans_are_encoded_as_true_and_false() -> None:
    ext = {
        "brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "haServerAddr": "a:2", "brokerId": "0",
        "compressed": "true",
    }  # fmt: skip
    header = read_header(RegisterBrokerHeader, ext)
    assert header.compressed is True
    assert header.to_ext()["compressed"] == "true"


@pytest.mark.parametrize(
    ("ext", "field"),
    [
        (None, "topic"),
        ({}, "topic"),
        ({"topic": "T"}, "queueId"),
        ({"topic": "T", "queueId": ""}, "queueId"),
        ({"topic": "T", "queueId": "three"}, "queueId"),
        ({"topic": "T", "queueId": "1.5"}, "queueId"),
        ({"topic": "T", "queueId": "2147483648"}, "queueId"),
        ({"topic": "T", "queueId": "9" * 4000}, "queueId"),
    ],
)
def test_a_missing_or_wrong_field_is_named_in_code_1(ext: dict[str, str] | None, field: str) -> None:
    with pytest.raises(RemoteFault, match=field) as caught:
        read_header(QueueHeader, ext)
    assert caught.value.code == 1
    assert caught.value.remark.startswith("QueueHeader: ")
    assert len(caught.value.remark) < 200


def test_every_request_code_has_its_headers_in_the_table() -> None:
    assert list(REQUESTS) == sorted(RequestCode)
    assert {spec.server for spec in REQUESTS.values()} == {"broker", "nameserver", "client"}


def test_an_end_of_a_transaction_is_not_marked_as_check_back_by_default() -> None:
    ext = {
        "producerGroup": "g", "tranStateTableOffset": "3", "commitLogOffset": "4000000000", "commitOrRollback": "8",
        "msgId": "A1",
    }  # fmt: skip
    header = read_header(EndTransactionHeader, ext)
    assert (header.from_transaction_check, header.transaction_id) == (False, None)
    assert header.to_ext() == ext | {"fromTransactionCheck": "false"}
    with pytest.raises(RemoteFault, match="commitLogOffset"):
        read_header(CheckTransactionHeader, {"tranStateTableOffset": "3"})


def test_a_send_header_without_its_group_is_refused() -> None:
    with pytest.raises(RemoteFault, match="`a`"):
        read_header(SendMessageHeader, {"b": "T"})
