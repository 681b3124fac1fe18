"""Both twins of the loops of pulls decode the same headers and gather the same records."""

from __future__ import annotations

import struct
import sys
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.fast import Layout, plain_requests
from gantrymq.kernel.fast.plain import encode_rows
from gantrymq.plugins.consume import plain as plain_pulls
from gantrymq.remoting.command import Command, encode
from support.loops import Loops

pytestmark = pytest.mark.once  # it runs both twins

compiled = Loops(
    pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built"),
    pytest.importorskip("gantrymq.plugins.consume._fast", reason="the extension is not built"),
)
plain = Loops(plain_requests, plain_pulls)

LIMIT = 64 * 1024
HOSTS = [b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(range(20))]
PULL = {
    "consumerGroup": "g", "topic": "orders", "queueId": "1", "queueOffset": "7", "maxMsgNums": "32", "sysFlag": "2",
    "commitOffset": "5", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "1",
    "expressionType": "TAG",
}  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "7", "01", "-0", "+1", " 1", "1.0", "1e2", "9" * 18, "9" * 19, "2147483648", "-2147483649",
         "true", "false", "null", "TRUE", "orders", "né", "TAGS\x01é€😀", 'quoted\x01"\\/\b\f\n\r\t', "x" * 32760]
    ),
    st.text(max_size=8),
)  # fmt: skip


class Peer:
    """A connection of which nothing is asked."""


def outcome(call: Any) -> Any:
    """The result of a call, or the type and text of its exception."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@given(st.dictionaries(st.sampled_from([*PULL]), VALUES, max_size=3), st.sampled_from([0, 1]))
def test_pull_headers(changes: dict[str, str], kind: int) -> None:
    data = encode(Command(11, {**PULL, **changes}, kind=kind))
    peer: Any = Peer()
    results = []
    for twin in (plain, compiled):
        result = outcome(lambda twin=twin: twin.read_requests(peer, data, LIMIT))  # type: ignore[misc]
        if isinstance(result[0], list):
            (request,) = result[0]
            result = outcome(lambda twin=twin, request=request: twin.read_pull_header(request))  # type: ignore[misc]
        results.append(result)
    assert results[0] == results[1]


def test_a_pull_that_waits_for_its_turn_keeps_nothing_else_alive() -> None:
    data = encode(Command(999, {}, bytes(30_000))) + encode(Command(11, PULL, opaque=5))
    requests, _ = compiled.read_requests(Peer(), data, LIMIT)
    del requests[0]
    assert sys.getrefcount(data) == 3
    requests[0].own_frame()
    assert sys.getrefcount(data) == 2
    assert (requests[0].ext, requests[0].command.opaque) == (PULL, 5)


@given(
    st.lists(st.tuples(st.binary(max_size=30), st.booleans()), min_size=1, max_size=8),
    st.sampled_from([b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(range(20))]),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 0, 0, 0, 1, -1, 7]), st.integers(0, 3)), max_size=12),
    st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 255)), max_size=2),
    st.builds(
        plain_pulls.PullLimits,
        st.integers(1, 8),
        st.integers(0, 1500),
        st.integers(1, 8),
        st.integers(0, 1500),
        st.integers(0, 1500),
    ),
    st.integers(0, 400),
    st.sampled_from([None, {1, 2}, set()]),
    st.sampled_from([0, 0, 5, 300, 5000]),
    st.one_of(st.none(), st.integers(0, 1000)),
    st.one_of(
        st.none(),
        st.builds(
            plain_pulls.QueuePart,
            st.sampled_from([b"orders", b"orders", b"order", b"others", b""]),
            st.sampled_from([1, 1, 1, 2]),
            st.sampled_from([0, 0, 1, -1, 2**62]),
            st.booleans(),
        ),
    ),
)
def test_gather(
    bodies: list[tuple[bytes, bool]], store_host: bytes, asked: list[tuple[int, int, int]],
    damage: list[tuple[int, int]], limits: plain_pulls.PullLimits, oldest: int, wanted: set[int] | None, ahead: int,
    hole: int | None, part: plain_pulls.QueuePart | None,
) -> None:  # fmt: skip
    rows = AppendBatch()
    for body, six in bodies:
        rows.add("orders", 1, body, b"K\x01v", born_host=bytes(20) if six else bytes(8))
    rows.offsets, rows.sizes, rows.queue_offsets = ([0] * len(bodies) for _ in range(3))
    start = 100
    parts, _, _ = encode_rows(rows, rows.live, 0, start, 10**6, {}, Layout(store_host, 4096, 8192))
    log = bytearray(b"".join(parts))
    for at, flip in damage:
        log[at % len(log)] ^= flip
    entries = b""
    for number, more, code in asked:
        row = number % len(bodies)
        entries += struct.pack(">qiq", rows.offsets[row], rows.sizes[row] + more if number < 9 else 0x7FFFFFFF, code)
    results = []
    for twin in (plain, compiled):
        reported: list[int] = []

        def window(number: int, offset: int, size: int, reported: list[int] = reported) -> memoryview | None:
            behind = offset - start + size
            if behind > len(log) or (hole is not None and offset <= hole < offset + size):
                return None
            return memoryview(log)[offset - start : behind + (ahead if hole is None and not reported else 0)]

        matches = None if wanted is None else wanted.__contains__
        found, *counts = twin.gather(entries, limits, oldest, matches, window, reported.append, part)
        results.append((b"".join(found), counts, reported))
    assert results[0] == results[1]


@pytest.mark.parametrize("at", [2**63 - 1, 2**63 - 50, -(2**63), -1])
@pytest.mark.parametrize("size", [120, 2**31 - 2, -(2**31), 0])
def test_an_entry_that_points_beyond_64_bits_is_left_out(at: int, size: int) -> None:
    rows = AppendBatch()
    for body in (b"one", b"two"):
        rows.add("orders", 1, body, b"")
    rows.offsets, rows.sizes, rows.queue_offsets = ([0] * 2 for _ in range(3))
    parts, _, _ = encode_rows(rows, rows.live, 0, 0, 10**6, {}, Layout(HOSTS[0], 4096, 8192))
    log = b"".join(parts)
    asked = [(0, rows.sizes[0]), (at, size), (rows.offsets[1], rows.sizes[1])]
    entries = b"".join(struct.pack(">qiq", *one, 0) for one in asked)
    limits = plain_pulls.PullLimits(8, 1 << 40, 8, 1 << 40, 0)
    for twin in (plain, compiled):
        reported: list[int] = []
        found, scanned, removed, messages = twin.gather(
            entries,
            limits,
            0,
            None,
            lambda number, offset, size: log[offset:] if offset >= 0 and offset + size <= len(log) else None,
            reported.append,
            None,
        )
        assert (b"".join(found), scanned, removed, messages) == (log, 3, False, 2)
        assert reported == ([1] if at < 0 else [])
