"""Recall handles, with which a sender recalls a timed message. RocketMQ 5.3.3 ``RecallMessageHandle``."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode

import attrs

_VERSION = "v1"


@attrs.frozen
class RecallHandle:
    """The message ``unique_key`` of ``topic``, which waits at ``broker`` until about ``time`` (ms since 1970)."""

    topic: str
    broker: str
    time: int
    unique_key: str


def encode_handle(topic: str, broker: str, time: int, unique_key: str) -> str:
    """The handle as text: base64url of the version and the parts, a blank between them."""
    return urlsafe_b64encode(f"{_VERSION} {topic} {broker} {time} {unique_key}".encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """The parts of a handle. :class:`ValueError` for an invalid one; a time that is not a number is -1, as in
    RocketMQ."""
    try:
        raw = urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("recall handle is invalid") from None
    parts = raw.split(" ")
    if len(parts) < 5 or parts[0] != _VERSION:
        raise ValueError("recall handle is invalid")
    _, topic, broker, time, unique_key = parts[:5]
    return RecallHandle(topic, broker, int(time) if time.isascii() and time.isdigit() else -1, unique_key)
