"""Splitting a stream into frames: complete, byte by byte, with trailing data, and invalid lengths."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting.errors import FatalRemoteFault, TlsHandshake
from gantrymq.remoting.frame import BINARY_HEADER, FRAME_MAX_BYTES, Frame, cut_frames, join_frame

GOLDEN = bytes.fromhex("0000007F0000007B") + (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":407}'
)

frames = st.builds(Frame, st.sampled_from([0, 1]), st.binary(max_size=300), st.binary(max_size=300))


def prefix(length: int, mark: int) -> bytes:
    return struct.pack(">iI", length, mark)


def test_frames_of_the_java_client_are_split_at_their_boundaries() -> None:
    (frame,), used = cut_frames(GOLDEN)
    assert used == len(GOLDEN)
    assert frame == Frame(0, GOLDEN[8:], b"")
    assert join_frame(*frame) == GOLDEN


@given(st.lists(frames, max_size=5), st.binary(max_size=3))
def test_complete_frames_are_split_off_and_trailing_bytes_remain(sent: list[Frame], trailing: bytes) -> None:
    stream = b"".join(join_frame(*frame) for frame in sent)
    got, used = cut_frames(bytearray(stream + trailing))
    assert got == sent
    assert used == len(stream)


@given(st.lists(frames, min_size=1, max_size=3))
def test_frames_received_byte_by_byte_equal_the_sent_frames(sent: list[Frame]) -> None:
    buffer = bytearray()
    got: list[Frame] = []
    for byte in b"".join(join_frame(*frame) for frame in sent):
        buffer.append(byte)
        cut, used = cut_frames(buffer)
        got += cut
        del buffer[:used]
    assert got == sent
    assert not buffer


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 3, FRAME_MAX_BYTES - 3, 2**31 - 1])
def test_a_length_out_of_bounds_is_refused_from_its_four_bytes_alone(length: int) -> None:
    with pytest.raises(FatalRemoteFault, match=f"frame length {length} "):
        cut_frames(struct.pack(">i", length))


def test_the_longest_frame_is_accepted_and_one_byte_more_is_rejected() -> None:
    assert cut_frames(prefix(FRAME_MAX_BYTES - 4, 10)) == ([], 0)
    with pytest.raises(FatalRemoteFault):
        cut_frames(prefix(FRAME_MAX_BYTES - 3, 10))


@pytest.mark.parametrize(("length", "header"), [(4, 1), (100, 97), (70_000, 69_997)])
def test_a_header_longer_than_its_frame_is_refused(length: int, header: int) -> None:
    with pytest.raises(FatalRemoteFault, match=f"header of {header} bytes"):
        cut_frames(prefix(length, header))


def test_a_header_may_be_as_long_as_its_frame() -> None:
    assert cut_frames(prefix(FRAME_MAX_BYTES - 4, FRAME_MAX_BYTES - 8)) == ([], 0)
    header = b" " * 100_000
    assert cut_frames(join_frame(0, header, b"body")) == ([Frame(0, header, b"body")], 100_012)


@pytest.mark.parametrize("version", [b"\3\0", b"\3\1", b"\3\3", b"\3\4"])
def test_a_tls_handshake_is_rejected_with_an_error_that_names_tls(version: bytes) -> None:
    with pytest.raises(TlsHandshake, match="TLS handshake"):
        cut_frames(b"\x16" + version + b"\x02\0\1\0\1\xfc")
    with pytest.raises(TlsHandshake):
        cut_frames(b"\x16" + version + b"\x02")


@pytest.mark.parametrize("start", [b"\x16\4\0\0", b"\x17\3\1\0", b"GET ", b"\x15\3\3\0"])
def test_other_invalid_lengths_are_not_reported_as_tls(start: bytes) -> None:
    with pytest.raises(FatalRemoteFault, match="frame length") as caught:
        cut_frames(start)
    assert type(caught.value) is FatalRemoteFault


@pytest.mark.parametrize("kind", [2, 127, 255])
def test_an_unknown_kind_of_header_is_refused(kind: int) -> None:
    with pytest.raises(FatalRemoteFault, match=f"unknown kind of header {kind}"):
        cut_frames(prefix(10, kind << 24 | 2))


def test_a_frame_without_header_and_body_is_valid() -> None:
    assert cut_frames(prefix(4, BINARY_HEADER << 24)) == ([Frame(1, b"", b"")], 8)


def test_a_smaller_frame_limit_is_enforced() -> None:
    frame = join_frame(0, b"{}", b"x" * 100)
    assert cut_frames(frame, limit=len(frame)) == ([Frame(0, b"{}", b"x" * 100)], len(frame))
    with pytest.raises(FatalRemoteFault):
        cut_frames(frame, limit=len(frame) - 1)
