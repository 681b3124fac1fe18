"""Requests encoded before the clock starts.

Source of the batch's rows: RocketMQ 4.9.7 ``MessageDecoder.encodeMessage``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import cache

from gantrymq.bench.plan import Load
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode

GROUP = "gantrymq-bench"
_BATCH_ROW = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">i")
SUBSCRIPTION_INLINE = 4
MAY_SUSPEND = 2
SUSPEND_MS = 5_000


def body_of(load: Load) -> bytes:
    """The constant body of a request: one message's, or a batch's rows."""
    body = b"gantrymq-bench ".ljust(load.body_bytes, b"x")[: load.body_bytes]
    if load.batch == 1:
        return body
    row = _BATCH_ROW.pack(_BATCH_ROW.size + len(body) + 2, 0, 0, 0, len(body)) + body + b"\0\0"
    return row * load.batch


def sends(load: Load, body: bytes) -> Callable[[str, int, int], bytes]:
    """A function of topic, queue id and opaque to the frame, each encoded once. With ``body`` left out of the frame's
    end, a stamped load puts its own there."""
    code = RequestCode.SEND_BATCH_MESSAGE if load.batch > 1 else RequestCode.SEND_MESSAGE_V2
    born = str(int(time.time() * 1000))
    cut = len(body) if load.run else 0

    @cache
    def frame(topic: str, queue: int, opaque: int) -> bytes:
        ext = {
            "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": born, "h": "0",
            "i": "", "j": "0", "k": "false", "m": "true" if load.batch > 1 else "false",
        }  # fmt: skip
        whole = encode(Command(code, ext, body, opaque, language="JAVA"))
        return whole[: len(whole) - cut]

    return frame


def pulls(load: Load) -> Callable[[int, int, int], bytes]:
    """A function of queue id, opaque and offset to the frame of a pull; only the offset is put in when it is called."""
    flags = SUBSCRIPTION_INLINE | (MAY_SUSPEND if load.kind == "follow" else 0)
    mark = "0000000000000000000"

    @cache
    def template(queue: int, opaque: int) -> tuple[bytes, bytes]:
        ext = {
            "consumerGroup": GROUP, "topic": load.topic, "queueId": str(queue), "queueOffset": mark,
            "maxMsgNums": str(load.batch), "sysFlag": str(flags), "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS), "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        head, _, tail = encode(Command(RequestCode.PULL_MESSAGE, ext, b"", opaque, language="JAVA"))[8:].partition(
            mark.encode()
        )
        return head, tail

    def frame(queue: int, opaque: int, offset: int) -> bytes:
        head, tail = template(queue, opaque)
        number = b"%d" % offset
        size = len(head) + len(number) + len(tail)
        # the mark's high byte says JSON, which is 0: the length of the header is all there is
        return b"".join((_LENGTH.pack(size + 4), _LENGTH.pack(size), head, number, tail))

    return frame
