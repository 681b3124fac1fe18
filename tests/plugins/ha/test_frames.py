"""The wire format of replication: complete, byte by byte, and invalid; limits apply before allocation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.plugins.ha.frames import CHUNK_MAX_BYTES, HEADER, REPORT, BadFrame, Pieces, Reports

OFFSETS = st.integers(0, 2**63 - 1)


def joined(pieces: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Neighbours that continue each other as one; heartbeats stay as they are."""
    found: list[tuple[int, bytes]] = []
    for offset, data in pieces:
        if found and data and found[-1][1] and found[-1][0] + len(found[-1][1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + data)
        else:
            found.append((offset, data))
    return found


def fed(pieces: Pieces, data: bytes) -> list[tuple[int, bytes]]:
    """The pieces, copied before the next bytes arrive."""
    return [(piece.offset, bytes(piece.data)) for piece in pieces.feed(data)]


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_reports_are_decoded_complete_and_in_pieces(size: int) -> None:
    data = b"".join(REPORT.pack(offset) for offset in (0, 1, 2**62, 5))
    reports = Reports()
    found = [offset for at in range(0, len(data), size) for offset in reports.feed(data[at : at + size])]
    assert found == [0, 1, 2**62, 5]


def test_a_negative_offset_is_not_a_report() -> None:
    with pytest.raises(BadFrame, match="-1"):
        Reports().feed(REPORT.pack(-1))


@pytest.mark.parametrize("size", [1, 5, 12, 13, 1000])
def test_log_pieces_are_decoded_complete_and_in_parts(size: int) -> None:
    data = HEADER.pack(0, 10) + b"0123456789" + HEADER.pack(10, 0) + HEADER.pack(10, 2) + b"ab"
    pieces = Pieces()
    found = [piece for at in range(0, len(data), size) for piece in fed(pieces, data[at : at + size])]
    assert joined(found) == [(0, b"0123456789"), (10, b""), (10, b"ab")]


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1), (0, CHUNK_MAX_BYTES + 1), (-(2**63), 2**31 - 1)])
def test_implausible_numbers_are_rejected_before_allocation(offset: int, size: int) -> None:
    with pytest.raises(BadFrame):
        Pieces().feed(HEADER.pack(offset, size))


@given(st.lists(st.tuples(OFFSETS, st.binary(max_size=40)), max_size=6), st.lists(st.integers(1, 30), min_size=1))
def test_frames_split_anywhere_give_the_same_bytes(chunks: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(HEADER.pack(offset, len(body)) + body for offset, body in chunks)
    pieces, at, turn = Pieces(), 0, 0
    found: list[tuple[int, bytes]] = []
    while at < len(data):
        size = cuts[turn % len(cuts)]
        found += fed(pieces, data[at : at + size])
        at, turn = at + size, turn + 1
    assert joined(found) == joined(chunks)


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_random_bytes_are_rejected_or_limited(parts: list[bytes]) -> None:
    pieces, reports = Pieces(), Reports()
    for decoder in (pieces, reports):
        try:
            given_out = (
                sum(len(piece.data) for part in parts for piece in pieces.feed(part)) if decoder is pieces else 0
            )
            offsets = [offset for part in parts for offset in reports.feed(part)] if decoder is reports else []
        except BadFrame:
            continue
        assert given_out <= sum(map(len, parts))
        assert all(0 <= offset < 2**63 for offset in offsets)
