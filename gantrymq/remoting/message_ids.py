"""The broker's id of a message: the address of the broker and the log offset, in hexadecimal digits.

Address and port, then the log offset; 32 digits, 56 with IPv6. Source: RocketMQ 4.9.7
``MessageDecoder.createMessageId``. The producer's id (UNIQ_KEY) is a different one: :mod:`gantrymq.client.ids`.
"""

from __future__ import annotations

from typing import Final

_SIZES: Final = (16, 28)
_OFFSET_MASK: Final = (1 << 64) - 1


def id_prefix(store_host: bytes) -> str:
    """The common prefix of all ids of a broker. ``store_host`` has the form of a record: 8 bytes, 20 with IPv6."""
    return store_host.hex().upper()


def id_at(prefix: str, offset: int) -> str:
    """The id of the message at this log offset, behind the broker's prefix."""
    return f"{prefix}{offset & _OFFSET_MASK:016X}"


def offset_message_id(store_host: bytes, offset: int) -> str:
    """The id of the message at this log offset of the broker."""
    return id_at(id_prefix(store_host), offset)


def parse_offset_message_id(text: str) -> tuple[bytes, int]:
    """Store host and log offset of a message id. :class:`ValueError` for anything else."""
    raw = bytes.fromhex(text)
    if len(raw) not in _SIZES or len(text) != 2 * len(raw):
        raise ValueError(f"a message id has 32 or 56 hexadecimal digits, this has {len(text)} characters")
    offset = int.from_bytes(raw[-8:], "big", signed=True)
    if offset < 0:
        raise ValueError(f"no log has the offset {offset}")
    return raw[:-8], offset
