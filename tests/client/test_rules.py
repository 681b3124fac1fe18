"""The parts of the client that do no I/O: names and messages, ids, sharing of queues, progress, routes, addresses."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import Enum, IntEnum
from ipaddress import ip_address
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gantrymq
from gantrymq import InvalidMessage, InvalidName, Message, MessageQueue, NoRoute
from gantrymq.client import progress as limits
from gantrymq.client.addresses import parse_nameservers
from gantrymq.client.allocation import allocate
from gantrymq.client.checks import check_group, check_message, check_topic, encode_message_properties
from gantrymq.client.ids import UniqueKeys, make_client_id
from gantrymq.client.outgoing import (
    ONLY_KEY,
    PlainFrames,
    PlainRequest,
    encode_plain_row,
    encode_row,
    prepare_plain,
)
from gantrymq.client.progress import Progress
from gantrymq.client.routes import queues_to_publish, queues_to_subscribe
from gantrymq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from gantrymq.remoting.command import encode
from gantrymq.remoting.properties import decode_properties


def queue(number: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic="T", broker_name=broker, queue_id=number)


@pytest.mark.parametrize("name", ["T", "%RETRY%group", "a|b", "A-z_0", "x" * 127])
def test_names_accepted_by_rocketmq_are_accepted(name: str) -> None:
    check_topic(name)
    check_group(name)


@pytest.mark.parametrize("name", ["", " ", "../x", "a b", "a\0b", "a/b", "ä", "a\n", "x" * 128])
def test_topics_rejected_by_rocketmq_are_rejected(name: str) -> None:
    with pytest.raises(InvalidName, match="topic"):
        check_topic(name)


def test_a_group_may_be_longer_than_a_topic() -> None:
    check_group("g" * 255)
    with pytest.raises(InvalidName, match="255 is the limit"):
        check_group("g" * 256)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "belongs to the broker"),
        (Message("T", "text"), "bytes, not str"),  # type: ignore[arg-type]
        (Message("T", None), "bytes, not NoneType"),  # type: ignore[arg-type]
        (Message("T", b""), "empty"),
        (Message("T", bytes(4 * 1024 * 1024 + 1)), "4194305 bytes, 4194304 is the limit"),
        (Message("T", b"x", keys=["a b"]), "'a b'"),
        (Message("T", b"x", keys=[""]), "''"),
        (Message("T", b"x", properties={"TAGS": "a"}), "TAGS is reserved"),
        (Message("T", b"x", delay_level=-1), "delay level -1: levels begin with 1"),
        (Message("T", b"x", properties={"UNIQ_KEY": "a"}), "UNIQ_KEY is reserved"),
        (Message("T", b"x", tags=["paid"]), "tags is list: give a str"),  # type: ignore[arg-type]
        (Message("T", b"x", tags=b"paid"), "tags is bytes: give a str"),  # type: ignore[arg-type]
        (Message("T", b"x", keys=42), "key 42 is int: give a str"),  # type: ignore[arg-type]
        (Message("T", b"x", keys=0), "key 0 is int: give a str"),  # type: ignore[arg-type]
        (Message("T", b"x", keys=b"k"), "key b'k' is bytes: give a str"),  # type: ignore[arg-type]
        (Message("T", b"x", keys=["a", 42]), "key 42 is int: give a str"),  # type: ignore[list-item]
        (Message("T", b"x", keys=UUID(int=1)), "is UUID: give a str"),  # type: ignore[arg-type]
        (Message("T", b"x", properties={"a": b"v"}), "property 'a' is bytes: give a str"),  # type: ignore[dict-item]
        (Message("T", b"x", properties={"a": 1}), "property 'a' is int: give a str"),  # type: ignore[dict-item]
        (Message("T", b"x", properties={"a": 0}), "property 'a' is int: give a str"),  # type: ignore[dict-item]
        (Message("T", b"x", properties={"a": False}), "property 'a' is bool: give a str"),  # type: ignore[dict-item]
        (Message("T", b"x", properties={"a": None}), "property 'a' is NoneType: give a str"),  # type: ignore[dict-item]
        (Message("T", b"x", properties={1: "v"}), "the name of property 1 is int"),  # type: ignore[dict-item]
        (Message("T", b"x", properties=["a"]), "properties is list: give a mapping"),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_breaks_a_rule_is_refused_with_the_reason(message: Message, match: str) -> None:
    with pytest.raises((InvalidMessage, InvalidName), match=match):
        check_message(message)


class Tag(str, Enum):  # noqa: UP042 - its str() is not its value
    PAID = "paid"
    RESERVED = "TAGS"


class Number(IntEnum):
    SEVEN = 7


def test_enums_count_by_their_value() -> None:
    message = Message("T", b"x", Tag.PAID, [Tag.PAID], {Tag.PAID: Tag.PAID}, order_key=Tag.PAID)
    check_message(message)
    expected = {"paid": "paid", "KEYS": "paid", "TAGS": "paid", "__SHARDINGKEY": "paid", "UNIQ_KEY": "KEY"}
    assert decode_properties(encode_message_properties(message, "KEY")) == expected
    numbered = encode_message_properties(Message("T", b"x", order_key=Number.SEVEN), "KEY")
    assert decode_properties(numbered)["__SHARDINGKEY"] == "7"
    with pytest.raises(InvalidMessage, match="TAGS is reserved"):
        check_message(Message("T", b"x", properties={Tag.RESERVED: "v"}))


def test_no_keys_may_be_none() -> None:
    assert Message("T", b"x", keys=None).keys == ()  # type: ignore[arg-type]


def test_the_largest_body_is_accepted() -> None:
    check_message(Message("T", bytes(4 * 1024 * 1024)))


def test_keys_may_be_a_single_string() -> None:
    assert Message("T", b"x", keys="a  b").keys == ("a", "b")


@pytest.mark.parametrize(
    ("properties", "match"),
    [
        ({"": "v"}, "has no name"),
        ({"n": ""}, "has no value"),
        ({"n\x01": "v"}, r"U\+0001"),
        ({"n": "v\x02w"}, r"U\+0001"),
        ({"n": "\ud800"}, "not valid Unicode"),
        ({"n": "v" * 32768}, "32767 is the limit"),
        ({"n": "€" * 11000}, "32767 is the limit"),
    ],
)
def test_properties_that_cannot_be_encoded_are_rejected(properties: dict[str, str], match: str) -> None:
    with pytest.raises(InvalidMessage, match=match):
        encode_message_properties(Message("T", b"x", properties=properties), "KEY")


def test_an_empty_tag_is_rejected_and_none_means_no_tag() -> None:
    with pytest.raises(InvalidMessage, match="'TAGS' has no value"):
        encode_message_properties(Message("T", b"x", tags=""), "KEY")
    assert decode_properties(encode_message_properties(Message("T", b"x"), "KEY")) == {"UNIQ_KEY": "KEY"}


def test_unique_keys_have_the_layout_that_rocketmq_reads() -> None:
    keys = UniqueKeys("192.168.1.2")
    first, second = keys.next(), keys.next()
    assert len(first) == 32
    assert first == first.upper()
    raw = bytes.fromhex(first)
    assert raw[:4] == ip_address("192.168.1.2").packed
    today = time.localtime()
    month = time.mktime((today.tm_year, today.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    assert abs(month + int.from_bytes(raw[10:14], "big") / 1000 - time.time()) < 60
    assert int.from_bytes(bytes.fromhex(second)[14:], "big") == int.from_bytes(raw[14:], "big") + 1


def test_a_hundred_thousand_unique_keys_are_unique() -> None:
    keys = UniqueKeys("::1")
    made = {keys.next() for _ in range(100_000)}
    assert len(made) == 100_000
    assert {len(key) for key in made} == {56}


def test_two_id_generators_of_one_process_do_not_collide() -> None:
    assert UniqueKeys("10.0.0.1").next()[:20] != UniqueKeys("10.0.0.1").next()[:20]


NAMES = st.from_regex(r"[%|a-zA-Z0-9_-]{1,60}", fullmatch=True)


@given(NAMES, NAMES, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.binary(min_size=1))
def test_a_message_without_properties_is_encoded_by_template_to_the_same_bytes(
    group: str, topic: str, queue_id: int, opaque: int, body: bytes
) -> None:
    frames, keys, target = PlainFrames(group), UniqueKeys("127.0.0.1"), queue(queue_id)
    key = keys.next()
    assert encode_plain_row(body, key) == encode_row(body, ONLY_KEY + key, 0)
    for _ in range(2):
        message = prepare_plain(topic, body, keys.next())
        command = message.command(group, target)
        command.opaque = opaque
        assert PlainRequest(message, frames.template(topic, target)).encode(opaque) == encode(command)


def test_client_ids_name_the_address_and_differ() -> None:
    assert make_client_id("10.0.0.1").startswith("10.0.0.1@")
    assert len({make_client_id("10.0.0.1") for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("queues", "members", "shares"),
    [
        (8, 1, [8]),
        (8, 3, [3, 3, 2]),
        (7, 3, [3, 2, 2]),
        (2, 3, [1, 1, 0]),
        (0, 2, [0, 0]),
    ],
)
def test_queues_are_allocated_as_by_the_java_strategy(queues: int, members: int, shares: list[int]) -> None:
    names = [f"member-{number}" for number in range(members)]
    share = [allocate([queue(number) for number in range(queues)], names, name) for name in names]
    assert [len(part) for part in share] == shares
    assert [one for part in share for one in part] == [queue(number) for number in range(queues)]


@given(st.permutations(range(9)), st.permutations(["a", "b", "c", "d"]))
def test_every_member_computes_the_same_allocation_in_any_order(numbers: list[int], names: list[str]) -> None:
    got = [one for name in sorted(names) for one in allocate([queue(n) for n in numbers], names, name)]
    assert got == [queue(number) for number in range(9)]


def test_a_client_outside_the_group_is_allocated_nothing() -> None:
    assert allocate([queue(0)], ["a"], "b") == []
    assert allocate([queue(0)], [], "b") == []


@given(st.lists(st.integers(0, 30), unique=True).map(sorted), st.data())
def test_the_committable_offset_is_that_of_the_oldest_unsettled_message(
    offsets: list[int], data: st.DataObject
) -> None:
    progress = Progress(0)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(offsets))))))
    pulls = [offsets[begin:end] for begin, end in pairwise([0, *cuts, len(offsets)])]
    for at, pull in enumerate(pulls):
        progress.pulled(pull, [offset + 1 for offset in pull], float(at))
    progress.position = 40
    done: set[int] = set()
    while True:
        left = [one for one in offsets if one not in done]
        assert [one for one in range(-1, 42) if progress.is_outstanding(one)] == left
        assert progress.committable == (left[0] if left else 40)
        assert progress.outstanding == len(left)
        assert progress.bytes == sum(left) + len(left)
        since = next((float(at) for at, pull in enumerate(pulls) if left and left[0] in pull), None)
        assert progress.oldest_since() == since
        if not left:
            break
        if data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(left))
            assert progress.done(offset)
            assert not progress.done(offset)
            done.add(offset)
        else:
            pull = data.draw(st.sampled_from([each for each in pulls if each]))
            first, last = sorted(data.draw(st.tuples(st.sampled_from(pull), st.sampled_from(pull))))
            several = set(range(first, last + 1)) & set(pull)
            assert progress.done_until(first, last) == len(several - done)
            done |= several
    assert not progress.full
    assert not progress.done(41)
    assert progress.done_until(41, 42) == 0


def test_a_queue_is_limited_by_count_bytes_and_span() -> None:
    count = Progress(0)
    for offset in range(limits.OUTSTANDING_MAX_MESSAGES):
        assert not count.full
        count.pulled([offset], [1], 0.0)
    assert count.full
    count.done(500)
    assert not count.full

    size = Progress(0)
    size.pulled([0], [limits.OUTSTANDING_MAX_BYTES], 0.0)
    assert size.full
    size.done(0)
    assert not size.full

    span = Progress(0)
    span.pulled([0], [1], 0.0)
    span.position = limits.OUTSTANDING_MAX_SPAN
    assert span.full
    span.done(0)
    assert not span.full


def test_a_reset_drops_outstanding_messages() -> None:
    progress = Progress(5)
    progress.pulled([5], [limits.OUTSTANDING_MAX_BYTES], 0.0)
    progress.reset(2)
    assert (progress.committable, progress.outstanding, progress.full) == (2, 0, False)
    assert not progress.is_outstanding(5), "it will be pulled again"
    assert not progress.done(5)


def test_messages_that_a_reset_skips_remain_outstanding_without_counting() -> None:
    progress = Progress(0)
    progress.pulled([0, 1, 2], [1, 1, 1], 0.0)
    progress.pulled([4, 9], [1, 1], 0.0)
    progress.done(1)
    progress.reset(9)
    assert [offset for offset in range(10) if progress.is_outstanding(offset)] == [0, 2, 4]
    assert (progress.committable, progress.outstanding) == (9, 0)
    assert not progress.done(4)
    assert not progress.is_outstanding(4)
    progress.reset(1)
    progress.pulled([1, 2], [1, 1], 0.0)
    assert progress.done(1)
    assert progress.done(2)
    assert [offset for offset in range(10) if progress.is_outstanding(offset)] == [0]


def route(**fields: object) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=[
            QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=1, perm=6),
            QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=2, perm=6),
            QueueData(broker_name="read-only", read_queue_nums=1, write_queue_nums=1, perm=4),
            QueueData(broker_name="write-only", read_queue_nums=1, write_queue_nums=1, perm=2),
            QueueData(broker_name="slave-only", read_queue_nums=1, write_queue_nums=1, perm=6),
        ],
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs={1 if name == "slave-only" else 0: "h:1"})
            for name in ("a", "b", "read-only", "write-only", "slave-only")
        ],
        **fields,  # type: ignore[arg-type]
    )


def test_messages_are_sent_to_writable_queues_of_masters() -> None:
    assert queues_to_publish("T", route()) == [queue(0, "a"), queue(1, "a"), queue(0, "b"), queue(0, "write-only")]


def test_messages_are_read_from_readable_queues_slaves_included() -> None:
    assert queues_to_subscribe("T", route()) == [
        queue(0, "a"), queue(0, "b"), queue(1, "b"), queue(0, "read-only"), queue(0, "slave-only"),
    ]  # fmt: skip


def test_an_order_configuration_takes_precedence_over_the_brokers_queue_numbers() -> None:
    assert queues_to_publish("T", route(order_topic_conf="b:2;a:1")) == [queue(0, "b"), queue(1, "b"), queue(0, "a")]
    with pytest.raises(NoRoute, match="order configuration 'b'"):
        queues_to_publish("T", route(order_topic_conf="b"))


def test_an_order_configuration_may_end_with_a_separator() -> None:
    assert queues_to_publish("T", route(order_topic_conf="b:1;a:1;")) == [queue(0, "b"), queue(0, "a")]
    with pytest.raises(NoRoute, match="order configuration"):
        queues_to_publish("T", route(order_topic_conf="b:1;;a:1"))


def test_nameservers_are_parsed_from_text_and_lists() -> None:
    assert parse_nameservers("a:1; b:2;") == ("a:1", "b:2")
    assert parse_nameservers(["a:1", "[::1]:2"]) == ("a:1", "[::1]:2")
    assert parse_nameservers("a:1,b:2, c:3\n") == ("a:1", "b:2", "c:3")
    assert parse_nameservers(["a:1;b:2", "a:1"]) == ("a:1", "b:2")
    assert parse_nameservers("http://a:1;HTTP://b:2/") == ("a:1", "b:2")


@pytest.mark.parametrize(
    "text", ["", ";", "a", "a:b", "a:1;b", "a:99999", [], [1], "https://a:1", "http://a:1/rocketmq/nsaddr", "http://a"]
)
def test_invalid_nameserver_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|nameserver"):
        parse_nameservers(text)


def test_every_error_of_the_client_is_a_gantry_error_with_one_catch() -> None:
    names = [name for name in gantrymq.__all__ if isinstance(getattr(gantrymq, name), type)]
    errors = [getattr(gantrymq, name) for name in names if issubclass(getattr(gantrymq, name), Exception)]
    assert len(errors) == 23
    assert all(issubclass(error, gantrymq.GantryError) for error in errors)


def test_an_unknown_error_code_is_reported_by_its_number() -> None:
    assert str(gantrymq.BrokerError(12345, None, "h:1")) == "h:1 answered 12345: no remark"
    assert "create the topic first" in str(gantrymq.BrokerError(17, "r", "h:1"))


def test_a_start_that_is_a_time_has_a_timestamp() -> None:
    from gantrymq.client.options import ConsumerOptions, ConsumerSettings

    def timestamp(start: object) -> int:
        settings = ConsumerSettings.checked({"start": start})  # type: ignore[typeddict-item]
        return ConsumerOptions.checked("T", "g", gantrymq.ReceivedMessage, 1, settings)[0].start_timestamp()

    assert timestamp(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == timestamp(1000) == 1000
    with pytest.raises(ValueError, match="not a time"):
        timestamp("first")
