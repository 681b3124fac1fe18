"""Batch bodies are split exactly or refused as a whole; unsupported messages are refused."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.plugins.produce.validate import refuse_unhandled, split_batch, traits_of
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

GOLDEN = bytes.fromhex(
    "000000390000000000000000000000000000000568656C6C6F001E4B455953016B31206B320257414954017472756502544147530154616741"
)
"""One message of a batch as RocketMQ 4.9.7's encoder writes it."""


def encode(flag: int, body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(properties)) + properties


def test_a_captured_message_is_read() -> None:
    assert list(split_batch(GOLDEN)) == [(0, b"hello", b"KEYS\x01k1 k2\x02WAIT\x01true\x02TAGS\x01TagA")]
    assert encode(0, b"hello", b"KEYS\x01k1 k2\x02WAIT\x01true\x02TAGS\x01TagA") == GOLDEN


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)), max_size=5)
)
def test_encoded_batches_are_split(messages: list[tuple[int, bytes, bytes]]) -> None:
    assert list(split_batch(b"".join(encode(*message) for message in messages))) == messages


@pytest.mark.parametrize("cut", range(1, len(GOLDEN)))
def test_a_batch_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(RemoteFault) as caught:
        list(split_batch(GOLDEN + GOLDEN[:cut]))
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("at", "value"), [(0, 0), (0, -1), (0, 2**31 - 1), (0, 21), (16, -1), (16, 2**31 - 1), (16, 6), (16, 4)]
)
def test_lengths_that_lie_are_refused(at: int, value: int) -> None:
    lying = bytearray(GOLDEN)
    struct.pack_into(">i", lying, at, value)
    with pytest.raises(RemoteFault) as caught:
        list(split_batch(bytes(lying)))
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


@given(st.binary(max_size=200))
def test_any_bytes_are_split_or_refused(body: bytes) -> None:
    with suppress(RemoteFault):
        for _, inner, properties in split_batch(body):
            assert inner in body
            assert properties in body


@pytest.mark.parametrize(
    ("properties", "traits"),
    [
        (b"DELAY\x013", Trait.DELAY),
        (b"KEYS\x01DELAY\x02TAGS\x01a", 0),
        (b"DELAY\x010", 0),
        (b"DELAY\x0100", 0),
        (b"DELAY\x01-1", 0),
        (b"DELAY\x01-", Trait.DELAY),
        (b"DELAY\x01-99999999999", Trait.DELAY),
        (b"MYDELAY\x013", 0),
        (b"K\x01v\x02TIMER_DELAY_SEC\x013", Trait.DELAY),
        (b"TIMER_DELAY_MS\x013", Trait.DELAY),
        (b"TIMER_DELIVER_MS\x013", Trait.DELAY),
        (b"TIMER_DEL_UNIQKEY\x01T+k", 0),
        (b"MYTIMER_DELAY_MS\x013", 0),
        (b"A\x01b\x02TRAN_MSG\x01true\x02DELAY\x011", Trait.PREPARED | Trait.DELAY),
        (b"TRAN_MSG\x01false", 0),
    ],
)
def test_traits_are_read_from_the_properties(properties: bytes, traits: int) -> None:
    assert traits_of(properties) == traits


def test_rows_with_an_unserved_trait_are_refused_and_the_others_stored() -> None:
    batch = AppendBatch(traits=Trait.DELAY | Trait.PREPARED)
    for properties in (b"DELAY\x013", b"TAGS\x01a", b"TRAN_MSG\x01true"):
        batch.add("T", 0, b"x", properties)
    refuse_unhandled(batch)
    assert list(batch.live) == [1]
    assert batch.statuses == [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]
