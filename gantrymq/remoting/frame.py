"""Splits a byte stream into frames, and encodes frames. No I/O.

::

    | i32 length | i32 mark                            | header | body |
    | of what    | high byte: kind of header (0, 1)    |        |      |
    | follows    | low 24 bits: length of header       |        |      |

Source: RocketMQ 4.9.7 ``NettyDecoder``, ``RemotingCommand``; ``docs/format/frame.md`` has worked bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from gantrymq.remoting.errors import FatalRemoteFault, TlsHandshake

FRAME_MAX_BYTES = 16 * 1024 * 1024
"""The longest frame, including its length field (``com.rocketmq.remoting.frameMaxLength``)."""

JSON_HEADER = 0
BINARY_HEADER = 1

PREFIX = struct.Struct(">iI")
"""The length of the rest of the frame, and the header's length with its kind in the highest byte."""
_TLS_RECORDS = range(0x160300, 0x160305)
"""The first bytes of a TLS handshake: the record type 22 and a version, SSL 3.0 to TLS 1.3."""


class Frame(NamedTuple):
    """One frame: its kind of header (0 JSON, 1 binary), header bytes and body bytes."""

    kind: int
    header: bytes
    body: bytes


def cut_frames(buffer: bytes | bytearray | memoryview, limit: int = FRAME_MAX_BYTES) -> tuple[list[Frame], int]:
    """The whole frames at the start of ``buffer``, and their size in bytes.

    Allocates nothing for a declared length before the bytes have arrived. Raises :class:`FatalRemoteFault` for invalid
    lengths, and :class:`TlsHandshake` if the bytes are one; frames before the invalid one are lost with the connection,
    as in RocketMQ. A header may be as long as its frame, also as in RocketMQ.
    """
    if isinstance(buffer, bytearray):
        with memoryview(buffer) as view:  # a slice of a bytearray would be copied twice
            return cut_frames(view, limit)
    frames: list[Frame] = []
    position = 0
    available = len(buffer)
    while available - position >= 4:
        if available - position < 8:
            _check_length(int.from_bytes(buffer[position : position + 4], "big", signed=True), limit)
            break
        length, mark = PREFIX.unpack_from(buffer, position)
        _check_length(length, limit)
        header_length = mark & 0xFFFFFF
        kind = mark >> 24
        if header_length > length - 4:
            raise FatalRemoteFault(f"header of {header_length} bytes in a frame of {length}")
        if kind > BINARY_HEADER:
            raise FatalRemoteFault(f"unknown kind of header {kind}")
        end = position + 4 + length
        if end > available:
            break
        body_start = position + 8 + header_length
        frames.append(Frame(kind, bytes(buffer[position + 8 : body_start]), bytes(buffer[body_start:end])))
        position = end
    return frames, position


def join_frame(kind: int, header: bytes, body: bytes) -> bytes:
    """The bytes of one frame."""
    size = len(header)
    return b"".join((PREFIX.pack(4 + size + len(body), kind << 24 | size), header, body))


def _check_length(length: int, limit: int) -> None:
    if length < 4 or length + 4 > limit:
        if length >> 8 in _TLS_RECORDS:
            raise TlsHandshake
        raise FatalRemoteFault(f"frame length {length} is outside 4..{limit - 4}")
