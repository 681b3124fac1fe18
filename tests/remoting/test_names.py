"""Valid names of topics and groups, and RocketMQ's error texts for invalid ones."""

from __future__ import annotations

import pytest

from gantrymq.remoting import names
from gantrymq.remoting.errors import RemoteFault


@pytest.mark.parametrize("name", ["T", "a-b_c|d%9", "%RETRY%group", "T" * 127])
def test_legal_topics_are_accepted(name: str) -> None:
    names.validate_topic(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "The specified topic is blank."),
        (" \t", "The specified topic is blank."),
        ("../x", "illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("a\0b", "illegal characters"),
        ("a b", "illegal characters"),
        ("a\n", "illegal characters"),
        ("t\u00e4", "illegal characters"),
        ("\u0661", "illegal characters"),
        ("T" * 128, "The specified topic is longer than topic max length."),
    ],
)
def test_illegal_topics_are_refused_with_code_1(name: str, text: str) -> None:
    with pytest.raises(RemoteFault) as caught:
        names.validate_topic(name)
    assert caught.value.code == 1
    assert text in caught.value.remark


@pytest.mark.parametrize("name", ["G", "CID_ONS-HTTP-PROXY", "g" * 255])
def test_legal_groups_are_accepted(name: str) -> None:
    names.validate_group(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "the specified group is blank"),
        ("a/b", "the specified group[a/b] contains illegal characters"),
        ("g\n", "illegal characters"),
        ("g" * 256, "the specified group is longer than group max length 255."),
    ],
)
def test_illegal_groups_are_refused_with_code_1(name: str, text: str) -> None:
    with pytest.raises(RemoteFault) as caught:
        names.validate_group(name)
    assert caught.value.code == 1
    assert text in caught.value.remark


def test_system_topics_are_distinguished_from_user_topics() -> None:
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_anything")
    assert not names.is_system_topic("%RETRY%g")
    names.refuse_system_topic("T")
    with pytest.raises(RemoteFault, match=r"The topic\[TBW102\] is conflict with system topic\.") as caught:
        names.refuse_system_topic("TBW102")
    assert caught.value.code == 1


def test_some_system_topics_accept_no_messages_from_clients() -> None:
    for name in ("TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "T"):
        names.refuse_unsendable_topic(name)
    with pytest.raises(RemoteFault, match="forbidden") as caught:
        names.refuse_unsendable_topic("SCHEDULE_TOPIC_XXXX")
    assert caught.value.code == 16


def test_retry_and_dead_letter_topics_are_derived_from_groups() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.is_retry_topic("%RETRY%g")
    assert names.is_dlq_topic("%DLQ%g")
    assert not names.is_retry_topic("g%RETRY%")
    assert not names.is_dlq_topic("g")
    assert names.is_system_group("TOOLS_CONSUMER")
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert not names.is_system_group("g")
