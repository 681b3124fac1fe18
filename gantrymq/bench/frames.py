"""Requests that are encoded before the measurement starts.

Source of the batch's rows: RocketMQ 4.9.7 ``MessageDecoder.encodeMessage``.
"""

from __future__ import annotations

import hmac
import struct
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache

from gantrymq.bench.plan import Load, Target
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.headers.transactions import EndTransactionHeader, TransactionState
from gantrymq.remoting.properties import PGROUP, TRAN_MSG, encode_properties
from gantrymq.remoting.records import BATCH_ROW
from gantrymq.remoting.signing import SIGNATURE, Credentials

GROUP = "gantrymq-bench"
_LENGTH = struct.Struct(">i")
_OPAQUE_MARK = 1_999_999_999
_FIRST_OPAQUE = 2**31 - 1
"""Not the number of a slot: the benchmarks' echo server sends the first frame back, which must not count."""
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
    """Return a function of topic, queue id and opaque to the frame, each encoded once."""
    request = _sends_of(load, sys_flag, properties)
    credentials = credentials_of(load)

    @cache
    def frame(topic: str, queue: int, opaque: int) -> bytes:
        command = request(topic, queue, opaque, body)
        return encode(command if credentials is None else credentials.sign(command))

    return frame


def first_frame(load: Load, target: Target) -> bytes:
    """Return a request for a new connection. A broker closes one that sends no frame for ``limits.first_frame``, and a
    run starts only when all connections of all workers are open.

    The request is oneway, so it has no response. It changes nothing, and needs only PUB or SUB on the load's topic.
    """
    ext = {"topic": (load.topics or [load.topic])[0], "queueId": str(target.queues[0])}
    command = Command(RequestCode.GET_MIN_OFFSET, ext, b"", _FIRST_OPAQUE, ONEWAY_FLAG, language="JAVA")
    credentials = credentials_of(load)
    return encode(command if credentials is None else credentials.sign(command))


def stamped_sends(load: Load) -> Callable[[str, int, int], Callable[[bytes], bytes]]:
    """As :func:`sends`; the frames are functions of the body."""
    request = _sends_of(load, 0, "")

    @cache
    def frame(topic: str, queue: int, opaque: int) -> Callable[[bytes], bytes]:
        template = Template(load, request(topic, queue, opaque, b""), {})
        return lambda body: template.fill({}, body)

    return frame


def _sends_of(load: Load, sys_flag: int, properties: str) -> Callable[[str, int, int, bytes], Command]:
    code = RequestCode.SEND_BATCH_MESSAGE if load.batch > 1 else RequestCode.SEND_MESSAGE_V2
    born = str(int(time.time() * 1000))

    def request(topic: str, queue: int, opaque: int, body: bytes) -> Command:
        ext = {
            "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": str(int(sys_flag)), "g": born,
            "h": "0", "i": properties or load.properties, "j": "0", "k": "false",
            "m": "true" if load.batch > 1 else "false",
        }  # fmt: skip
        return Command(code, ext, body, opaque, language="JAVA")

    return request


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
    ext = header.to_ext() | {"commitLogOffset": "<log>", "tranStateTableOffset": "<queue>"}
    command = Command(RequestCode.END_TRANSACTION, ext, b"", _OPAQUE_MARK, language="JAVA")
    template = Template(load, command, {"<log>": "log", "<queue>": "queue", str(_OPAQUE_MARK): "opaque"})

    def frame(log_offset: int, queue_offset: int, opaque: int) -> bytes:
        return template.fill({b"log": log_offset, b"queue": queue_offset, b"opaque": opaque})

    return frame


def pulls(load: Load) -> Callable[[int, int, int], bytes]:
    """Return a function of queue id, opaque and offset to the frame of a pull; only the offset is put in when it is
    called, and the signature."""
    template = _pulls_of(load)
    return lambda queue, opaque, offset: template(queue, opaque).fill({b"offset": offset})


def pull_parts(load: Load) -> Callable[[int, int], tuple[bytes, bytes]]:
    """Return a function of queue id and opaque to what is before and after the offset in the header of a pull without
    a signature."""
    template = _pulls_of(load)
    return lambda queue, opaque: template(queue, opaque).around(b"offset")


def _pulls_of(load: Load) -> Callable[[int, int], Template]:
    flags = SUBSCRIPTION_INLINE | (MAY_SUSPEND if load.kind == "follow" else 0)

    @cache
    def template(queue: int, opaque: int) -> Template:
        ext = {
            "consumerGroup": GROUP, "topic": load.topic, "queueId": str(queue), "queueOffset": "<offset>",
            "maxMsgNums": str(load.batch), "sysFlag": str(flags), "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS), "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            "gantrymqMaxBytes": str(PULL_BYTES),
        }  # fmt: skip
        command = Command(RequestCode.PULL_MESSAGE, ext, b"", opaque, language="JAVA")
        return Template(load, command, {"<offset>": "offset"})

    return template


class Template:
    """A request with numbers, and a body, that are put in when it is sent; then it is signed, if the load has keys."""

    def __init__(self, load: Load, command: Command, names: Mapping[str, str]) -> None:
        """``names``: of the numbers, by the texts that stand for them."""
        credentials = credentials_of(load)
        self._secret = load.secret_key.encode()
        self._signed: bytes | None = None
        if credentials is not None:
            command = credentials.sign(command)
            assert command.ext is not None  # it has the signature
            values = [command.ext[name] for name in sorted(command.ext) if name != SIGNATURE]
            self._signed = _with_names("".join(values).encode(), names)
            command.ext[SIGNATURE] = "<signature>"
            names = {**names, "<signature>": ""}
        self._header = _with_names(encode(command)[8:], names)

    def fill(self, numbers: Mapping[bytes, int], body: bytes = b"") -> bytes:
        """Return the frame."""
        if self._signed is None:
            header = self._header % numbers
        else:
            signature = b64encode(hmac.digest(self._secret, self._signed % numbers + body, "sha1"))
            header = self._header % {**numbers, b"": signature}
        # the mark's high byte says JSON, which is 0: the length of the header is all there is
        return b"".join((_LENGTH.pack(len(header) + len(body) + 4), _LENGTH.pack(len(header)), header, body))

    def around(self, name: bytes) -> tuple[bytes, bytes]:
        """Return the parts of the header before and after the only number, which has this name."""
        before, after = self._header.split(b"%%(%s)d" % name)
        return before % {}, after % {}


def credentials_of(load: Load) -> Credentials | None:
    """The keys of a load."""
    if not load.access_key:
        return None
    return Credentials(load.access_key, load.secret_key, load.security_token or None)


def _with_names(text: bytes, names: Mapping[str, str]) -> bytes:
    """``text`` as a format of ``%``: with numbers, and bytes for the name that is empty."""
    text = text.replace(b"%", b"%%")
    for mark, name in names.items():
        text = text.replace(mark.encode(), b"%%(%s)%s" % (name.encode(), b"d" if name else b"s"))
    return text
