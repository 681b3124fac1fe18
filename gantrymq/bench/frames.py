"""Requests that are encoded before the measurement starts.

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
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.properties import PGROUP, TRAN_MSG, encode_properties
from gantrymq.remoting.records import BATCH_ROW
from gantrymq.remoting.signing import Credentials

GROUP = "gantrymq-bench"
_LENGTH = struct.Struct(">i")
_OPAQUE_MARK = 1_999_999_999
SUBSCRIPTION_INLINE = 4
MAY_SUSPEND = 2
SUSPEND_MS = 5_000
PULL_BYTES = 1_048_576
"""Pulls ask GantryMQ's brokers for so much, so that an answer has as many messages as ``--batch`` says, from memory and
from the disk. RocketMQ's brokers apply their own limits."""


def body_of(load: Load) -> bytes:
    """Return the constant body of a request: one message's, or a batch's rows."""
    body = b"gantrymq-bench ".ljust(load.body_bytes, b"x")[: load.body_bytes]
    if load.batch == 1:
        return body
    row = BATCH_ROW.pack(BATCH_ROW.size + len(body) + 2, 0, 0, 0, len(body)) + body + b"\0\0"
    return row * load.batch


def sends(load: Load, body: bytes, *, sys_flag: int = 0, properties: str = "") -> Callable[[str, int, int], bytes]:
    """Return a function of topic, queue id and opaque to the frame, each encoded once. With ``body`` left out of the
    frame's end, a stamped load puts its own there."""
    code = RequestCode.SEND_BATCH_MESSAGE if load.batch > 1 else RequestCode.SEND_MESSAGE_V2
    born = str(int(time.time() * 1000))
    cut = len(body) if load.run else 0
    credentials = Credentials(load.access_key, load.secret_key) if load.access_key else None

    @cache
    def frame(topic: str, queue: int, opaque: int) -> bytes:
        ext = {
            "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": str(int(sys_flag)), "g": born,
            "h": "0", "i": properties, "j": "0", "k": "false", "m": "true" if load.batch > 1 else "false",
        }  # fmt: skip
        command = Command(code, ext, body, opaque, language="JAVA")
        whole = encode(command if credentials is None else credentials.sign(command))
        return whole[: len(whole) - cut]

    return frame


def halves(load: Load, body: bytes) -> Callable[[str, int, int], bytes]:
    """As :func:`sends`, of half messages."""
    properties = encode_properties({TRAN_MSG: "true", PGROUP: GROUP})
    return sends(load, body, sys_flag=TransactionState.PREPARED, properties=properties)


def commits(load: Load) -> Callable[[int, int, int], bytes]:
    """Return a function of log offset, queue offset and opaque to the frame that commits the half message which lies
    there."""
    header = EndTransactionHeader(
        producer_group=GROUP, tran_state_table_offset=0, commit_log_offset=0,
        commit_or_rollback=TransactionState.COMMIT, msg_id="bench", topic=load.topic,
    )  # fmt: skip
    ext = header.to_ext() | {"commitLogOffset": "LOG", "tranStateTableOffset": "QUEUE"}
    whole = encode(Command(RequestCode.END_TRANSACTION, ext, b"", _OPAQUE_MARK, language="JAVA"))[8:]
    template = whole.replace(b"%", b"%%").replace(b"LOG", b"%(log)d").replace(b"QUEUE", b"%(queue)d")
    template = template.replace(b"%d" % _OPAQUE_MARK, b"%(opaque)d")

    def frame(log_offset: int, queue_offset: int, opaque: int) -> bytes:
        text = template % {b"log": log_offset, b"queue": queue_offset, b"opaque": opaque}
        return b"".join((_LENGTH.pack(len(text) + 4), _LENGTH.pack(len(text)), text))

    return frame


def pulls(load: Load) -> Callable[[int, int, int], bytes]:
    """Return a function of queue id, opaque and offset to the frame of a pull; only the offset is put in when it is
    called."""
    flags = SUBSCRIPTION_INLINE | (MAY_SUSPEND if load.kind == "follow" else 0)
    mark = "0000000000000000000"

    @cache
    def template(queue: int, opaque: int) -> tuple[bytes, bytes]:
        ext = {
            "consumerGroup": GROUP, "topic": load.topic, "queueId": str(queue), "queueOffset": mark,
            "maxMsgNums": str(load.batch), "sysFlag": str(flags), "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS), "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            "gantrymqMaxBytes": str(PULL_BYTES),
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
